"""From arguments to a running engine: reads the checkpoint, fills the decoder, sizes the pool."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from checkpoint.config import ModelConfig, read_config
from checkpoint.errors import CheckpointError
from checkpoint.shapes import SHAPES
from checkpoint.tensors import check_tensors, expected_tensors, open_tensors
from kernels.backend import Kernels, kernels_for
from messages.cluster import LOADING
from transport.reports import Reporter
from worker.args import WorkerArgs
from worker.bandwidth import copy_bandwidth
from worker.decoder import Decoder
from worker.engine import StepEngine
from worker.memory import PoolError, make_cache
from worker.step import Engine
from worker.weights import Read, ReadRaw, build_decoder, dummy_reader, resolve_dtype, to_tensor

log = logging.getLogger(__name__)

SHOWN = 20
MOST_COMPILERS = 8


def _config(args: WorkerArgs) -> ModelConfig:
    if not args.model_shape:
        return read_config(Path(args.model))
    if args.model_shape not in SHAPES or not args.dummy_weights:
        raise CheckpointError(f"model shape {args.model_shape!r}: give one of {', '.join(SHAPES)}, with dummy weights")
    return SHAPES[args.model_shape]


def _positions(args: WorkerArgs, config: ModelConfig) -> int:
    """Tokens one row may have."""
    return config.context if args.max_context is None else min(config.context, args.max_context)


def _decoder(args: WorkerArgs, config: ModelConfig, positions: int, progress: Callable[[float], None]) -> Decoder:
    device = torch.device(args.device)
    kernels, dtype = kernels_for(device), resolve_dtype(args.dtype, device)

    def build(read: Read, read_raw: ReadRaw | None = None) -> Decoder:
        return build_decoder(config, read, kernels, dtype, positions, progress, read_raw, device)

    if args.dummy_weights:
        return build(dummy_reader({name: tuple(shape) for name, shape in expected_tensors(config).items()}, device, dtype))
    source = open_tensors(Path(args.model), config)
    try:
        unused = check_tensors(source, config)
        if unused:
            log.warning("%d tensors of the checkpoint are not used: %s", len(unused), ", ".join(unused[:SHOWN]))
        stored = source.names()
        return build(lambda name: to_tensor(source.read(name), stored[name].dtype), source.read_raw)
    finally:
        source.close()


def _shortened(config: ModelConfig) -> ModelConfig:
    """The model with one layer of each kind."""
    kinds = sorted(set(config.window_layers))
    return msgspec.structs.replace(config, layers=max(1, len(kinds)), window_layers=kinds)


class LoadStopped(Exception):
    """The process was asked to end while it was loading."""


def _device(name: str) -> torch.device:
    """The device of that name, made current, with its number. Raises ValueError when this machine has none such."""
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ValueError(f"device {name!r} is not here: torch {torch.__version__} sees {count} CUDA devices; use --device cpu")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model on its device, for rows of at most `positions` tokens."""

    decoder: Decoder
    kernels: Kernels
    dtype: torch.dtype
    device: torch.device
    positions: int


def load_engine(args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool] = lambda: False) -> StepEngine:
    """Load the model and allocate its KV pool, reporting progress. Raises what `load_model` does, and PoolError."""
    if torch.device(args.device).type == "cuda":
        return _resident_engine(args, reporter, stopping)
    found = load_model(args, reporter, stopping)
    _ready_for_cache(args, reporter, found)
    return waiting_engine(args, found)


def _ready_for_cache(args: WorkerArgs, reporter: Reporter, found: Loaded) -> None:
    if args.measure_bandwidth:
        reporter.facts(copy_bandwidth=copy_bandwidth(found.device))
    reporter.phase(LOADING, "allocating KV memory", 1.0)


def _resident_engine(args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool]) -> StepEngine:
    """The engine of a GPU, whose kernels are compiled while the weights are loaded."""
    from kernels.compiler import Compiler  # needs Triton
    from worker.resident.load import make_resident, rehearse

    device = _device(args.device)
    compiler = Compiler(min(MOST_COMPILERS, args.threads or len(os.sched_getaffinity(0))))

    def ahead(model: Loaded) -> None:
        rehearse(model.decoder, model.kernels, args, model.dtype, device, model.positions, compiler)

    try:
        found = load_model(args, reporter, stopping, ahead)
        _ready_for_cache(args, reporter, found)
        return make_resident(found.decoder, found.kernels, args, found.dtype, device, found.positions, compiler)
    except BaseException:
        compiler.close()
        raise


def waiting_engine(args: WorkerArgs, found: Loaded) -> Engine:
    """The engine that waits for every step, with its pool. Raises PoolError."""
    sizes = args.kv_tokens, args.block_size, args.max_slots, found.positions
    cache = make_cache(found.decoder.config, found.dtype, *sizes, found.device)
    return Engine(found.decoder, cache, found.kernels, args.max_slots, found.positions // args.block_size, args.max_step_tokens)


def load_model(
    args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool] = lambda: False, ahead: Callable[[Loaded], None] | None = None
) -> Loaded:
    """Load the model, reporting progress. `ahead` is given, before that, a model of one layer of each kind and with random weights.

    Raises LoadStopped when `stopping` turns true, and CheckpointError, PoolError or ValueError with a sentence for people.
    """
    began = time.perf_counter()
    if args.block_size < 1 or args.max_slots < 1 or args.max_step_tokens < 1:
        raise ValueError("block_size, max_slots and max_step_tokens must be at least 1")
    device = _device(args.device)
    config = _config(args)
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

    def loaded(decoder: Decoder) -> Loaded:
        return Loaded(decoder=decoder, kernels=kernels_for(device), dtype=resolve_dtype(args.dtype, device), device=device, positions=positions)

    progress(0.0)
    try:
        if ahead is not None:
            ahead(loaded(_decoder(msgspec.structs.replace(args, dummy_weights=True), _shortened(config), args.block_size, lambda share: None)))
        decoder = _decoder(args, config, positions, progress)
    except torch.OutOfMemoryError as error:
        raise PoolError(f"the GPU has no memory for the weights; end what else runs there, or use another: {str(error).splitlines()[0]}") from error
    log.info("loaded %s in %.1f s", args.model_shape or args.model, time.perf_counter() - began)
    return loaded(decoder)
