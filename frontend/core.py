"""What every handler needs, in one value."""

import asyncio
from dataclasses import dataclass

from aiohttp import web

from frontend.args import FrontendArgs
from frontend.cluster import ClusterView
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.streams import Dispatcher

BODY_SECONDS = 60.0


@dataclass(frozen=True)
class Core:
    args: FrontendArgs
    view: ClusterView
    metrics: Metrics
    dispatcher: Dispatcher

    def check_model(self, name: str | None) -> None:
        """A request without a model gets the served one. Raises ApiError 404 for any other name."""
        if name is not None and name != self.args.model_name:
            raise ApiError(404, "model_not_found", f"the model {name[:128]!r} does not exist; this server has {self.args.model_name!r}", "model")


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 above `limit` bytes and 408 when the client sends it too slowly."""
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise ApiError(408, "timeout", f"the request body did not arrive within {BODY_SECONDS:.0f} s") from error


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the request body is larger than {limit} bytes")
