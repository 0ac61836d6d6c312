"""From a decoder on a GPU to a running engine."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
import triton

from kernels.backend import Kernels
from kernels.launch import instead, settle_keys
from worker.args import WorkerArgs
from worker.compilers import Compilers
from worker.decoder import Decoder
from worker.memory import Cache, PoolError, lacks_memory, token_bytes
from worker.resident.budget import Budget, make_cache, measure, no_room
from worker.resident.engine import ResidentEngine

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long others may take to compile what this process would have to compile one after the other."""


def make_resident(
    decoder: Decoder,
    kernels: Kernels,
    args: WorkerArgs,
    dtype: torch.dtype,
    device: torch.device,
    positions: int,
    compilers: Compilers | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> ResidentEngine:
    """An engine with as much KV memory as fits, on a stream of its own: the calling thread's from now on. Raises PoolError.

    The dry runs that measure memory launch nothing, so that they need no kernels; a first prompt and a first token are then really run. `say` is told
    what is done next.
    """
    say("measuring its steps")
    torch.cuda.synchronize(device)  # the weights were made on the default stream
    torch.cuda.set_stream(torch.cuda.Stream(device))
    share = args.gpu_memory_utilization
    open_matrix_library(share)
    settle_keys()

    def measured(tokens: int) -> Budget:
        with instead(lambda *launch: None):
            return measure(trial_engine(decoder, kernels, args, dtype, device, positions, tokens), tokens)

    tokens, budget = largest_step(args.max_step_tokens, args.max_slots, token_bytes(decoder.config, dtype), share, measured)
    say("allocating KV memory")
    cache = make_cache(decoder, dtype, budget, share, args.kv_tokens, args.block_size, device)
    engine = ResidentEngine(decoder, cache, kernels, args.max_slots, positions // args.block_size, tokens, compilers)
    if compilers is not None:
        say("compiling kernels")
        compilers.wait(PATIENCE_SECONDS)
    say("running a first step")
    engine.begin()
    torch.cuda.synchronize(device)
    triton.knobs.compilation.listener = _tell_late
    return engine


def open_matrix_library(share: float) -> None:
    """Have cuBLAS take its memory before the dry runs, whose want of it would not look like one of memory. Raises PoolError."""
    try:
        torch.cuda.current_blas_handle()
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise PoolError(no_room("the matrix library", share)) from None


def _tell_late(*, src: Any, times: Any, cache_hit: bool, **more: object) -> None:
    """A step had to wait for one of its kernels. Triton calls this with the times of what it compiled, in microseconds."""
    seconds = (times.ir_initialization + sum(stage for _, stage in times.lowering_stages) + times.store_results) / 1e6
    log.info("kernel %s was compiled for a step (%s, %.2f s)", src.name, "known on this machine" if cache_hit else "new", seconds)


def trial_engine(
    decoder: Decoder, kernels: Kernels, args: WorkerArgs, dtype: torch.dtype, device: torch.device, positions: int, tokens: int
) -> ResidentEngine:
    """For steps of dummy rows of at most `tokens` tokens: with the smallest of caches."""
    config = decoder.config
    small = torch.zeros(config.layers, 2, config.kv_heads, args.block_size, config.head_dim, dtype=dtype, device=device)
    return ResidentEngine(decoder, Cache(small, small.clone()), kernels, args.max_slots, positions // args.block_size, tokens)


def largest_step(wanted: int, least: int, token_bytes: int, share: float, measured: Callable[[int], Budget]) -> tuple[int, Budget]:
    """Tokens of the largest step, `wanted` or a half of it again and again, that can be run and leaves memory for the keys of as many tokens.

    `measured`: the budget with steps of so many tokens; raises torch.OutOfMemoryError. Raises PoolError when not even `least` tokens can be run.
    """
    tokens = wanted
    while True:
        try:
            budget = measured(tokens)
        except torch.OutOfMemoryError:
            budget = None
        gc.collect()
        torch.cuda.empty_cache()
        if budget is not None and (tokens == least or budget.for_cache(share) >= tokens * token_bytes):
            return tokens, budget
        if tokens == least:
            raise PoolError(no_room("a step", share))
        tokens = max(least, tokens // 2)
        log.warning("not enough memory for larger steps; trying %d tokens", tokens)
