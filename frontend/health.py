"""Health, version, metrics and the hint at the root: everything that answers before the cluster is ready."""

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from frontend.cluster import RETRY_SECONDS
from frontend.core import Core
from frontend.errors import ApiError, ErrorDetail
from frontend.json_response import json_response
from frontend.version import VERSION


class Alive(msgspec.Struct):
    status: str = "ok"


class Version(msgspec.Struct):
    version: str = VERSION


class ProcessHealth(msgspec.Struct):
    name: str
    phase: str
    detail: str
    progress: float | None
    restarts: int


class StepHealth(msgspec.Struct):
    """Sequences `running` and `waiting`. The oldest step in flight has been awaited for `awaited_seconds`, and is late at `deadline_seconds`.

    Both are 0 when no step is awaited, the latter also when none is ever late.
    """

    running: int
    waiting: int
    awaited_seconds: float
    deadline_seconds: float


class HealthBody(msgspec.Struct, omit_defaults=True):
    """`accepting`: requests are taken, and wait if need be. `error` is there on a 503, in the shape of every other error."""

    status: str
    phase: str
    reason: str | None
    accepting: bool
    steps: StepHealth | None
    processes: list[ProcessHealth]
    error: ErrorDetail | None = None


async def live(core: Core, http: web.Request) -> web.Response:
    """The HTTP process runs; nothing is said about the others."""
    return json_response(Alive())


async def ready(core: Core, http: web.Request) -> web.Response:
    """200 when requests are served: every process is ready, and no step is late. Else 503 with the reason."""
    return _health(core, core.view.reason())


async def startup(core: Core, http: web.Request) -> web.Response:
    """200 once the cluster has been ready for the first time, and from then on."""
    return _health(core, None if core.view.started else core.view.reason())


def _health(core: Core, reason: str | None) -> web.Response:
    processes = [ProcessHealth(p.name, p.phase, p.detail, p.progress, p.restarts) for p in core.view.processes]
    status = "ok" if reason is None else "unavailable"
    body = HealthBody(status, core.view.phase, reason, core.view.refusal() is None, _steps(core), processes)
    if reason is None:
        return json_response(body)
    error = core.view.unready(reason)
    body.error = error.detail()
    return json_response(body, 503, error.headers())


def _steps(core: Core) -> StepHealth | None:
    """From the scheduler's last report; None before the first."""
    scheduler = core.view.scheduler
    if scheduler is None or not (gauges := scheduler.gauges):
        return None
    running, waiting, *seconds = (gauges.get(name, 0.0) for name in ("running", "waiting", "awaited_seconds", "deadline_seconds"))
    return StepHealth(int(running), int(waiting), *seconds)


async def metrics(core: Core, http: web.Request) -> web.Response:
    """503 in the moment in which this one of several frontends does not know the numbers of the others: the sums would seem to have fallen."""
    if core.args.peers and core.view.state is None:
        raise ApiError(503, "not_ready", f"Not ready: {core.view.reason()}.", retry_after=RETRY_SECONDS)
    return web.Response(body=core.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def version(core: Core, http: web.Request) -> web.Response:
    return json_response(Version())


async def hint(core: Core, http: web.Request) -> web.Response:
    lines = (
        f"Pagewire {VERSION} serves {core.view.model}.",
        "The API is OpenAI's: POST /v1/chat/completions, POST /v1/completions, GET /v1/models.",
        "See also /docs, /openapi.json, /v1/embeddings, /v1/requests, /health, /metrics, /tokenize, /detokenize, /version.",
    )
    return web.Response(text="\n".join(lines) + "\n")
