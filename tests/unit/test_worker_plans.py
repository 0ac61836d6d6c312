"""Plans that break the contract are refused with a sentence; good ones sample as promised: order, feeding forward, penalties, seeds, failures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from messages.plan import Appends, Copies, StepPlan
from messages.result import NON_FINITE
from tests.support.engines import make_engine, poison, tokens_of
from tests.support.plans import Chunk, Planner, Row, prefills
from transport.columns import pack_f32, pack_i32, view_f32, view_i32, view_u8
from worker.plan import PlanError
from worker.step import Engine

ROW = Row(slot=1, prompt=[5, 6, 7], blocks=[0, 1])


@pytest.fixture(scope="module")
def dice(models: Path) -> Engine:
    return make_engine(models / "dice-byte", kv_tokens=1024)


def admit_with(**columns: bytes) -> StepPlan:
    plan = Planner().start(ROW)
    assert plan.admit is not None
    return msgspec.structs.replace(plan, admit=msgspec.structs.replace(plan.admit, **columns))


def prefill_with(chunk: Chunk) -> StepPlan:
    return Planner().plan(admit=[ROW], chunks=[chunk])


BAD: dict[str, StepPlan] = {
    "step-number": StepPlan(session=1, step=2),
    "release-range": StepPlan(session=1, step=1, release=pack_i32([8])),
    "release-bytes": StepPlan(session=1, step=1, release=b"abc"),
    "decode-unadmitted": StepPlan(session=1, step=1, decode=b"\x01"),
    "decode-range": StepPlan(session=1, step=1, decode=b"\x00" * 100 + b"\x01"),
    "decode-without-token": Planner().plan(admit=[ROW], decode=[1]),
    "admit-slot": admit_with(slot=pack_i32([8])),
    "admit-length": admit_with(seed=b""),
    "admit-nan": admit_with(temperature=pack_f32([float("nan")])),
    "admit-negative": admit_with(prompt_len=pack_i32([0])),
    "admit-repetition": admit_with(repetition_penalty=pack_f32([0.0])),
    "seen-mismatch": admit_with(seen_slot=pack_i32([1]), seen_count=pack_i32([2]), seen_tokens=pack_i32([3])),
    "append-unadmitted": StepPlan(session=1, step=1, append=Appends(slot=pack_i32([0]), index=pack_i32([0]), block=pack_i32([0]))),
    "append-block": Planner().start(Row(slot=0, prompt=[1], blocks=[64])),
    "copy-range": StepPlan(session=1, step=1, copies=Copies(source=pack_i32([0]), target=pack_i32([64]))),
    "token-range": prefill_with(Chunk(1, 0, [5, 100_000], True)),
    "token-negative": prefill_with(Chunk(1, 0, [-1], True)),
    "negative-start": prefill_with(Chunk(1, -1, [5], True)),
    "past-the-table": prefill_with(Chunk(1, 0, [5] * 33, True)),
    "past-the-context": prefill_with(Chunk(1, 2**31 - 40, [5], True)),
    "too-many-tokens": prefill_with(Chunk(1, 0, [5] * 513, True)),
    "count-mismatch": StepPlan(session=1, step=1, prefill=msgspec.structs.replace(prefills([Chunk(1, 0, [5], True)]), count=pack_i32([2]))),
    "twice-a-slot": Planner().plan(admit=[ROW], chunks=[Chunk(1, 0, [5], False), Chunk(1, 1, [5], True)]),
}


@pytest.mark.parametrize("plan", BAD.values(), ids=BAD.keys())
def test_bad_plans(dice: Engine, plan: StepPlan) -> None:
    dice.reset()
    with pytest.raises(PlanError):
        dice.run(plan)
    dice.reset()
    assert len(tokens_of(dice.run(Planner().start(ROW)))) == 1


def test_admitting_a_live_slot_and_gaps_are_refused(dice: Engine) -> None:
    for second in ({"admit": [ROW]}, {"chunks": [Chunk(1, 3, [5], True)]}):
        planner = Planner()
        dice.reset()
        dice.run(planner.start(ROW))
        with pytest.raises(PlanError):
            dice.run(planner.plan(**second))
    planner = Planner()
    dice.reset()
    dice.run(planner.plan(admit=[ROW], chunks=[Chunk(1, 0, [5], False)]))
    with pytest.raises(PlanError, match="does not start where"):
        dice.run(planner.plan(chunks=[Chunk(1, 2, [5], True)]))


def test_rows_come_in_plan_order(dice: Engine) -> None:
    planner = Planner()
    dice.reset()
    rows = [Row(slot=slot, prompt=[5] * (slot + 1), blocks=[slot]) for slot in (4, 2, 0)]
    dice.run(planner.start(rows[0]))
    chunks = [Chunk(2, 0, [5], False), Chunk(0, 0, [5], True)]
    result = dice.run(planner.plan(admit=rows[1:], chunks=chunks, decode=[4]), 0.5)
    assert view_i32(result.slot).tolist() == [0, 4]
    assert result.queued == 0.5
    result = dice.run(planner.plan(chunks=[Chunk(2, 1, [5, 5], True)], decode=None))
    assert view_i32(result.slot).tolist() == [2, 4]
    assert dice.slots.length[[0, 2, 4]].tolist() == [1, 3, 7]
    empty = dice.run(planner.plan(release=[0, 2, 4]))
    assert (empty.slot, empty.token, empty.status) == (b"", b"", b"")


def test_rows_that_decode_on_are_checked_when_something_changes(dice: Engine) -> None:
    planner = Planner()
    dice.reset()
    dice.run(planner.start(ROW))
    for decode in ([1], None, None):
        assert len(tokens_of(dice.run(planner.plan(decode=decode)))) == 1
    with pytest.raises(PlanError, match="not admitted"):
        dice.run(planner.plan(decode=None, release=[1]))


def test_rows_that_decode_on_stay_within_their_blocks(dice: Engine) -> None:
    planner = Planner()
    dice.reset()
    dice.run(planner.start(Row(slot=1, prompt=[5] * 30, blocks=[0, 1])))
    for decode in ([1], None):
        dice.run(planner.plan(decode=decode))
    with pytest.raises(PlanError, match="does not cover"):
        dice.run(planner.plan(decode=None))


def sequence(engine: Engine, row: Row, count: int) -> list[int]:
    planner = Planner()
    engine.reset()
    out = tokens_of(engine.run(planner.start(row)))
    for _ in range(count - 1):
        out += tokens_of(engine.run(planner.plan(decode=[row.slot])))
    return out


def letters(engine: Engine, models: Path, **sampling: Any) -> str:
    """Six tokens of `dice` as letters."""
    tokenizer = Tokenizer.from_file(str(models / "dice-byte" / "tokenizer.json"))
    count = sampling.pop("count", 6)
    prompt = tokenizer.encode(sampling.pop("prompt", "x"), add_special_tokens=False).ids
    text: str = tokenizer.decode(sequence(engine, Row(slot=0, prompt=prompt, blocks=range(4), **sampling), count))
    return text


def test_penalties(dice: Engine, models: Path) -> None:
    assert letters(dice, models) == "aaaaaa"
    assert letters(dice, models, frequency=0.3)[:4] == "abab"
    assert letters(dice, models, presence=2.0)[:4] == "abcd"
    assert letters(dice, models, repetition=2.0, prompt="a") == "bcaaaa"
    assert letters(dice, models, presence=2.0, prompt="aa")[0] == "a"


def test_penalties_continue_after_preemption(dice: Engine) -> None:
    """Admitted again with its generated tokens behind the prompt, through prefill or as cached tokens, a row goes on as before."""
    row = Row(slot=0, prompt=[5, 6], blocks=range(4), presence=1.0, frequency=0.4, repetition=1.3, temperature=1.0, seed=99)
    whole = sequence(dice, row, 20)
    ids = [5, 6, *whole[:9]]
    again = replace(row, prompt=ids, prompt_length=2)
    assert sequence(dice, again, 11) == whole[9:]
    planner = Planner()
    dice.reset()
    cached = replace(row, prompt=ids, prompt_length=2, seen=ids[:8])
    first = dice.run(planner.plan(admit=[cached], chunks=[Chunk(0, 8, ids[8:], True)]))
    assert tokens_of(first) == whole[9:10]


def test_same_seed_same_tokens_in_any_company(dice: Engine) -> None:
    row = Row(slot=3, prompt=[5], blocks=[9, 10], temperature=1.0, seed=7, top_p=0.95)
    alone = sequence(dice, row, 12)
    others = [Row(slot=slot, prompt=[slot + 5], blocks=[slot], temperature=1.5, seed=slot, presence=1.0) for slot in range(3)]
    planner = Planner()
    dice.reset()
    for other in others:
        dice.run(planner.start(other))
    together = tokens_of(dice.run(planner.start(row)))
    for _ in range(11):
        together.append(tokens_of(dice.run(planner.plan(decode=[0, 1, 2, 3])))[3])
    assert together == alone
    assert len(set(alone)) > 1


def test_non_finite_rows_fail_alone(models: Path) -> None:
    engine = make_engine(models / "histo-byte", kv_tokens=512)
    planner = Planner()
    poison(engine)
    good, bad = Row(slot=0, prompt=[5, 6], blocks=[0], logprobs=2), Row(slot=1, prompt=[7, 8], blocks=[1], logprobs=2)
    engine.run(planner.plan(admit=[good, bad], chunks=[Chunk(0, 0, [5, 6], True), Chunk(1, 0, [7, 8], True)]))
    engine.cache.v[:, 1] = float("nan")
    result = engine.run(planner.plan(decode=[0, 1]))
    assert view_u8(result.status).tolist() == [0, NON_FINITE]
    assert view_i32(result.token)[1] == -1
    assert result.logprobs is not None
    assert view_i32(result.logprobs.row).tolist() == [0]
    assert np.isfinite(view_f32(result.logprobs.top)).all()
    engine.cache.v[:, 1] = 0.0
    later = engine.run(planner.plan(decode=None))
    assert view_u8(later.status).tolist() == [0, NON_FINITE]


def test_copy_on_write(models: Path) -> None:
    engine = make_engine(models / "histo-byte", kv_tokens=512)
    planner = Planner()
    ids = [5, 9, 9, 7, 8] * 6
    first = tokens_of(engine.run(planner.start(Row(slot=0, prompt=ids, blocks=[0, 1]))))
    plan = planner.plan(admit=[Row(slot=1, prompt=ids, blocks=[0, 2])], chunks=[Chunk(1, 29, ids[29:], True)])
    plan = msgspec.structs.replace(plan, copies=Copies(source=pack_i32([1]), target=pack_i32([2])))
    assert tokens_of(engine.run(plan)) == first
