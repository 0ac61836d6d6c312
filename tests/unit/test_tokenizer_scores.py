"""Logprobs of a prompt put together from their parts."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.request import Prompt, TextPrompt, TokenPrompt
from messages.tokens import PromptScores
from tests.support.tokenizer_neighbours import generate
from tests.support.tokenizers import folder_vocabulary
from tokenizer_proc.scores import Embedding, Scoring, hidden_positions
from tokenizer_proc.vocabulary import Vocabulary
from transport.columns import ColumnError, pack_f32, pack_i32, view_f32

BOS = 292
PROMPT = [BOS, 64, 65, 66]


@pytest.fixture(scope="module")
def vocabulary(models: Path) -> Vocabulary:
    return folder_vocabulary(models / "chain-byte")


def part(start: int, values: list[float], top: int = 0) -> PromptScores:
    ids = [number % 300 for number in range(top * len(values))]
    chosen, top_values = pack_f32(values), pack_f32([-1.0] * len(ids))
    ranks = pack_i32([start + number for number in range(len(values))])
    return PromptScores(key=1, start=start, top=top, chosen=chosen, ranks=ranks, top_ids=pack_i32(ids), top_values=top_values)


def test_parts_add_up(vocabulary: Vocabulary) -> None:
    scoring = Scoring(PROMPT, vocabulary.pieces, frozenset({0}))
    assert not scoring.complete
    scoring.add(part(0, [-0.5, -0.25], 2))
    scoring.add(part(2, [-0.125]))
    assert scoring.complete
    found = scoring.take()
    assert [entry.token for entry in found] == PROMPT
    assert math.isnan(found[0].logprob)
    assert [(entry.logprob, entry.rank) for entry in found[1:]] == [(-0.5, 0), (-0.25, 1), (-0.125, 2)]
    assert [entry.piece for entry in found] == [b"<|bos|>", b"a", b"b", b"c"]
    assert [entry.hidden for entry in found] == [True, False, False, False]
    assert found[2].top == [(number, vocabulary.pieces.of[number], -1.0) for number in (2, 3)]
    assert scoring.take() == []


def test_a_prompt_of_one_token_is_complete(vocabulary: Vocabulary) -> None:
    scoring = Scoring([BOS], vocabulary.pieces)
    assert scoring.complete
    assert not scoring.take()[0].hidden


@pytest.mark.parametrize(
    ("prompt", "options", "hidden"),
    [
        (TextPrompt("abc", True), {}, {0}),
        (TextPrompt("abc", True), {"skip_special_tokens": False}, {0}),
        (TextPrompt("<|bos|>abc", False), {}, set()),
        (TextPrompt("abc", True), {"truncate": 4, "skip_special_tokens": False}, set()),
        (TokenPrompt(PROMPT), {}, {0}),
        (TokenPrompt(PROMPT), {"skip_special_tokens": False}, set()),
    ],
    ids=str,
)
def test_an_echo_shows_all_but_these(vocabulary: Vocabulary, prompt: Prompt, options: dict[str, Any], hidden: set[int]) -> None:
    assert hidden_positions(generate(1, prompt, **options), PROMPT, vocabulary.pieces) == hidden


BAD: dict[str, dict[str, Any]] = {
    "in the wrong place": {"start": 1},
    "none": {"chosen": b""},
    "too many": {"chosen": pack_f32([-1.0] * 4), "top": 0, "top_ids": b"", "top_values": b""},
    "a broken column": {"chosen": b"123"},
    "too few ranks": {"ranks": b""},
    "too few alternatives": {"top_ids": pack_i32([1])},
    "too few values": {"top_values": pack_f32([1])},
    "an unknown token": {"top_ids": pack_i32([1, 312])},
    "a negative token": {"top_ids": pack_i32([1, -1])},
    "a negative number": {"top": -1},
}


@pytest.mark.parametrize("fault", BAD)
def test_parts_that_are_refused(vocabulary: Vocabulary, fault: str) -> None:
    scoring = Scoring(PROMPT, vocabulary.pieces, frozenset({0}))
    with pytest.raises(ColumnError):
        scoring.add(msgspec.structs.replace(part(0, [-1.0], 2), **BAD[fault]))
    scoring.add(part(0, [-1.0] * 3))
    assert scoring.complete


def states(count: int, values: list[float]) -> PromptScores:
    return PromptScores(key=1, start=0, top=0, chosen=b"", ranks=b"", top_ids=b"", top_values=b"", count=count, states=pack_f32(values))


def test_an_embedding_is_the_direction_of_the_sum() -> None:
    embedding = Embedding(5)
    embedding.add(states(2, [1.0, 0.0, 2.0]))
    assert not embedding.complete
    for wrong in (states(0, [1.0] * 3), states(4, [1.0] * 3), states(1, [1.0] * 2), states(1, []), states(-1, [1.0] * 3)):
        with pytest.raises(ColumnError):
            embedding.add(wrong)
    embedding.add(states(3, [2.0, 4.0, -2.0]))
    assert embedding.complete
    assert view_f32(embedding.vector()).tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_an_embedding_of_zeros_and_of_nothing() -> None:
    embedding = Embedding(1)
    with pytest.raises(ValueError, match="no states"):
        embedding.vector()
    embedding.add(states(1, [0.0, 0.0]))
    assert view_f32(embedding.vector()).tolist() == [0.0, 0.0]
