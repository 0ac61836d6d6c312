"""The scheduler as a state machine: messages and a clock go in, messages come out. No sockets, no time, no randomness of its own."""

import logging
import math
from collections.abc import Callable

import msgspec
import numpy as np

from messages.admit import Abort, Admit, FromTokenizerProc
from messages.explain import Explain
from messages.plan import Attach
from messages.poison import Poison
from messages.result import Attached, FromWorker, Prepared, StepFailed, StepResult, WorkerReady
from messages.text import Problem
from messages.tokens import FINISH_ERROR, Refused
from scheduler.args import SchedulerArgs
from scheduler.bias import Bias, bias_of
from scheduler.checks import check
from scheduler.deadlines import Deadlines
from scheduler.delivery import Sampled, failure, read_result
from scheduler.door import DUPLICATE, EXPIRED, Door
from scheduler.errors import ContractError, InvariantError
from scheduler.explain import Scene, explain
from scheduler.fence import Fence, keys_of
from scheduler.finish import COUNTER_OF
from scheduler.forecast import Forecast
from scheduler.gauges import gauges
from scheduler.geometry import Geometry, geometry_of
from scheduler.grammars import DEADLY, Grammars, unusable
from scheduler.live import Live
from scheduler.newest import take_in
from scheduler.pace import Pace
from scheduler.policy import Policy
from scheduler.requests import WAITING, Arrival, Request, fit, read_admit, request_of
from scheduler.resumed import sequences_of
from scheduler.scores import delivered
from scheduler.session import InFlight, Session
from scheduler.shares import Shares
from scheduler.step_sizes import StepSizes
from scheduler.suspects import Suspects
from scheduler.tally import Tally
from scheduler.waiting import Waiting, score
from transport.columns import I32

log = logging.getLogger(__name__)

POISON, STEP_FAILED = "poison_request", "step_failed"
Outgoing = tuple[str, msgspec.Struct]


