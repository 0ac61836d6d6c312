"""From arguments to a running engine: reads the checkpoint, fills the decoder, sizes the pool."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from checkpoint.config import ModelConfig, read_config
from checkpoint.tensors import check_tensors, expected_tensors, open_tensors
from kernels.backend import kernels_for
from messages.cluster import LOADING
from transport.reports import Reporter
from worker.args import WorkerArgs
from worker.decoder import Decoder
from worker.memory import make_cache
from worker.step import Engine
from worker.weights import Read, ReadRaw, build_decoder, dummy_reader, resolve_dtype, to_tensor

log = logging.getLogger(__name__)

SHOWN = 20


def _positions(args: WorkerArgs, config: ModelConfig) -> int:
    """Tokens one row may have."""
    return config.context if args.max_context is None else min(config.context, args.max_context)


def _decoder(args: WorkerArgs, config: ModelConfig, positions: int, progress: Callable[[float], None]) -> Decoder:
    device = torch.device(args.device)
    kernels, dtype = kernels_for(device), resolve_dtype(args.dtype, device)

    def build(read: Read, read_raw: ReadRaw | None = None) -> Decoder:
        return build_decoder(config, read, kernels, dtype, positions, progress, read_raw, device)

    if args.dummy_weights:
        return build(dummy_reader({name: tuple(shape) for name, shape in expected_tensors(config).items()}))
    source = open_tensors(Path(args.model), config)
    try:
        unused = check_tensors(source, config)
        if unused:
            log.warning("%d tensors of the checkpoint are not used: %s", len(unused), ", ".join(unused[:SHOWN]))
        stored = source.names()
        return build(lambda name: to_tensor(source.read(name), stored[name].dtype), source.read_raw)
    finally:
        source.close()


class LoadStopped(Exception):
    """The process was asked to end while it was loading."""


def _device(name: str) -> torch.device:
    """The device of that name, made current. Raises ValueError when this machine has none such."""
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ValueError(f"device {name!r} is not here: torch {torch.__version__} sees {count} CUDA devices; use --device cpu")
        torch.cuda.set_device(device.index or 0)
    return device


def load_engine(args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool] = lambda: False) -> Engine:
    """Load the model and allocate its KV pool, reporting progress.

    Raises LoadStopped when `stopping` turns true, and CheckpointError, PoolError or ValueError with a sentence for people.
    """
    began = time.perf_counter()
    if args.block_size < 1 or args.max_slots < 1 or args.max_step_tokens < 1:
        raise ValueError("block_size, max_slots and max_step_tokens must be at least 1")
    device = _device(args.device)
    config = read_config(Path(args.model))
    log.info(
        "%s: %d layers, hidden %d, %d/%d heads of %d, vocabulary %d, context %d, rope %s with theta %g",
        config.family, config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim, config.vocab, config.context,
        config.rope.kind, config.rope.theta,
    )  # fmt: skip
    positions = -(-_positions(args, config) // args.block_size) * args.block_size

    def progress(share: float) -> None:
        if stopping():
            raise LoadStopped
        reporter.phase(LOADING, f"loading weights {share:.0%}".replace("%", " %"), share)

    progress(0.0)
    decoder = _decoder(args, config, positions, progress)
    log.info("loaded %s in %.1f s", args.model, time.perf_counter() - began)
    reporter.phase(LOADING, "allocating KV memory", 1.0)
    cache = make_cache(config, resolve_dtype(args.dtype, device), args.kv_tokens, args.block_size, args.max_slots, positions, device)
    return Engine(decoder, cache, kernels_for(device), args.max_slots, positions // args.block_size, args.max_step_tokens)
