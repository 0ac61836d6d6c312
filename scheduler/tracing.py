"""The scheduler's spans in a trace: a plan, from composing it until it is sent; a result, until all of it is done."""

from messages.plan import StepPlan
from messages.result import StepResult
from messages.trace import PLAN, RESULT, Value
from scheduler.session import InFlight, Session
from transport.trace import Span, Trace


class Tracing:
    """`planned` and `received` in the order in which things happen. Times are seconds of `time.monotonic()`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._track = trace.thread("scheduler")

    def planned(self, plan: StepPlan, session: Session | None, begin: float, end: float) -> None:
        """`session`: the engine's, in which the plan is in flight."""
        inflight = () if session is None else tuple(session.inflight)
        self._trace.add((self._plan, plan.session, plan.step, inflight, begin, end))

    def received(self, result: StepResult, begin: float, end: float) -> None:
        self._trace.add((self._result, result.session, result.step, len(result.status), begin, end))

    def close(self) -> None:
        self._trace.close()

    def _plan(self, session: int, step: int, inflight: tuple[InFlight, ...], begin: float, end: float) -> list[Span]:
        prefill, rows = next(((one.prefill, one.rows) for one in inflight if one.step == step), (0, 0))
        args: dict[str, Value] = {"step": step, "session": session, "prefill_tokens": prefill, "decode_rows": rows}
        return [self._track.span(PLAN, begin, end, args, (session, step), flow_out=True)]

    def _result(self, session: int, step: int, tokens: int, begin: float, end: float) -> list[Span]:
        return [self._track.span(RESULT, begin, end, {"step": step, "session": session, "tokens": tokens}, (session, step), flow_in=True)]
