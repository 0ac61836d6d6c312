"""The engine that waits for its steps, with rows that follow a grammar; and the thread that compiles them."""

import queue
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grammar.vocabulary_file import write_vocabulary
from messages.plan import Prepare
from messages.result import NON_FINITE, OK, UNMATCHED, Prepared
from tests.support import followers
from tests.support.engines import make_engine, poison, tokens_of
from tests.support.plans import Chunk, Planner, Row
from tests.support.vocabularies import END, SIZE, SPECIAL, TOKENS, allowed
from transport.columns import view_i32, view_u8
from worker.grammars import Grammars
from worker.matching import Matching
from worker.plan import PlanError
from worker.step import Engine


@pytest.fixture
def engine(models: Path) -> Engine:
    made = make_engine(models / "rand-byte", kv_tokens=512)
    poison(made)
    followers.give(made.slots.matching)
    return made


def run(engine: Engine, steps: int) -> dict[int, list[int]]:
    """By slot, what rows have said."""
    said: dict[int, list[int]] = {}
    for plan in followers.plans(steps):
        result = engine.run(plan)
        assert set(result.status) <= {OK}
        for slot, token in zip(view_i32(result.slot).tolist(), tokens_of(result), strict=True):
            said.setdefault(slot, []).append(token)
    return said


def test_rows_follow_their_grammars_among_others(engine: Engine) -> None:
    said = run(engine, 8)
    followers.check(said)
    engine.reset()
    assert run(engine, 8) == said


@pytest.mark.parametrize("cut", [3, 6, 8])
def test_a_row_that_runs_again_goes_on_in_its_grammar(engine: Engine, cut: int) -> None:
    """In chunks, with which its generated tokens come; the draws are by position."""
    said = run(engine, 5)[3]
    row = followers.ROWS[1]
    tokens = [*row.prompt, *said[:3]]
    engine.reset()
    planner = Planner()
    again = replace(row, slot=5, prompt_length=len(row.prompt))
    engine.run(planner.plan(admit=[again], chunks=[Chunk(5, 0, tokens[:cut], False)]))
    results = [engine.run(planner.plan(chunks=[Chunk(5, cut, tokens[cut:], True)])), *(engine.run(planner.plan(decode=[5])) for _ in range(2))]
    assert [tokens_of(result)[0] for result in results] == said[3:6]


def test_tokens_of_cached_blocks_are_matched_too(engine: Engine) -> None:
    row = Row(slot=5, prompt=followers.PROMPT, blocks=[2], grammar=2, prompt_length=7, seen=[*followers.PROMPT[:7], ord("a"), ord("b")])
    engine.run(Planner().plan(admit=[row]))
    masks = engine.slots.matching.wait(engine.slots.matching.wanted(np.array([5], np.int32), np.array([2])))
    assert [token for token in allowed(masks.words[0]) if token < 128] == [ord(letter) for letter in "abcd"]


def test_a_grammar_that_is_not_there_or_of_another_row_breaks_the_contract(engine: Engine) -> None:
    with pytest.raises(PlanError, match="a grammar that is not there"):
        engine.run(Planner().start(replace(followers.ROWS[0], grammar=9)))
    engine.reset()
    plan = Planner().start(followers.ROWS[0])
    assert plan.match is not None
    twice = followers.plans(0)[1].match
    engine.reset()
    with pytest.raises(PlanError, match="not admitted"):
        engine.run(type(plan)(session=1, step=1, admit=plan.admit, match=twice, append=plan.append, prefill=plan.prefill))


def test_a_row_that_cannot_go_on_fails_alone(engine: Engine) -> None:
    first, second, *steps = followers.plans(2)
    engine.run(first)
    engine.run(second)
    engine.slots.matching.fail(engine.slots.matching.rows[3], "too complex")
    for step in steps:
        result = engine.run(step)
        assert view_u8(result.status).tolist() == [OK, OK, UNMATCHED, OK]
        assert tokens_of(result)[2] == -1


def test_a_row_without_logits_fails_for_that(engine: Engine) -> None:
    planner = Planner()
    engine.run(planner.start(Row(slot=2, prompt=followers.PROMPT, blocks=[12], grammar=2)))
    engine.cache.k[:, 12] = float("nan")
    for _ in range(2):
        assert view_u8(engine.run(planner.plan(decode=[2])).status).tolist() == [NON_FINITE]


def test_programs_are_compiled_on_a_thread_and_answered(run_dir: Path) -> None:
    matching, answers = Matching(SIZE), queue.SimpleQueue[Prepared]()
    grammars = Grammars(run_dir, matching, answers.put)
    grammars.open_ahead()
    grammars.begin()
    grammars.prepare(Prepare(session=1, grammar=1, program='start: "a"'))
    assert "cannot be read" in answers.get(timeout=60).problem
    write_vocabulary(run_dir, "tokenizer0", TOKENS.of, {SPECIAL}, {END})
    grammars.open_ahead()
    found = []
    for number, program in ((1, 'start: "a"'), (2, "start: foo"), (3, 'start: "b"')):
        grammars.prepare(Prepare(session=1, grammar=number, program=program, forget=[1] if number == 3 else []))
        found.append(answers.get(timeout=60))
    assert found == [Prepared(session=1, grammar=1), Prepared(session=1, grammar=2, problem='unknown name: "foo"'), Prepared(session=1, grammar=3)]
    assert set(matching.grammars) == {3}
    matching.admit(0, 3)
    grammars.begin()
    assert matching.grammars == {}
    grammars.close()
    grammars.prepare(Prepare(session=2, grammar=4, program='start: "a"'))
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.2)


def test_a_vocabulary_that_another_took_the_place_of_is_read_again(run_dir: Path) -> None:
    """The cluster may serve another model now; the same one written again is the same."""
    matching, answers = Matching(SIZE + 1), queue.SimpleQueue[Prepared]()
    grammars = Grammars(run_dir, matching, answers.put)
    libraries = []
    for last in (b"", b"", b"zz"):
        write_vocabulary(run_dir, "tokenizer0", [*TOKENS.of, last], TOKENS.special, set(TOKENS.ends))
        grammars.begin()
        grammars.prepare(Prepare(session=1, grammar=1, program='start: "zz"'))
        assert answers.get(timeout=60).problem == ""
        libraries.append(matching._library)
    assert libraries[0] is libraries[1] is not libraries[2]
    matching.admit(0, 1)
    masks = matching.wait(matching.wanted(np.array([0], np.int32), np.array([0])))
    assert allowed(masks.words[0]) == [ord("z"), SIZE]


def test_a_vocabulary_without_an_end_is_said_when_it_is_needed(run_dir: Path) -> None:
    write_vocabulary(run_dir, "tokenizer0", [b"a"], set(), set())
    matching, answers = Matching(SIZE), queue.SimpleQueue[Prepared]()
    grammars = Grammars(run_dir, matching, answers.put)
    grammars.open_ahead()
    grammars.prepare(Prepare(session=1, grammar=1, program='start: "a"'))
    assert "no end token" in answers.get(timeout=60).problem
