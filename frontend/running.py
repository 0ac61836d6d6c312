"""A request to a generating endpoint while it runs: where its record, the register and its run begin and end together."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from frontend.access import CALLER
from frontend.core import Core
from frontend.middleware import REQUEST_ID
from frontend.record import RECORD
from frontend.register import Entry


@contextmanager
def running(core: Core, http: web.Request, id_prefix: str, stream: bool, priority: int, timeout: float | None) -> Iterator[Entry]:
    """Its entry, with a run on the way there is, of at most `timeout` seconds; in the end what still runs is cancelled.

    Raises ApiError 503 when too many wait for a way.
    """
    run = core.dispatcher.open(timeout)
    entry = Entry(id_prefix + secrets.token_hex(16), http[REQUEST_ID], http.path, stream, priority, run, http[CALLER].name)
    http[RECORD].entry = entry
    core.register.enter(entry)
    try:
        yield entry
    finally:
        run.close()
        core.register.leave(entry)
