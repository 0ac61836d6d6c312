"""Asking for responses, and playing the tokenizer of those that run in the background."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import openai

from messages.request import ChatPrompt, Generate
from messages.text import Ended, Started, TextDelta
from tests.support.frontend_peers import TIMEOUT, Frontend, Peers, silent
from tests.support.waiting import wait_until

PATH = "/v1/responses"


def client_of(frontend: Frontend, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{frontend.url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)


def conversation(message: Generate) -> list[tuple[str, Any]]:
    """Roles and contents of the prompt."""
    assert isinstance(message.prompt, ChatPrompt)
    messages = [{name: msgspec.msgpack.decode(value) for name, value in said.items()} for said in message.prompt.messages]
    return [(said["role"], said["content"]) for said in messages]


def begun(frontend: Frontend, peers: Peers, **body: Any) -> tuple[str, Generate]:
    """A response in background mode whose tokenizer has only taken it in: its id, and what the tokenizer was sent."""
    peers.script = silent
    while not peers.received.empty():
        peers.received.get_nowait()
    status, _, answer = frontend.post(PATH, {"input": "A", "background": True, **body})
    assert (status, answer["status"], answer["output"], answer["usage"]) == (200, "queued", [], None)
    message: Generate = peers.expect(Generate)
    peers.send(Started(message.keys[0], 5))
    return answer["id"], message


def told(peers: Peers, message: Generate, *texts: str, end: bool = True) -> None:
    """The tokenizer says these texts, one token each, and, with `end`, that the answer has two tokens."""
    for text in texts:
        peers.send(TextDelta(message.keys[0], text, [7]))
    if end:
        peers.send(Ended(key=message.keys[0], finish="stop", completion_tokens=2))


def response(frontend: Frontend, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(frontend.get(f"{PATH}/{name}")[2])
    return found


def wait_for(frontend: Frontend, name: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The response once it is as `wanted`."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.clear()
        found.update(response(frontend, name))
        return wanted(found)

    wait_until(look)
    return found


def ended(frontend: Frontend, name: str) -> dict[str, Any]:
    return wait_for(frontend, name, lambda found: found["status"] not in ("queued", "in_progress"))


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])
