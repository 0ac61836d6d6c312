"""How much KV memory there is and the cache itself."""

import logging
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor

from checkpoint.config import ModelConfig

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.25
"""Of the memory that is free after the weights are loaded, when no pool size is asked for."""
MOST_MEMORY = 0.8
"""Of the same, when a pool size is asked for: pages are only taken as they are used, so a pool past this would end in the OOM killer."""
SMALLEST_SHRINK = 0.75
CGROUP = Path("/sys/fs/cgroup")
CPU = torch.device("cpu")


class PoolError(Exception):
    """There is not enough memory for even one useful KV pool."""


def lacks_memory(error: RuntimeError) -> bool:
    """Whether torch, CUDA, Triton or cuBLAS, each in words of its own, failed for want of memory."""
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said or "ALLOC_FAILED" in said


@dataclass(frozen=True)
class Cache:
    """The KV pool: k and v, [layers, blocks + 1, K, P, D]; the last block is the dummy."""

    k: Tensor
    v: Tensor

    @property
    def blocks(self) -> int:
        """Usable blocks."""
        return self.k.shape[1] - 1

    @property
    def block_size(self) -> int:
        return self.k.shape[3]


def token_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize


def available_bytes(cgroup: Path = CGROUP, device: torch.device = CPU) -> int:
    """Memory this process may still take: what the device or the machine has free, or what its cgroup leaves."""
    if device != CPU:
        return torch.cuda.mem_get_info(device)[0]
    free = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        return free if limit == "max" else max(0, min(free, int(limit) - used))
    except (OSError, ValueError):
        return free


def choose_blocks(kv_tokens: int, block_size: int, max_slots: int, context: int, bytes_per_token: int, available: int) -> int:
    """Blocks of the pool: enough for `kv_tokens`, or for `max_slots` whole contexts within a share of `available` bytes."""
    wanted = -(-kv_tokens // block_size) if kv_tokens > 0 else max_slots * -(-context // block_size)
    share = MOST_MEMORY if kv_tokens > 0 else MEMORY_SHARE
    affordable = int(available * share) // (bytes_per_token * block_size)
    return max(1, min(wanted, affordable))


def allocate(config: ModelConfig, dtype: torch.dtype, blocks: int, block_size: int, device: torch.device = CPU) -> Cache:
    """The cache, with fewer blocks when memory does not suffice. Left uninitialised: nothing reads a position before it is written.

    Raises PoolError when not even one block can be had.
    """
    while blocks > 0:
        shape = (config.layers, blocks + 1, config.kv_heads, block_size, config.head_dim)
        try:
            return Cache(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
        except (MemoryError, RuntimeError) as error:  # torch reports a failed CPU allocation as RuntimeError
            smaller = int(blocks * SMALLEST_SHRINK)
            log.warning("no memory for %d KV blocks (%s); trying %d", blocks, str(error).splitlines()[0], smaller)
            blocks = smaller
    raise PoolError("not enough memory for a single KV block")


def make_cache(
    config: ModelConfig, dtype: torch.dtype, kv_tokens: int, block_size: int, max_slots: int, context: int, device: torch.device = CPU
) -> Cache:
    """Choose, allocate and log the pool. Raises PoolError."""
    size, available = token_bytes(config, dtype), available_bytes(device=device)
    blocks = choose_blocks(kv_tokens, block_size, max_slots, context, size, available)
    cache = allocate(config, dtype, blocks, block_size, device)
    if cache.blocks * block_size < kv_tokens:
        log.warning("asked for KV memory for %d tokens; there is room for %d", kv_tokens, cache.blocks * block_size)
    log.info(
        "KV memory: %d blocks of %d tokens = %d tokens, %.1f KiB a token, %.2f GiB of %.2f GiB free",
        cache.blocks, block_size, cache.blocks * block_size, size / 1024, cache.blocks * block_size * size / 2**30, available / 2**30,
    )  # fmt: skip
    return cache
