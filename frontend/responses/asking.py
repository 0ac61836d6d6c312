"""What a response asks of the model besides its conversation: tools, reasoning and the form of its text, as the chat request that asks the same.

It is read from the response object, so that one that comes back from the journal is made as it was to be made, for the model that is served then.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from frontend import chat, effort
from frontend.core import Core
from frontend.field_names import RESPONSES
from frontend.forms import JsonSchema, ResponseFormat
from frontend.generation import Job, fitted
from frontend.responses.body import FunctionChoice, ResponseBody, TextFormat
from frontend.responses.fields import read
from frontend.responses.turns import Turn
from frontend.schema import ChatRequest
from messages.request import Generate

FORM = RESPONSES.form


def chat_of(body: ResponseBody, turns: Sequence[Turn] = ()) -> ChatRequest:
    """The chat request with these messages."""
    named = body.tool_choice
    return ChatRequest(
        messages=list(turns),
        model=body.model,
        tools=[_tool(tool) for tool in body.tools],
        tool_choice={"type": "function", "function": {"name": named.name}} if isinstance(named, FunctionChoice) else named,
        parallel_tool_calls=body.parallel_tool_calls,
        thinking_budget=body.thinking_budget,
        response_format=_form(body.text.format),
    )


def job_of(core: Core, body: ResponseBody, request: ChatRequest | None = None) -> Job:
    """How it is asked and read, for the model that is served when its parts are called. Raises ApiError 400 for what cannot be asked.

    `request`: what `chat_of` has made of it, with more.
    """
    return chat.job_of(core, chat_of(body) if request is None else request, effort.thinks(body.reasoning.effort), RESPONSES)


def addressed(core: Core, model: str, work: Generate, job: Job) -> Generate:
    """`work` as it is sent: from this frontend, under a new key. Raises ApiError 404 when `model`, which the response names, is served no more."""
    core.check_model(model)
    sent = msgspec.structs.replace(work, frontend=core.args.name, incarnation=core.args.incarnation, keys=core.dispatcher.new_keys(1))
    return fitted(job, sent)


def _tool(tool: msgspec.Raw) -> dict[str, Any]:
    fields = read(tool, "tools")
    del fields["type"]
    return {"type": "function", "function": {name: value for name, value in fields.items() if value is not None}}


def _form(wanted: TextFormat) -> ResponseFormat | None:
    if wanted.type == "json_schema" and not isinstance(wanted.schema, msgspec.UnsetType):
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=read(wanted.schema, FORM)))
    return ResponseFormat(type="json_object") if wanted.type == "json_object" else None
