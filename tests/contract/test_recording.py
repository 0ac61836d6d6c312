"""The scheduler process records over its real sockets: killed, stopped in order, with a worker that restarts, with a disk that is full."""

import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messages.cluster import READY
from messages.tokens import FINISH_ERROR
from scheduler.recording import Arrived, Closing, Ended, FailedAll, Lost, Planned, Reader, Received, RecordingError
from scheduler.replay import replay
from tests.contract.test_scheduler import Neighbours, assert_served
from tests.support.scheduler_bench import prompt_of


@pytest.fixture
def start(run_dir: Path) -> Iterator[Callable[..., Neighbours]]:
    made: list[Neighbours] = []

    def begin(**changes: object) -> Neighbours:
        made.append(Neighbours(run_dir, **changes))
        made[-1].until(made[-1].phase(READY))
        return made[-1]

    yield begin
    for neighbours in made:
        neighbours.close()


def ended(path: Path) -> set[int]:
    """Keys whose end is in the file by now."""
    try:
        with Reader(path) as reader:
            return {content.key for content in reader if isinstance(content, Ended)}
    except (FileNotFoundError, RecordingError):  # not there yet, or only a part of its header
        return set()


def serve(n: Neighbours, keys: range) -> None:
    for key in keys:
        n.admit([key], prompt_of(5 + key % 20, key % 3), 12, f"tokenizer{key % 2}")
    n.until(lambda: all(key in n.clients[f"tokenizer{key % 2}"].finish for key in keys))
    for key in keys:
        assert_served(n.clients[f"tokenizer{key % 2}"], key, prompt_of(5 + key % 20, key % 3), 12)


@pytest.mark.parametrize("tokens", [True, False])
def test_a_killed_scheduler_leaves_what_it_did_until_a_second_before(tokens: bool, start: Callable[..., Neighbours], tmp_path: Path) -> None:
    path = tmp_path / "r"
    n = start(record=str(path), record_tokens=tokens)
    serve(n, range(1, 30))
    n.worker.restart()
    serve(n, range(30, 50))
    n.until(lambda: ended(path) == set(range(1, 50)), 10.0)
    n.worker_works = False
    n.admit([50], prompt_of(5))
    n.until(n.gauge("running", 1))
    n.process.send_signal(signal.SIGKILL)
    n.process.wait(timeout=30)
    with Reader(path) as reader:
        frames = list(reader)
        assert reader.header.tokens is tokens
        assert reader.header.args == n.args
    assert any(isinstance(content, Arrived) for content in frames) is not tokens
    if tokens:
        report = replay(path)
        assert report.difference is None
        assert report.plans == sum(isinstance(content, Planned) for content in frames) > 50


def test_an_orderly_end_is_recorded_whole(start: Callable[..., Neighbours], tmp_path: Path) -> None:
    path = tmp_path / "r"
    n = start(record=str(path), record_tokens=True, drain_seconds=0.2)
    n.introduce(tokenizer0=1, tokenizer1=1)
    serve(n, range(1, 10))
    n.worker_works = False
    n.admit([20], prompt_of(5), 20, "tokenizer1")
    n.admit([21], prompt_of(5), 20)
    n.until(n.counter("accepted", 11))
    n.publish(tokenizer0=1, tokenizer1=2)
    n.until(n.counter("cancelled", 1))
    n.terminate()
    assert n.reports[-1].counters["record_errors"] == 0
    n.until(lambda: n.clients["tokenizer0"].finish.get(21) == FINISH_ERROR)
    with Reader(path) as reader:
        frames = list(reader)
    assert reader.unread == 0
    kinds = [type(content) for content in frames]
    assert (kinds.count(Lost), kinds.count(Closing), kinds.count(FailedAll)) == (1, 1, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    report = replay(path)
    assert (report.difference, report.messages, report.plans) == (None, kinds.count(Received), kinds.count(Planned))


def test_a_full_disk_does_not_disturb(start: Callable[..., Neighbours], tmp_path: Path) -> None:
    n = start(record=str(tmp_path / "r"), record_tokens=True)
    most = (tmp_path / "r").stat().st_size + 1000
    resource.prlimit(n.process.pid, resource.RLIMIT_FSIZE, (most, most))
    n.admit([1000], prompt_of(5), 20)
    serve(n, range(1, 20))
    n.until(n.counter("record_errors", 1))
    serve(n, range(30, 40))
    errors = n.terminate()
    assert errors.count("the recording ends here, serving goes on") == 1
    assert (tmp_path / "r").stat().st_size <= most


def test_a_file_that_cannot_be_made_does_not_disturb(start: Callable[..., Neighbours], tmp_path: Path) -> None:
    n = start(record=str(tmp_path / "no" / "r"))
    serve(n, range(1, 10))
    n.until(n.counter("record_errors", 1))
    assert "nothing is recorded" in n.terminate()
