"""Masks of tokens as bits: the reference by hand, and its Triton twin against it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.backend import Reference
from kernels.mask import apply_mask
from kernels.reference import mask as reference
from kernels.reference.bias import BANNED, UNNAMED, Bias
from kernels.reference.mask import MASKED
from kernels.reference.sampling import Penalties, SamplingBatch
from tests.support.devices import DEVICE
from worker.bias import sample_biased

GREEDY = SamplingBatch(
    temperature=torch.zeros(2), top_p=torch.ones(2), top_k=torch.zeros(2, dtype=torch.int64), min_p=torch.zeros(2),
    seed=torch.zeros(2, dtype=torch.int64), position=torch.ones(2, dtype=torch.int64),
)  # fmt: skip


def words(rows: list[list[int]], vocab: int) -> torch.Tensor:
    """Masks that allow these tokens."""
    bits = np.zeros((len(rows), -(-vocab // 32) * 32), np.uint8)
    for row, tokens in enumerate(rows):
        bits[row, tokens] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def test_what_is_left_out_is_far_below_all_else() -> None:
    logits = torch.arange(3 * 70, dtype=torch.float32).reshape(3, 70)
    found = logits.clone()
    reference.apply_mask(found, torch.tensor([2, 0], dtype=torch.int32), words([[0, 31, 32, 69], [64]], 70))
    assert (found[2] == logits[2]).nonzero().flatten().tolist() == [0, 31, 32, 69]
    assert (found[0] == logits[0]).nonzero().flatten().tolist() == [64]
    assert (found[1] == logits[1]).all()
    assert float(found[0, 0]) == pytest.approx(MASKED)
    assert MASKED < 100 * UNNAMED < 10_000 * BANNED


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 33), (5, 4099), (2, 8192)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_the_reference(rows: int, vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(rows + 2, vocab).to(dtype)
    logits[0, 0] = torch.nan
    row = torch.randperm(rows + 2, dtype=torch.int32)[:rows]
    mask = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), dtype=torch.int32)
    expected = logits.clone()
    reference.apply_mask(expected, row, mask)
    found = logits.to(DEVICE)
    apply_mask(found, row.to(DEVICE), mask.to(DEVICE))
    rounding = 1e-2 if dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found.cpu(), expected, rtol=rounding, atol=0.0, equal_nan=True)
    assert found.isnan().sum() == 1


def biased(token: dict[int, float], closed: bool = False) -> Bias:
    """Of batch row 0."""
    empty = torch.zeros(0, dtype=torch.int64)
    ids = torch.tensor(list(token))
    return Bias(
        row=torch.zeros_like(ids), token=ids, value=torch.tensor(list(token.values())), closed=torch.tensor([0]) if closed else empty,
        word_row=empty, word_token=empty, prefix=torch.zeros(0, 3), recent=torch.zeros(0, 3),
    )  # fmt: skip


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize(("token", "closed"), [({3: BANNED, 9: BANNED}, False), ({5: 1.0}, True), ({3: BANNED}, True)])
def test_the_mask_goes_before_bans_and_lists(token: dict[int, float], closed: bool, penalised: bool) -> None:
    """Where nothing is left that all of them allow, one of the mask's tokens is chosen."""
    logits, vocab = torch.zeros(2, 40), 40
    batch = GREEDY
    if penalised:
        hundred = torch.tensor([100.0])
        seen = torch.zeros(1, vocab, dtype=torch.bool)
        seen[0, [3, 9]] = True
        penalties = Penalties(
            row=torch.tensor([0]), counts=seen.float(), seen=seen, repetition=hundred, presence=torch.zeros(1), frequency=torch.zeros(1)
        )
        batch = replace(GREEDY, penalties=penalties)
    mask = torch.tensor([0], dtype=torch.int32), words([[3, 9]], vocab)
    out = sample_biased(Reference, logits, batch, biased(token, closed), mask)
    assert int(out.token[0]) in (3, 9)
    assert int(out.token[1]) == 0


def test_logprobs_are_of_the_logits_as_they_were() -> None:
    logits = torch.arange(80, dtype=torch.float32).reshape(2, 40)
    raw = logits.clone()
    batch = replace(GREEDY, logprob_rows=[0], logprob_counts=[1])
    out = sample_biased(Reference, logits, batch, None, (torch.tensor([0], dtype=torch.int32), words([[3]], 40)))
    assert out.token.tolist() == [3, 39]
    assert torch.equal(logits, raw)
    assert out.chosen is not None
    assert out.top_ids is not None
    assert float(out.chosen[0]) == pytest.approx(float(torch.log_softmax(raw[0], -1)[3]))
    assert out.top_ids.tolist() == [[39]]
    assert math.isfinite(float(out.chosen[0]))
