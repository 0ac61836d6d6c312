"""The scheduler's spans in a trace: requests and results, until all of them is done; a plan, from composing it until it is sent."""

import msgspec

from messages.admit import Admit
from messages.plan import StepPlan
from messages.result import StepResult
from messages.trace import ADMIT, PLAN, RESULT, Value
from scheduler.session import InFlight, Session
from transport.trace import Span, Trace

TOKEN_BYTES = 4


class Tracing:
    """`planned` and `received` in the order in which things happen. Times are seconds of `time.monotonic()`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._track = trace.thread("scheduler")

    def planned(self, plan: StepPlan, session: Session | None, begin: float, end: float) -> None:
        """`session`: the engine's, in which the plan is in flight."""
        inflight = () if session is None else tuple(session.inflight)
        self._trace.add((self._plan, plan.session, plan.step, inflight, begin, end))

    def received(self, message: msgspec.Struct, begin: float, end: float) -> None:
        """Of all messages, requests and results are noted."""
        if isinstance(message, StepResult):
            self._trace.add((self._result, message.session, message.step, len(message.status), begin, end))
        elif isinstance(message, Admit):
            self._trace.add((self._admit, len(message.prompt) // TOKEN_BYTES, len(message.keys), begin, end))

    def close(self) -> None:
        self._trace.close()

    def _plan(self, session: int, step: int, inflight: tuple[InFlight, ...], begin: float, end: float) -> list[Span]:
        prefill, rows = next((one.work[:2] for one in inflight if one.step == step), (0, 0))
        args: dict[str, Value] = {"step": step, "session": session, "prefill_tokens": prefill, "decode_rows": rows}
        return [self._track.span(PLAN, begin, end, args, (session, step), flow_out=True)]

    def _admit(self, tokens: int, choices: int, begin: float, end: float) -> list[Span]:
        return [self._track.span(ADMIT, begin, end, {"prompt_tokens": tokens, "choices": choices})]

    def _result(self, session: int, step: int, tokens: int, begin: float, end: float) -> list[Span]:
        return [self._track.span(RESULT, begin, end, {"step": step, "session": session, "tokens": tokens}, (session, step), flow_in=True)]
