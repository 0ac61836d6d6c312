"""Changes to logits against loops over single values, and that the samplers take what they give."""

import math

import pytest
import torch

from kernels.reference import sampling
from kernels.reference.bias import ANY, BANNED, UNNAMED, Bias, apply_bias, logprobs, score
from kernels.triton_set import Triton
from tests.support.devices import DEVICE, GPU, randn

ROWS, VOCAB, WIDTH = 4, 5000, 3


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def bias(
    entries: dict[tuple[int, int], float] | None = None, closed: tuple[int, ...] = (), words: tuple[tuple[int, int, tuple[int, ...]], ...] = (),
    recent: tuple[tuple[int, ...], ...] = (),
) -> Bias:  # fmt: skip
    """`entries`: (row, token) to value. `words`: row, last token, what stands before it."""
    found = entries or {}
    table = column().new_full((len(words), WIDTH), ANY)
    for line, (_, _, before) in zip(table, words, strict=True):
        line[WIDTH - len(before) :] = column(*before)
    return Bias(
        row=column(*(row for row, _ in found)),
        token=column(*(token for _, token in found)),
        value=torch.tensor(list(found.values()), dtype=torch.float32, device=DEVICE),
        closed=column(*closed),
        word_row=column(*(row for row, _, _ in words)),
        word_token=column(*(token for _, token, _ in words)),
        prefix=table,
        recent=torch.tensor(recent, dtype=torch.int64, device=DEVICE).view(-1, WIDTH),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_added_and_rows_closed(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    logits = randn(ROWS, VOCAB, dtype=dtype)
    before = logits.clone()
    entries = {(0, 3): 5.0, (0, VOCAB - 1): -7.5, (1, 0): 0.0, (1, 9): 2.0, (3, 4): BANNED}
    found = apply_bias(logits, bias(entries, closed=(1,)))
    assert torch.equal(logits, before)
    expected = before.float()
    for token in set(range(VOCAB)) - {0, 9}:
        expected[1, token] += UNNAMED
    for place, value in entries.items():
        expected[place] += value
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_words_are_not_finished() -> None:
    torch.manual_seed(2)
    logits = randn(2, VOCAB, dtype=torch.float32)
    words = ((0, 7, (5,)), (0, 8, (4, 5)), (0, 9, (3, 4, 5)), (1, 7, (5,)), (1, 7, (6,)), (1, 8, (4, 6)))
    recent = (*[(-1, 4, 5)] * 3, *[(-1, -1, 6)] * 3)
    found = apply_bias(logits, bias(words=words, recent=recent))
    changed = {(row, token) for row, token in (found != logits).nonzero().tolist()}
    assert changed == {(0, 7), (0, 8), (1, 7)}
    assert float(found[0, 7]) == pytest.approx(BANNED)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_so(value: float) -> None:
    logits = randn(2, VOCAB, dtype=torch.float32)
    logits[0, 5] = logits[1, 6] = value
    found = apply_bias(logits, bias({(0, 5): BANNED, (1, 3): 0.0}, closed=(1,)))
    assert not sampling.finite_rows(found).any()


@pytest.mark.parametrize("kernels", [sampling.sample, Triton.sample], ids=["reference", "triton"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 50, "top_p": 0.5, "min_p": 0.01}], ids=str)
def test_samplers_never_choose_what_is_banned(kernels: object, filters: dict[str, float]) -> None:
    """Three tokens allowed, one of them banned: draws of the other two in proportion, whatever the filter."""
    torch.manual_seed(3)
    rows = 64 if GPU else 10
    logits = randn(1, VOCAB, dtype=torch.float32).repeat(rows, 1)
    logits[:, 100] = logits[:, 4999]
    entries = {(row, token): BANNED if token == 7 else 0.0 for row in range(rows) for token in (7, 100, 4999)}
    changed = apply_bias(logits, bias(entries, closed=tuple(range(rows))))
    ones = torch.ones(rows, device=DEVICE)
    batch = sampling.SamplingBatch(
        temperature=ones,
        top_p=ones * filters.get("top_p", 1.0),
        top_k=(ones * filters.get("top_k", 0)).to(torch.int64 if kernels is sampling.sample else torch.int32),
        min_p=ones * filters.get("min_p", 0.0),
        seed=torch.arange(rows, device=DEVICE),
        position=torch.arange(rows, device=DEVICE),
        random=list(range(rows)),
        filtered=list(range(rows)) if filters else [],
    )
    out = kernels(changed, batch)  # type: ignore[operator]
    assert out.finite.all()
    assert set(out.token.tolist()) == {100, 4999}


def test_scores() -> None:
    torch.manual_seed(4)
    logits = randn(ROWS, VOCAB, dtype=torch.float32)
    token = column(1, 2, 3, 4)
    values = torch.log_softmax(logits.double(), -1)
    chosen, top, top_ids = score(logits, token, 3)
    assert chosen.cpu().tolist() == pytest.approx([float(values[row, row + 1]) for row in range(ROWS)], abs=1e-5)
    assert torch.equal(top_ids, values.topk(3).indices)
    assert top.cpu().flatten().tolist() == pytest.approx(values.topk(3).values.flatten().tolist(), abs=1e-5)
    some, top, _ = logprobs(logits, token, [1, 3], [0, 2])
    assert torch.equal(some, chosen[[1, 3]])
    assert top.shape == (2, 2)
