"""GET /v1/models and /v1/models/{id}: the one model that is served."""

import msgspec
from aiohttp import web

from frontend.core import Core
from frontend.json_response import json_response


class ModelCard(msgspec.Struct, kw_only=True):
    """`max_model_len`: the longest prompt and answer together, in tokens; null while the model is loading."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "pagewire"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


async def list_models(core: Core, http: web.Request) -> web.Response:
    return json_response(ModelList(data=[_card(core)]))


async def show_model(core: Core, http: web.Request) -> web.Response:
    core.check_model(http.match_info["id"])
    return json_response(_card(core))


def _card(core: Core) -> ModelCard:
    name = core.view.model
    return ModelCard(id=name, created=core.view.created, root=name, max_model_len=core.view.context())
