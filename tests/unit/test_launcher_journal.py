"""The journal's file as `cluster start` sees it: fit to be used, and used by one cluster at a time."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from frontend.responses.journal_file import JournalFile
from launcher import journal
from launcher.errors import LauncherError
from launcher.journal import journal_from, journal_lock
from launcher.specs import ClusterOptions, cluster_specs
from messages.journal import TITLE


def test_none_is_none() -> None:
    assert journal_from(None) is None
    with pytest.raises(LauncherError, match="name of a file"):
        journal_from("")
    with journal_lock(None) as descriptor:
        assert descriptor == -1


def test_a_file_that_is_not_there_yet_is_not_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert journal_from("journal") == str(tmp_path / "journal")
    assert not (tmp_path / "journal").exists()


def test_what_is_no_file_of_ours_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, words in (("open", "chmod 600"), ("folder", "not a plain file"), ("link", "not a plain file"), ("no/such", "there is no folder")):
        with pytest.raises(LauncherError, match=words) as error:
            journal_from(str(tmp_path / name))
        assert error.value.code == 2
    (tmp_path / "open").chmod(0o600)
    assert journal_from(str(tmp_path / "open")) == str(tmp_path / "open")


@pytest.mark.parametrize(("content", "good"), [(b"", True), (TITLE[:5], True), (TITLE + b"x", True), (b"Dear all", False), (b"pagewire j\n", False)])
def test_what_is_no_journal_is_refused_before_anything_is_started(tmp_path: Path, content: bytes, good: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    if good:
        assert journal_from(str(path)) == str(path)
    else:
        with pytest.raises(LauncherError, match="is not a journal of this program") as error:
            journal_from(str(path))
        assert error.value.code == 2
    assert path.read_bytes() == content


def test_a_journal_in_use_is_known_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE_SECONDS", 0.1)
    file, other = JournalFile(tmp_path / "journal"), tmp_path / "other"
    other.hardlink_to(tmp_path / "journal")
    with pytest.raises(LauncherError, match="is used by a running cluster") as error:
        journal_from(str(other))
    assert error.value.code == 2
    file.close()
    assert journal_from(str(other)) == str(other)


def test_a_second_cluster_is_refused_until_the_last_process_of_the_first_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock belongs to who inherits it too: a frontend may outlive a launcher that was killed by a moment."""
    monkeypatch.setattr(journal, "PATIENCE_SECONDS", 0.2)
    path = str(tmp_path / "journal")
    with journal_lock(path) as descriptor:
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
        with pytest.raises(LauncherError, match="is used by a running cluster"):
            journal_from(path)
        heir = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    try:
        with pytest.raises(LauncherError, match="is used by a running cluster"):
            journal_from(path)
    finally:
        heir.kill()
        heir.wait()
    assert journal_from(path) == path


def test_the_first_frontend_keeps_it_and_the_others_know(tmp_path: Path) -> None:
    options = ClusterOptions(model_path="/m", model_name="m", port=8000, frontends=3, journal="/j")
    specs = {spec.name: spec for spec in cluster_specs(options, "/run", journal_fd=7)}
    told = {name: (getattr(specs[name].args, "keeper", None), getattr(specs[name].args, "journal", None)) for name in specs if "frontend" in name}
    assert told == {"frontend0": ("frontend0", "/j"), "frontend1": ("frontend0", None), "frontend2": ("frontend0", None)}
    assert {name for name, spec in specs.items() if 7 in spec.descriptors} == {"frontend0"}
    without = cluster_specs(ClusterOptions(model_path="/m", model_name="m", port=8000), "/run")
    assert [(getattr(spec.args, "keeper", ""), spec.descriptors) for spec in without] == [("", ())] * len(without)
