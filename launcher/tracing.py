"""The trace of a cluster, from the side of whoever starts its processes: makes the file before and closes it after."""

import contextlib
import logging
from collections.abc import Iterator

from transport import trace_file

log = logging.getLogger(__name__)


@contextlib.contextmanager
def traced(path: str | None) -> Iterator[str | None]:
    """What to tell the processes that run within the block: `path`, or None when there is to be no trace or the file cannot be made."""
    if path is None or not _begin(path):
        yield None
        return
    try:
        yield path
    finally:
        try:
            trace_file.finish(path)
        except OSError as error:
            log.error("the trace %s has no end: %s", path, error.strerror or error)


def _begin(path: str) -> bool:
    try:
        trace_file.begin(path)
    except OSError as error:
        log.error("nothing is traced: %s", error)
        return False
    return True
