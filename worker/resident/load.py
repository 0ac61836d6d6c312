"""From a decoder on a GPU to a running engine."""

import torch

from kernels.backend import Kernels
from worker.args import WorkerArgs
from worker.decoder import Decoder
from worker.memory import Cache
from worker.resident.budget import make_cache, measure
from worker.resident.engine import ResidentEngine


def make_resident(decoder: Decoder, kernels: Kernels, args: WorkerArgs, dtype: torch.dtype, device: torch.device, positions: int) -> ResidentEngine:
    """An engine with as much KV memory as fits, on a stream of its own: the calling thread's from now on. Raises PoolError."""
    torch.cuda.synchronize(device)  # the weights were made on the default stream
    torch.cuda.set_stream(torch.cuda.Stream(device))
    shape = args.max_slots, positions // args.block_size, args.max_step_tokens
    config = decoder.config
    small = torch.zeros(config.layers, 2, config.kv_heads, args.block_size, config.head_dim, dtype=dtype, device=device)
    trial = ResidentEngine(decoder, Cache(small, small.clone()), kernels, *shape)
    budget = measure(trial, args.max_step_tokens)
    del trial, small
    torch.cuda.empty_cache()
    cache = make_cache(decoder, dtype, budget, args.gpu_memory_utilization, args.kv_tokens, args.block_size, device)
    return ResidentEngine(decoder, cache, kernels, *shape)
