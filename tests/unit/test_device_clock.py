"""Where steps of a device are put on the host's clock, and what the worker notes of them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from transport import trace_file
from transport.trace import Trace
from worker.resident.clock import DRIFT, DeviceClock
from worker.resident.trace import StepTrace
from worker.tracing import Tracing, Work


@pytest.mark.parametrize("drift", [-DRIFT / 2, 0.0, DRIFT / 2])
def test_steps_are_where_they_were(drift: float) -> None:
    """The clocks run apart, and the host sees each end late by at least 5 microseconds."""
    draw = random.Random(0)
    clock, now, last = DeviceClock(100.0), 100.0, 0.0
    for number in range(20_000):
        gap, seconds = draw.uniform(0, 1e-3) if number % 100 else 2.0, draw.uniform(1e-4, 1e-2)
        begin = now + gap
        now = begin + seconds
        found = clock.place(gap * (1 + drift), seconds * (1 + drift), now + 5e-6 + draw.expovariate(1 / 20e-6))
        assert last <= found[0] <= found[1]
        assert found == pytest.approx((begin, now), abs=400e-6)
        last = found[1]


def test_an_end_is_never_after_the_host_saw_it() -> None:
    clock = DeviceClock(10.0)
    assert clock.place(1.0, 1.0, 11.5) == (10.5, 11.5)
    assert clock.place(0.25, 0.5, 20.0) == pytest.approx((11.75, 12.25), abs=2 * DRIFT)


def spans(path: Path) -> dict[str, dict[str, Any]]:
    trace_file.finish(str(path))
    return {event["name"]: event for event in json.loads(path.read_text()) if event["ph"] == "X"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "trace.json"
    trace_file.begin(str(made))
    return made


def work(prefill_tokens: int, decode_rows: int) -> Work:
    return Work(session=3, step=9, prefill_tokens=prefill_tokens, decode_rows=decode_rows, queued=2e-5)


@pytest.mark.parametrize(("prefill", "rows", "kind"), [(0, 4, "decode"), (16, 0, "prefill"), (16, 4, "mixed"), (0, 0, "decode")])
def test_what_a_step_is_called(prefill: int, rows: int, kind: str) -> None:
    assert work(prefill, rows).kind == kind


def test_what_is_noted_of_a_step(path: Path) -> None:
    trace = Trace(str(path), "worker0")
    steps = StepTrace(Tracing(trace), 100.0)
    steps.finished(work(0, 4), (101.0, 101.1), (101.1, 101.2), 101.4, (0.25, 1.125), 101.5)
    trace.close()
    found = spans(path)
    ends = {name: (span["ts"] / 1e6, (span["ts"] + span["dur"]) / 1e6) for name, span in found.items()}
    assert ends["launch"] == pytest.approx((101.0, 101.4))
    assert ends["apply plan"] == pytest.approx((101.0, 101.1))
    assert ends["upload"] == pytest.approx((101.1, 101.2))
    assert ends["decode"] == pytest.approx((101.125, 101.375), abs=2 * DRIFT)
    assert ends["deliver"][0] == pytest.approx(101.5)
    step = {"step": 9, "session": 3, "prefill_tokens": 0, "decode_rows": 4}
    assert found["decode"]["args"] == step | {"device_us": 250_000.0, "gap_us": 1_125_000.0}
    assert found["launch"]["args"] == step | {"queued_us": 20.0}
    assert len({span["tid"] for span in found.values()}) == 2  # one thread, in this test, and the device


def test_a_device_without_a_clock(path: Path) -> None:
    trace = Trace(str(path), "worker0")
    StepTrace(Tracing(trace), 100.0).finished(work(0, 4), (101.0, 101.1), (101.1, 101.2), 101.4, None, 101.5)
    trace.close()
    assert spans(path)["decode"]["ts"] == pytest.approx(101.4e6)
