"""GET /v1/models and /v1/models/{id}: the one model that is served."""

from typing import Any

from aiohttp import web

from frontend.core import Core


async def list_models(core: Core, http: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [_card(core)]})


async def show_model(core: Core, http: web.Request) -> web.Response:
    core.check_model(http.match_info["id"])
    return web.json_response(_card(core))


def _card(core: Core) -> dict[str, Any]:
    return {
        "id": core.args.model_name,
        "object": "model",
        "created": core.args.created,
        "owned_by": "pagewire",
        "root": core.args.model_name,
        "parent": None,
        "max_model_len": core.view.context(),
    }
