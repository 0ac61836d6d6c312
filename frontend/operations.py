"""What each route takes and gives, for the description of the API: the Structs are those that the handlers decode and encode."""

from dataclasses import dataclass, field

import msgspec

from frontend import anthropic_request, refusals
from frontend.answers import ChatChoice, ChatChunkChoice, CompletionChoice, Usage
from frontend.anthropic_answer import CountBody, MessageBody
from frontend.anthropic_request import CountRequest, MessagesRequest
from frontend.cancelling import CancelledBody
from frontend.cards import Card
from frontend.catalogue import ModelCard, ModelList
from frontend.embeddings import EmbeddingBody
from frontend.explain import CardList
from frontend.generation import WholeBody
from frontend.health import Alive, HealthBody, Version
from frontend.live.control import Intake
from frontend.refusals import Neutral
from frontend.responses.body import DeletedBody, ItemList, ResponseBody
from frontend.responses.events import Event
from frontend.responses.fields import LOGPROBS
from frontend.responses.request import ResponsesRequest
from frontend.responses.schemas import FIELDS
from frontend.schema import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from frontend.tokens import DetokenizeAnswer, TokenizeAnswer

TEXT, HTML, JSON, EVENTS = "text/plain", "text/html", "application/json", "text/event-stream"
COMMON = (400, 405, 500)
"""Every route may answer with these."""
READY = (503,)
ORDERS = (403, 409, 503)
BODY = (404, 408, 413, 415, 417)
GENERATES = (429, 499, 504)


class Chunk(msgspec.Struct):
    """One event of a completions stream.

    `usage` only where it was asked for: in the last event, which has no choices; in the others it is null, or what was used so far.
    """

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ChatChunk(msgspec.Struct):
    """One event of a chat stream; `usage` as in Chunk."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `body`: what it takes, and `neutral` which other fields at values that change nothing.

    `gives`: the Struct of a 200, or None for what is not JSON (`media`). `events`: what one event of its stream holds. `errors`: statuses besides
    COMMON. `also`: other statuses with the shape of the answer. `fields`: of the body, those whose schema their type does not say. `anthropic`:
    errors and events have the shapes of Anthropic's API.
    """

    method: str
    path: str
    tag: str
    summary: str
    gives: type[msgspec.Struct] | object | None = None
    media: str = JSON
    body: type[msgspec.Struct] | None = None
    neutral: dict[str, Neutral] = field(default_factory=dict)
    events: type[msgspec.Struct] | object | None = None
    errors: tuple[int, ...] = ()
    also: tuple[int, ...] = ()
    query: dict[str, dict[str, object]] = field(default_factory=dict)
    anthropic: bool = False
    fields: dict[str, dict[str, object]] = field(default_factory=dict)


def _get(path: str, tag: str, summary: str, **more: object) -> Operation:
    return Operation(method="get", path=path, tag=tag, summary=summary, **more)  # type: ignore[arg-type]


def _post(path: str, tag: str, summary: str, body: type[msgspec.Struct], gives: object, **more: object) -> Operation:
    return Operation(method="post", path=path, tag=tag, summary=summary, body=body, gives=gives, **more)  # type: ignore[arg-type]


