"""DELETE /v1/requests: the end of everything that runs or waits."""

import asyncio

import msgspec
from aiohttp import web

from frontend.access import CALLER
from frontend.core import Core
from frontend.errors import ApiError, invalid
from frontend.json_response import json_response
from frontend.responses import background


class CancelledBody(msgspec.Struct, kw_only=True):
    """How many requests were ended. `unanswered`: the frontends that have not said in time whether they ended theirs."""

    object: str = "requests.cancelled"
    cancelled: int
    unanswered: list[str]


async def cancel_requests(core: Core, http: web.Request) -> web.Response:
    """End the requests of the caller's key, of all clients when it is an administrator's or none is needed."""
    for name in http.query:
        raise invalid(f"Unknown parameter {name[:64]!r}.", name[:64], "unknown_parameter")
    owner = http[CALLER].owner
    here, (theirs, silent) = await asyncio.gather(cancel_here(core, owner), core.peers.find(cancel=True, owner=owner))
    return json_response(CancelledBody(cancelled=here + sum(found.cancelled for found in theirs), unanswered=silent))


async def cancel_here(core: Core, owner: str | None) -> int:
    """End what this frontend has of `owner`, or of everybody; how many there were. Those in the background end too, also while they wait to run.

    One whose end cannot be written to the journal now is not counted.
    """
    entries = core.register.newest(owner)
    kept = [one for one in core.responses.store.running.values() if one.stop is not None and (owner is None or one.key == owner)]
    names = {one.id for one in kept}
    foreground = [entry for entry in entries if entry.id not in names]
    for entry in foreground:
        entry.cancel()
    ended = await asyncio.gather(*(background.cancel(core, one) for one in kept), return_exceptions=True)
    for problem in ended:
        if isinstance(problem, BaseException) and not isinstance(problem, ApiError):
            raise problem
    return len(foreground) + sum(problem is None for problem in ended)
