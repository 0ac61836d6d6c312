"""The file of `cluster start --journal`: checked before anything is started, and locked for as long as the cluster lives."""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import LauncherError
from messages.journal import TITLE

PATIENCE_SECONDS = 5.0
"""How long the lock is waited for: of a cluster that was killed, the processes end a moment later."""
LOOK_SECONDS = 0.05


def journal_from(name: str | None) -> str | None:
    """The whole path of a journal that can be used, whether there is one yet or not. Raises LauncherError."""
    if name is None:
        return None
    if not name:
        raise LauncherError("--journal needs the name of a file", 2)
    path = Path(name).absolute()
    if not path.parent.is_dir():
        raise LauncherError(f"--journal: there is no folder {path.parent}", 2)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise LauncherError(f"--journal: no permission to make a file in {path.parent}", 2)
    if path.exists() or path.is_symlink():
        _check(path)
    with journal_lock(str(path)):
        return str(path)


def _check(path: Path) -> None:
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode):
        raise LauncherError(f"--journal: {path} is not a plain file", 2)
    if seen.st_uid != os.geteuid():
        raise LauncherError(f"--journal: {path} belongs to another user (uid {seen.st_uid})", 2)
    if stat.S_IMODE(seen.st_mode) & 0o077:
        raise LauncherError(f"--journal: {path} is open to others, and holds prompts and answers: chmod 600 {path}", 2)
    if not os.access(path, os.R_OK | os.W_OK):
        raise LauncherError(f"--journal: no permission to read and write {path}", 2)
    with path.open("rb") as file:
        if not TITLE.startswith(file.read(len(TITLE))):
            raise LauncherError(f"--journal: {path} is not a journal of this program; it is left as it is. Name another file", 2)


@contextlib.contextmanager
def journal_lock(path: str | None) -> Iterator[int]:
    """A descriptor that holds the lock of the journal at `path`, also in who inherits it; -1 for no journal. Raises LauncherError.

    The lock is a file of its own beside it, since the journal itself is another file each time it is written anew. The journal's keeper locks the
    journal too, so that a cluster that knows it under another name is found here.
    """
    if path is None:
        yield -1
        return
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LauncherError(f"--journal: {path}.lock cannot be made: {error.strerror}", 2) from error
    try:
        _wait_for(descriptor, path)
        _see_that_nobody_has(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _see_that_nobody_has(path: str) -> None:
    """Under any name. Its keeper takes the lock when it opens it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        _wait_for(file, path)
    finally:
        os.close(file)


def _wait_for(descriptor: int, path: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > limit:
                raise LauncherError(f"--journal: {path} is used by a running cluster, and can be used by one at a time only", 2) from None
            time.sleep(LOOK_SECONDS)
        except OSError as error:
            raise LauncherError(f"--journal: {path} cannot be locked: {error.strerror}", 2) from error
