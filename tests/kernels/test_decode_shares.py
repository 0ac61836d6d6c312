"""The shares of decode attention: all keys exactly once, evenly, and what of an item lies in which share."""

import pytest
import torch

from kernels import decode_attention
from kernels.decode_attention import EITHER, ITEMS, LINE, Settings, share_out
from tests.support.devices import DEVICE

KV_HEADS = 3
CASES = {
    "one-short-row": [0],
    "one-row": [2000],
    "even": [319] * 5,
    "ragged": [0, 700, 15, 16, 31, 32, 33, 1999, 64, 1],
    "many": [(37 * row) % 211 for row in range(70)],
}


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("positions", CASES.values(), ids=list(CASES))
def test_shares_hold_every_tile_once(positions: list[int], programs: int, window: int | None) -> None:
    slot = torch.arange(len(positions), dtype=torch.int32, device=DEVICE).flip(0)
    position = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    found = share_out(slot, position, window, KV_HEADS, Settings(tile=32, programs=programs, way=LINE)).words.tolist()
    assert len(found) == programs * decode_attention.PROCESSORS
    low = [0 if window is None else max(0, where + 1 - window) // 32 for where in positions]
    tiles = [where // 32 + 1 - first for where, first in zip(positions, low, strict=True)]
    line = [(row, head, tile) for row in range(len(positions)) for head in range(KV_HEADS) for tile in range(tiles[row])]
    begin = 0
    counts = [share[5] for share in found]
    assert sum(counts) == len(line)
    assert max(counts) - min(counts) <= 1
    owner = [number for number, count in enumerate(counts) for _ in range(count)]
    for number, (row, own_slot, length, head, tile, count, pieces, second) in enumerate(found):
        if count:
            assert (row, head, tile) == line[begin]
            assert (own_slot, length) == (len(positions) - 1 - row, positions[row] + 1)
            item = [owner[place] for place, (r, h, _) in enumerate(line) if (r, h) == (row, head)]
            assert tile == 0 or second == item[0] + 1
            assert pieces == (item[-1] - number + 1 if tile and item[0] == number - 1 else 0)
        else:
            assert pieces == 0
        begin += count


@pytest.mark.parametrize("way", [ITEMS, EITHER], ids=["items", "either"])
@pytest.mark.parametrize("positions", CASES.values(), ids=list(CASES))
def test_shares_by_items_begin_with_the_longest(positions: list[int], way: int) -> None:
    slot = torch.arange(len(positions), dtype=torch.int32, device=DEVICE).flip(0)
    position = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    found = share_out(slot, position, None, KV_HEADS, Settings(tile=32, programs=1, way=way)).words.tolist()
    tiles = [where // 32 + 1 for where in positions]
    real = [count for count, where in zip(tiles, positions, strict=True) if where > 0]
    if way == EITHER and 100 * max(tiles) * len(real) > Settings().border * sum(real):
        counts = [share[5] for share in found]
        assert (max(counts) - min(counts) <= 1) == (len(found) == decode_attention.PROCESSORS)
        return
    order = sorted(range(len(positions)), key=lambda row: (-tiles[row], row))
    items = [(row, len(positions) - 1 - row, positions[row] + 1, head, 0, tiles[row], 0) for row in order for head in range(KV_HEADS)]
    assert [tuple(share[:7]) for share in found[: len(items)]] == items
    assert all(share[5] == 0 for share in found[len(items) :])
