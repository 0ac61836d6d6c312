"""Tokens that steps leave for the host: each step's own, never over tokens nobody has read, and told apart from those of steps not counted."""

import numpy as np
import pytest
import torch

from kernels.reference.resident import TURNS, finish_rows, start_rows
from worker.resident.arena import Arena
from worker.resident.post import PLACES, SPARE, Post, Posted

ROWS = 3


class Steps:
    """Steps of an arena's first rows, each of which draws one number for all."""

    def __init__(self) -> None:
        self.arena = Arena(4, 2, 9, torch.device("cpu"))
        self.post = Post(self.arena)
        self.slot = torch.arange(ROWS, dtype=torch.int32)

    def run(self, token: int) -> None:
        start_rows(self.arena.columns, self.slot, *torch.empty(2, ROWS, dtype=torch.int32))
        finish_rows(self.arena.columns, self.slot, torch.full((ROWS,), token), torch.ones(ROWS, dtype=torch.bool), self.post.words)


def test_every_step_finds_its_tokens() -> None:
    steps = Steps()
    for start in range(0, 3 * PLACES, 5):
        posted = []
        for token in range(start, start + 5):
            steps.run(token)
            posted.append(steps.post.count())
        assert [each.tokens(2).tolist() for each in posted] == [[token, token] for token in range(start, start + 5)]


def test_tokens_that_were_not_read_are_not_written_over() -> None:
    steps, posted = Steps(), list[Posted]()
    while steps.post.room(0):
        steps.run(len(posted))
        posted.append(steps.post.count())
    assert len(posted) == PLACES - SPARE
    for _ in range(SPARE):
        steps.run(-1)
    assert [each.tokens(1)[0] for each in posted] == list(range(len(posted)))
    assert steps.post.room(0)


def test_steps_that_nobody_counts() -> None:
    steps = Steps()
    steps.run(1)
    assert steps.post.changes() == []
    lost = steps.post.count()
    steps.run(2)
    steps.run(3)
    steps.post.forget()
    index, words = np.concatenate(steps.post.changes(), 1)
    steps.arena.words[torch.from_numpy(index).long()] = torch.from_numpy(words)
    steps.run(4)
    assert lost.tokens(1).tolist() == [1]
    assert steps.post.count().tokens(ROWS).tolist() == [4] * ROWS
    assert steps.post.changes() == []


def test_counting_apart_is_an_error() -> None:
    steps = Steps()
    steps.arena.columns.turn.fill_(TURNS - 1)
    steps.run(5)
    with pytest.raises(RuntimeError, match=r"decode step 1 .* but those of 0"):
        steps.post.count().tokens(1)
