"""Run directories: private, live or stale, and which cluster a command means."""

import os
import stat
from pathlib import Path

import pytest

from launcher import rundir
from launcher.errors import LauncherError
from launcher.rundir import KEPT_POISON, ClusterInfo, RunDir


@pytest.fixture
def root(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEWIRE_RUN_DIR", str(run_dir / "root"))
    return run_dir / "root"


def make(port: int) -> RunDir:
    made = RunDir.create(port)
    made.write_info(ClusterInfo(pid=1, host="127.0.0.1", port=port, url=f"http://127.0.0.1:{port}", model=f"model-{port}", started=0.0))
    return made


def test_folders_are_private_and_go_away(root: Path) -> None:
    made = make(8000)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert made.folder.parent == root
    assert made.folder.name.startswith("8000-")
    made.remove()
    assert not made.folder.exists()


def test_the_root_of_somebody_else_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o755)
    assert stat.S_IMODE(rundir.secure_root().stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(LauncherError, match="belongs to another user"):
        rundir.secure_root()


def test_a_link_as_root_is_refused(root: Path, tmp_path: Path) -> None:
    root.symlink_to(tmp_path)
    with pytest.raises(LauncherError, match="not a plain folder"):
        rundir.secure_root()


def test_a_path_too_long_for_sockets_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_RUN_DIR", str(tmp_path / ("long" * 25)))
    with pytest.raises(LauncherError, match="PAGEWIRE_RUN_DIR to a shorter path"):
        RunDir.create(8000)


def test_stale_folders_are_cleaned_and_live_ones_stay(root: Path) -> None:
    live, dead = make(8000), make(8001)
    os.close(dead.lock_fd)  # as when its supervisor was killed
    assert rundir.stale_run_dirs() == [dead.folder]
    assert [cluster.info.port for cluster in rundir.running_clusters()] == [8000]
    third = make(8002)
    assert not dead.folder.exists()
    assert live.folder.exists()
    live.remove()
    third.remove()


def test_of_two_starts_on_one_port_the_second_says_whose_it_is(root: Path) -> None:
    first = RunDir.create(8000)  # has no info.json yet
    with pytest.raises(LauncherError, match=r"port 8000 belongs to a running Pagewire cluster\. Stop it with"):
        RunDir.create(8000)
    first.remove()


def test_which_cluster_a_command_means(root: Path) -> None:
    with pytest.raises(LauncherError, match="no cluster is running"):
        rundir.choose_cluster(None)
    first = make(8000)
    assert rundir.choose_cluster(None).info.model == "model-8000"
    second = make(8001)
    with pytest.raises(LauncherError, match=r"--port: 8000 \(model-8000\), 8001 \(model-8001\)"):
        rundir.choose_cluster(None)
    assert rundir.choose_cluster(8001).folder == second.folder
    with pytest.raises(LauncherError, match="no cluster is running on port 8002"):
        rundir.choose_cluster(8002)
    first.remove()
    second.remove()


def test_the_log_of_a_failure_is_kept(root: Path) -> None:
    made = make(8000)
    assert made.keep_log(8000) is None
    (made.folder / rundir.LOG).write_text("why")
    kept = made.keep_log(8000)
    made.remove()
    assert kept is not None
    assert kept.read_text() == "why"


def test_the_steps_of_poison_requests_outlive_their_cluster_but_few_of_them(root: Path) -> None:
    for port in (8000, 8001):
        made = make(port)
        for number in range(1, KEPT_POISON):
            file = made.folder / f"poison-{number}.plan"
            file.touch()
            os.utime(file, (1e9 + 100 * port + number,) * 2)
        made.keep_poison(port)
        made.remove()
    kept = {path.name for path in root.glob("poison-*.plan")}
    assert kept == {f"poison-8000-{KEPT_POISON - 1}.plan", *(f"poison-8001-{number}.plan" for number in range(1, KEPT_POISON))}
