"""Mixed traffic for tests that run for long: every kind of request, good and bad, and clients that leave in the middle of an answer."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.cluster import Cluster

WORDS = ["river", "mill", "harbour", "bridge", "orchard", "engineer", "spring", "railway", "seventeen", "counts", "hills", "town", "sea", "old"]
COMMON = "You are the keeper of the bridges. You answer in one short sentence, and you never count a bridge twice."
PATIENCE = 240.0
ROOM = 64
"""Tokens of the context that a long prompt leaves to its answer and to what the template adds."""
MOST_WRONG = 100


@dataclass(frozen=True)
class Call:
    """One request and the status it must get. `body`: JSON, or bytes as they are."""

    kind: str
    path: str
    body: dict[str, Any] | bytes
    status: int = 200

    @property
    def streamed(self) -> bool:
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


@dataclass
class Traffic:
    """Draws calls, sends them and counts how they ended. `context`: tokens of the cluster's longest sequence; `leaving`: share of clients that leave.

    `ended` counts by kind, `left` those whose client left, `wrong` says what was not as it must be.
    """

    cluster: Cluster
    context: int
    seed: int = 1
    leaving: float = 0.2
    answer_tokens: int = 24
    ended: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._usual: dict[str, float] = {}
        self._kinds: list[tuple[Callable[[], Call], int]] = [
            (self._chat_stream, 28), (self._chat, 14), (self._stream, 14), (self._choices, 6), (self._logprobs, 6), (self._scored, 2),
            (self._stops, 8), (self._constrained, 4), (self._long, 4), (self._embedding, 5), (self._tokenize, 3), (self._bad, 10),
        ]  # fmt: skip

    async def clients(self, count: int, going: Callable[[], bool]) -> None:
        """So many at once, each with one request after the other, as long as they are `going`."""
        timeout, connector = aiohttp.ClientTimeout(total=PATIENCE), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.cluster.url, timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(self._client(session, going) for _ in range(count)))

    async def requests(self, count: int, at_once: int) -> None:
        """So many in all."""
        left = iter(range(count))
        await self.clients(at_once, lambda: next(left, None) is not None)

    async def _client(self, session: aiohttp.ClientSession, going: Callable[[], bool]) -> None:
        chances, weights = zip(*self._kinds, strict=True)
        while going():
            [make] = self._chance.choices(chances, weights)
            call = make()
            leaves = call.status == 200 and self._chance.random() < self.leaving
            try:
                await self._send(session, call, self._chance.random() * self._usual.get(call.kind, 1.0) if leaves else None)
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                self._say(f"{call.kind}: {type(error).__name__} {error}")

    def _say(self, what: str) -> None:
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(what[:500])

    async def _send(self, session: aiohttp.ClientSession, call: Call, leave_after: float | None) -> None:
        """With `leave_after` the client goes so many seconds after it asked, if the answer is not whole then."""
        begun = time.monotonic()
        data = call.body if isinstance(call.body, bytes) else json.dumps(call.body).encode()
        try:
            async with (
                asyncio.timeout(leave_after),
                session.post(call.path, data=data, headers={"Content-Type": "application/json"}) as response,
            ):
                whole = await response.read()
        except TimeoutError:
            if leave_after is None:
                raise
            self.left[call.kind] += 1
            return
        self.ended[call.kind] += 1
        seconds = time.monotonic() - begun
        self._usual[call.kind] = 0.9 * self._usual.get(call.kind, seconds) + 0.1 * seconds
        if response.status != call.status:
            self._say(f"{call.kind}: {response.status} instead of {call.status}: {whole[:300]!r}")
        elif call.streamed and (b'"error"' in whole or not whole.endswith(b"data: [DONE]\n\n")):
            self._say(f"{call.kind}: a stream that ends {whole[-300:]!r}")

    # Kinds

    def _words(self, least: int, most: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=self._chance.randint(least, most)))

    def _chat_body(self, **more: Any) -> dict[str, Any]:
        messages = [{"role": "system", "content": COMMON}, {"role": "user", "content": self._words(3, 30)}]
        return {"model": self.cluster.model, "messages": messages, "max_tokens": self._chance.randint(1, self.answer_tokens), **more}

    def _body(self, **more: Any) -> dict[str, Any]:
        return {"model": self.cluster.model, "prompt": self._words(3, 30), "max_tokens": self._chance.randint(1, self.answer_tokens), **more}

    def _chat_stream(self) -> Call:
        return Call("chat stream", "/v1/chat/completions", self._chat_body(stream=True, stream_options={"include_usage": True}))

    def _chat(self) -> Call:
        return Call("chat", "/v1/chat/completions", self._chat_body(temperature=0))

    def _stream(self) -> Call:
        return Call("stream", "/v1/completions", self._body(stream=True, ignore_eos=True, seed=self._chance.randrange(2**40)))

    def _choices(self) -> Call:
        return Call("choices", "/v1/completions", self._body(n=self._chance.randint(2, 4), stream=self._chance.random() < 0.5))

    def _logprobs(self) -> Call:
        return Call("logprobs", "/v1/chat/completions", self._chat_body(logprobs=True, top_logprobs=5, stream=self._chance.random() < 0.5))

    def _scored(self) -> Call:
        return Call("scored prompt", "/v1/completions", self._body(logprobs=2, echo=True))

    def _stops(self) -> Call:
        return Call("stops", "/v1/completions", self._body(stop=[" the", "a", "\n\n"], stream=self._chance.random() < 0.5, top_p=0.9))

    def _constrained(self) -> Call:
        return Call("constrained", "/v1/completions", self._body(logit_bias={"40": 5.0}, repetition_penalty=1.2, bad_words=["river"], min_tokens=1))

    def _long(self) -> Call:
        ids = [self._chance.randrange(40, 240) for _ in range(self._chance.randint(self.context // 2, self.context - ROOM))]
        return Call("long prompt", "/v1/completions", self._body(prompt=ids, stream=True))

    def _embedding(self) -> Call:
        inputs = [self._words(3, 20) for _ in range(self._chance.randint(1, 3))]
        return Call("embedding", "/v1/embeddings", {"model": self.cluster.model, "input": inputs})

    def _tokenize(self) -> Call:
        return Call("tokenize", "/tokenize", {"model": self.cluster.model, "prompt": self._words(10, 200)})

    def _bad(self) -> Call:
        body = self._body()
        bad: list[tuple[dict[str, Any] | bytes, int]] = [(b"{:", 400), (b"[" * 10_000, 400), (body | {"model": "nobody"}, 404)]
        refused: list[dict[str, Any]] = [
            {"max_tokens": 0}, {"nonsense": 1}, {"prompt": [10**6]}, {"prompt": "a b " * self.context}, {"n": 1000}, {"stop": [""]},
        ]  # fmt: skip
        bad += [(body | change, 400) for change in refused]
        wrong, status = self._chance.choice(bad)
        return Call("bad", "/v1/completions", wrong, status)
