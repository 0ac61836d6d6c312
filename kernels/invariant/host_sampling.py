"""Sampling and logprobs on a CPU row by row, as torch sums a row in another order when others are beside it. Twin of kernels.reference.sampling."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.invariant.ranking import largest
from kernels.reference import sampling
from kernels.reference.sampling import Penalties, Sampled, SamplingBatch


def _penalties(penalties: Penalties, row: int) -> Penalties | None:
    """Of batch row `row` alone, if it has any."""
    found = (penalties.row == row).nonzero().flatten()
    if not len(found):
        return None
    return Penalties(
        row=torch.zeros(1, dtype=torch.int64), counts=penalties.counts[found], seen=penalties.seen[found],
        repetition=penalties.repetition[found], presence=penalties.presence[found], frequency=penalties.frequency[found],
    )  # fmt: skip


def _alone(batch: SamplingBatch, row: int) -> SamplingBatch:
    """Batch row `row`, which has a temperature."""
    here = slice(row, row + 1)
    return SamplingBatch(
        temperature=batch.temperature[here], top_p=batch.top_p[here], top_k=batch.top_k[here], min_p=batch.min_p[here],
        seed=batch.seed[here], position=batch.position[here], random=[0], filtered=[0] if row in batch.filtered else [],
        penalties=None if batch.penalties is None else _penalties(batch.penalties, row),
    )  # fmt: skip


def sample(logits_RV: Tensor, batch: SamplingBatch) -> Sampled:
    """As kernels.reference.sampling.sample."""
    out = sampling.sample(logits_RV, replace(batch, random=[], filtered=[], logprob_rows=[], logprob_counts=[]))
    for row in batch.random:
        out.token[row] = sampling.sample(logits_RV[row : row + 1].clone(), _alone(batch, row)).token[0]
    if not batch.logprob_rows:
        return out
    chosen, top, top_ids = logprobs(logits_RV, out.token, batch.logprob_rows, batch.logprob_counts)
    return replace(out, chosen=chosen, top=top, top_ids=top_ids)


def logprobs(logits_RV: Tensor, token: Tensor, rows: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels.reference.bias.logprobs."""
    return score(logits_RV[rows], token[rows], max(counts))


def score(logits_NV: Tensor, token: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels.reference.bias.score; of equal logprobs the lower id comes first."""
    values = torch.stack([torch.log_softmax(row.clone(), -1) for row in logits_NV])
    top_ids = largest(values, most)
    return values.gather(1, token[:, None]).squeeze(1), values.gather(1, top_ids), top_ids
