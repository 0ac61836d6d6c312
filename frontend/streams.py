"""Requests inside the cluster: what one HTTP request has sent, and what has arrived for it.

Texts come as one message per step of the engine with the new text of all its sequences. A stream's `Run.writer` is called once in a turn of the
loop for all that has arrived in it, so that a token wakes no task.
"""

import asyncio
import contextlib
import time
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from frontend import resubmission
from frontend.cluster import Route
from frontend.errors import ApiError
from frontend.reading import Came, Listener, Reading, Said
from messages.explain import Explain, Explained
from messages.request import Detokenize, Generate, Tokenize
from messages.sampling import SamplingParams
from messages.text import Detokenized, Problem, Tokenized

if TYPE_CHECKING:
    from frontend.dispatcher import Dispatcher

Event = tuple[int, Came]
"""The index of a choice and what came for it."""
Question = Tokenize | Detokenize | Explain
Answer = Tokenized | Detokenized | Explained
M = TypeVar("M")
Make = Callable[[], M]

UNDECIDED = -1
"""Of a request that came while another model is loaded: it is made for whatever serves then."""
ABORT, ERROR, REFUSED = "abort", "error", "refused"
GRACE_SECONDS = 1.0
LOOK_EVENTS = 16
EVENT_BYTES, MESSAGE_BYTES, LOGPROB_BYTES, ID_BYTES = 112, 400, 200, 36
SLOW_READER = Problem(status=499, code="slow_reader", message="The client has not read what was written for it.")
OVERLOADED = Problem(status=503, code="overloaded", message="The server is overloaded; try again soon.", retry_after=2.0)


class ContractError(ValueError):
    """A message that decoded but breaks its contract."""


class Sender(Protocol):
    """The part of transport.sockets.Outbox that is used here."""

    def send(self, message: msgspec.Struct) -> bool: ...


class Sequence:
    """One key at a time. Times are monotonic seconds. `end` is a finish reason, ABORT, ERROR or REFUSED once it has ended (at `ended`), None before.

    `ids`: the tokens whose text is here, `cached`: those of the prompt that were cached when the first came. `begun`: when that was computed, after
    `queued` seconds in the line and `prefilled` seconds for its prompt. `listener` reads its text, where it is read. `closing`: a text that it was
    told to go on with, until that is here. `resumed`: it was sent again under another key, and what was known of the first is gone.
    """

    __slots__ = (
        "begun", "cached", "closing", "end", "ended", "first_token", "group", "ids", "index", "key", "last_token", "listener", "prefilled", "queued",
        "resumed", "run", "started", "tokens",
    )  # fmt: skip

    def __init__(self, key: int, index: int, run: "Run", group: "Group | None") -> None:
        self.key = key
        self.index = index
        self.run = run
        self.group = group
        self.started = False
        self.tokens = 0
        self.ids = array("i")
        self.cached = 0
        self.begun: float | None = None
        self.queued = self.prefilled = 0.0
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.end: str | None = None
        self.ended = 0.0
        self.listener: Listener | None = None
        self.closing = ""
        self.resumed = False


class Group:
    """The sequences that share one prompt, and the prompt's numbers once known. `request`: as it was first sent; `counted`: it is in the metrics.

    `make` makes the request for the model that is served when it is called. Raises ApiError when that is not what was asked for. `read` says how its
    answers are read, if they are: `reading`.
    """

    __slots__ = ("cached_tokens", "counted", "make", "prompt_tokens", "read", "reading", "request", "sequences")

    def __init__(self, request: Generate, make: "Make[Generate] | None" = None, read: "Make[Reading | None] | None" = None) -> None:
        self.request = request
        self.make = make or (lambda: request)
        self.read = read or (lambda: None)
        self.reading = self.read()
        self.sequences: list[Sequence] = []
        self.counted = False
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0


