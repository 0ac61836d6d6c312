"""Steps with short prompts filled up to a kind of step: what is computed stays the same, and what fills up touches nothing of others."""

import numpy as np
import pytest
import torch

from checkpoint.shapes import SHAPES
from transport.columns import I32
from worker.plan import Rows
from worker.resident.arena import Arena
from worker.resident.graphs import Key
from worker.resident.layout import lay_out
from worker.resident.short import GAP, PROMPTS, TOKENS, Short, token_sizes

SLOTS, TILE = 100, 32
CASES = [([3], 0), ([16], 1), ([1, 2, 5], 4), ([64], 64), ([33, 31, 32], 7), ([16] * PROMPTS, 84), ([1] * PROMPTS, 0), ([200], 100)]


@pytest.fixture
def short() -> Short:
    return Short(Arena(SLOTS, 4, 77, torch.device("cpu")), TOKENS[:4], TILE)


def rows_of(prompts: list[int], decodes: int) -> Rows:
    slot = np.random.default_rng(len(prompts)).permutation(SLOTS)[: len(prompts) + decodes].astype(np.int32)
    count = np.array(prompts + [1] * decodes, np.int64)
    sample = np.arange(len(prompts)) % 2 == 0
    start = np.where(np.arange(len(count)) < len(prompts), 5 * count, 40)
    return Rows(slot=slot, start=start, count=count, sample=sample, tokens=np.arange(1, sum(prompts) + 1, dtype=np.int32), decodes=decodes)


@pytest.mark.parametrize(("prompts", "decodes"), CASES, ids=str)
def test_a_step_is_what_it_was(short: Short, prompts: list[int], decodes: int) -> None:
    rows = rows_of(prompts, min(decodes, SLOTS - len(prompts)))
    decodes = rows.decodes
    sampled = np.concatenate((np.flatnonzero(rows.sample), np.arange(len(prompts), len(rows.slot))))
    layout = lay_out(rows, sampled, TILE)
    key = short.key(len(rows.tokens), len(prompts), decodes, "plain")
    assert key is not None
    assert key.tokens >= sum(prompts)
    assert key.rows >= decodes
    short.put(torch.from_numpy(short.pack(layout, decodes, key)))
    token, slot, position, tiles, wanted, drawn = (column.numpy() for column in short.columns(key))
    own = [*range(sum(prompts)), *(key.tokens + GAP + row for row in range(decodes))]
    filled = np.setdiff1d(np.arange(len(token)), own)
    assert len(token) == key.tokens + GAP + key.rows
    for ours, theirs in ((token, layout.token), (slot, layout.slot), (position, layout.position)):
        assert ours[own].tolist() == theirs.tolist()
    assert (slot[filled] == SLOTS).all()
    assert not position[filled].any()
    check_tiles(tiles, layout.tiles, filled)
    count = len(layout.sampled)
    assert np.array(own)[layout.wanted].tolist() == wanted[:count].tolist()
    assert drawn[:count].tolist() == layout.sampled.tolist()
    assert np.isin(wanted[count:], filled).all()
    assert (drawn[count:] == SLOTS).all()


def check_tiles(tiles: I32, own: I32, filled: I32) -> None:
    """Those that fill up are one token that fills up."""
    assert tiles[: len(own)].tolist() == own.tolist()
    assert np.isin(tiles[len(own) :, 0], filled).all()
    assert (tiles[len(own) :, 1] == 1).all()


def test_longer_steps_and_more_prompts_are_left_alone(short: Short) -> None:
    assert short.key(TOKENS[3] + 1, 1, 0, "plain") is None
    assert short.key(PROMPTS + 1, PROMPTS + 1, 0, "plain") is None
    assert short.key(1, 1, SLOTS, "plain") == Key(SLOTS, "plain", TOKENS[0])


def test_large_models_have_fewer_sizes() -> None:
    most = {name: token_sizes(shape, 8448)[-1] for name, shape in SHAPES.items()}
    assert most == {"qwen3-0.6b": 1024, "llama3.2-1b": 1024, "llama3.1-8b": 256}
    assert token_sizes(SHAPES["qwen3-0.6b"], 100) == (16, 64)


def test_every_kind_has_its_columns_apart(short: Short) -> None:
    for key in short.kinds("plain"):
        short.put_dummies(key)
        columns = short.columns(key)
        assert all(column.storage_offset() % 32 == 0 for column in columns)
        places = np.concatenate([column.storage_offset() + np.arange(column.numel()) for column in columns])
        assert len(np.unique(places)) == len(places)
        assert (columns[1] == SLOTS).all()
        assert (columns[5] == SLOTS).all()