class Engine:
    """Feed it with `receive` (one message), then call `advance` and send what `take` gives, in order.

    `new_session` gives session ids that are never repeated. `now` is in seconds of any steady clock. Every accepted key ends exactly once:
    finished, cancelled or error. `worker_incarnation` is the newest of the worker's that was heard of.
    """

    def __init__(self, args: SchedulerArgs, new_session: Callable[[], int]) -> None:
        self.tally, self.step_sizes = Tally(), StepSizes()
        self.session: Session | None = None
        self._args = args
        self._new_session = new_session
        self._attaching: int | None = None
        self._found: list[Poison] = []
        self.worker_incarnation = self._arrivals = 0
        self._tokenizers = {name: number for number, name in enumerate(args.tokenizers)}
        self._live = Live()
        self._shares = Shares()
        self._waiting = Waiting(self._shares)
        self._pace = Pace(args.target_itl, args.chunk_tokens)
        self._policy = Policy(self._waiting, self._shares, self._pace)
        self._suspects = Suspects()
        self._forecast = Forecast(self.tally, self._pace, args.run_ahead)
        self._door = Door(args, self._waiting, self._live, self.tally, self._forecast)
        self._fence = Fence()
        self._grammars = Grammars()
        self._now = self._progress = self._excused = 0.0
        self.deadlines = Deadlines(args.step_deadline, self._suspects)
        self._out: list[Outgoing] = []

    # What comes in

    def open(self) -> None:
        """Ask for a worker that is there already: one that outlived the scheduler before this one will not say again that it is ready."""
        self._attach()

    def receive(self, message: FromTokenizerProc | FromWorker, now: float) -> None:
        """Take one message in. Raises ContractError when its content breaks the contract; nothing of it has been used then."""
        self._now = now
        match message:
            case StepResult():
                self._on_result(message, now)
            case Admit():
                self._on_admit(message, now)
            case Abort():
                self._cancel(message.keys, "finished_stop" if message.finished else "cancelled")
            case WorkerReady():
                self._on_ready(message)
            case Attached():
                self._on_attached(message, now)
            case StepFailed():
                self._on_failed(message)
            case Prepared():
                self._on_prepared(message)
            case _:
                self._on_explain(message)

    def advance(self, now: float) -> None:
        """End what is out of time, then compose and send plans as far as the run-ahead allows."""
        self._now = now
        for request in self._live.due(now):
            self.tally.add("expired")
            self._fail(request, EXPIRED)
        if self.session is not None:
            orders, alone = self._grammars.orders(self.session, self._suspects.trial, now)
            self._out += [(self._args.worker, order) for order in orders]
            if alone:
                return
        while (session := self.session) is not None and session.may_plan:
            composition = None if self._suspects.finished(now, idle=False) else self._policy.compose(session, now)
            if composition is None:
                if not session.inflight and not self._grammars.busy and self._suspects.finished(now, idle=True):
                    self._attach()
                return
            if not session.inflight:
                self._progress = now
            self._out.append((self._args.worker, session.seal(composition, now)))

    def take(self) -> list[Outgoing]:
        """Messages to send since the last call: (name of the inbox, message)."""
        out, self._out = self._out, []
        return out

    def take_poison(self) -> list[Poison]:
        """Requests that were found to end the worker since the last call; they have been failed."""
        found, self._found = self._found, []
        return found

    def tokenizer_lost(self, name: str, incarnation: int | None = None) -> None:
        """Nobody waits any more for the keys of this tokenizer: `incarnation` of it, and those before, are over; None: nothing reaches it."""
        if incarnation is None or self._fence.ended(name, incarnation):
            self._cancel(keys_of(self._tokenizers[name], self._live), "cancelled")

    def close(self) -> None:
        """Accept nothing from now on; what is live goes on."""
        self._door.close()

    def fail_all(self, problem: Problem) -> None:
        """End every live key with `problem`."""
        for request in list(self._live.values()):
            self._fail(request, problem)

    # What can be asked

    @property
    def next_deadline(self) -> float | None:
        """When `advance` has to be called again at the latest, for what will be out of time; None: for nothing."""
        return self._live.next_deadline

    @property
    def idle(self) -> bool:
        """No key is live (a plan may still be in flight)."""
        return not self._live

    @property
    def geometry(self) -> Geometry | None:
        """Of the attached worker; None while none is attached."""
        return None if self.session is None else self.session.geometry

    def overdue(self, now: float) -> str | None:
        """That the worker hangs, as a sentence: it has not answered a plan, or compiled a grammar, within its deadline."""
        return None if self.session is None else self.session.overdue(self.deadlines, self._since, now) or self._grammars.late(now, self.deadlines)

    def give_up(self, now: float) -> str | None:
        """Why the worker is to be killed; said once for each session. The next step of the kind that is overdue gets more time."""
        return None if self.session is None else self.session.give_up(self.deadlines, self._since, now, self._grammars.late(now, self.deadlines))

    def awaited(self, now: float) -> dict[str, float]:
        """Seconds for which the oldest plan in flight has been awaited, and after which it is late (0 and 0: none is; the latter 0: never)."""
        waited, limit = (0.0, 0.0) if self.session is None else self.session.awaited(self.deadlines, self._since, now)
        return {"awaited_seconds": waited, "deadline_seconds": limit if limit < math.inf else 0.0}

    @property
    def _since(self) -> float:
        return max(self._progress, self._excused)

    def excuse(self, now: float) -> None:
        """This process has not run for a while; perhaps the worker has not either."""
        self._excused = now

    @property
    def blocked(self) -> str:
        """What the next request in line waits for: "slot", "blocks", "prefix", "tokens" of a step, "worker", or "" when nobody waits."""
        return "worker" if self.session is None else self._policy.blocked if self._waiting else ""

    def scene(self) -> Scene:
        """For who looks at it, until the next message."""
        return Scene(self._live, self._waiting, self.session, self._forecast, self.blocked)

    def gauges(self) -> dict[str, float]:
        """Numbers now; see `scheduler.gauges`."""
        return gauges(self.session, self._waiting, self._live)

    def repair(self, error: InvariantError) -> None:
        """Our own state is wrong: give the worker a new session and run everything live again from its tokens.

        Nothing is kept but requests and counters: slots, blocks, prefix cache and line begin anew. One whose tokens may be wrong ends with an error.
        """
        log.critical("an invariant is broken, all sequences start again from their tokens: %s", error)
        self.tally.add("invariant_violations")
        self._live.repair()
        live = list(self._live.values())
        lost = [request for request in live if self.session is not None and not self.session.rescue(request)]
        self.session = None
        self._shares.reset([request.tenant for request in live])
        self._waiting.reset(live)
        self.tally.balance(len(live))
        for request in lost:
            self._fail(request, Problem(status=500, code="internal_error", message="the server lost the tokens of this sequence"))
        self._attach()

    def check(self) -> None:
        """Every invariant at once. Raises InvariantError."""
        check(self._live, self._waiting, self.session, self._grammars, self.tally)

    # Requests

    def _on_admit(self, admit: Admit, now: float) -> None:
        prompt = read_admit(admit, self._tokenizers)
        sequences = sequences_of(admit, prompt)
        if self._fence.is_late(admit):
            return
        Engine.tokenizer_lost(self, admit.tokenizer, admit.incarnation - 1)  # not to be recorded: it follows from the message
        bias = bias_of(admit, prompt.size)
        problem = self._door.refusal(admit, sequences, bias, self.session, self.blocked, now)
        leader: Request | None = None
        for key, seed, tokens in zip(admit.keys, admit.seeds, sequences, strict=True):
            refusal = problem or (DUPLICATE if key in self._live else None)
            if refusal is not None:
                self._door.count(refusal)
                self._out.append((admit.tokenizer, Refused(key, refusal)))
                continue
            request = self._accept(admit, key, seed, tokens, bias, leader, now)
            self.tally.add("prompt_tokens", prompt.size if leader is None else 0)
            leader = leader or request

    def _accept(self, admit: Admit, key: int, seed: int, tokens: I32, bias: Bias | None, leader: Request | None, now: float) -> Request:
        self._arrivals += 1
        place = Arrival(self._arrivals, now, score(admit.priority, now))
        request = request_of(admit, key, seed, tokens, bias, leader, place, self._args.prefix_cache)
        request.tokenizer = self._tokenizers[admit.tokenizer]
        request.grammar = self._grammars.join(admit.program, request.tenant) if admit.program else None
        self._live.enter(request, self.geometry)
        request.fitted, request.held = self.session is not None, self._suspects.holds(key) or not request.matchable
        self._shares.join(request.tenant)
        self._waiting.push(request)
        self.tally.add("accepted")
        return request

    def _on_explain(self, question: Explain) -> None:
        if question.tokenizer not in self._tokenizers:
            raise ContractError(f"a question from an unknown tokenizer {question.tokenizer[:80]!r}")
        self._out.append((question.tokenizer, explain(question, self.scene())))

    def _cancel(self, keys: list[int], counter: str) -> None:
        for key in keys:
            request = self._live.get(key)
            if request is not None:
                self._end(request, counter)

    def _fail(self, request: Request, problem: Problem) -> None:
        session = None if request.slot == WAITING else self.session
        index = (request.tokens.size if session is None else int(session.slots.length[request.slot])) - request.prompt_len
        self._out.append((self._args.tokenizers[request.tokenizer], failure(request.key, index, problem, FINISH_ERROR)))
        self._end(request, "errors")

    def _end(self, request: Request, counter: str) -> None:
        """The one way out of a live key."""
        self._live.leave(request)
        self._suspects.ended(request.key)
        self.tally.add(counter)
        self._shares.leave(request.tenant)
        if request.grammar is not None:
            self._grammars.leave(request.grammar)
        if self.session is None or request.slot == WAITING:
            self._waiting.remove(request)
        else:
            self._forecast.ended(int(self.session.slots.length[request.slot]) - request.prompt_len)
            self.session.end(request.slot)
            request.slot = WAITING

    # Results

    def _on_result(self, result: StepResult, now: float) -> None:
        session = self.session
        if session is None or result.session != session.number or not session.inflight or result.step < session.inflight[0].step:
            return
        awaited = session.inflight[0]
        try:
            if result.step != awaited.step:
                raise ContractError(f"the result of step {result.step} came before that of step {awaited.step}")
            sampled = read_result(result, awaited.sampled, session.geometry.vocab)
            scored = list(delivered(session.slots, awaited.scores, result.scores))
        except ContractError as error:
            self._session_broken(session, [awaited], STEP_FAILED, str(error))
            raise
        session.retire()
        self.tally.add("steps")
        work, took = awaited.work, now - max(awaited.sent, self._progress)
        self.step_sizes.add(work.prefill + work.rows)
        self._forecast.add(work, took)
        self.deadlines.add(work, took)
        self._pace.add(work.prefill, work.rows, result.seconds)
        self._progress = now
        self._out += [(self._args.tokenizers[number], message) for number, message in scored]
        self._deliver(session, sampled, now)

    def _deliver(self, session: Session, sampled: Sampled, now: float) -> None:
        """Count, finish and send the tokens of rows that have not ended meanwhile."""
        newest = take_in(session, sampled, now)
        if newest is None:
            return
        delivery, keys = newest.delivery, session.slots.key
        if len(self._shares) > 1:
            self._shares.charge_each(session.slots.tenants(newest.fresh))
        self.tally.add("generation_tokens", newest.fresh.size)
        self._out += [(self._args.tokenizers[number], message) for number, message in delivery.messages(sampled.logprobs, sampled.slots.size)]
        if self._suspects:
            self._suspects.progressed(keys[newest.fresh].tolist())
        for done in np.flatnonzero(delivery.finish).tolist():
            self._end(self._live[int(delivery.key[done])], COUNTER_OF[int(delivery.finish[done])])

    # The worker

    def _on_ready(self, ready: WorkerReady) -> None:
        if ready.worker != self._args.worker:
            raise ContractError(f"a worker called {ready.worker!r} is ready; expected {self._args.worker!r}")
        if ready.incarnation < self.worker_incarnation:
            return
        died, session = ready.incarnation > self.worker_incarnation, self.session
        self.worker_incarnation = ready.incarnation
        if session is not None and session.inflight:
            self._session_broken(session, list(session.inflight), POISON, session.given_up or "the worker died with a step in flight", died)
        else:
            self._attach(died)

    def _on_failed(self, failed: StepFailed) -> None:
        session = self.session
        if session is not None and failed.session == session.number:
            lost = [plan for plan in session.inflight if plan.step == failed.step]
            self._session_broken(session, lost, STEP_FAILED, f"the worker could not run step {failed.step}: {failed.message}")

    def _session_broken(self, session: Session, lost: list[InFlight], code: str, why: str, died: bool = False) -> None:
        """The `lost` plans gave nothing. Their rows run again from their tokens; one that is found to be the cause ends with `code`."""
        log.error("session %d ends: %s", session.number, why)
        self.tally.add("failed_steps")
        touched = {slot for plan in lost for slot in plan.touched.tolist()}
        keys = {request.key for slot in touched if (request := session.slots.requests[slot]) is not None}
        culprit = self._suspects.failed(keys, len(touched) > len(keys)) if keys else None
        if culprit is not None:
            self._found.append(session.poison(why))
            told = "this sequence ends the worker" if code == POISON else "the step that computes this sequence fails"
            self._fail(self._live[culprit], Problem(status=500, code=code, message=f"{told} every time, with nothing else in flight too: {why}"))
        self._attach(died)

    def _attach(self, died: bool = False) -> None:
        """Begin a new session, because the worker `died` or for another reason. Running rows go back to the head of the line with their tokens."""
        if self.session is not None:
            for request in self.session.evacuate(self._now):
                self._waiting.push(request)
        self.session = None
        for request in self._live.following(self._grammars.lost(died)):
            self._fail(request, DEADLY)
        self._suspects.begin(len(self._live), self._now)
        self._waiting.hold(self._suspects.holds)
        self._attaching = self._new_session()
        self._out.append((self._args.worker, Attach(self._attaching)))

    def _on_prepared(self, prepared: Prepared) -> None:
        """Its rows may run; or it cannot be used, which the trial should have found."""
        if self.session is not None and prepared.session == self.session.number:
            grammar = self._grammars.answered(prepared.grammar, not prepared.problem)
            for request in self._live.following(grammar if prepared.problem else None):
                self._fail(request, unusable(prepared.problem))
            self._waiting.hold(self._suspects.holds)

    def _on_attached(self, attached: Attached, now: float) -> None:
        if attached.session != self._attaching:
            return
        self.worker_incarnation = max(self.worker_incarnation, attached.incarnation)
        geometry = geometry_of(attached, self._args.max_context)
        self._attaching = None
        self.session = Session(attached, geometry, self._args, self.tally, self._suspects.lone)
        self._progress = now
        self._suspects.attached(now)
        for request in self._waiting.all():
            if (problem := fit(request, geometry)) is not None:
                self._fail(request, problem)
