"""What the command line tells a person and how it ends."""

import os
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
    """How this program was called, for messages that name a command to type."""
    name = os.path.basename(sys.argv[0] or "")
    return "pagewire" if name in {"pagewire", "__main__.py"} else "python launch.py"
