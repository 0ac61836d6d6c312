"""Rows that follow grammars, for engines: their plans, and what they must have said."""

import json
import re

from grammar.program import program_of
from messages.constraint import Constraint
from messages.plan import StepPlan
from tests.support.plans import Chunk, Planner, Row
from tests.support.vocabularies import END, TOKENS, library
from worker.matching import Matching

CHOICES = ["abc", "ab1", "x"]
PATTERN = "[a-d]{3}[0-9]{2,4}"
PROMPT = [(7 * i + 3) % 250 for i in range(9)]
ROWS = [
    Row(slot=0, prompt=PROMPT, blocks=[5, 0, 7], grammar=1, logprobs=2),
    Row(slot=3, prompt=PROMPT[3:], blocks=[2, 9, 4], seed=5, temperature=1.0, top_k=40, grammar=2, repetition=1.3),
    Row(slot=1, prompt=PROMPT[2:6], blocks=[1, 3], seed=9, temperature=0.9),
    Row(slot=6, prompt=PROMPT[1:4], blocks=[8, 6], seed=3, temperature=1.0, grammar=2, bias={97: (50.0, 0), 98: (-100.0, 0)}),
]
SLOTS = [0, 1, 3, 6]


def give(matching: Matching) -> None:
    """The rows' grammars."""
    matching.grammars = {
        1: library().compile(program_of(Constraint("choice", json.dumps(CHOICES)))),
        2: library().compile(program_of(Constraint("regex", PATTERN))),
    }
    matching.use(library())


def plans(steps: int) -> list[StepPlan]:
    """A row whose prompt comes in two chunks, others at once; then all go on, as long as they may or longer."""
    planner = Planner()
    first, *others = ROWS
    return [
        planner.plan(admit=[first], chunks=[Chunk(0, 0, first.prompt[:4], False)]),
        planner.plan(admit=others, chunks=[Chunk(0, 4, first.prompt[4:], True), *(Chunk(row.slot, 0, row.prompt, True) for row in others)]),
        *(planner.plan(decode=SLOTS if number == 0 else None) for number in range(steps)),
    ]


def check(said: dict[int, list[int]]) -> None:
    """Whatever the model is: what each row has said up to its end token is right as far as it goes; behind that, anything."""
    texts = {row.slot: _text(said[row.slot]) for row in ROWS if row.grammar}
    assert texts[0] in CHOICES
    assert END in said[0]
    for slot in (3, 6):
        assert re.fullmatch(PATTERN if END in said[slot] else "[a-d]{0,3}|[a-d]{3}[0-9]{0,4}", texts[slot]), texts
    assert texts[6].startswith("aaa")


def _text(said: list[int]) -> str:
    return b"".join(TOKENS.of[token] for token in said[: said.index(END) if END in said else None]).decode()