ALL = (*BODY, *READY, *GENERATES)
LIFE: dict[str, dict[str, object]] = {"life": {"type": "boolean", "default": False}}
LIMIT: dict[str, dict[str, object]] = {"limit": {"type": "integer", "minimum": 1, "maximum": 256, "default": 100}}
_BOOLEAN: dict[str, object] = {"type": "boolean", "default": False}
_INCLUDED: dict[str, dict[str, object]] = {
    name: {"type": "array", "items": {"const": LOGPROBS}} for name in ("include", "include[]")
}
RESUMED: dict[str, dict[str, object]] = {
    "stream": _BOOLEAN, "starting_after": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, **_INCLUDED,
}  # fmt: skip
LISTED: dict[str, dict[str, object]] = {
    **_INCLUDED,
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}
OPERATIONS = (
    _post(
        "/v1/chat/completions", "Generation", "Answer a conversation", ChatRequest, WholeBody[ChatChoice],
        neutral=refusals.CHAT, events=ChatChunk, errors=ALL,
    ),
    _post(
        "/v1/completions", "Generation", "Continue one prompt or several, or score them", CompletionRequest, WholeBody[CompletionChoice],
        neutral=refusals.COMPLETION, events=Chunk, errors=ALL,
    ),
    _post(
        "/v1/messages", "Generation", "Answer a conversation, in the shapes of Anthropic's Messages API", MessagesRequest, MessageBody,
        neutral=anthropic_request.NEUTRAL, events=MessageBody, errors=ALL, anthropic=True,
    ),
    _post(
        "/v1/messages/count_tokens", "Tokens", "How many tokens a conversation is, in the shapes of Anthropic's Messages API", CountRequest,
        CountBody, neutral=anthropic_request.NEUTRAL, errors=(*BODY, *READY), anthropic=True,
    ),
    _post(
        "/v1/responses", "Responses", "Answer a conversation, with typed events, at once or in the background", ResponsesRequest, ResponseBody,
        neutral=refusals.RESPONSES, events=Event, errors=ALL, fields=FIELDS,
    ),
    _get(
        "/v1/responses/{id}", "Responses", "A response that is kept, or the events of one in the background", gives=ResponseBody, events=Event,
        errors=(404, *READY), query=RESUMED,
    ),
    Operation(
        method="delete", path="/v1/responses/{id}", tag="Responses", summary="Forget a response, and end it if it runs", gives=DeletedBody,
        errors=(404, *READY),
    ),
    Operation(
        method="post", path="/v1/responses/{id}/cancel", tag="Responses", summary="End a response that runs in the background", gives=ResponseBody,
        errors=(404, *READY),
    ),
    _get("/v1/responses/{id}/input_items", "Responses", "What a response was made of", gives=ItemList, errors=(404, *READY), query=LISTED),
    _post(
        "/v1/embeddings", "Generation", "The pooled last hidden states of texts", EmbeddingRequest, EmbeddingBody,
        neutral=refusals.EMBEDDING, errors=ALL,
    ),
    _post(
        "/tokenize", "Tokens", "A text, or a conversation, as token ids", TokenizeRequest, TokenizeAnswer,
        neutral=refusals.TOKENIZE, errors=(*BODY, *READY),
    ),
    _post(
        "/detokenize", "Tokens", "Token ids as text", DetokenizeRequest, DetokenizeAnswer, neutral=refusals.DETOKENIZE, errors=(*BODY, *READY),
    ),
    _get("/v1/models", "Models", "The model that is served, as a list", gives=ModelList, errors=READY),
    _get("/v1/models/{id}", "Models", "The model that is served", gives=ModelCard, errors=(404, *READY)),
    _get("/v1/requests", "Requests", "The requests that run now, newest first", gives=CardList, query=LIMIT),
    Operation(method="delete", path="/v1/requests", tag="Requests", summary="Cancel all requests of the caller", gives=CancelledBody),
    _get("/v1/requests/{id}", "Requests", "Where a request is and what it waits for", gives=Card, errors=(404,), query=LIFE),
    Operation(method="delete", path="/v1/requests/{id}", tag="Requests", summary="Cancel a request", gives=Card, errors=(404,)),
    _get("/health", "Server", "Whether requests are served", gives=HealthBody, also=(503,)),
    _get("/health/ready", "Server", "Whether requests are served", gives=HealthBody, also=(503,)),
    _get("/health/startup", "Server", "Whether the server has been ready once", gives=HealthBody, also=(503,)),
    _get("/health/live", "Server", "The HTTP process runs", gives=Alive),
    _get("/metrics", "Server", "Figures in Prometheus' format", media=TEXT),
    _get("/version", "Server", "The version of Pagewire", gives=Version),
    _get("/openapi.json", "Server", "This description", media=JSON),
    _get("/docs", "Server", "This description as a page", media=HTML),
    _get("/", "Server", "The live page for browsers, else a hint for people", media=TEXT),
    _get("/static/{name}", "Server", "A file of the live page", media=HTML, errors=(404,)),
    _get("/live/events", "Server", "What the cluster does, as a stream of events for the live page", media=EVENTS, errors=(429, *READY)),
    Operation(method="post", path="/live/drain", tag="Server", summary="Take no more requests", gives=Intake, errors=ORDERS),
    Operation(method="post", path="/live/resume", tag="Server", summary="Take requests again", gives=Intake, errors=ORDERS),
)  # fmt: skip
