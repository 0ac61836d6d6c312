"""Sampling: Philox vectors, filters against a sort, penalties, frequencies, independence from the batch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.reference.sampling import Penalties, SamplingBatch, apply_penalties, filter_logits, finite_rows, philox, sample, uniform

VECTORS = {
    "zeros": ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
}


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS.values(), ids=VECTORS.keys())
def test_philox_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    """Known answers of Random123."""
    assert philox(torch.tensor([counter]), torch.tensor([key]))[0].tolist() == expected


def test_uniform_is_uniform_and_open() -> None:
    seed = torch.arange(20_000)
    u = uniform(seed * 7919, seed % 513)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.01)
    counts = torch.histc(u, 10, 0, 1)
    assert float((counts - 2000).abs().max()) < 250
    assert len(set(u.tolist())) == 20_000


def batch(rows: int, **columns: Any) -> SamplingBatch:
    """`rows` rows with the given values for all, or one value per row."""

    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = columns.pop(name, default)
        return torch.tensor(value if isinstance(value, list) else [value] * rows, dtype=dtype)

    temperature, top_p, min_p = (column(name, default, torch.float32) for name, default in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0)))
    top_k, seed, position = (column(name, 0, torch.int64) for name in ("top_k", "seed", "position"))
    random = [r for r in range(rows) if float(temperature[r]) > 0]
    filtered = [r for r in random if int(top_k[r]) > 0 or float(top_p[r]) < 1 or float(min_p[r]) > 0]
    return SamplingBatch(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, position=position, random=random, filtered=filtered, **columns
    )


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(5, 49_153)
    for row, ids in enumerate([[7, 9], [0, 49_152], [40_000, 40_001], [16, 17], [49_151, 49_152]]):
        logits[row, ids] = 1.0
    assert sample(logits, batch(5, temperature=0.0)).token.tolist() == [7, 0, 40_000, 16, 49_151]


def test_non_finite_rows_are_flagged_alone() -> None:
    logits = torch.randn(5, 100)
    clean = sample(logits, batch(5, seed=[1, 2, 3, 4, 5])).token
    broken = logits.clone()
    broken[1, 3], broken[2], broken[3, 0] = torch.nan, -torch.inf, torch.inf
    out = sample(broken, batch(5, seed=[1, 2, 3, 4, 5], logprob_rows=[0, 1], logprob_counts=[2, 2]))
    assert out.finite.tolist() == [True, False, False, False, True]
    assert out.token[[0, 4]].tolist() == clean[[0, 4]].tolist()
    assert finite_rows(logits).all()


def brute(row: Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Kept ids by a full sort, one rule after the other."""
    probabilities = row.double().softmax(-1)
    kept = probabilities >= min_p * probabilities.max()
    order = torch.sort(torch.where(kept, row, -torch.inf), descending=True, stable=True).indices.tolist()
    order = [i for i in order if bool(kept[i])]
    if top_k:
        order = order[:top_k]
    left = probabilities[order] / probabilities[order].sum()
    before = torch.cumsum(left, 0) - left
    return {i for i, mass in zip(order, before.tolist(), strict=True) if mass < top_p or top_p == 1.0}  # a sum may be rounded to 1


@pytest.mark.parametrize("vocab", [33, 5000], ids=lambda n: f"V{n}")
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0], ids=["flat", "plain", "sharp"])
def test_filters_equal_a_sort(vocab: int, scale: float) -> None:
    torch.manual_seed(3)
    settings = [(0, 0.5, 0.0), (0, 0.999, 0.0), (1, 1.0, 0.0), (7, 0.6, 0.0), (0, 1.0, 0.3), (20, 0.8, 0.05), (10**6, 1.0, 0.0), (3000, 0.9, 0.0)]
    x = torch.randn(len(settings), vocab) * scale
    top_k, top_p, min_p = (torch.tensor(values) for values in zip(*settings, strict=True))
    kept = torch.isfinite(filter_logits(x, top_k, top_p, min_p))
    for row, setting in enumerate(settings):
        assert set(torch.nonzero(kept[row]).flatten().tolist()) == brute(x[row], *setting)


def test_ties_at_the_border_stay_together() -> None:
    x = torch.tensor([[3.0, 2.0, 2.0, 1.0]])
    assert torch.isfinite(filter_logits(x, torch.tensor([2]), torch.tensor([1.0]), torch.tensor([0.0])))[0].tolist() == [True, True, True, False]


def test_frequencies_follow_the_distribution() -> None:
    p = [0.4, 0.3, 0.2, 0.1]
    n = 4000
    logits = torch.tensor([math.log(x) for x in p]).repeat(n, 1)
    counts = torch.bincount(sample(logits, batch(n, seed=42, position=list(range(n)))).token, minlength=4) / n
    for got, expected in zip(counts.tolist(), p, strict=True):
        assert got == pytest.approx(expected, abs=0.03)


def test_a_row_is_the_same_alone_and_in_any_batch() -> None:
    torch.manual_seed(5)
    n = 24
    logits = torch.randn(n, 3000) * 3
    columns: dict[str, list[float]] = {
        "temperature": [0.0 if r % 5 == 0 else 0.5 + r / 10 for r in range(n)],
        "top_p": [0.9 if r % 3 == 0 else 1.0 for r in range(n)],
        "top_k": [1500 if r % 7 == 1 else 0 for r in range(n)],
        "min_p": [0.02 if r % 4 == 1 else 0.0 for r in range(n)],
        "seed": [r * 10**17 for r in range(n)],
        "position": [r + 3 for r in range(n)],
    }
    together = sample(logits, batch(n, **columns)).token.tolist()
    alone = [int(sample(logits[r : r + 1], batch(1, **{name: [values[r]] for name, values in columns.items()})).token) for r in range(n)]
    assert together == alone


def test_penalties() -> None:
    """C23's rules: repetition over seen tokens once each, presence once and frequency per count over generated tokens."""
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    penalties = Penalties(
        row=torch.tensor([0]),
        counts=torch.tensor([[0.0, 0.0, 2.0, 1.0]]),
        seen=torch.tensor([[True, True, False, False]]),
        repetition=torch.tensor([2.0]),
        presence=torch.tensor([0.25]),
        frequency=torch.tensor([0.5]),
    )
    assert apply_penalties(logits, penalties)[0].tolist() == [1.0, -4.0, -0.25, -0.25]


def test_logprobs_are_raw() -> None:
    torch.manual_seed(2)
    logits = torch.randn(3, 50)
    penalties = Penalties(
        row=torch.tensor([1]), counts=torch.ones(1, 50), seen=torch.ones(1, 50, dtype=torch.bool),
        repetition=torch.tensor([3.0]), presence=torch.tensor([1.0]), frequency=torch.tensor([1.0]),
    )  # fmt: skip
    out = sample(logits, batch(3, temperature=0.3, top_k=1, penalties=penalties, logprob_rows=[1, 2], logprob_counts=[5, 0]))
    expected = logits.log_softmax(-1)
    assert out.chosen is not None
    assert out.top is not None
    assert out.top_ids is not None
    torch.testing.assert_close(out.chosen, expected[[1, 2], out.token[[1, 2]]])
    torch.testing.assert_close(out.top[0], expected[1].sort(descending=True).values[:5])
    assert out.top_ids[0].tolist() == expected[1].sort(descending=True).indices[:5].tolist()


@pytest.mark.parametrize("temperature", [1e-4, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    out = sample(torch.tensor([[1.0, 2.0, 3.0]]) * 1000, batch(1, temperature=temperature))
    assert out.token.tolist() == [2]
