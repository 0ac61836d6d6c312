"""What is kept of a request that ended the worker: the plans of its last session, in few private files."""

import logging
from pathlib import Path

import msgspec
import pytest

from messages.poison import MOST_POISON_BYTES, POISON_MAGIC, Poison
from messages.result import Origin
from scheduler.poison import MOST_FILES, keep_poison
from scheduler.suspects import ALONE
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import view_i32

ORIGIN = Origin(model="/m", device="cpu", dtype="auto", kv_dtype="auto", weights="auto", dummy_weights=False, max_context=None)


def poison(why: str = "it died") -> Poison:
    return Poison(attached=attached(), plans=[], answered=0, why=why)


def read(path: Path) -> Poison:
    content = path.read_bytes()
    assert content.startswith(POISON_MAGIC)
    return msgspec.msgpack.decode(content.removeprefix(POISON_MAGIC), type=Poison)


def test_the_plans_of_the_last_session_are_kept() -> None:
    bench = Bench(msgspec.structs.replace(attached(blocks=40, slots=8), origin=ORIGIN))
    keys = [bench.admit(prompt_of(20, i), 10)[0] for i in range(4)]
    bench.worker.die_with = {keys[1]}
    bench.settle()
    [found] = bench.engine.take_poison()
    assert bench.engine.take_poison() == []
    last = bench.worker.geometry
    assert (found.attached.blocks, found.attached.incarnation, found.attached.origin) == (last.blocks, last.incarnation - 1, ORIGIN)
    assert found.answered < len(found.plans)
    assert [plan.step for plan in found.plans] == list(range(1, len(found.plans) + 1))
    assert {plan.session for plan in found.plans} == {found.attached.session}
    tokens = [token for plan in found.plans if plan.prefill is not None for token in view_i32(plan.prefill.tokens).tolist()]
    assert tokens == prompt_of(20, 1)[: len(tokens)]
    assert found.plans[0].admit is not None
    assert len(view_i32(found.plans[0].admit.slot)) == 1, "it was alone"


def test_a_search_that_clears_everybody_keeps_nothing() -> None:
    bench = Bench(attached(blocks=40, slots=8))
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(4)]
    bench.worker.die_with = {keys[1]}
    while bench.worker.deaths < ALONE:
        bench.step()
    bench.worker.die_with = set()
    bench.settle()
    assert bench.engine.take_poison() == []


def test_files_are_private_few_and_the_newest(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 4):
        path = keep_poison(tmp_path, poison(f"death {number}"))
        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o600
    kept = sorted(read(path).why for path in tmp_path.iterdir())
    assert kept == sorted(f"death {number}" for number in range(4, MOST_FILES + 4))
    assert all(read(path).time > 1e9 for path in tmp_path.iterdir())


def test_names_that_are_not_ours_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "poison-x.plan").touch()
    assert keep_poison(tmp_path, poison()) == tmp_path / "poison-1.plan"


def test_what_is_too_large_or_cannot_be_written_is_only_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert keep_poison(tmp_path, poison("x" * MOST_POISON_BYTES)) is None
    assert keep_poison(tmp_path / "nowhere", poison()) is None
    assert list(tmp_path.iterdir()) == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
