"""How the memory of a GPU is shared out: what a dry run of the largest step takes, and what that leaves for keys and values."""

import logging
from dataclasses import dataclass

import torch

from worker.decoder import Decoder
from worker.memory import Cache, PoolError, token_bytes
from worker.resident.engine import ResidentEngine

log = logging.getLogger(__name__)

GRAPHS_OVER_LARGEST = 2.0
"""All graphs take so many times the memory of the largest: they share a pool, but not perfectly."""
SHRINK = 0.95
GIB = 2**30
RESERVE = GIB // 4
"""Left for what no dry run takes, since it launches no kernels: their code, the nodes of graphs, and what steps of other sizes leave in pieces."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes. `used`: by everything that is on the device now, the weights among it; `activations` and `graphs`: for the largest step."""

    total: int
    used: int
    weights: int
    activations: int
    graphs: int

    def for_cache(self, share: float) -> int:
        """What is left for the KV pool when `share` of the device may be used."""
        return int(self.total * share) - self.used - self.activations - self.graphs - RESERVE


def measure(engine: ResidentEngine, most_tokens: int) -> Budget:
    """Run the largest steps on `engine`, which has a cache of its own to be thrown away."""
    device = engine.cache.k.device
    weights = torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    engine.dry_run(most_tokens)
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_reserved(device) - reserved  # whole segments: the allocator keeps them
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    engine.dry_graph()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    graphs = int(GRAPHS_OVER_LARGEST * max(0, torch.cuda.memory_reserved(device) - before))
    free, total = torch.cuda.mem_get_info(device)
    return Budget(
        total=total, used=total - free - (torch.cuda.memory_reserved(device) - before), weights=weights, activations=activations, graphs=graphs
    )


def make_cache(decoder: Decoder, dtype: torch.dtype, budget: Budget, share: float, kv_tokens: int, block_size: int, device: torch.device) -> Cache:
    """The pool: `kv_tokens`, or (0) all that the budget leaves. Shrinks when the memory is not there after all. Raises PoolError."""
    block_bytes = token_bytes(decoder.config, dtype) * block_size
    affordable = budget.for_cache(share) // block_bytes - 1
    blocks = min(affordable, -(-kv_tokens // block_size)) if kv_tokens else affordable
    config = decoder.config
    while blocks > 0:
        shape = (config.layers, blocks + 1, config.kv_heads, block_size, config.head_dim)
        try:
            cache = Cache(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            log.warning("no memory for %d KV blocks; trying %d", blocks, int(blocks * SHRINK))
            blocks = int(blocks * SHRINK)
            continue
        _explain(budget, blocks * block_bytes, blocks * block_size, device)
        return cache
    raise PoolError(
        no_room("keys and values", share) + f"; weights take {budget.weights / GIB:.1f} GiB, steps {(budget.activations + budget.graphs) / GIB:.1f}"
    )


def no_room(what: str, share: float) -> str:
    """What to say when there is no memory on the current GPU for `what`."""
    free, total = torch.cuda.mem_get_info()
    return (
        f"the GPU has no memory for {what}: {free / GIB:.1f} of {total / GIB:.1f} GiB are free and {share:g} of all may be used; "
        "end what else runs there, raise --gpu-memory-utilization, or lower --max-slots"
    )


def _explain(budget: Budget, cache: int, tokens: int, device: torch.device) -> None:
    free = torch.cuda.mem_get_info(device)[0]
    log.info(
        "GPU memory, GiB: weights %.2f, other %.2f, activations %.2f, graphs %.2f, reserve %.2f, KV %.2f (%d tokens), free %.2f of %.2f",
        budget.weights / GIB, (budget.used - budget.weights) / GIB, budget.activations / GIB, budget.graphs / GIB, RESERVE / GIB,
        cache / GIB, tokens, free / GIB, budget.total / GIB,
    )  # fmt: skip
