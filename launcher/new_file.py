"""A file that a command is to make: checked before anything is started."""

import os
from pathlib import Path

from launcher.errors import LauncherError


def new_file(flag: str, name: str, what: str) -> str:
    """The whole path of a file that can be made for `flag`. Raises LauncherError; `what` is then said never to be written over."""
    path = Path(name).absolute()
    if path.exists() or path.is_symlink():
        raise LauncherError(f"{flag}: {name} exists already, and {what} is never written over: name a new file", 2)
    if not path.parent.is_dir():
        raise LauncherError(f"{flag}: there is no folder {path.parent}", 2)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise LauncherError(f"{flag}: no permission to make a file in {path.parent}", 2)
    try:  # permission is not all: a file system may be read-only, full, or of another kind
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        path.unlink()
    except OSError as error:
        raise LauncherError(f"{flag}: {name} cannot be made: {error.strerror}", 2) from error
    return str(path)
