"""Changes to logits and logprobs of prompts in the engine for CPU, on a model whose distribution is known: a, b, c, d = 0.4, 0.3, 0.2, 0.1."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from messages.plan import Biases, Scores, StepPlan
from messages.result import StepResult
from tests.support.engines import make_engine, tokens_of
from tests.support.plans import Chunk, Planner, Row, biases, scores
from transport.columns import pack_f32, pack_i32, pack_u8, view_f32, view_i32
from worker import scores as worker_scores
from worker.plan import PlanError
from worker.step import Engine

A, B, C, D = 64, 65, 66, 67
LOGPROBS = {A: math.log(0.4), B: math.log(0.3), C: math.log(0.2), D: math.log(0.1)}
NEVER = -math.inf
ROW = Row(slot=1, prompt=[5, 6], blocks=[0, 1])


@pytest.fixture(scope="module")
def dice(models: Path) -> Engine:
    return make_engine(models / "dice-byte")


def drawn(engine: Engine, row: Row, count: int = 6, start: StepPlan | None = None) -> list[int]:
    engine.reset()
    planner = Planner()
    first = planner.start(row)
    found = tokens_of(engine.run(start or first))
    for _ in range(count - 1):
        found += tokens_of(engine.run(planner.plan(decode=[row.slot])))
    return found


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [A] * 6),
        ({"bias": {A: (-1.0, 0)}}, [B] * 6),
        ({"bias": {200: (50.0, 0)}}, [200] * 6),
        ({"bias": {A: (NEVER, 0), B: (NEVER, 0)}}, [C] * 6),
        ({"bias": {A: (0.0, 4)}}, [B, B, A, A, A, A]),
        ({"bias": {200: (50.0, 5), A: (-1.0, 0)}}, [B, B, B, 200, 200, 200]),
        ({"bias": {100: (0.0, 0)}, "closed": True}, [100] * 6),
        ({"bias": {100: (0.0, 0), D: (0.0, 4)}, "closed": True}, [100, 100, D, D, D, D]),
        ({"bias": {100: (NEVER, 0)}, "closed": True}, [100] * 6),
        ({"words": [[A, A]]}, [A, B, A, B, A, B]),
        ({"words": [[A, A], [B, A]]}, [A, B, B, B, B, B]),
        ({"words": [[A, A, A]], "presence": 0.5}, [A, B, A, A, C, A]),
        ({"words": [[6, A], [A] * 16]}, [A] * 6),
    ],
)
def test_what_a_row_may_say(dice: Engine, changes: dict[str, Any], wanted: list[int]) -> None:
    assert drawn(dice, replace(ROW, **changes)) == wanted


def test_words_do_not_count_the_prompt_and_outlast_a_preemption(dice: Engine) -> None:
    row = Row(slot=2, prompt=[A, A], blocks=range(4), words=[[A, A], [A, B, B], [A, B, C]])
    whole = drawn(dice, row, 10)
    assert whole == [A, B, A, B, A, B, A, B, A, B]
    for known in (1, 2, 5):
        ids = [A, A, *whole[:known]]
        assert drawn(dice, replace(row, prompt=ids, prompt_length=2), 5) == whole[known : known + 5]
        planner = Planner()
        cached = planner.plan(admit=[replace(row, prompt=ids, prompt_length=2, seen=ids[:-1])], chunks=[Chunk(2, len(ids) - 1, ids[-1:], True)])
        assert drawn(dice, row, 5, cached) == whole[known : known + 5]


def test_rows_do_not_change_their_neighbours_nor_their_successors(dice: Engine) -> None:
    dice.reset()
    planner = Planner()
    rows = [Row(slot=3, prompt=[5], blocks=[0]), Row(slot=0, prompt=[5], blocks=[1], bias={A: (NEVER, 0)}, words=[[B, B]])]
    chunks = [Chunk(row.slot, 0, row.prompt, True) for row in rows]
    assert tokens_of(dice.run(planner.plan(admit=rows, chunks=chunks))) == [A, B]
    assert tokens_of(dice.run(planner.plan(decode=[0, 3]))) == [C, A]
    again = Row(slot=0, prompt=[5], blocks=[1])
    assert tokens_of(dice.run(planner.plan(admit=[again], chunks=[Chunk(0, 0, [5], True)], decode=[3], release=[0]))) == [A, A]


def test_logprobs_are_of_the_logits_as_they_were(dice: Engine) -> None:
    result = dice_start(dice, replace(ROW, bias={A: (NEVER, 0), 200: (9.0, 0)}, logprobs=4))
    assert result.logprobs is not None
    assert view_i32(result.logprobs.top_ids).tolist() == [A, B, C, D]
    assert view_f32(result.logprobs.top).tolist() == pytest.approx(list(LOGPROBS.values()), abs=1e-3)


def dice_start(engine: Engine, row: Row) -> StepResult:
    engine.reset()
    return engine.run(Planner().start(row))


@pytest.mark.parametrize("piece", [1, 3, 1 << 24])
def test_scores_of_prompt_chunks(dice: Engine, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Two rows, one of them from the middle of its second chunk on, beside a row that decodes."""
    monkeypatch.setattr(worker_scores, "PIECE_VALUES", piece * dice.slots.vocab)
    dice.reset()
    planner = Planner()
    other = Row(slot=0, prompt=[5], blocks=[4])
    dice.run(planner.start(other))
    ids = [5, A, B, C, D, A, A]
    row, second = Row(slot=1, prompt=ids, blocks=[0]), Row(slot=2, prompt=[B, C], blocks=[1])
    asked = Scores(
        slot=pack_i32([2, 1]), start=pack_i32([0, 0]), count=pack_i32([1, 3]), top=pack_i32([2, 0]), tokens=pack_i32([C, A, B, C])
    )
    chunks = [Chunk(1, 0, ids[:3], False), Chunk(2, 0, [B, C], True)]
    result = dice.run(planner.plan(admit=[row, second], chunks=chunks, decode=[0], scores=asked))
    assert result.scores is not None
    assert (result.scores.slot, result.scores.start, result.scores.count, result.scores.top) == (asked.slot, asked.start, asked.count, asked.top)
    assert view_f32(result.scores.chosen).tolist() == pytest.approx([LOGPROBS[token] for token in (C, A, B, C)], abs=1e-3)
    assert view_i32(result.scores.ranks).tolist() == [3, 1, 2, 3]
    assert view_i32(result.scores.top_ids).tolist() == [A, B]
    assert view_f32(result.scores.top_values).tolist() == pytest.approx([LOGPROBS[A], LOGPROBS[B]], abs=1e-3)
    later = dice.run(planner.plan(chunks=[Chunk(1, 3, ids[3:], True)], decode=[0, 2], scores=scores(1, 4, [A, A], 1)))
    assert later.scores is not None
    assert view_f32(later.scores.chosen).tolist() == pytest.approx([LOGPROBS[A]] * 2, abs=1e-3)


def test_sums_of_hidden_states(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all or some positions of a chunk, beside a row with logprobs; in pieces or at once."""
    engine = make_engine(models / "rand-byte", kv_tokens=512)
    ids = [5, A, B, C, D, 7]
    found = []
    for piece in (1, 1 << 24):
        monkeypatch.setattr(worker_scores, "PIECE_VALUES", piece)
        engine.reset()
        rows = [Row(slot=0, prompt=ids, blocks=[0]), Row(slot=1, prompt=ids[:3], blocks=[1]), Row(slot=2, prompt=ids, blocks=[2])]
        asked = Scores(
            slot=pack_i32([2, 1, 0]), start=pack_i32([0, 0, 5]), count=pack_i32([6, 2, 1]), top=pack_i32([-1, 0, -1]), tokens=pack_i32([A, B])
        )
        chunks = [Chunk(row.slot, 0, row.prompt, True) for row in rows]
        result = engine.run(Planner().plan(admit=rows, chunks=chunks, scores=asked))
        assert result.scores is not None
        assert len(view_f32(result.scores.chosen)) == 2
        found.append(view_f32(result.scores.states).reshape(2, engine.config.hidden))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
    single = []
    for length in range(1, len(ids) + 1):
        engine.reset()
        asked = Scores(slot=pack_i32([0]), start=pack_i32([length - 1]), count=pack_i32([1]), top=pack_i32([-1]), tokens=b"")
        row = Row(slot=0, prompt=ids[:length], blocks=[0])
        result = engine.run(Planner().plan(admit=[row], chunks=[Chunk(0, 0, ids[:length], True)], scores=asked))
        assert result.scores is not None
        single.append(view_f32(result.scores.states))
    np.testing.assert_allclose(found[0], [np.sum(single, 0), single[-1]], rtol=1e-4, atol=1e-4)


def plan(**changes: Any) -> StepPlan:
    found = Planner().plan(admit=[ROW], chunks=[Chunk(1, 0, ROW.prompt, True)])
    return msgspec.structs.replace(found, **changes)


def bias(**changes: Any) -> Biases:
    found = biases([replace(ROW, bias={A: (1.0, 0), B: (2.0, 0)}, words=[[A, B], [C, D]])])
    assert found is not None
    return msgspec.structs.replace(found, **changes)


BAD: dict[str, StepPlan] = {
    "bias of another slot": plan(bias=bias(slot=pack_i32([2]))),
    "a slot twice": plan(bias=bias(slot=pack_i32([1, 1]), closed=pack_u8([0, 0]), count=pack_i32([1, 1]))),
    "a count too many": plan(bias=bias(count=pack_i32([3]))),
    "a token twice": plan(bias=bias(token=pack_i32([A, A]))),
    "a token past the vocabulary": plan(bias=bias(token=pack_i32([A, 312]))),
    "a value that is none": plan(bias=bias(value=pack_f32([1.0, math.nan]))),
    "an infinite value": plan(bias=bias(value=pack_f32([1.0, math.inf]))),
    "closed without tokens": plan(
        bias=bias(closed=pack_u8([1]), count=pack_i32([0]), token=b"", value=b"", since=b"")
    ),
    "a short column": plan(bias=bias(since=pack_i32([0]))),
    "a word of one token": plan(bias=bias(word_count=pack_i32([1, 3]))),
    "a long word": plan(bias=bias(word_slot=pack_i32([1]), word_count=pack_i32([17]), word_tokens=pack_i32([A] * 17))),
    "a word of another slot": plan(bias=bias(word_slot=pack_i32([1, 3]))),
    "a word past the vocabulary": plan(bias=bias(word_tokens=pack_i32([A, B, C, 312]))),
    "no scores": plan(scores=Scores(slot=b"", start=b"", count=b"", top=b"", tokens=b"")),
    "scores of another slot": plan(scores=scores(2, 0, [6], 1)),
    "scores before the chunk": plan(scores=scores(1, -1, [6], 1)),
    "scores past the chunk": plan(scores=scores(1, 1, [6, 6], 1)),
    "scores of nothing": plan(scores=scores(1, 0, [], 1)),
    "scores of an unknown token": plan(scores=scores(1, 0, [312], 1)),
    "too many alternatives": plan(scores=scores(1, 0, [6], 313)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_columns(dice: Engine, bad: StepPlan) -> None:
    dice.reset()
    with pytest.raises(PlanError):
        dice.run(bad)
    assert drawn(dice, ROW, 2) == [A, A]
