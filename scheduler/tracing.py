"""The scheduler's spans in a trace: a plan, from composing it until it is sent; a result, until all of it is done."""

from messages.plan import StepPlan
from messages.result import StepResult
from messages.trace import PLAN, RESULT, Value
from scheduler.session import Session
from transport.trace import Trace


class Tracing:
    """`planned` and `received` in the order in which things happen. Times are seconds of `time.monotonic()`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._track = trace.thread("scheduler")

    def planned(self, plan: StepPlan, session: Session | None, begin: float, end: float) -> None:
        """`session`: the engine's, in which the plan is in flight."""
        inflight = [] if session is None else [one for one in session.inflight if one.step == plan.step]
        prefill, rows = (inflight[0].prefill, inflight[0].rows) if inflight else (0, 0)
        args: dict[str, Value] = {"step": plan.step, "session": plan.session, "prefill_tokens": prefill, "decode_rows": rows}
        self._track.span(PLAN, begin, end, args, (plan.session, plan.step), flow_out=True)

    def received(self, result: StepResult, begin: float, end: float) -> None:
        args: dict[str, Value] = {"step": result.step, "session": result.session, "tokens": len(result.status)}
        self._track.span(RESULT, begin, end, args, (result.session, result.step), flow_in=True)

    def close(self) -> None:
        self._trace.close()
