"""Any JSON, and bytes that are none, at every route that takes a body: an answer or an error in the one shape, never a fault of the server."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from frontend.operations import OPERATIONS
from frontend.service import make_app
from tests.unit.test_frontend_service import make_core

PATHS = [operation.path for operation in OPERATIONS if operation.body is not None]
FIELDS = sorted({name for operation in OPERATIONS if operation.body for name in (*operation.body.__struct_fields__, *operation.neutral)})
NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0, 5e-324])
)
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["", "\0", "\ud800", "A" * 5000, "1", "64", "role", "content", "text"]))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)), max_leaves=12)
BODIES = st.one_of(VALUES, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
GOOD = {"prompt": "A", "messages": [{"role": "user", "content": "A"}], "input": "A", "tokens": [1]}
Found = tuple[str, int, str, str]
INTERNAL = re.compile(r"Traceback|\.py\b|msgspec|frontend\.|/site-packages")


@pytest.fixture(scope="module")
def send() -> Any:
    """Give it a path and bytes; it answers the path, status, content type and text."""
    loop = asyncio.new_event_loop()
    core = make_core()
    client = TestClient(TestServer(make_app(core), loop=loop), loop=loop)
    loop.run_until_complete(client.start_server())

    async def post(path: str, body: bytes) -> Found:
        async with client.post(path, data=body) as response:
            return path, response.status, response.content_type, await response.text()

    yield lambda path, body: loop.run_until_complete(post(path, body))
    loop.run_until_complete(client.close())
    loop.close()


Send = Callable[[str, bytes], Found]


def check(found: Found) -> None:
    path, status, kind, text = found
    assert status in (200, 400, 404), found
    if status == 200:
        return
    assert kind == "application/json"
    error = json.loads(text)["error"]
    more = {"details"} if path.startswith("/v1/messages") else set()  # Anthropic's clients are told details of threads
    assert set(error) - more == {"message", "type", "param", "code"}
    assert error["message"].endswith(".") or len(error["message"]) > 200
    assert len(error["message"]) < 2000
    assert not INTERNAL.search(error["message"]), error


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), value=BODIES, streamed=st.sampled_from([None, True, "x"]))
@example(path="/v1/messages", value={"thread": []}, streamed=None)
def test_any_json(send: Send, path: str, value: Any, streamed: Any) -> None:
    body = value if not isinstance(value, dict) or streamed is None else value | {"stream": streamed}
    check(send(path, json.dumps(body).encode("utf-8", "surrogatepass")))
    if isinstance(body, dict):
        needed = {name: GOOD[name] for name in GOOD if name in FIELDS and name not in body}
        own = {"/v1/chat/completions": "messages", "/v1/embeddings": "input", "/v1/responses": "input", "/detokenize": "tokens"}.get(path, "prompt")
        check(send(path, json.dumps({own: needed.get(own, GOOD[own])} | body).encode()))


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60))
def test_any_bytes(send: Send, path: str, body: bytes) -> None:
    check(send(path, body))


@pytest.mark.parametrize("field", ["prompt", "messages", "input", "metadata", "logit_bias", "stop", "tokens", "tools", "surprise"])
@pytest.mark.parametrize("levels", [2, 50, 500, 900, 1100, 20_000])
def test_deep_nesting(send: Send, field: str, levels: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = opening * levels + ("" if opening == "[" else "1") + closing * levels
        for path in PATHS:
            check(send(path, f'{{"{field}": {inner}}}'.encode()))
            check(send(path, f'{{"prompt": "A", "messages": [{{"role": "user", "content": {inner}}}], "{field}": {inner}}}'.encode()))


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1e-400", "9" * 400, "9" * 20_000, "-" + "9" * 400, "0." + "9" * 5000, "1E+308", "-0"])
def test_huge_numbers(send: Send, number: str) -> None:
    for field in ("temperature", "max_tokens", "seed", "n", "logprobs", "top_k", "priority", "min_tokens", "truncate_prompt_tokens", "surprise"):
        for path in PATHS:
            check(send(path, f'{{"prompt": "A", "input": "A", "{field}": {number}}}'.encode()))
            check(send(path, f'{{"messages": [{{"role": "user", "content": "A"}}], "{field}": {number}}}'.encode()))
    check(send("/v1/completions", f'{{"prompt": [{number}]}}'.encode()))
    check(send("/v1/completions", f'{{"prompt": "A", "logit_bias": {{"{number}": 1, "1": {number}}}}}'.encode()))
    check(send("/detokenize", f'{{"tokens": [{number}]}}'.encode()))
