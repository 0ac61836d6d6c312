"""One line of a trace file: an event of the Trace Event Format (JSON array format), as Perfetto and chrome://tracing read it.

Times are microseconds of CLOCK_MONOTONIC, which all processes of a machine share. Nothing of a text and no token id goes into an event.
"""

from typing import Literal

import msgspec

Value = int | float | str

ADMIT, PLAN, RESULT = "admit", "plan", "result"
"""Names of the scheduler's spans: taking in a request; composing and sending a plan; taking in its result."""
LAUNCH, APPLY, UPLOAD = "launch", "apply plan", "upload"
"""Names of the worker's spans on the host: from taking up a plan until its step is on its way; the other two lie in it."""
DELIVER = "deliver"
"""From the moment the host sees the end of a step until its result is sent."""
DECODE, PREFILL, MIXED = "decode", "prefill", "mixed"
"""Names of the spans of a step on the device: decode rows only, prompt chunks only, both."""
BEGINS, ENDS, CUT = "trace begins", "trace ends", "trace cut"
"""Names of instants: the first and the last event of a whole file, and the last one of a process that could not write all of its."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`ph`: X a span of `dur`, b and e the two ends of a span with an `id` that lies on no thread, i an instant, M a name of `pid` or `tid`.

    Spans with one `bind_id` (hexadecimal) are joined by arrows: an arrow leaves one with `flow_out` and enters one with `flow_in`.
    """

    name: str
    ph: Literal["X", "b", "e", "i", "M"]
    pid: int
    tid: int
    ts: float = 0.0
    dur: float | None = None
    s: str = ""
    cat: str = ""
    id: str = ""
    bind_id: str = ""
    flow_in: bool = False
    flow_out: bool = False
    args: dict[str, Value] = {}
