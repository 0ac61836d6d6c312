"""`replay` of the steps of a request that ended the worker, on a real worker; and files that cannot be replayed."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from launcher.cli import build_parser
from launcher.errors import LauncherError
from launcher.replay import mismatch, read_poison, worker_arguments
from messages.plan import StepPlan
from messages.poison import MOST_POISON_BYTES, POISON_MAGIC, Poison
from messages.result import Attached, Origin
from tests.support.plans import Planner, Row

ROOT = Path(__file__).resolve().parents[2]
ORIGIN = Origin(model="/nowhere", device="cpu", dtype="auto", kv_dtype="auto", weights="auto", dummy_weights=False, max_context=64)
WORKER = Attached(
    session=5, worker="worker0", blocks=64, block_size=16, max_slots=8, max_blocks_per_slot=4, max_step_tokens=512, context=64, vocab=312,
    incarnation=3, origin=ORIGIN,
)  # fmt: skip


def write(path: Path, *plans: StepPlan, attached: Attached = WORKER) -> Path:
    path.write_bytes(POISON_MAGIC + msgspec.msgpack.encode(Poison(attached=attached, plans=list(plans), answered=1, why="it died", time=1e9)))
    return path


def test_steps_run_on_a_worker_until_one_cannot(models: Path, tmp_path: Path) -> None:
    planner = Planner(5)
    start = planner.start(Row(slot=2, prompt=[5] * 20, blocks=[7, 3, 1]))
    file = write(tmp_path / "poison-1.plan", start, *(planner.plan(decode=rows) for rows in ([2], None, [3])))
    command = [str(ROOT / "launch.py"), "replay", str(file), "--model", str(models / "dice-byte"), "--threads", "1"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    found, steps, *lines = done.stdout.splitlines()
    assert found.endswith(": it died")
    assert steps == "4 steps, 1 of them gave a result"
    assert [line.partition(": ")[0] for line in lines] == [
        "step 1 of 4 (20 prompt tokens, 0 decode rows)",
        "step 2 of 4 (0 prompt tokens, 1 decode rows)",
        "step 3 of 4 (0 prompt tokens, the decode rows of the step before)",
        "step 4 of 4 (0 prompt tokens, 1 decode rows)",
    ]
    assert all("1 tokens in " in line for line in lines[:3])
    assert "the worker could not run it: a row's slot is not admitted" in lines[3]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "does not hold the steps"),
        (b"pagewire recording 1\n", "does not hold the steps"),
        (POISON_MAGIC, "is damaged"),
        (POISON_MAGIC + b"\x91" * 100_000, "is damaged"),
        (POISON_MAGIC + bytes(MOST_POISON_BYTES), "does not hold the steps"),
    ],
    ids=["missing", "empty", "recording", "cut", "deep", "large"],
)
def test_files_that_cannot_be_replayed(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LauncherError, match=problem):
        read_poison(path)


def test_the_worker_is_started_as_the_one_that_ended(tmp_path: Path) -> None:
    args = build_parser("replay").parse_args(["replay", "file", "--model", str(tmp_path), "--device", "cuda:1"])
    told = worker_arguments(args, WORKER)
    assert (told["model"], told["device"], told["max_context"], told["kv_tokens"], told["max_slots"]) == (str(tmp_path), "cuda:1", 64, 1024, 8)
    args = build_parser("replay").parse_args(["replay", "file", "--model", str(tmp_path)])
    assert worker_arguments(args, msgspec.structs.replace(WORKER, origin=None))["device"] == "cpu"
    with pytest.raises(LauncherError, match="there is no model /nowhere; name its folder"):
        worker_arguments(build_parser("replay").parse_args(["replay", "file"]), WORKER)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"blocks": 65, "max_step_tokens": 600, "max_slots": 9}, None),
        ({"blocks": 63}, "its blocks is 64, and 63 here"),
        ({"vocab": 313}, "its vocab is 312, and 313 here"),
        ({"max_slots": 7}, "its max_slots is 8, and 7 here"),
    ],
    ids=["same", "larger", "fewer blocks", "vocabulary", "fewer slots"],
)
def test_a_worker_of_other_sizes_is_told_from_one_that_will_do(change: dict[str, int], problem: str | None) -> None:
    assert mismatch(WORKER, msgspec.structs.replace(WORKER, **change)) == problem
