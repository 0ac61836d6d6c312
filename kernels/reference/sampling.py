"""Sampling: penalties, temperature, min-p, top-k, top-p, the draw, logprobs.

Order as in vLLM: penalties, temperature, min-p, then top-k, then top-p over what is left. Equal logits at a border are kept together, so a
result never depends on a sort. Greedy ties go to the lowest id. The draw is by inverse CDF in id order with one uniform number per row from
Philox4x32-10 (Salmon et al., 2011) under key = seed and counter = position of the sampled token: the same tokens alone or in any batch.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

CANDIDATES = 1024
"""Top-p looks at this many of the largest logits first and at all of them only when these do not hold enough probability."""

LARGEST_LOGIT = 1e30
"""Penalised logits are held within this, so that an extreme penalty cannot make infinities of finite logits."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: the division would overflow."""

_LOW = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Penalties:
    """Rows with penalties: `row` [N] int64 into the batch; `counts` [N, V] of generated tokens; `seen` [N, V] bool, prompt or generated."""

    row: Tensor
    counts: Tensor
    seen: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True, kw_only=True)
class SamplingBatch:
    """How the rows of a step are sampled, one value per row: float32, but `top_k` int64 (0: off), `seed` and `position` int64.

    `random`: rows with a temperature, int64 indices; `filtered`: those of them with top-k, top-p or min-p. `logprob_rows` asked for
    logprobs, `logprob_counts` of alternatives each. Row lists are known on the host, so an all-greedy step costs an argmax.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    random: list[int] = field(default_factory=list)
    filtered: list[int] = field(default_factory=list)
    penalties: Penalties | None = None
    logprob_rows: list[int] = field(default_factory=list)
    logprob_counts: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """`token` [R] int64; `finite` [R] bool, False where a logit is NaN or infinite (the token is then meaningless).

    Logprobs are of the raw distribution, for the batch's `logprob_rows` only: `chosen` [L], `top` and `top_ids` [L, max count], best first.
    """

    token: Tensor
    finite: Tensor
    chosen: Tensor | None = None
    top: Tensor | None = None
    top_ids: Tensor | None = None


def philox(counter: Tensor, seed: Tensor) -> Tensor:
    """Philox4x32-10: `counter` [R, 4] and `seed` [R, 2] of 32-bit words held in int64; gives [R, 4] such words."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = seed.unbind(-1)
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps in int64; shift and mask still give the right halves
        c0, c1, c2, c3 = ((b >> 32) & _LOW) ^ c1 ^ k0, b & _LOW, ((a >> 32) & _LOW) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return torch.stack((c0, c1, c2, c3), -1)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """One float64 in (0, 1) per row from its int64 `seed` and `position`."""
    zero = torch.zeros_like(seed)
    counter = torch.stack((position & _LOW, (position >> 32) & _LOW, zero, zero), -1)
    words = philox(counter, torch.stack((seed & _LOW, (seed >> 32) & _LOW), -1))
    bits = (words[:, 0] << 20) | (words[:, 1] >> 12)
    return (bits.to(torch.float64) + 0.5) * 2.0**-52


def finite_rows(logits_RV: Tensor) -> Tensor:
    """[R] bool: every logit of the row is a finite number."""
    low, high = torch.aminmax(logits_RV, dim=-1)
    return torch.isfinite(low) & torch.isfinite(high)


def apply_penalties(logits_NV: Tensor, penalties: Penalties) -> Tensor:
    """Repetition divides positive and multiplies negative logits of seen tokens; frequency (per count) and presence are subtracted."""
    repetition = penalties.repetition[:, None]
    repeated = torch.where(logits_NV > 0, logits_NV / repetition, logits_NV * repetition)
    out = torch.where(penalties.seen, repeated, logits_NV)
    counts = penalties.counts
    out = out - penalties.frequency[:, None] * counts - penalties.presence[:, None] * (counts > 0)
    return out.clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)


