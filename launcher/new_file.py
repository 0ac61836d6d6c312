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
    return str(path)
