"""Sampling and logprobs with one order of every sum, whoever else is in the batch. Twin of kernels.reference.sampling."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels import sampling
from kernels.invariant.ranking import largest
from kernels.reference.sampling import Sampled, SamplingBatch

ALIGNED = 4
"""Values of 16 bytes: the library sums a row in another order when it begins at no multiple of them."""


def sample(logits_RV: Tensor, batch: SamplingBatch) -> Sampled:
    """As kernels.sampling.sample."""
    out = sampling.sample(logits_RV, replace(batch, logprob_rows=[], logprob_counts=[]), one_order=True)
    if not batch.logprob_rows:
        return out
    chosen, top, top_ids = logprobs(logits_RV, out.token, batch.logprob_rows, batch.logprob_counts)
    return replace(out, chosen=chosen, top=top, top_ids=top_ids)


def logprobs(logits_RV: Tensor, token: Tensor, rows: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels.reference.bias.logprobs."""
    row = torch.tensor(rows, device=logits_RV.device)
    return score(logits_RV[row], token[row], max(counts))


def score(logits_NV: Tensor, token: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels.reference.bias.score; of equal logprobs the lower id comes first."""
    count, vocab = logits_NV.shape
    wide = logits_NV.new_full((count, -(-vocab // ALIGNED) * ALIGNED), -torch.inf, dtype=torch.float32)
    wide[:, :vocab] = logits_NV
    values = torch.log_softmax(wide, -1)[:, :vocab]
    top_ids = largest(values, most)
    return values.gather(1, token[:, None]).squeeze(1), values.gather(1, top_ids), top_ids
