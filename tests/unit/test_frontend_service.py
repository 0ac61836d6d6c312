"""No handler blocks the event loop (blockbuster raises where one does)."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from blockbuster import BlockBuster, blockbuster_ctx

from frontend import peers
from frontend.args import FrontendArgs
from frontend.cluster import ClusterView
from frontend.core import Core
from frontend.dispatcher import Dispatcher
from frontend.metrics import Metrics
from frontend.operations import OPERATIONS
from frontend.peers import Peers
from frontend.responses.journal import Journal
from frontend.responses.journal_file import JournalFile
from frontend.service import make_app
from messages.cluster import READY, ClusterState, ProcessState
from messages.request import Detokenize, Generate, Tokenize
from messages.text import Detokenized, Ended, FromTokenizer, Started, TextDelta, Tokenized
from tests.support.outbox import FakeOutbox

SCHEDULER = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})



class Echo:
    """An outbox whose tokenizer answers from the loop's next turn."""

    def __init__(self) -> None:
        self.dispatcher: Dispatcher | None = None

    def send(self, message: msgspec.Struct) -> bool:
        for answer in self._answers(message):
            assert self.dispatcher is not None
            asyncio.get_running_loop().call_soon(self.dispatcher.receive, answer)
        return True

    def _answers(self, message: msgspec.Struct) -> Iterator[FromTokenizer]:
        if isinstance(message, Generate):
            yield Started(message.keys[0], 1)
            for key in message.keys:
                yield TextDelta(key, "x", [7])
                yield Ended(key=key, finish="stop", completion_tokens=1)
        if isinstance(message, Tokenize):
            yield Tokenized(message.key, [1])
        if isinstance(message, Detokenize):
            yield Detokenized(message.key, "x")


def make_core() -> Core:
    args = FrontendArgs(name="frontend0", incarnation=1, run_dir="", host="", port=0, model_name="m", tokenizers=["tokenizer0"], created=0)
    view = ClusterView(args.tokenizers, clock=lambda: 0.0)  # never silent, however long a test takes
    tokenizer = ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY)
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[tokenizer, SCHEDULER]))
    metrics = Metrics("m", view)
    outbox = Echo()
    outbox.dispatcher = Dispatcher("frontend0", {"tokenizer0": outbox}, view, metrics)
    return Core(args, view, metrics, outbox.dispatcher)


@pytest.fixture
def blocking_is_an_error() -> Iterator[BlockBuster]:
    with blockbuster_ctx("frontend") as buster:
        yield buster


async def test_no_handler_blocks_the_loop(tmp_path: Path, blocking_is_an_error: BlockBuster) -> None:
    core = make_core()
    core.responses.journal = Journal(await asyncio.to_thread(JournalFile, tmp_path / "journal"))
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
    posts: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True, "n": 3}),
        ("/v1/completions", {"prompt": ["A", "B"], "stream": True}),
        ("/v1/responses", {"input": "A"}),
        ("/v1/responses", {"input": "A", "stream": True}),
        ("/v1/responses", {"input": "A", "background": True, "stream": True}),
        ("/v1/embeddings", {"input": ["A", "B"]}),
        ("/tokenize", {"prompt": "A"}),
        ("/detokenize", {"tokens": [1]}),
    ]
    async with TestClient(TestServer(make_app(core))) as client:
        for path, body in posts:
            async with client.post(path, json=body, headers={"X-Request-Id": "m"}) as response:
                assert (path, response.status) == (path, 200)
                await response.read()
        async with client.post("/v1/responses", json={"input": "A", "background": True}) as response:
            kept = (await response.json())["id"]
        async with client.post(f"/v1/responses/{kept}/cancel") as response:
            assert response.status == 200
        asked = {(operation.method, operation.path) for operation in OPERATIONS if operation.method != "post"}
        for method, path in sorted(asked, key=lambda one: (one[0] == "delete", one[1])):
            filled = path.replace("{id}", kept if path.startswith("/v1/responses") else "m").replace("{name}", "app.js")
            async with client.request(method, filled) as response:
                assert (path, response.status) == (path, 200)
        await asyncio.to_thread(core.responses.journal.close)
    assert len(core.dispatcher) == 0


async def test_a_silent_frontend_may_have_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PATIENCE_SECONDS", 0.01)
    core = dataclasses.replace(make_core(), peers=Peers("frontend0", {"frontend1": FakeOutbox()}))
    async with TestClient(TestServer(make_app(core))) as client:
        for method in ("get", "delete"):
            async with client.request(method, "/v1/requests/x") as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], response.headers["Retry-After"]) == (503, "not_ready", "1")
                assert "frontend1" in error["message"]
        async with client.get("/v1/requests") as response:
            assert await response.json() == {"object": "list", "data": [], "has_more": False, "unanswered": ["frontend1"]}
