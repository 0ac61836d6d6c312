"""Which key belongs to which HTTP request, and what happens to it when a process on its way dies.

Ownership: `Dispatcher._live` holds a key from `Run.generate` or `Run.ask` until its last message, its failure or the end of its handler, whichever
comes first. Every path goes through `Dispatcher.forget`.

When a process dies, what was sent to it is forgotten, keys and all, so that nothing late of it is ever taken for an answer; and once there is a way
again the request is sent again, under new keys, with the tokens that are here.
"""

import asyncio
import itertools
import secrets
import time
from array import array
from collections.abc import Callable

import msgspec

from frontend import resubmission
from frontend.cluster import ClusterView
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.reading import Listener, Said
from frontend.search import HEARD, Search
from frontend.streams import ERROR, OVERLOADED, REFUSED, UNDECIDED, ContractError, Run, Sender, Sequence
from frontend.tracing import Tracing
from messages.explain import Explained
from messages.request import Cancel
from messages.text import FINISH_STOP, Begun, Detokenized, Ended, FromTokenizer, Problem, Started, TextDelta, Texts, Tokenized


class Dispatcher:
    """Routes messages from the tokenizers to runs. `outboxes`: one per tokenizer name. `most_held` sequences wait for a way at once.

    `begun`: how many runs had got something when it last followed the cluster.
    """

    def __init__(
        self,
        name: str,
        outboxes: dict[str, Sender],
        view: ClusterView,
        metrics: Metrics,
        tracing: Tracing | None = None,
        most_held: int = resubmission.MAX_HELD,
    ) -> None:
        self.name = name
        self.begun = 0
        self._most_held = most_held
        self._tracing = tracing
        self._outboxes = outboxes
        self._view = view
        self._metrics = metrics
        self._live: dict[int, Sequence] = {}
        self._touched: list[Run] = []
        self._keys = itertools.count(secrets.randbits(62))
        self._search = Search(view, name)
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

    def open(self, timeout: float | None = None) -> Run:
        """A run on the next ready tokenizer, or one that waits for a way; it may take `timeout` seconds. Raises ApiError 503 when too many wait."""
        holding = self._view.holding
        route = None if holding or self._search.holds(time.monotonic()) else self._view.route()
        if route is None and sum(not sequence.run.sent for sequence in self._live.values()) >= self._most_held:
            raise ApiError.of(resubmission.TOO_MANY)
        return Run(self, route, UNDECIDED if holding else self._view.serving, self._view.model, timeout)

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
        sequence.run.begun = True
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
        self._tell_cancelled(run, keys)

    def _tell_cancelled(self, run: Run, keys: list[int]) -> None:
        if run.route is not None:
            self._outboxes[run.route.tokenizer].send(Cancel(keys))

    def follow(self) -> None:
        """The cluster's state or the time is another: cut off what was sent to the dead or is to be held, and send what waits and can be sent."""
        view, runs, now, dead = self._view, self._runs(), time.monotonic(), list[Run]()
        for run in runs:
            if run.begun and (view.cutting or run.serving != view.serving):
                run.fail(resubmission.REPLACED)
            elif run.route is not None and not view.stands(run.route):
                dead.append(run)
            elif run.route is not None and view.holding and not run.begun and run.question is None:
                self._cut_off(run)
        if dead and not view.holding:
            self._search.died(dead, now)
        for run in dead:
            self._cut_off(run)
        for run in self._search.next(runs, now):
            self._send_waiting(run)
        self.begun = sum(run.begun and bool(run.live) for run in runs)

    @property
    def suspects(self) -> int:
        """Requests that may have ended a process, and are out alone or wait for it."""
        return self._search.suspects(time.monotonic())

    def _runs(self) -> list[Run]:
        return list(dict.fromkeys(sequence.run for sequence in self._live.values()))

    def _cut_off(self, run: Run) -> None:
        """Nothing of what was sent counts any more: its keys are no keys of ours from now on."""
        keys = list(run.live)
        self._tell_cancelled(run, keys)
        run.route = None
        for sequence, key in zip(list(run.live.values()), self.new_keys(len(keys)), strict=True):
            self._rename(sequence, key)

    def _send_waiting(self, run: Run) -> None:
        held, now = self._view.holding and not run.begun, time.monotonic()
        route = None if held else self._view.route()
        if problem := resubmission.hopeless(run, route, now, 0.0 if held else now - max(run.arrived, self._view.released)):
            run.fail(problem)
        elif route is not None and self._is_up_to_date(run):
            run.route = route
            messages = list(run.again())
            run.sent = True
            self._search.sent(run, time.monotonic())
            if not all(self.send(route.tokenizer, message) for message in messages):
                run.fail(OVERLOADED)

    def _is_up_to_date(self, run: Run) -> bool:
        """Made, or made again, for what is served now; False when that cannot be, and the run has failed."""
        if run.serving == self._view.serving:
            return True
        try:
            run.remake(self._view.serving, self._view.model)
        except ApiError as error:
            run.fail(error.problem(), REFUSED)
            return False
        return True

    def fail_all(self, problem: Problem) -> None:
        for run in self._runs():
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
            if group.reading is not None:
                member.listener = Listener(group.reading, message.opened)
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
                sequence.run.begun = True
                self._metrics.accepted(sequence.group)

    def _on_delta(self, sequence: Sequence, message: FromTokenizer) -> None:
        if not isinstance(message, TextDelta):
            return
        if message.ids:
            sequence.run.strikes = HEARD
            self._count(sequence, len(message.ids))
            sequence.ids.extend(message.ids)
            sequence.cached = message.cached or sequence.cached
            if sequence.listener is None:
                sequence.run.push((sequence.index, message))
            else:
                self._heard(sequence, sequence.listener, message.text, len(message.ids), message)

    def _on_texts(self, message: Texts) -> None:
        """The loop that runs for every token. Raises ContractError."""
        if not len(message.keys) == len(message.texts) == len(message.tokens) or len(message.ids) != 4 * sum(message.tokens):
            raise ContractError(
                f"texts of {len(message.keys)} keys with {len(message.texts)} texts, {len(message.tokens)} counts and {len(message.ids)} bytes of ids"
            )
        now = time.monotonic()
        live, gaps, total, end = self._live, [], 0, 0
        ids = array("i", message.ids)
        for key, text, tokens in zip(message.keys, message.texts, message.tokens, strict=True):
            begin, end = end, end + tokens
            sequence = live.get(key)
            if sequence is None:
                continue
            if tokens:
                sequence.run.strikes = HEARD
                if tokens == 1:
                    sequence.ids.append(ids[begin])
                else:
                    sequence.ids.extend(ids[begin:end])
                total += tokens
                sequence.tokens += tokens
                if sequence.last_token is None:
                    self._first(sequence, now)
                else:
                    gaps.append(((now - sequence.last_token) / tokens, tokens))
                sequence.last_token = now
            if sequence.listener is not None:
                self._heard(sequence, sequence.listener, text, tokens, None)
            elif text:
                sequence.run.push((sequence.index, text))
        for key, cached in message.cached.items():
            if (sequence := live.get(key)) is not None:
                sequence.cached = cached
        self._metrics.generation_tokens.inc(total)
        self._metrics.inter_token.observe(gaps)

    def _on_ended(self, sequence: Sequence, message: FromTokenizer) -> None:
        if not isinstance(message, Ended):
            return
        if message.problem is not None and message.problem.passing and not self._view.stopping:
            self._cut_off(sequence.run)
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
        sequence.run.strikes = HEARD
        sequence.run.completion_tokens += message.completion_tokens
        sequence.run.push((sequence.index, message if sequence.listener is None else sequence.listener.end(message)))

    def _heard(self, sequence: Sequence, listener: Listener, text: str, tokens: int, message: TextDelta | None) -> None:
        """More of an answer that is read. It may be over by what it says, or be told to stop thinking."""
        sequence.closing = ""
        events = listener.hear(text, tokens)
        if events or message is not None:
            sequence.run.push((sequence.index, Said(events, message)))
        if listener.over:
            self._tell_whole(sequence)
            self._on_ended(
                sequence,
                Ended(key=sequence.key, finish=FINISH_STOP, completion_tokens=sequence.tokens, cached_tokens=sequence.cached),
            )
        elif listener.overthinks:
            self._close_reasoning(sequence, listener.close())

    def _tell_whole(self, sequence: Sequence) -> None:
        if (route := sequence.run.route) is not None:
            self._outboxes[route.tokenizer].send(Cancel([sequence.key], finished=True))

    def _close_reasoning(self, sequence: Sequence, closing: str) -> None:
        """Send the sequence again, under a new key, with `closing` behind what is here: what was computed beyond it does not count."""
        run, group, route = sequence.run, sequence.group, sequence.run.route
        if group is None or route is None:
            return
        self._tell_whole(sequence)
        sequence.closing = closing
        self._rename(sequence, *self.new_keys(1))
        message = resubmission.again(group.request, [(group.sequences.index(sequence), sequence)], sent=True)
        if not self.send(route.tokenizer, run.timed(message)):
            run.fail(OVERLOADED)

    def _rename(self, sequence: Sequence, key: int) -> None:
        """What is for its old key is for nobody."""
        run = sequence.run
        del self._live[sequence.key], run.live[sequence.key]
        sequence.key, sequence.resumed = key, sequence.resumed or run.sent
        self._live[key] = run.live[key] = sequence

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
        sequence.first_token, sequence.run.begun = now, True
        if sequence.group is not None:
            self._metrics.accepted(sequence.group)
        self._metrics.first_token.observe(now - sequence.run.arrived)
