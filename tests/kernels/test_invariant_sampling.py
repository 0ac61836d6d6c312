"""The sampler of `--deterministic`: a row is drawn and scored by the same sums whoever is beside it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.invariant.sampling import logprobs, sample, score
from kernels.reference import bias, sampling
from kernels.reference.sampling import Penalties, SamplingBatch
from tests.support.devices import DEVICE, GPU

VOCABS = [151_936, 32_003, 257] if GPU else [2500]
ROWS = 130 if GPU else 9
TEMPERATURE, TOP_K, TOP_P, MIN_P = [0.0, 1.0, 0.8, 1.2, 0.7], [0, 0, 0, 20, 0], [1.0, 1.0, 0.9, 0.95, 1.0], [0.0, 0.0, 0.0, 0.0, 0.02]


def batch_of(rows: list[int], vocab: int, filtered: bool) -> SamplingBatch:
    """Rows of five kinds by turns."""
    kind, number = torch.tensor(rows, device=DEVICE) % 5, torch.tensor(rows, device=DEVICE)

    def of(values: list[float]) -> Tensor:
        return torch.tensor(values, device=DEVICE)[kind]

    penalised = [place for place, row in enumerate(rows) if row % 3 == 0]
    counts = torch.stack([torch.arange(vocab, device=DEVICE) % (rows[place] + 2) for place in penalised] or [torch.zeros(vocab, device=DEVICE)])
    penalties = Penalties(
        row=torch.tensor(penalised, device=DEVICE), counts=(counts % 3).float(), seen=counts % 2 == 0,
        **{key: torch.full((len(penalised),), value, device=DEVICE) for key, value in (("repetition", 1.1), ("presence", 0.2), ("frequency", 0.1))},
    )  # fmt: skip
    return SamplingBatch(
        temperature=of(TEMPERATURE), top_k=of([float(k) for k in TOP_K]).long(), top_p=of(TOP_P), min_p=of(MIN_P),
        seed=number * 10**15, position=number + 7, random=[0], filtered=[0] if filtered else [], penalties=penalties if penalised else None,
        logprob_rows=list(range(len(rows))), logprob_counts=[5] * len(rows),
    )  # fmt: skip



@pytest.mark.parametrize("vocab", VOCABS)
def test_a_row_is_the_same_in_any_batch(vocab: int) -> None:
    torch.manual_seed(vocab)
    logits = torch.randn(ROWS, vocab, device=DEVICE) * 3
    logits[:, 11] = logits[:, 200] = logits.amax(1)

    def ask(rows: list[int], filtered: bool) -> list[Tensor]:
        out = sample(logits[torch.tensor(rows, device=DEVICE)].contiguous(), batch_of(rows, vocab, filtered))
        assert out.chosen is not None
        assert out.top is not None
        assert out.top_ids is not None
        return [out.token, out.chosen, out.top, out.top_ids]

    whole = ask(list(range(ROWS)), True)
    plain = [row for row in range(ROWS) if row % 5 in (0, 1)]
    filtered_cases = [*([row] for row in range(7)), list(range(ROWS))[::-1], list(range(3, 9))]
    cases = [*((rows, True) for rows in filtered_cases), *((rows, False) for rows in (plain, [1], [0]))]
    for rows, filtered in cases:
        for found, expected in zip(ask(rows, filtered), whole, strict=True):
            assert torch.equal(found, expected[torch.tensor(rows, device=DEVICE)]), (rows, filtered)
    assert len(whole[0].unique()) > 2


def test_logprobs_are_those_of_the_reference() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, 1003, device=DEVICE)
    logits[2, 5] = logits[2, 900] = 50.0  # equal: the lower id first
    token = torch.arange(6, device=DEVICE) * 3
    for found, expected in zip(score(logits, token, 4)[:2], bias.score(logits, token, 4)[:2], strict=True):
        torch.testing.assert_close(found, expected)
    chosen, top, top_ids = logprobs(logits, token, [5, 2], [1, 4])
    expected = torch.log_softmax(logits, -1)
    torch.testing.assert_close(chosen, expected[[5, 2], [15, 6]])
    torch.testing.assert_close(top, expected[[5, 2]].topk(4).values)
    assert top_ids[1, :2].tolist() == [5, 900]


def test_tokens_are_those_of_the_reference() -> None:
    torch.manual_seed(2)
    rows, logits = list(range(10)), torch.randn(10, 3000) * 3
    found = sample(logits.to(DEVICE), batch_of(rows, 3000, True))
    batch = batch_of(rows, 3000, True)
    on_cpu: dict[str, Any] = {key: value.cpu() for key, value in vars(batch).items() if isinstance(value, Tensor)}
    penalties = Penalties(**{key: value.cpu() for key, value in vars(batch.penalties).items()})
    random = [row for row in rows if TEMPERATURE[row % 5] > 0]
    filtered = [row for row in random if row % 5 in (2, 3, 4)]
    expected = sampling.sample(logits, SamplingBatch(**on_cpu, random=random, filtered=filtered, penalties=penalties))
    assert found.token.tolist() == expected.token.tolist()
