"""What the resident engine notes of its steps in a trace: all of them, in order, and on a GPU where the device computed them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.test_resident_engine import GREEDY, Playing, playing
from tests.kernels.test_resident_state import World
from tests.support.devices import GPU
from tests.support.plans import Planner, Row
from transport import trace_file
from transport.trace import Trace
from worker.tracing import Tracing

__all__ = ["playing"]  # the fixture
STEPS = 40
CLOCK_ERROR = 200.0
"""Microseconds by which the device's times may be off on the host's clock."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "trace.json"
    trace_file.begin(str(made))
    return made


def spans(path: Path, *names: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X" and event["name"] in names]


def end_of(span: dict[str, Any]) -> float:
    return float(span["ts"] + span["dur"])


def test_every_step_is_noted(path: Path) -> None:
    world, trace = World(), Trace(str(path), "worker0")
    world.engine.close()
    world.engine.start(world.results.put, Tracing(trace))
    planner = Planner()
    world.play([planner.start(Row(slot=2, prompt=[1, 2, 3], blocks=[0, 1])), planner.plan(decode=[2]), planner.plan(decode=None)])
    world.engine.close()
    trace.close()
    trace_file.finish(str(path))
    launches, steps = spans(path, "launch"), spans(path, "prefill", "decode")
    assert [span["name"] for span in steps] == ["prefill", "decode", "decode"]
    computed = [(span["args"]["step"], span["args"]["prefill_tokens"], span["args"]["decode_rows"]) for span in launches]
    assert computed == [(1, 3, 0), (2, 0, 1), (3, 0, 1)]
    assert len(spans(path, "apply plan")) == len(spans(path, "upload")) == len(spans(path, "deliver")) == 3
    for inner, outer in zip(spans(path, "apply plan") + spans(path, "upload"), launches * 2, strict=True):
        assert outer["ts"] <= inner["ts"] <= end_of(inner) <= end_of(outer) + 0.01
    assert {span["tid"] for span in launches}.isdisjoint({span["tid"] for span in spans(path, "deliver")})


@pytest.mark.skipif(not GPU, reason="needs a device with a clock of its own")
def test_the_device_is_where_the_host_saw_it(path: Path, playing: Playing) -> None:
    trace = Trace(str(path), "worker0")
    playing.engine.close()
    playing.engine.start(playing._results.put, Tracing(trace))
    planner = Planner()
    playing.play([planner.start(GREEDY), *(planner.plan(decode=[0]) for _ in range(STEPS - 1))])
    playing.engine.close()
    trace.close()
    trace_file.finish(str(path))
    launches, steps, delivered = spans(path, "launch"), spans(path, "prefill", "decode"), spans(path, "deliver")
    assert len(steps) == STEPS
    for before, after in pairwise(steps):
        assert end_of(before) <= after["ts"] + 0.01
        assert after["args"]["gap_us"] >= 0
    for launch, step, result in zip(launches, steps, delivered, strict=True):
        assert step["args"]["device_us"] > 0
        assert launch["ts"] - CLOCK_ERROR <= step["ts"] <= end_of(step) <= result["ts"] + 0.01
