"""Recordings: simulated again, replayed, and a cost model fitted to their steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from launcher.cli import main
from scheduler.args import SchedulerArgs
from scheduler.engine import Engine
from scheduler.recorded import RecordedEngine
from scheduler.recorder import start_recording
from simulator.conversations import Conversations
from simulator.cost import CostModel, load_cost_model
from simulator.errors import SimulatorError
from simulator.figures import summarise
from simulator.fit import fit_cost_model, non_negative_least_squares
from simulator.recorded import fit_recording, read_recording, replay_recording
from simulator.simulation import Machine, Simulation
from simulator.work import Work
from simulator.workload import Choice, FixedWorkload, Job, Workload

COST = CostModel(name="true", base=0.004, prefill_token=0.0003, decode_row=0.001, context_token=2e-6)
CHAT = Conversations(users=4, turns=3, system_tokens=330, user_tokens=25, answer_tokens=21, think=0.5, seed=3)
MACHINE = Machine(slots=8, blocks=400, max_step_tokens=256, chunk_tokens=128, context=2000, max_queue=50)


def record(path: Path, workload: Workload, tokens: bool, machine: Machine = MACHINE) -> dict[str, Any]:
    """A recording of a simulation; returns its figures."""

    def engine(args: SchedulerArgs, sessions: Callable[[], int]) -> Engine:
        return RecordedEngine(args, sessions, recorder)

    args = msgspec.structs.replace(machine.scheduler_args(), record=str(path), record_tokens=tokens)
    recorder = start_recording(args)
    simulation = Simulation(workload, machine, COST, engine)
    simulation.run()
    recorder.stop()
    assert not recorder.errors
    return summarise(simulation)


@pytest.fixture(params=[True, False], ids=["with tokens", "without"])
def tokens(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_recorded_chat_runs_as_it_did(tokens: bool, tmp_path: Path) -> None:
    path = tmp_path / "chat.rec"
    before = record(path, CHAT, tokens)
    recorded = read_recording(path)
    assert recorded.machine == MACHINE
    simulation = Simulation(recorded.workload, recorded.machine, COST)
    simulation.run()
    after = summarise(simulation)
    same = ("requests", "finished", "prompt_tokens", "generated_tokens")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["makespan_s"] == pytest.approx(before["makespan_s"], rel=0.02)
    assert after["hit_rate"] == pytest.approx(before["hit_rate"], rel=0.02)
    assert before["hit_rate"] > 0.7


def test_ends_are_kept(tokens: bool, tmp_path: Path) -> None:
    prompt = np.arange(40, dtype=np.int32)
    choices = (Choice(stops_after=9), Choice(leaves_after=5), Choice(leaves_after=4, stop_string=True), Choice())
    gone = Job(at=0.5, prompt=prompt, max_tokens=300, choices=(Choice(leaves_after=0, patience=0.0001),))
    workload = FixedWorkload(name="ends", fixed=[Job(at=0.0, prompt=prompt, max_tokens=30, choices=choices), gone], vocab=100)
    path = tmp_path / "ends.rec"
    before = record(path, workload, tokens)
    recorded = read_recording(path, speed=2.0)
    assert recorded.workload.fixed[1].at == pytest.approx(0.25)
    simulation = Simulation(recorded.workload, recorded.machine, COST)
    simulation.run()
    after = summarise(simulation)
    assert (after["finished"], after["cancelled"]) == (before["finished"], before["cancelled"]) == (3, 2)
    assert after["generated_tokens"] == pytest.approx(before["generated_tokens"], abs=4)


def test_a_refused_request_is_sent_all_the_same(tmp_path: Path) -> None:
    jobs = [Job(at=0.0, prompt=np.arange(20, dtype=np.int32), max_tokens=10) for _ in range(12)]
    path = tmp_path / "full.rec"
    before = record(path, FixedWorkload(name="full", fixed=jobs, vocab=100), False, Machine(slots=1, max_queue=3))
    assert before["refused"]
    simulation = Simulation(read_recording(path).workload, Machine(), COST)
    simulation.run()
    assert summarise(simulation)["generated_tokens"] == 120


def test_a_fit_finds_the_true_costs(tokens: bool, tmp_path: Path) -> None:
    path = tmp_path / "chat.rec"
    record(path, CHAT, tokens)
    model = fit_recording(path)
    for name in ("base", "prefill_token", "decode_row", "context_token"):
        assert getattr(model, name) == pytest.approx(getattr(COST, name), rel=1e-3)
    assert model.fit is not None
    assert model.fit.explained > 0.99999
    assert model.fit.residual_ms < 0.01


def test_costs_are_never_negative() -> None:
    chance = np.random.default_rng(0)
    works = [Work(int(prefill), int(rows), int(rows) * 100) for prefill, rows in chance.integers(0, 64, (500, 2))]
    seconds = [max(1e-6, 0.01 + 0.001 * work.decode_rows - 0.0001 * work.prefill_tokens + chance.normal(0, 1e-4)) for work in works]
    model = fit_cost_model("noisy", works, seconds, "")
    assert model.prefill_token == 0.0
    assert model.base > 0.005
    columns = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    assert non_negative_least_squares(columns, np.asarray([2.0, -1.0])).tolist() == [2.0, 0.0]


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(SimulatorError, match="too few"):
        fit_cost_model("few", [Work(1, 1, 1)] * 20, [0.0] * 15 + [0.1] * 5, "")


def test_a_replay_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chat.rec"
    figures = record(path, CHAT, True)
    report = replay_recording(path)
    assert (report.difference, report.plans) == (None, figures["steps"])
    assert main(["simulate", str(path), "--replay"]) == 0
    assert f"{report.plans:,} plans" in capsys.readouterr().out
    assert main(["simulate", str(path), "--replay", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


def test_a_replay_that_differs_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.rec"
    record(path, CHAT, True)
    monkeypatch.setattr("scheduler.replay.digest_of", lambda plan: b"12345678")
    assert main(["simulate", str(path), "--replay"]) == 1
    assert "another plan" in capsys.readouterr().out


def test_fit_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "chat.rec", tmp_path / "model.json"
    record(path, CHAT, False)
    assert main(["simulate", str(path), "--fit", str(out)]) == 0
    assert "a step takes 4 ms" in capsys.readouterr().out
    assert load_cost_model(out).base == pytest.approx(COST.base, rel=1e-3)
    assert main(["simulate", str(path), "--fit", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "chat"
    assert main(["simulate", str(path), "--cost-model", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["slots"] == 8


def test_what_is_no_recording_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"not a recording")
    without = tmp_path / "without.rec"
    record(without, CHAT, False)
    empty = tmp_path / "empty.rec"
    start_recording(msgspec.structs.replace(MACHINE.scheduler_args(), record=str(empty))).stop()
    for command, sentence in [
        ([str(path)], "no recording"),
        ([str(tmp_path / "absent"), "--fit", "-"], "cannot read"),
        ([str(empty)], "has no requests"),
        ([str(without), "--replay"], "--record-tokens"),
        ([str(without), "--fit", str(tmp_path / "absent" / "m.json")], "cannot write"),
    ]:
        assert main(["simulate", *command]) == 1
        assert sentence in capsys.readouterr().err
