"""What the command line tells a person and how it ends."""

import os
import shlex
import sys
from pathlib import Path

APP_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds launch.py and every package of the application."""


class LauncherError(Exception):
    """Something the user can do something about. The text says what is wrong and what to do; the command exits with `code`."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def program() -> str:
    """How this program was called, for messages that name a command to type in the same folder."""
    name = os.path.basename(sys.argv[0] or "")
    if name == "pagewire":
        return name
    python = _typed(sys.executable)
    return f"{python} -m pagewire" if name == "__main__.py" else f"{python} {_typed(str(APP_ROOT / 'launch.py'))}"


def _typed(path: str) -> str:
    """A path as a person types it: from the working directory when it is below that."""
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:
        here = ""
    return shlex.quote(path.removeprefix(here))
