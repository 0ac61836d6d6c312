"""Changes to logits before they are sampled: values added to few tokens, rows that may have few tokens only, words that must not be finished.

Nothing is set, all is added: a logit that is not a number stays so and is found by the sampler. What must not be chosen gets a value so low that
its probability is zero, and not minus infinity, which would pass for a fault. UNNAMED is lower than BANNED: where everything is banned, a closed row
still has one of its own tokens. A thousand lies between them, and between UNNAMED and kernels.reference.mask.MASKED, for penalties multiply by up to
a hundred.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BANNED = -1e24
UNNAMED = -1e27
ANY = -2
"""Stands in `prefix` before the beginning of a word: any token, or none."""


@dataclass(frozen=True, kw_only=True)
class Bias:
    """int64 but `value`, which is float32. `value` [P] is added to the logit of `token` [P] in batch `row` [P], no pair twice.

    Rows `closed` [C] may have their named tokens only. `word_token` [W] must not be chosen in `word_row` [W], whose last tokens are `recent` [W, K],
    when these are `prefix` [W, K].
    """

    row: Tensor
    token: Tensor
    value: Tensor
    closed: Tensor
    word_row: Tensor
    word_token: Tensor
    prefix: Tensor
    recent: Tensor


def apply_bias(logits_RV: Tensor, bias: Bias) -> Tensor:
    """The changed logits as a new float32 tensor."""
    x = logits_RV.to(torch.float32, copy=True)
    named = x[bias.row, bias.token] + bias.value
    x[bias.closed] += UNNAMED
    x[bias.row, bias.token] = named
    if len(bias.word_row):
        begun = ((bias.prefix == bias.recent) | (bias.prefix == ANY)).all(1)
        x.index_put_((bias.word_row, bias.word_token), torch.where(begun, BANNED, 0.0), accumulate=True)
    return x


def logprobs(logits_RV: Tensor, token: Tensor, rows: list[int], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of batch `rows` and their `token`: its logprob [L], and the largest of each with their ids [L, max of `counts`], best first."""
    row = torch.tensor(rows, device=logits_RV.device)
    return score(logits_RV[row], token[row], max(counts))


def score(logits_NV: Tensor, token: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logprob [N] of each row's `token`, and its `most` largest with their ids [N, most], best first."""
    values = torch.log_softmax(logits_NV.float(), -1)
    top, top_ids = torch.topk(values, min(most, logits_NV.shape[1]), sorted=True)
    return values.gather(1, token[:, None]).squeeze(1), top, top_ids
