"""Files of one message: a line that says what they are, then a MessagePack-encoded Struct."""

from pathlib import Path
from typing import TypeVar

import msgspec

Content = TypeVar("Content", bound=msgspec.Struct)


class MarkedFileError(ValueError):
    """Such a file cannot be read. The text says why."""


def packed(mark: bytes, content: msgspec.Struct) -> bytes:
    """The bytes of such a file."""
    return mark + msgspec.msgpack.encode(content)


def read_marked(path: Path, mark: bytes, most: int, kind: type[Content], what: str) -> Content:
    """What a file of `most` bytes at most holds. `what`: that, for people. Raises MarkedFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise MarkedFileError(f"{path} cannot be read: {error.strerror}") from error
    if not content.startswith(mark) or len(content) > most:
        raise MarkedFileError(f"{path} does not hold {what}, or those of another version of Pagewire")
    try:
        return msgspec.msgpack.decode(content[len(mark) :], type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MarkedFileError(f"{path} is damaged: {error}") from error
