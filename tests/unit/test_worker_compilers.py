"""The processes that compile ahead never hold a worker up and say nothing of what the worker says itself."""

import signal
from pathlib import Path

import msgspec
import pytest

from tests.support.cluster import ROOT
from tests.support.devices import GPU
from tests.support.engines import worker_args
from worker.compilers import Compilers, compiled


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As launch.py sets it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("device", ["cuda:99", *(["cuda"] if GPU else [])])
def test_they_end_quietly_when_there_is_nothing_to_compile(tmp_path: Path, capfd: pytest.CaptureFixture[str], device: str) -> None:
    compilers = Compilers(worker_args(tmp_path / "nothing", device=device))
    compilers.wait(100.0)
    assert compilers.ended(100.0)
    compilers.close()
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_is_started_again_knows_that_all_was_compiled_for_one_like_it(tmp_path: Path) -> None:
    args = worker_args(tmp_path / "nothing", device="cuda", run_dir=str(tmp_path))
    again, other = (msgspec.structs.replace(args, **changed) for changed in ({"incarnation": 2, "death_fd": 7}, {"max_slots": 3}))
    compiled(args).touch()
    assert (compiled(again).exists(), compiled(other).exists()) == (True, False)


def test_they_are_ended_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(600)")  # they get nowhere by themselves
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    compilers = Compilers(worker_args(tmp_path / "nothing", device="cuda:99"))
    compilers.wait(0.0)
    assert compilers._process.poll() is None
    compilers.close()
    compilers.close()
    assert compilers._process.returncode == -signal.SIGTERM
