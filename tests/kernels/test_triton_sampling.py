"""The Triton sampler draws what the reference draws, bit for bit of the same Philox stream."""

from typing import Any

import pytest
import torch

from kernels.reference import sampling as reference
from kernels.reference.sampling import Penalties, SamplingBatch
from kernels.sampling import sample
from tests.support.devices import DEVICE, GPU

SETTINGS = [  # temperature, top-k, top-p, min-p
    (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.6, 0, 1.0, 0.0), (1.0, 1, 1.0, 0.0), (0.8, 7, 0.6, 0.0), (1.0, 0, 0.5, 0.0), (1.3, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 0.3), (1.0, 20, 0.8, 0.05), (1.0, 10**6, 1.0, 0.0), (0.7, 3000, 0.9, 0.0), (1.0, 0, 0.0, 0.0), (5.0, 300, 1.0, 0.0),
]  # fmt: skip


def make_batch(rows: int, **more: Any) -> SamplingBatch:
    """Rows that go through `SETTINGS`, on the CPU."""
    temperature, top_k, top_p, min_p = zip(*(SETTINGS[row % len(SETTINGS)] for row in range(rows)), strict=True)
    random = [row for row in range(rows) if temperature[row] > 0]
    filtered = [row for row in random if top_k[row] > 0 or top_p[row] < 1 or min_p[row] > 0]
    return SamplingBatch(
        temperature=torch.tensor(temperature), top_k=torch.tensor(top_k), top_p=torch.tensor(top_p), min_p=torch.tensor(min_p),
        seed=torch.arange(rows) * 10**17 - 3, position=torch.arange(rows) * 7 + 1, random=random, filtered=filtered, **more,
    )  # fmt: skip


def on_device(value: Any) -> Any:
    """The batch, or its penalties, with every tensor on the device."""
    return type(value)(**{
        key: item.to(DEVICE) if isinstance(item, torch.Tensor) else on_device(item) if isinstance(item, Penalties) else item
        for key, item in vars(value).items()
    })  # fmt: skip


KINDS = {"flat": (0.01, torch.float32), "plain": (2.0, torch.float32), "ties": (2.0, torch.bfloat16)}
CASES = [("plain", 1), ("flat", 33), ("ties", 9001)]
if GPU:
    CASES = [(kind, vocab) for kind in KINDS for vocab in (1, 33, 4096, 9001, 151_936)]


@pytest.mark.parametrize(("kind", "vocab"), CASES, ids=str)
def test_equals_the_reference(kind: str, vocab: int) -> None:
    scale, dtype = KINDS[kind]
    torch.manual_seed(vocab)
    logits = (torch.randn(len(SETTINGS), vocab) * scale).to(dtype)
    batch = make_batch(len(SETTINGS))
    found = sample(logits.to(DEVICE), on_device(batch))
    expected = reference.sample(logits.float(), batch)
    assert found.token.tolist() == expected.token.tolist()
    assert found.finite.all()


def test_penalties_and_logprobs() -> None:
    torch.manual_seed(4)
    rows, vocab = 13, 500
    penalised = torch.tensor([0, 4, 8, 12])
    counts = torch.randint(0, 3, (4, vocab)).float()
    penalties = Penalties(
        row=penalised, counts=counts, seen=(counts > 0) | (torch.rand(4, vocab) < 0.2),
        repetition=torch.tensor([1.3, 0.8, 1.0, 2.0]), presence=torch.tensor([0.5, 0.0, -1.0, 2.0]), frequency=torch.tensor([0.1, 0.7, 0.0, -0.3]),
    )  # fmt: skip
    logits = torch.randn(rows, vocab) * 2
    batch = make_batch(rows, penalties=penalties, logprob_rows=[1, 4], logprob_counts=[5, 0])
    found = sample(logits.to(DEVICE), on_device(batch))
    expected = reference.sample(logits, batch)
    assert found.token.tolist() == expected.token.tolist()
    for ours, theirs in ((found.chosen, expected.chosen), (found.top, expected.top), (found.top_ids, expected.top_ids)):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_non_finite_rows_are_flagged_alone() -> None:
    torch.manual_seed(5)
    logits = torch.randn(13, 4500)
    batch = make_batch(13)
    clean = reference.sample(logits, batch).token
    logits[0, 4499], logits[1], logits[8, 0], logits[5, 7] = torch.nan, -torch.inf, torch.inf, torch.nan
    found = sample(logits.to(DEVICE), on_device(batch))
    bad = [0, 1, 5, 8]
    assert [row for row, good in enumerate(found.finite.tolist()) if not good] == bad
    good = [row for row in range(13) if row not in bad]
    assert found.token.cpu()[good].tolist() == clean[good].tolist()
    assert bool(((found.token >= 0) & (found.token < 4500)).all())


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(4, 9000)
    for row, ids in enumerate([[7, 9], [0, 8999], [4095, 4096], [8191, 8192]]):
        logits[row, ids] = 1.0
    zeros, ints = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    batch = SamplingBatch(temperature=zeros, top_p=zeros + 1, top_k=ints, min_p=zeros, seed=ints, position=ints)
    assert sample(logits.to(DEVICE), on_device(batch)).token.tolist() == [7, 0, 4095, 8191]
