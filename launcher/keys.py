"""`keys add`, `keys limit`, `keys list` and `keys remove`: the file of API keys that `cluster start --api-keys FILE` reads."""

import argparse
import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from launcher.errors import LauncherError
from transport.key_file import UNLIMITED, KeyFileError, KeyLimits, KeyLine, new_key, parse, read_keys
from transport.private_file import PrivateFileError

HEAD = "# API keys of Pagewire: name:sha256$SALT$HASH[:admin,tenant=T,requests=N,rpm=N,tpm=N]. The keys themselves are not here.\n"


def default_path() -> Path:
    """$XDG_CONFIG_HOME/pagewire/keys, else ~/.config/pagewire/keys."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pagewire" / "keys"


def run_add(args: argparse.Namespace) -> int:
    """Entry point of `keys add`: the key alone goes to standard output, this once."""
    path = _path(args)
    with _usable(path.parent), _changing(path) as lines:
        key, line = new_key(args.name, args.tenant, args.admin, _limits(args, UNLIMITED))
        parse([*lines, line.text()], str(path))
        _write(path, [*lines, line.text()])
    print(key)
    print(f"This key is shown only now; {path} keeps a hash of it. Clusters started with --api-keys {path} take it within seconds.", file=sys.stderr)
    return 0


def run_limit(args: argparse.Namespace) -> int:
    """Entry point of `keys limit`."""
    path = _path(args)
    with _usable(path.parent), _changing(path) as lines:
        place = next((number for number, text in enumerate(lines) if text.partition(":")[0].strip() == args.name), None)
        if place is None:
            raise LauncherError(f"{path} has no key named {args.name}")
        [line] = parse([lines[place]], str(path))
        line = msgspec.structs.replace(line, limits=_limits(args, line.limits))
        _write(path, [*lines[:place], line.text(), *lines[place + 1 :]])
    print(f"{args.name}: {', '.join(line.limits.options()) or 'no limits'}; clusters take it within seconds", file=sys.stderr)
    return 0


def _limits(args: argparse.Namespace, before: KeyLimits) -> KeyLimits:
    """What was named, and the rest as before."""
    named = {name: value for name in KeyLimits.__struct_fields__ if (value := getattr(args, name)) is not None}
    return msgspec.structs.replace(before, **named)


def run_remove(args: argparse.Namespace) -> int:
    """Entry point of `keys remove`."""
    path = _path(args)
    with _usable(path.parent), _changing(path) as lines:
        kept = [text for text in lines if text.partition(":")[0].strip() != args.name]
        if len(kept) == len(lines):
            raise LauncherError(f"{path} has no key named {args.name}")
        _write(path, kept)
    print(f"removed {args.name}; clusters refuse its key within seconds, and requests that run go on", file=sys.stderr)
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Entry point of `keys list`."""
    for line in load(str(_path(args))):
        print("  ".join([line.name.ljust(24), f"tenant {line.tenant}", *(["admin"] if line.admin else []), *line.limits.options()]))
    return 0


def load(path: str) -> list[KeyLine]:
    """The keys of a file. Raises LauncherError when it cannot be used."""
    try:
        return read_keys(path)
    except (KeyFileError, PrivateFileError) as error:
        raise LauncherError(f"API keys: {error}", 2) from error


def _path(args: argparse.Namespace) -> Path:
    return Path(args.file).resolve() if args.file else default_path().resolve()


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Make the folder; errors of the file system and of keys become sentences."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise LauncherError(f"{error.filename or folder}: {error.strerror}") from error
    except (KeyFileError, PrivateFileError) as error:
        raise LauncherError(str(error), 2) from error


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """The file's lines, checked, while nobody else changes it."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():
            read_keys(path)
            yield path.read_text("ascii").splitlines()
        else:
            yield HEAD.splitlines()
    finally:
        os.close(folder)


def _write(path: Path, lines: list[str]) -> None:
    """All at once: a cluster that reads it meanwhile sees the old file or the new one."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
