"""Keeps what ended the worker, in files of the run directory."""

import logging
import time
from pathlib import Path

import msgspec

from messages.poison import MOST_POISON_BYTES, POISON_FILES, POISON_MAGIC, Poison
from transport.marked_file import packed
from transport.private_file import create_private

log = logging.getLogger(__name__)

MOST_FILES = 8


def keep_poison(folder: Path, poison: Poison) -> Path | None:
    """A new file poison-N.plan, for its owner alone; the oldest goes when there are MOST_FILES. None when it cannot be made, which is logged."""
    content = packed(POISON_MAGIC, msgspec.structs.replace(poison, time=time.time()))
    if len(content) > MOST_POISON_BYTES:
        log.error("the steps of the request are not kept: they take %d bytes", len(content))
        return None
    kept = sorted(folder.glob(POISON_FILES), key=_number)
    path = folder / POISON_FILES.replace("*", str(_number(kept[-1]) + 1 if kept else 1))
    try:
        for old in kept[: max(0, len(kept) + 1 - MOST_FILES)]:
            old.unlink()
        with create_private(path) as file:
            file.write(content)
    except OSError as error:
        log.error("the steps of the request are not kept: %s", error)
        return None
    return path


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("poison-")
    return int(digits) if digits.isdecimal() else 0
