"""POST /tokenize and /detokenize, in vLLM's shapes."""

import msgspec
from aiohttp import web

from frontend import bodies, conversation, refusals
from frontend.core import Core, read_body
from frontend.errors import invalid
from frontend.json_response import json_response
from frontend.schema import DetokenizeRequest, TokenizeRequest
from frontend.streams import Answer
from messages.request import ChatPrompt, Detokenize, TextPrompt, Tokenize
from messages.text import Detokenized, Tokenized


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str


async def tokenize(core: Core, http: web.Request) -> web.Response:
    request = bodies.decode(await read_body(core, http), TokenizeRequest, refusals.TOKENIZE)
    core.check_model(request.model)
    key = core.dispatcher.new_keys(1)[0]
    message = Tokenize(frontend=core.args.name, key=key, prompt=_prompt(request), with_text=request.return_token_strs)
    found = await _ask(core, message, request.model)
    if not isinstance(found, Tokenized):
        raise TypeError(f"{type(found).__name__} for a Tokenize")
    pieces = found.pieces if request.return_token_strs else None
    return json_response(TokenizeAnswer(len(found.ids), core.view.context(), found.ids, pieces))


async def detokenize(core: Core, http: web.Request) -> web.Response:
    request = bodies.decode(await read_body(core, http), DetokenizeRequest, refusals.DETOKENIZE)
    core.check_model(request.model)
    key = core.dispatcher.new_keys(1)[0]
    found = await _ask(core, Detokenize(frontend=core.args.name, key=key, ids=request.tokens), request.model)
    if not isinstance(found, Detokenized):
        raise TypeError(f"{type(found).__name__} for a Detokenize")
    return json_response(DetokenizeAnswer(found.text))


def _prompt(request: TokenizeRequest) -> ChatPrompt | TextPrompt:
    if (request.prompt is None) == (request.messages is None):
        raise invalid("Give exactly one of prompt and messages.", "prompt")
    if request.messages is None:
        return TextPrompt(request.prompt or "", request.add_special_tokens is not False)
    if request.add_special_tokens:
        message = "add_special_tokens with messages is not supported: the chat template writes them."
        raise invalid(message, "add_special_tokens", "unsupported_parameter")
    return conversation.chat_prompt(request.messages, request.add_generation_prompt)


async def _ask(core: Core, message: Tokenize | Detokenize, model: str | None) -> Answer:
    run = core.dispatcher.open()

    def again() -> Tokenize | Detokenize:
        core.check_model(model)
        return message

    try:
        return await run.ask(message, again)
    finally:
        run.close()