def _border(x_NV: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The smallest kept logit of each row [N, 1], and which rows [N] need more than `width` candidates to tell."""
    vocab = x_NV.shape[1]
    largest = torch.topk(x_NV, width, sorted=True).values
    best = largest[:, :1]
    floor = best + torch.log(min_p)[:, None]
    kth = largest.gather(1, (top_k.clamp(1, width) - 1)[:, None])
    floor = torch.where(((top_k > 0) & (top_k < vocab))[:, None], torch.maximum(floor, kth), floor)
    mass = torch.where(x_NV >= floor, torch.exp(x_NV - best), 0.0).sum(-1, keepdim=True, dtype=torch.float64)
    weights = torch.where(largest >= floor, torch.exp(largest - best), 0.0).to(torch.float64)
    total = torch.cumsum(weights, -1)
    wanted = top_p[:, None].to(torch.float64) * mass
    kept = ((total - weights < wanted) & (weights > 0)).sum(-1, keepdim=True).clamp(min=1)
    short = (top_p < 1) & (total[:, -1:] < wanted).squeeze(1) & (width < vocab)
    nucleus = largest.gather(1, kept - 1)
    return torch.where((top_p < 1)[:, None], torch.maximum(floor, nucleus), floor), short


def filter_logits(x_NV: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`x_NV` (temperature applied) with every logit outside min-p, top-k or top-p at minus infinity."""
    vocab = x_NV.shape[1]
    small = torch.where(top_k < vocab, top_k, 0)
    width = min(vocab, max(CANDIDATES, int(small.max())))
    border, short = _border(x_NV, top_k, top_p, min_p, width)
    if bool(short.any()):
        border[short], _ = _border(x_NV[short], top_k[short], top_p[short], min_p[short], vocab)
    return x_NV.masked_fill(x_NV < border, -torch.inf)


def draw(x_NV: Tensor, seed: Tensor, position: Tensor) -> Tensor:
    """Sample softmax(x) for each row [N]: the first id whose cumulative weight passes the row's uniform number."""
    weights = torch.exp(x_NV - x_NV.amax(-1, keepdim=True))
    total = torch.cumsum(weights, -1, dtype=torch.float64)
    target = uniform(seed, position)[:, None] * total[:, -1:]
    return torch.searchsorted(total, target, right=True).squeeze(1).clamp(max=x_NV.shape[1] - 1)


def _choose(logits_RV: Tensor, batch: SamplingBatch) -> Tensor:
    token = torch.argmax(logits_RV, -1)
    if not batch.random:
        return token
    row = torch.tensor(batch.random)
    x = logits_RV[row] * batch.temperature[row].reciprocal()[:, None]  # a division is slow on a GPU, which must round alike
    if batch.filtered:
        chosen = torch.tensor([batch.random.index(r) for r in batch.filtered])
        picked = row[chosen]
        x[chosen] = filter_logits(x[chosen], batch.top_k[picked], batch.top_p[picked], batch.min_p[picked])
    token[row] = draw(x, batch.seed[row], batch.position[row])
    return token


def sample(logits_RV: Tensor, batch: SamplingBatch) -> Sampled:
    """One token per row of the float32 `logits_RV`, which is left as it is."""
    finite = finite_rows(logits_RV)
    changed = logits_RV
    if not bool(finite.all()):  # keeps the draw of other rows and this row's index in range
        changed = changed.masked_fill(~finite[:, None], 0.0)
    raw = changed
    if batch.penalties is not None:
        changed = changed.clone()
        changed[batch.penalties.row] = apply_penalties(changed[batch.penalties.row], batch.penalties)
    token = _choose(changed, batch)
    if not batch.logprob_rows:
        return Sampled(token=token, finite=finite)
    row = torch.tensor(batch.logprob_rows)
    logprobs = torch.log_softmax(raw[row], -1)
    top, top_ids = torch.topk(logprobs, min(max(batch.logprob_counts), logits_RV.shape[1]), sorted=True)
    return Sampled(token=token, finite=finite, chosen=logprobs.gather(1, token[row][:, None]).squeeze(1), top=top, top_ids=top_ids)
