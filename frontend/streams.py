"""Requests inside the cluster: which key belongs to which HTTP request, and what has arrived for it.

Ownership: `Dispatcher._live` holds a key from `Run.start` until its last message, its failure or the end of its handler, whichever comes
first. Every path goes through `Dispatcher.forget`.

Texts come as one message per step of the engine with the new text of all its sequences. A stream's `Run.writer` is called once in a turn of the
loop for all that has arrived in it, so that a token wakes no task.
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from array import array
from collections.abc import Callable
from typing import Protocol

import msgspec

from frontend.cluster import ClusterView
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.tracing import Tracing
from messages.explain import Explain, Explained
from messages.request import Cancel, Detokenize, Generate, Tokenize
from messages.sampling import SamplingParams
from messages.text import Begun, Detokenized, Ended, FromTokenizer, Problem, Started, TextDelta, Texts, Tokenized

Event = tuple[int, str | TextDelta | Ended]
"""The index of a choice and what came for it: text alone, or a message that says more."""
Question = Tokenize | Detokenize | Explain
Answer = Tokenized | Detokenized | Explained

ABORT, ERROR, REFUSED = "abort", "error", "refused"


class ContractError(ValueError):
    """A message that decoded but breaks its contract."""


class Sender(Protocol):
    """The part of transport.sockets.Outbox that is used here."""

    def send(self, message: msgspec.Struct) -> bool: ...


class Sequence:
    """One key. Times are monotonic seconds. `end` is a finish reason, ABORT, ERROR or REFUSED once it has ended (at `ended`), None before.

    `begun`: when its first token was computed, after `queued` seconds in the line and `prefilled` seconds for its prompt.
    """

    __slots__ = ("begun", "end", "ended", "first_token", "group", "index", "key", "last_token", "prefilled", "queued", "run", "started", "tokens")

    def __init__(self, key: int, index: int, run: "Run", group: "Group | None") -> None:
        self.key = key
        self.index = index
        self.run = run
        self.group = group
        self.started = False
        self.tokens = 0
        self.begun: float | None = None
        self.queued = self.prefilled = 0.0
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.end: str | None = None
        self.ended = 0.0


class Group:
    """The sequences that share one prompt, and the prompt's numbers once known. `counted`: they are in the metrics."""

    __slots__ = ("cached_tokens", "counted", "prompt_tokens", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.counted = False
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0


class Run:
    """What one HTTP request waits for. Made by `Dispatcher.open`; `close` must be called in every path.

    `n`, `max_tokens` and `sampling` are those of its last prompt. `writer`, once there is one, takes the events of each turn of the loop; it gives
    False when it cannot now, and `held` ends then.
    """

    def __init__(self, dispatcher: "Dispatcher", tokenizer: str, incarnation: int) -> None:
        self.tokenizer = tokenizer
        self.incarnation = incarnation
        self.arrived = time.monotonic()
        self.groups: list[Group] = []
        self.live: dict[int, Sequence] = {}
        self.completion_tokens = 0
        self.n = 1
        self.max_tokens: int | None = None
        self.sampling: SamplingParams | None = None
        self.writer: Callable[[], bool] | None = None
        self._dispatcher = dispatcher
        self._events: list[Event] = []
        self._answer: Answer | None = None
        self.problem: Problem | None = None
        self._wake = asyncio.Event()

    @property
    def prompt_tokens(self) -> int:
        return sum(group.prompt_tokens or 0 for group in self.groups)

    @property
    def cached_tokens(self) -> int:
        return sum(group.cached_tokens for group in self.groups)

    @property
    def generated_tokens(self) -> int:
        """So far; `completion_tokens` is of the sequences that have ended."""
        return sum(sequence.tokens for group in self.groups for sequence in group.sequences)

    @property
    def done(self) -> bool:
        """Every sequence has ended well and everything has been taken."""
        return not self.live and not self._events and self.problem is None

    def generate(self, message: Generate) -> None:
        """Send one prompt; its choices get the next indexes. Raises ApiError 503 when the tokenizer's queue is full."""
        group = Group()
        self.n, self.max_tokens, self.sampling = len(message.keys), message.stop.max_tokens, message.sampling
        first = sum(len(other.sequences) for other in self.groups)
        self.groups.append(group)
        group.sequences = [Sequence(key, first + number, self, group) for number, key in enumerate(message.keys)]
        for sequence in group.sequences:
            self._dispatcher.remember(sequence)
        self._send(message)

    async def ask(self, message: Question) -> Answer:
        """Send a question and wait for the answer. Raises ApiError."""
        self._dispatcher.remember(Sequence(message.key, 0, self, None))
        self._send(message)
        while self._answer is None:
            await self._wait()
        return self._answer

    def _send(self, message: Generate | Question) -> None:
        if not self._dispatcher.send(self.tokenizer, message):
            self.fail(Problem(status=503, code="overloaded", message="The server is overloaded; try again soon.", retry_after=2.0))
            self._raise_problem()

    async def opened(self, grace: float) -> None:
        """Wait until every prompt was accepted, then up to `grace` seconds for the first event. Raises ApiError if something was refused."""
        while any(group.prompt_tokens is None for group in self.groups):
            await self._wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while not self._events:
                    await self._wait()
        self._raise_problem()

    async def everything(self) -> list[Event]:
        """Everything, once every sequence has ended. Raises ApiError when the request failed."""
        while self.live:
            await self._wait()
        self._raise_problem()
        return self.taken()

    async def held(self) -> bool:
        """Wait until there are events that the writer could not take; False when the request is over. Raises ApiError when it failed."""
        while not self._events:
            if self.done:
                return False
            await self._wait()
        return True

    def taken(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    async def _wait(self) -> None:
        self._raise_problem()
        self._wake.clear()
        await self._wake.wait()

    def _raise_problem(self) -> None:
        if self.problem is not None:
            raise ApiError.of(self.problem)

    def accepted(self) -> None:
        """A prompt was accepted."""
        self._wake.set()

    def push(self, event: Event) -> None:
        """An event. Who waits for the end is not woken by each of them."""
        events = self._events
        events.append(event)
        if self.writer is None:
            if len(events) == 1 or not self.live:
                self._wake.set()
        elif len(events) == 1:
            self._dispatcher.touched(self)

    def write(self) -> None:
        """The turn of the loop is over: let the writer take what has arrived, and wake the task when it has something to do."""
        if self.writer is None or not self.writer() or self.done or self.problem is not None:
            self._wake.set()

    def answer(self, answer: Answer) -> None:
        self._answer = answer
        self._wake.set()

    def fail(self, problem: Problem, reason: str = ERROR) -> None:
        """End the request with `problem`: what is still running is cancelled; the handler hears of it after the events before it."""
        if self.problem is None:
            self.problem = problem
        self.close(reason)
        self._wake.set()

    def close(self, reason: str = ABORT) -> None:
        """Cancel what is still running and forget it. `reason` is its finished_reason in the metrics. May be called again."""
        if self.live:
            self._dispatcher.cancel(self, reason)


class Dispatcher:
    """Routes messages from the tokenizers to runs. `outboxes`: one per tokenizer name."""

    def __init__(self, name: str, outboxes: dict[str, Sender], view: ClusterView, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self.name = name
        self._tracing = tracing
        self._outboxes = outboxes
        self._view = view
        self._metrics = metrics
        self._live: dict[int, Sequence] = {}
        self._touched: list[Run] = []
        self._keys = itertools.count(secrets.randbits(62))
        self._handlers: dict[type, Callable[[Sequence, FromTokenizer], None]] = {
            Started: self._on_started,
            TextDelta: self._on_delta,
            Ended: self._on_ended,
            Tokenized: self._on_answer,
            Detokenized: self._on_answer,
            Explained: self._on_answer,
        }

    def __len__(self) -> int:
        return len(self._live)

    def new_keys(self, count: int) -> list[int]:
        """Keys nobody else uses: counted from a random 62-bit base."""
        return list(itertools.islice(self._keys, count))

    def open(self) -> Run:
        """A run on the next ready tokenizer. Raises ApiError 503."""
        process = self._view.choose_tokenizer()
        return Run(self, process.name, process.incarnation)

    def send(self, tokenizer: str, message: msgspec.Struct) -> bool:
        """False when the tokenizer's queue is full."""
        return self._outboxes[tokenizer].send(message)

    def remember(self, sequence: Sequence) -> None:
        self._live[sequence.key] = sequence
        sequence.run.live[sequence.key] = sequence
        self._metrics.live.set(len(self._live))

    def forget(self, sequence: Sequence, reason: str) -> None:
        """Take a key out of all maps and count how it ended."""
        del self._live[sequence.key]
        del sequence.run.live[sequence.key]
        sequence.end, sequence.ended = reason, time.monotonic()
        self._metrics.live.set(len(self._live))
        group = sequence.group
        if sequence.started and group is not None and (group.counted or reason != REFUSED):
            self._metrics.accepted(group)
            self._metrics.ended(sequence, reason)
            if self._tracing is not None:
                self._tracing.ended(sequence)

    def cancel(self, run: Run, reason: str) -> None:
        keys = list(run.live)
        for sequence in list(run.live.values()):
            self.forget(sequence, reason)
        self._outboxes[run.tokenizer].send(Cancel(keys))

    def fail_lost(self) -> None:
        """Fail the requests whose tokenizer died or was started again."""
        for run in {sequence.run for sequence in self._live.values()}:
            if problem := self._view.lost(run.tokenizer, run.incarnation):
                run.fail(problem)

    def fail_all(self, problem: Problem) -> None:
        for run in {sequence.run for sequence in self._live.values()}:
            run.fail(problem)

    def touched(self, run: Run) -> None:
        """Something has arrived for a run with a writer, which is called when this turn of the loop is over."""
        if not self._touched:
            asyncio.get_running_loop().call_soon(self._turn_over)
        self._touched.append(run)

    def _turn_over(self) -> None:
        runs, self._touched = self._touched, []
        for run in runs:
            run.write()

    def receive(self, message: FromTokenizer) -> None:
        """Called for every message of a tokenizer. What is for keys that are gone is dropped."""
        if isinstance(message, Texts):
            self._on_texts(message)
            return
        if isinstance(message, Begun):
            self._on_begun(message)
            return
        sequence = self._live.get(message.key)
        if sequence is not None:
            self._handlers[type(message)](sequence, message)

    def _on_started(self, sequence: Sequence, message: FromTokenizer) -> None:
        group = sequence.group
        if not isinstance(message, Started) or group is None or group.prompt_tokens is not None:
            return
        group.prompt_tokens = message.prompt_tokens
        for member in group.sequences:
            member.started = True
        sequence.run.accepted()

    def _on_begun(self, message: Begun) -> None:
        """Raises ContractError. What was told of a sequence before stays: it may have been computed anew."""
        if not 4 * len(message.keys) == len(message.queued) == len(message.prefilled):
            raise ContractError(f"{len(message.keys)} keys have begun with columns of {len(message.queued)} and {len(message.prefilled)} bytes")
        now = time.monotonic()
        for key, queued, prefilled in zip(message.keys, array("f", message.queued), array("f", message.prefilled), strict=True):
            sequence = self._live.get(key)
            if sequence is not None and sequence.group is not None and sequence.begun is None:
                sequence.begun, sequence.queued, sequence.prefilled = now, queued, prefilled
                self._metrics.accepted(sequence.group)

    def _on_delta(self, sequence: Sequence, message: FromTokenizer) -> None:
        if not isinstance(message, TextDelta):
            return
        if message.tokens:
            self._count(sequence, message.tokens)
        if message.text or message.logprobs or message.ids:
            sequence.run.push((sequence.index, message if message.logprobs or message.ids or message.prompt else message.text))

    def _on_texts(self, message: Texts) -> None:
        """The loop that runs for every token. Raises ContractError."""
        if not len(message.keys) == len(message.texts) == len(message.tokens):
            raise ContractError(f"texts of {len(message.keys)} keys with {len(message.texts)} texts and {len(message.tokens)} counts")
        now = time.monotonic()
        live, gaps, total = self._live, [], 0
        for key, text, tokens in zip(message.keys, message.texts, message.tokens, strict=True):
            sequence = live.get(key)
            if sequence is None:
                continue
            if tokens:
                total += tokens
                sequence.tokens += tokens
                if sequence.last_token is None:
                    self._first(sequence, now)
                else:
                    gaps.append(((now - sequence.last_token) / tokens, tokens))
                sequence.last_token = now
            if text:
                sequence.run.push((sequence.index, text))
        self._metrics.generation_tokens.inc(total)
        self._metrics.inter_token.observe(gaps)

    def _on_ended(self, sequence: Sequence, message: FromTokenizer) -> None:
        if not isinstance(message, Ended):
            return
        if message.problem is not None or message.finish is None or not sequence.started:
            problem = message.problem or Problem(status=500, code="internal_error", message="The server made a mistake; its log has more.")
            sequence.run.fail(problem, REFUSED if message.refused else ERROR)
            return
        if (missing := message.completion_tokens - sequence.tokens) > 0:
            self._count(sequence, missing)
        if sequence.group is not None and sequence is sequence.group.sequences[0]:
            sequence.group.cached_tokens = message.cached_tokens
        self.forget(sequence, message.finish)
        sequence.run.completion_tokens += message.completion_tokens
        sequence.run.push((sequence.index, message))

    def _on_answer(self, sequence: Sequence, message: FromTokenizer) -> None:
        if isinstance(message, (Tokenized, Detokenized, Explained)):
            self.forget(sequence, "stop")
            sequence.run.answer(message)

    def _count(self, sequence: Sequence, tokens: int) -> None:
        now = time.monotonic()
        sequence.tokens += tokens
        self._metrics.generation_tokens.inc(tokens)
        if sequence.last_token is None:
            self._first(sequence, now)
        else:
            self._metrics.inter_token.observe([((now - sequence.last_token) / tokens, tokens)])
        sequence.last_token = now

    def _first(self, sequence: Sequence, now: float) -> None:
        sequence.first_token = now
        if sequence.group is not None:
            self._metrics.accepted(sequence.group)
        self._metrics.first_token.observe(now - sequence.run.arrived)