class Run:
    """What one HTTP request waits for. Made by `Dispatcher.open`; `close` must be called in every path.

    `n`, `max_tokens` and `sampling` are those of its last prompt. `writer`, once there is one, takes the events of each turn of the loop; it gives
    False when it cannot now, and `held` ends then.

    `question`: what is asked, in a run that does not generate. `route` is the way it was sent, None while it waits for one; `sent`: it was sent
    once. `deadline`: when it must have ended; the scheduler sees to it, and when nothing has come of that GRACE_SECONDS later the run does.
    `strikes` and `lone_deaths`: how often it was cut off by the death of a process since tokens came for it, and with nothing else out (see
    `frontend.search`). `begun`: something was generated. `serving` and `model`: the processes it is for, and what they serve.
    """

    def __init__(self, dispatcher: "Dispatcher", route: Route | None, serving: int = 0, model: str = "", timeout: float | None = None) -> None:
        self.route = route
        self.serving, self.model = serving, model
        self.begun = False
        self.sent = route is not None
        self.strikes = self.lone_deaths = 0
        self.arrived = time.monotonic()
        self.deadline = None if timeout is None else self.arrived + timeout
        self.groups: list[Group] = []
        self.live: dict[int, Sequence] = {}
        self.completion_tokens = 0
        self.n = 1
        self.max_tokens: int | None = None
        self.sampling: SamplingParams | None = None
        self.writer: Callable[[], bool] | None = None
        self._dispatcher = dispatcher
        self._events: list[Event] = []
        self.question: Question | None = None
        self._make: Make[Question] | None = None
        self._answer: Answer | None = None
        self.problem: Problem | None = None
        self._wake = asyncio.Event()
        self._weighed = self._weight = 0
        self._clock = None if timeout is None else asyncio.get_running_loop().call_later(timeout + GRACE_SECONDS, self.fail, resubmission.EXPIRED)

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
    def reasoning_tokens(self) -> int | None:
        """So far; None where no reasoning is looked for."""
        if not any(group.reading is not None and group.reading.reasoning is not None for group in self.groups):
            return None
        listeners = (sequence.listener for group in self.groups for sequence in group.sequences)
        return sum(listener.reasoning_tokens for listener in listeners if listener is not None)

    @property
    def done(self) -> bool:
        """Every sequence has ended well and everything has been taken."""
        return not self.live and not self._events and self.problem is None

    def generate(self, message: Generate, make: "Make[Generate] | None" = None, read: "Make[Reading | None] | None" = None) -> None:
        """Send one prompt, or let it wait for a way; its choices get the next indexes. Raises ApiError 503 when the tokenizer's queue is full.

        `make`, `read`: see Group; without `make` the message is for any model.
        """
        group = Group(message, make, read)
        self.n, self.max_tokens, self.sampling = len(message.keys), message.stop.max_tokens, message.sampling
        first = sum(len(other.sequences) for other in self.groups)
        self.groups.append(group)
        group.sequences = [Sequence(key, first + number, self, group) for number, key in enumerate(message.keys)]
        for sequence in group.sequences:
            self._dispatcher.remember(sequence)
        self._send(self.timed(message))

    async def ask(self, message: Question, make: "Make[Question] | None" = None) -> Answer:
        """Send a question and wait for the answer; `make` as in `generate`. Raises ApiError."""
        self.question, self._make = message, make
        self._dispatcher.remember(Sequence(message.key, 0, self, None))
        self._send(message)
        while self._answer is None:
            await self._wait()
        return self._answer

    def timed(self, message: Generate) -> Generate:
        """With the time that is left."""
        if self.deadline is None:
            return message
        return msgspec.structs.replace(message, timeout=max(0.0, self.deadline - time.monotonic()))

    def _send(self, message: Generate | Question) -> None:
        if self.route is not None and not self._dispatcher.send(self.route.tokenizer, message):
            self.fail(OVERLOADED)
            self._raise_problem()

    def again(self) -> Iterator[Generate | Question]:
        """Whatever of it has not ended, to be sent: for the first time, or with what is here."""
        if self.question is not None:
            yield from (msgspec.structs.replace(self.question, key=key) for key in self.live)
        for group in self.groups:
            rest = [(number, sequence) for number, sequence in enumerate(group.sequences) if sequence.key in self.live]
            if rest:
                yield self.timed(resubmission.again(group.request, rest, self.sent))

    def remake(self, serving: int, model: str) -> None:
        """Nothing has been generated, and it is to go to other processes: what they are asked is made anew. Raises ApiError."""
        for group in self.groups:
            made, request = group.make(), group.request
            group.reading = group.read()
            group.request, group.prompt_tokens = msgspec.structs.replace(made, keys=request.keys, seeds=request.seeds), None
            for sequence in group.sequences:
                sequence.started, sequence.cached, sequence.listener = False, 0, None
        if self._make is not None:
            self.question = self._make()
        self.serving, self.model = serving, model

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
        self._weighed = self._weight = 0
        return events

    def weight(self) -> int:
        """About how many bytes of memory the events take that have not been taken. Looks at new ones only."""
        self._weight += sum(map(_weight, self._events[self._weighed :]))
        self._weighed = len(self._events)
        return self._weight

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
        """An event. Who waits for the end is not woken by each of them. A writer that cannot take them looks now and then at how many there are."""
        events = self._events
        events.append(event)
        if self.writer is None:
            if len(events) == 1 or not self.live:
                self._wake.set()
        elif len(events) % LOOK_EVENTS == 1:
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
        if self._clock is not None:
            self._clock.cancel()
        if self.live:
            self._dispatcher.cancel(self, reason)


def _weight(event: Event) -> int:
    """Of the tuple and what is in it, as CPython keeps it."""
    said = event[1]
    if isinstance(said, str):
        return EVENT_BYTES + len(said)
    if isinstance(said, Said):
        size = EVENT_BYTES + sum(EVENT_BYTES + len(getattr(part, "text", "")) for part in said.events)
        if said.message is None:
            return size
        return size + _weight((0, said.message))
    scored = sum(LOGPROB_BYTES * (1 + len(token.top)) for token in (*said.logprobs, *said.prompt))
    return MESSAGE_BYTES + len(said.text) + scored + ID_BYTES * (len(said.ids) + len(said.prompt_ids))
