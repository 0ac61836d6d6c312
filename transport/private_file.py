"""Files for their owner alone: made so, and those with secrets read only when nobody else can change or, as a stranger, read them."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 1 << 20
FORBIDDEN = 0o027
"""Mode bits such a file must not have: writing by the group, anything by others."""

Mark = tuple[int, int, int]
"""Changes when a file does."""


class PrivateFileError(ValueError):
    """A file that is not fit to be used. The text says why and what to do."""


def create_private(path: str | Path, buffering: int = -1) -> BinaryIO:
    """A new file that only its owner can read; `buffering` as in `open`. Raises OSError, also when there is one already."""
    return open(path, "xb", buffering, opener=lambda name, flags: os.open(name, flags, 0o600))


def read_private(path: str | Path) -> bytes:
    """The whole file, at most MAX_BYTES. Symbolic links are followed (mounted secrets are such). Raises PrivateFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}") from error
    try:
        _check(os.fstat(descriptor), path)
        content = os.read(descriptor, MAX_BYTES + 1)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise PrivateFileError(f"{path} is larger than {MAX_BYTES} bytes")
    return content


def _check(seen: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise PrivateFileError(f"{path} is not a plain file")
    if seen.st_uid not in (os.geteuid(), 0):
        raise PrivateFileError(f"{path} belongs to another user (uid {seen.st_uid})")
    if mode := stat.S_IMODE(seen.st_mode) & FORBIDDEN:
        raise PrivateFileError(f"{path} is open to others (mode bits {mode:04o} too many): chmod 600 {path}")


def mark(path: str | Path) -> Mark | None:
    """What tells one version of a file from another; None when there is no such file."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino
