"""The resident engine gives what the engine gives that waits for every step: run ahead, mixed steps, penalties, seeds, failures, re-admission."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.triton_set import Triton
from messages.plan import StepPlan
from messages.result import NON_FINITE, OK, UNMATCHED, StepResult
from tests.support import followers
from tests.support.devices import DEVICE, GPU
from tests.support.engines import SilentReporter, make_engine, tokens_of, worker_args
from tests.support.plans import Chunk, Planner, Row, pooled, scores
from tests.support.resident import Playing
from transport.columns import view_f32, view_i32, view_u8
from worker.load import load_model
from worker.memory import allocate
from worker.plan import PlanError
from worker.resident.engine import ResidentEngine
from worker.resident.graphs import padded_sizes

IDS = [(7 * i + 3) % 250 for i in range(40)]
GREEDY = Row(slot=0, prompt=IDS[:9], blocks=[5, 0, 7])
DRAWN = Row(slot=3, prompt=IDS[5:12], blocks=[2, 9, 4], seed=5, temperature=0.8, top_p=0.9, top_k=30)
PENAL = Row(slot=1, prompt=IDS[2:6], blocks=[1, 3], seed=2**40 + 1, temperature=1.0, repetition=1.2, frequency=0.3, presence=0.1)
ASKED = Row(slot=6, prompt=IDS[1:4], blocks=[8, 6], logprobs=3)


class OneWord(Triton):
    """Triton's kernels; a change of the state that names a word twice with different values is an error, as the device would take either."""

    @staticmethod
    def write_words(arena: torch.Tensor, pairs: torch.Tensor) -> None:
        assert pairs.unique(dim=1).shape[1] == pairs[0].unique().shape[0]
        Triton.write_words(arena, pairs)


@pytest.fixture
def playing(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Playing]:
    """Random weights in float32 over a pool full of NaN."""
    if not GPU:
        monkeypatch.setattr("worker.load.kernels_for", lambda device, deterministic: Triton)
        monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
        monkeypatch.setattr("worker.weights.FAST_ROWS", 1)
    if GPU:
        torch.cuda.set_stream(torch.cuda.Stream())  # graphs cannot be made on the default one
    args = worker_args(models / "rand-byte", kv_tokens=512, device=DEVICE.type, dtype="float32")
    found = load_model(args, SilentReporter())
    monkeypatch.undo()
    cache = allocate(found.decoder.config, found.kv_dtype, 32, args.block_size, DEVICE)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    play = Playing(ResidentEngine(found.decoder, cache, OneWord, args.max_slots, found.positions // args.block_size, args.max_step_tokens))
    yield play
    play.engine.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_steps_run_ahead_equal_steps_waited_for(models: Path, playing: Playing) -> None:
    planner = Planner()
    steps = 30 if GPU else 1
    plans = [
        planner.start(GREEDY),
        planner.plan(admit=[DRAWN, PENAL], chunks=[Chunk(3, 0, DRAWN.prompt[:4], False), Chunk(1, 0, PENAL.prompt, True)], decode=[0]),
        planner.plan(chunks=[Chunk(3, 4, DRAWN.prompt[4:], True)], decode=[0, 1]),
        planner.plan(decode=[0, 1, 3]),
        planner.plan(admit=[ASKED], chunks=[Chunk(6, 0, ASKED.prompt, True)], decode=[1]),
        planner.plan(decode=[0, 3, 6]),
        planner.plan(decode=[0, 3], release=[1]),
        *(planner.plan(decode=None) for _ in range(steps)),
    ]
    reference = make_engine(models / "rand-byte", kv_tokens=512)
    expected = [reference.run(plan) for plan in plans]
    found = playing.play(plans)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.step, ours.slot, ours.status) == (theirs.step, theirs.slot, theirs.status)
        assert tokens_of(ours) == tokens_of(theirs), f"step {ours.step}"
        if theirs.logprobs is not None:
            assert ours.logprobs is not None
            assert (ours.logprobs.row, ours.logprobs.count, ours.logprobs.top_ids) == (
                theirs.logprobs.row,
                theirs.logprobs.count,
                theirs.logprobs.top_ids,
            )
            assert view_f32(ours.logprobs.top) == pytest.approx(view_f32(theirs.logprobs.top), abs=1e-4)
    assert playing.engine.totals.decode_tokens == sum(len(view_i32(plan.slot)) for plan in expected) - 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_follow_their_grammars_when_steps_run_ahead(models: Path, playing: Playing) -> None:
    """All plans are there at once; each step's sampler waits for the tokens of the one before."""
    reference = make_engine(models / "rand-byte", kv_tokens=512)
    plans = followers.plans(6)
    for engine in (reference, playing.engine):
        followers.give(engine.slots.matching)
    expected = [reference.run(plan) for plan in plans]
    said: dict[int, list[int]] = {}
    for ours, theirs in zip(playing.play(plans), expected, strict=True):
        assert (ours.slot, ours.status) == (theirs.slot, theirs.status)
        assert tokens_of(ours) == tokens_of(theirs), f"step {ours.step}"
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None and theirs.logprobs is not None:
            assert view_f32(ours.logprobs.chosen) == pytest.approx(view_f32(theirs.logprobs.chosen), abs=1e-4)
        for slot, token in zip(view_i32(ours.slot).tolist(), tokens_of(ours), strict=True):
            said.setdefault(slot, []).append(token)
    followers.check(said)
    matching = playing.engine.slots.matching
    matching.fail(matching.rows[6], "too complex")
    playing.engine.reset()
    first, second, *_ = followers.plans(0)
    playing.play([first])
    matching.fail(matching.rows[0], "too complex")
    (result,) = playing.play([second])
    assert view_u8(result.status).tolist() == [UNMATCHED, OK, OK, OK]
    assert tokens_of(result)[0] == -1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_changed_logits_and_prompt_logprobs_equal_those_waited_for(models: Path, playing: Playing) -> None:
    """Tokens favoured, held back, allowed alone and words that depend on tokens only the device knows yet; logprobs of a prompt in two chunks."""
    reference = make_engine(models / "rand-byte", kv_tokens=512)
    plain = [tokens_of(reference.run(plan))[0] for plan in _alone(GREEDY, 6)]
    reference.reset()
    held = {plain[0]: (0.0, len(GREEDY.prompt) + 2), plain[2]: (-50.0, 0), 100: (3.0, 0)}
    rows = [
        replace(GREEDY, slot=0, bias=held, words=[[100, 100], plain[1:3]], logprobs=2),
        Row(slot=4, prompt=IDS[:5], blocks=[1], bias={7: (0.0, 0), 9: (0.5, 0)}, closed=True, temperature=1.0, seed=3, words=[[7, 9]]),
        Row(slot=2, prompt=IDS[3:6], blocks=[2]),
    ]
    long = Row(slot=6, prompt=IDS[:12], blocks=[8, 6])
    pool = Row(slot=7, prompt=IDS[:6], blocks=[9])
    planner = Planner()
    plans = [
        planner.plan(admit=rows, chunks=[Chunk(row.slot, 0, row.prompt, True) for row in rows]),
        planner.plan(admit=[long], chunks=[Chunk(6, 0, IDS[:7], False)], decode=[0, 2, 4], scores=scores(6, 0, IDS[1:8], 3)),
        planner.plan(chunks=[Chunk(6, 7, IDS[7:12], True)], decode=None, scores=scores(6, 9, IDS[10:12], 0)),
        planner.plan(admit=[pool], chunks=[Chunk(7, 0, pool.prompt, True)], decode=None, scores=pooled(7, 1, 5)),
        *(planner.plan(decode=[0, 2, 4, 6]) for _ in range(6 if GPU else 2)),
    ]
    expected = [reference.run(plan) for plan in plans]
    for ours, theirs in zip(playing.play(plans), expected, strict=True):
        assert (ours.slot, ours.status) == (theirs.slot, theirs.status)
        assert tokens_of(ours) == tokens_of(theirs), f"step {ours.step}"
        assert (ours.scores is None) == (theirs.scores is None)
        if ours.scores is not None and theirs.scores is not None:
            assert (ours.scores.slot, ours.scores.start, ours.scores.count) == (theirs.scores.slot, theirs.scores.start, theirs.scores.count)
            assert view_f32(ours.scores.chosen) == pytest.approx(view_f32(theirs.scores.chosen), abs=1e-4)
            assert ours.scores.top_ids == theirs.scores.top_ids
            assert view_f32(ours.scores.states) == pytest.approx(view_f32(theirs.scores.states), rel=1e-4, abs=1e-3)
            assert view_f32(ours.scores.top_values) == pytest.approx(view_f32(theirs.scores.top_values), abs=1e-4)
        if ours.logprobs is not None and theirs.logprobs is not None:
            assert view_f32(ours.logprobs.top) == pytest.approx(view_f32(theirs.logprobs.top), abs=1e-4)


def _alone(row: Row, steps: int) -> list[StepPlan]:
    planner = Planner()
    return [planner.start(row), *(planner.plan(decode=[row.slot]) for _ in range(steps - 1))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_row_admitted_again_goes_on_as_it_was(models: Path, playing: Playing) -> None:
    """Preempted after some tokens, prefilled again behind its prompt in another slot and other blocks: the same tokens follow.

    In company: the interpreter takes half a minute for a step of one row.
    """
    steps = 8 if GPU else 2
    planner = Planner()
    whole = playing.play([planner.start(GREEDY), planner.start(PENAL), *(planner.plan(decode=[0, 1]) for _ in range(2 * steps))])
    tokens = [token_of(result, 1) for result in whole[1:]]
    known = [*PENAL.prompt, *tokens[:steps]]
    again = Row(slot=5, prompt=known, blocks=[12, 11], seed=PENAL.seed, temperature=1.0, repetition=1.2, frequency=0.3, presence=0.1,
                prompt_length=len(PENAL.prompt))  # fmt: skip
    plans = [
        planner.plan(admit=[again], chunks=[Chunk(5, 0, known, True)], decode=[0], release=[1]),
        *(planner.plan(decode=[0, 5]) for _ in range(steps)),
    ]
    assert [token_of(result, 5) for result in playing.play(plans)] == tokens[steps:]


def token_of(result: StepResult, slot: int) -> int:
    slots: list[int] = view_i32(result.slot).tolist()
    return tokens_of(result)[slots.index(slot)]


@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:All-NaN slice")  # by the interpreter's numpy
def test_a_row_that_is_not_finite_fails_alone_and_for_good(playing: Playing) -> None:
    planner = Planner()
    bad = Row(slot=2, prompt=IDS[:3], blocks=[10])
    playing.play([planner.start(GREEDY), planner.start(bad)])
    playing.engine.cache.v[:, 10] = torch.nan
    failed = playing.play([planner.plan(decode=[0, 2])])[0]
    assert view_u8(failed.status).tolist() == [OK, NON_FINITE]
    assert tokens_of(failed)[1] == -1
    playing.engine.cache.v[:, 10] = 0.0
    later = playing.play([planner.plan(decode=None), planner.plan(decode=None)])
    assert [view_u8(result.status).tolist() for result in later] == [[OK, NON_FINITE]] * 2
    fresh = Row(slot=2, prompt=IDS[:3], blocks=[10])
    assert view_u8(playing.play([planner.plan(admit=[fresh], chunks=[Chunk(2, 0, IDS[:3], True)], release=[2])])[0].status).tolist() == [OK]


def test_a_bad_plan_is_refused_and_a_new_session_begins_afresh(playing: Playing) -> None:
    planner = Planner()
    first = playing.play([planner.start(GREEDY)])[0]
    with pytest.raises(PlanError, match="not admitted"):
        playing.engine.submit(planner.plan(decode=[2]))
    playing.engine.reset()
    assert tokens_of(playing.play([Planner(2).start(GREEDY)])[0]) == tokens_of(first)


@pytest.mark.skipif(not GPU, reason="there are no graphs in the interpreter")
def test_short_prompts_from_graphs_equal_steps_waited_for(models: Path, playing: Playing) -> None:
    """One row more in every step: each kind of step comes launch by launch, then as a graph."""
    rows = [Row(slot=slot, prompt=IDS[slot : 2 * slot + 3], blocks=[3 * slot, 3 * slot + 1, 3 * slot + 2]) for slot in range(8)]
    for _ in range(2):
        planner = Planner()
        plans = [planner.plan(admit=[row], chunks=[Chunk(row.slot, 0, row.prompt, True)], decode=list(range(row.slot))) for row in rows]
        plans.append(planner.plan(decode=list(range(8))))
        reference = make_engine(models / "rand-byte", kv_tokens=512)
        expected = [tokens_of(reference.run(plan)) for plan in plans]
        playing.engine.reset()
        assert [tokens_of(result) for result in playing.play(plans)] == expected
    assert playing.engine.graphs > 4


@pytest.mark.skipif(not GPU, reason="there are no graphs in the interpreter")
def test_graphs_are_made_ahead_while_nothing_runs(playing: Playing) -> None:
    planner = Planner()
    while playing.engine.idle():
        pass
    assert playing.engine.graphs >= len(padded_sizes(8))
    results = playing.play([planner.start(GREEDY), *(planner.plan(decode=[0]) for _ in range(5))])
    assert all(view_u8(result.status).tolist() == [OK] for result in results)
