"""The scheduler process notes its plans and results in a trace."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.plan import StepPlan
from messages.result import StepResult, WorkerReady
from scheduler.service import Service
from scheduler.tracing import Tracing
from tests.support.scheduler_bench import arguments, attached
from tests.unit.test_scheduler_service import StubLifetime, admit, take_in
from transport import trace_file
from transport.columns import pack_i32
from transport.trace import Trace, flow_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "trace.json"
    trace_file.begin(str(made))
    return made


def turn_until(service: Service, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        service._turn()


def spans(path: Path, name: str) -> list[dict[str, Any]]:
    trace_file.finish(str(path))
    return [event for event in json.loads(path.read_text()) if event["name"] == name and event["ph"] == "X"]


def test_plans_and_their_results(run_dir: Path, path: Path) -> None:
    service = Service(arguments(run_dir=str(run_dir), trace=str(path), drain_seconds=0.1), StubLifetime())
    engine = service._engine
    take_in(service, WorkerReady(worker="worker0"))
    turn_until(service, lambda: engine._attaching is not None)
    take_in(service, msgspec.structs.replace(attached(), session=engine._attaching))
    take_in(service, admit(1, "tokenizer0"))
    turn_until(service, lambda: engine.session is not None and len(engine.session.inflight) == 2)
    session = engine.session
    assert session is not None
    first = session.inflight[0]
    take_in(service, StepResult(session=session.number, step=first.step, slot=first.sampled, token=pack_i32([3]), status=bytes(1)))
    turn_until(service, lambda: session.inflight[0].step == 2)
    service._lifetime.stopping.set()
    service.run()
    trace_file.finish(str(path))
    events = json.loads(path.read_text())
    plans, results = ([event for event in events if event["name"] == name] for name in ("plan", "result"))
    assert [event["args"] for event in events if event["name"] == "admit"] == [{"prompt_tokens": 2, "choices": 1}]
    assert len(results) == 1
    assert [plan["args"]["step"] for plan in plans] == list(range(1, len(plans) + 1))
    assert plans[0]["args"] == {"step": 1, "session": session.number, "prefill_tokens": 2, "decode_rows": 0}
    assert plans[1]["args"]["decode_rows"] == 1
    assert results[0]["args"] == {"step": 1, "session": session.number, "tokens": 1}
    assert (plans[0]["bind_id"], plans[0]["flow_out"]) == (flow_of(session.number, 1), True)
    assert (results[0]["bind_id"], results[0]["flow_in"]) == (flow_of(session.number, 1), True)
    end = plans[0]["ts"] + plans[0]["dur"] - 1e-4
    assert end <= plans[1]["ts"]
    assert end <= results[0]["ts"]


def test_a_plan_that_is_no_longer_in_flight(path: Path) -> None:
    trace = Trace(str(path), "scheduler")
    tracing = Tracing(trace)
    tracing.planned(StepPlan(session=1, step=1), None, 1.0, 2.0)
    tracing.close()
    assert [span["args"]["decode_rows"] for span in spans(path, "plan")] == [0]
