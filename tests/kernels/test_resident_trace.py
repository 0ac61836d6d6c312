"""What the resident engine notes of its steps in a trace: all of them, in order, and on a GPU where the device computed them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from messages.result import StepResult
from tests.kernels.test_resident_engine import GREEDY, playing
from tests.kernels.test_resident_state import World
from tests.support.devices import GPU
from tests.support.plans import Planner, Row
from tests.support.resident import Playing
from transport import trace_file
from transport.trace import Trace
from worker.matching import Matching
from worker.resident.parcel import Parcel, Parcels
from worker.resident.reader import Launched, Reader
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


class Stamp:
    """An event of a device whose clock the test moves."""

    now = 0.0

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Stamp.now

    def synchronize(self) -> None:
        """It is over as soon as it is recorded."""

    def elapsed_time(self, other: "Stamp") -> float:
        return (other.at - self.at) * 1e3


class Stamped(Parcels):
    """Parcels of the CPU with such events."""

    def take(self) -> Parcel:
        parcel = super().take()
        parcel.begun, parcel.done = Stamp(), Stamp()
        return parcel


def test_gaps_count_from_the_anchor_and_from_step_to_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.Event", Stamp)
    trace, results = Trace(str(path), "worker0"), list[StepResult]()
    parcels = Stamped(torch.device("cpu"), 4, 64)
    Stamp.now = 500.0
    reader = Reader(parcels, Matching(1), results.append, Tracing(trace))
    for step, (gap, seconds) in enumerate([(0.5, 0.01), (2e-5, 0.02), (3.0, 0.03)], 1):
        parcel = parcels.take()
        Stamp.now += gap
        parcel.begun.record()
        Stamp.now += seconds
        parcel.done.record()
        slot = np.array([1], np.int32)
        reader.put(
            Launched(
                session=1, step=step, slot=slot, parcel=parcel, prefill_tokens=0, decode_tokens=1, queued=0.0, applying=(1.0, 2.0), launched=3.0
            )
        )  # fmt: skip
    reader.close()
    assert reader.error is None
    trace.close()
    trace_file.finish(str(path))
    assert [result.seconds for result in results] == pytest.approx([0.01, 0.02, 0.03])
    steps = spans(path, "decode")
    assert [step["args"]["device_us"] for step in steps] == pytest.approx([10_000, 20_000, 30_000], abs=0.02)
    assert [step["args"]["gap_us"] for step in steps] == pytest.approx([500_000, 20, 3_000_000], abs=0.02)
    assert all(end_of(before) <= after["ts"] + 0.01 for before, after in pairwise(steps))
    assert reader.totals.gap_seconds == pytest.approx(2e-5)  # a long one is idleness
