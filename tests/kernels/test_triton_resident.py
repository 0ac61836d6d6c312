"""Row state on the device: the Triton kernels do what the reference does, padding rows and failed rows included."""

from dataclasses import replace

import pytest
import torch

from kernels import resident
from kernels.reference import resident as reference
from kernels.reference.resident import FIRST, TURNS, Columns
from tests.support.devices import DEVICE, GPU

SLOTS = 300


def make_columns() -> Columns:
    """Random state of SLOTS slots and the dummy."""
    ints = {name: torch.randint(0, 1000, (SLOTS + 1,), dtype=torch.int32, device=DEVICE) for name in ("length", "last", "top_k")}
    floats = {name: torch.rand(SLOTS + 1, device=DEVICE) for name in ("temperature", "top_p", "min_p")}
    failed = (torch.rand(SLOTS + 1, device=DEVICE) < 0.2).int()
    ints["length"][-1], failed[-1] = 0, 0
    turn = torch.full((1,), 2**30 - 2, dtype=torch.int32, device=DEVICE)
    return Columns(turn=turn, failed=failed, seed=torch.randint(2**62, (SLOTS + 1,), device=DEVICE), **ints, **floats)


def twins() -> tuple[Columns, Columns]:
    first = make_columns()
    names = first.__dataclass_fields__
    return first, replace(first, **{name: getattr(first, name).clone() for name in names})


def assert_same(first: Columns, second: Columns) -> None:
    for name in ("length", "failed"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.last[:-1], second.last[:-1])


def slots_of(rows: int, padding: int) -> torch.Tensor:
    return torch.cat((torch.randperm(SLOTS)[:rows], torch.full((padding,), SLOTS))).to(DEVICE, torch.int32)


@pytest.mark.parametrize("count", [1, 7, 600])
def test_words(count: int) -> None:
    words = torch.zeros(5000, dtype=torch.int32, device=DEVICE)
    pairs = torch.stack((torch.randperm(5000)[:count], torch.randint(-(2**31), 2**31 - 1, (count,)))).to(DEVICE, torch.int32)
    expected = words.clone()
    resident.write_words(words, pairs)
    reference.write_words(expected, pairs)
    assert torch.equal(words, expected)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("rows", "padding"), [(1, 0), (3, 1), (290, 6)], ids=str)
def test_rows(rows: int, padding: int, together: bool) -> None:
    ours, theirs = twins()
    slot = slots_of(rows, padding)
    found = torch.full((2, rows + padding), -7, dtype=torch.int32, device=DEVICE)
    expected = found.clone()
    if together:
        columns = resident.start_rows(ours, slot, *found)
    else:
        resident.begin_rows(ours, slot, *found)
        columns = resident.sampling_columns(ours, slot)
    for mine, its in zip(columns, reference.start_rows(theirs, slot, *expected), strict=True):
        assert mine.dtype == its.dtype
        assert torch.equal(mine, its)
    assert torch.equal(found, expected)
    assert_same(ours, theirs)
    token, finite = torch.randint(1000, (rows + padding,), device=DEVICE), torch.rand(rows + padding, device=DEVICE) < 0.8
    assert torch.equal(resident.finish_rows(ours, slot, token, finite), reference.finish_rows(theirs, slot, token, finite))
    assert_same(ours, theirs)


def test_posted_tokens_go_round() -> None:
    ours, theirs = twins()
    slot, width = slots_of(290, 6), FIRST + SLOTS
    posts = [torch.full((4, width), -7, dtype=torch.int32, pin_memory=GPU) for _ in range(2)]
    found = torch.empty(2, len(slot), dtype=torch.int32, device=DEVICE)
    for turn in (TURNS - 1, 0, 1, 2, 3):
        token, finite = torch.randint(1000, slot.shape, device=DEVICE), torch.rand(slot.shape, device=DEVICE) < 0.8
        for kernels, columns, post in ((resident, ours, posts[0]), (reference, theirs, posts[1])):
            kernels.start_rows(columns, slot, *found)
            out = kernels.finish_rows(columns, slot, token, finite, post)
            if GPU:
                torch.cuda.synchronize()
            place = post[turn % 4]
            assert place[0] == turn
            assert torch.equal(place[FIRST : FIRST + len(slot)], out.cpu())
    assert torch.equal(*posts)
    assert torch.equal(ours.turn, theirs.turn)
    assert_same(ours, theirs)
