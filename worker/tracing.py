"""The worker's spans in a trace: taking up a plan on the host, its step on the device, and sending what it gave."""

from dataclasses import dataclass

from messages.trace import APPLY, DECODE, DELIVER, LAUNCH, MIXED, PREFILL, UPLOAD, Value
from transport.trace import Span, Trace


@dataclass(frozen=True, kw_only=True)
class Work:
    """Which step, and how much it computes. `queued`: seconds that its plan waited in the worker."""

    session: int
    step: int
    prefill_tokens: int
    decode_rows: int
    queued: float

    @property
    def kind(self) -> str:
        """The name of its span on the device."""
        if not self.prefill_tokens:
            return DECODE
        return MIXED if self.decode_rows else PREFILL


class Tracing:
    """Times are seconds of `time.monotonic()`. Made on the thread that takes plans. The spans are to be noted with `trace`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._host = trace.thread("plans")
        self._device = trace.device("device")
        self._results = self._host

    def results_here(self) -> None:
        """The calling thread is the one that sends results."""
        self._results = self.trace.thread("results")

    def launched(self, work: Work, begin: float, applied: float, upload: tuple[float, float] | None, end: float) -> list[Span]:
        """The host has taken up a plan at `begin` and applied it by `applied`; `upload`: between which times it sent the plan's data up."""
        args = _args(work)
        args["queued_us"] = round(work.queued * 1e6, 1)
        whole = self._host.span(LAUNCH, begin, end, args, (work.session, work.step), flow_in=True, flow_out=True)
        parts = [self._host.span(APPLY, begin, applied, {})]
        return [whole, *parts] if upload is None else [whole, *parts, self._host.span(UPLOAD, *upload, {})]

    def computed(self, work: Work, begin: float, end: float, seconds: float, gap: float) -> Span:
        """The device was at work from `begin` to `end`; by its own clock for `seconds`, after `gap` seconds without work."""
        args = _args(work)
        args["device_us"] = round(seconds * 1e6, 2)
        args["gap_us"] = round(gap * 1e6, 2)
        return self._device.span(work.kind, begin, end, args, (work.session, work.step), flow_in=True, flow_out=True)

    def delivered(self, work: Work, begin: float, end: float) -> Span:
        """The host saw the end of the step at `begin` and had sent its result at `end`."""
        return self._results.span(DELIVER, begin, end, {"step": work.step}, (work.session, work.step), flow_in=True, flow_out=True)


def _args(work: Work) -> dict[str, Value]:
    return {"step": work.step, "session": work.session, "prefill_tokens": work.prefill_tokens, "decode_rows": work.decode_rows}
