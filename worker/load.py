"""From arguments to a running engine: reads the checkpoint, fills the decoder, sizes the pool."""

import logging
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
from worker.compilers import Compilers
from worker.decoder import Decoder
from worker.engine import StepEngine
from worker.formats import check_deterministic, resolve_dtype, resolve_kv_dtype, resolve_weights
from worker.memory import PoolError, make_cache
from worker.step import Engine
from worker.weights import Read, ReadRaw, build_decoder, dummy_reader, to_tensor

log = logging.getLogger(__name__)

SHOWN = 20


def _config(args: WorkerArgs) -> ModelConfig:
    if not args.model_shape:
        return read_config(Path(args.model))
    if args.model_shape not in SHAPES or not args.dummy_weights:
        raise CheckpointError(f"model shape {args.model_shape!r}: give one of {', '.join(SHAPES)}, with dummy weights")
    return SHAPES[args.model_shape]


def _positions(args: WorkerArgs, config: ModelConfig) -> int:
    """Tokens one row may have."""
    return config.context if args.max_context is None else min(config.context, args.max_context)


def _decoder(args: WorkerArgs, config: ModelConfig, positions: int, progress: Callable[[float], None], place: torch.device | None = None) -> Decoder:
    """With its weights at `place`, the device of `args` when that is None."""
    device = torch.device(args.device)
    kernels, dtype = kernels_for(device, args.deterministic), resolve_dtype(args.dtype, device)
    fp8 = resolve_weights(args.weights, dtype, device, args.deterministic)
    device = place or device

    def build(read: Read, read_raw: ReadRaw | None = None) -> Decoder:
        return build_decoder(config, read, kernels, dtype, positions, progress, read_raw, device, fp8)

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
    """A model on its device, for rows of at most `positions` tokens; its keys and values are to be kept as `kv_dtype`."""

    decoder: Decoder
    kernels: Kernels
    kv_dtype: torch.dtype
    device: torch.device
    positions: int


def load_engine(args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool] = lambda: False, compilers: Compilers | None = None) -> StepEngine:
    """Load the model and allocate its KV pool, reporting progress. Raises what `load_model` does, and PoolError.

    `compilers`: of the kernels of a GPU, at work since before.
    """
    found = load_model(args, reporter, stopping)
    if args.measure_bandwidth:
        reporter.facts(copy_bandwidth=copy_bandwidth(found.device))
    if found.device.type == "cuda":
        from worker.resident.load import make_resident  # needs Triton

        def say(what: str) -> None:
            reporter.phase(LOADING, what, 1.0)

        return make_resident(found.decoder, found.kernels, args, found.kv_dtype, found.device, found.positions, compilers, say)
    reporter.phase(LOADING, "allocating KV memory", 1.0)
    return waiting_engine(args, found)


def waiting_engine(args: WorkerArgs, found: Loaded) -> Engine:
    """The engine that waits for every step, with its pool. Raises PoolError."""
    sizes = args.kv_tokens, args.block_size, args.max_slots, found.positions
    cache = make_cache(found.decoder.config, found.kv_dtype, *sizes, found.device)
    return Engine(found.decoder, cache, found.kernels, args.max_slots, found.positions // args.block_size, args.max_step_tokens)


def load_shape(args: WorkerArgs, place: torch.device) -> Loaded:
    """Of the model only two layers of each kind, with weights that are nothing in particular, at `place`: some kernels join a layer to the next."""
    config, device = _config(args), torch.device(args.device)
    kinds = 2 * sorted(set(config.window_layers))
    config = msgspec.structs.replace(config, layers=len(kinds) or 2, window_layers=kinds)
    positions = -(-_positions(args, config) // args.block_size) * args.block_size
    decoder = _decoder(msgspec.structs.replace(args, dummy_weights=True), config, args.block_size, lambda share: None, place)
    kv_dtype = resolve_kv_dtype(args.kv_dtype, resolve_dtype(args.dtype, device), device)
    return Loaded(decoder=decoder, kernels=kernels_for(device, args.deterministic), kv_dtype=kv_dtype, device=place, positions=positions)


def load_model(args: WorkerArgs, reporter: Reporter, stopping: Callable[[], bool] = lambda: False) -> Loaded:
    """Load the model, reporting progress.

    Raises LoadStopped when `stopping` turns true, and CheckpointError, PoolError or ValueError with a sentence for people.
    """
    began = time.perf_counter()
    if args.block_size < 1 or args.max_slots < 1 or args.max_step_tokens < 1:
        raise ValueError("block_size, max_slots and max_step_tokens must be at least 1")
    device = _device(args.device)
    dtype = resolve_dtype(args.dtype, device)
    kv_dtype = resolve_kv_dtype(args.kv_dtype, dtype, device)
    if args.deterministic:
        check_deterministic(dtype, kv_dtype, device)
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

    progress(0.0)
    try:
        decoder = _decoder(args, config, positions, progress)
    except torch.OutOfMemoryError as error:
        raise PoolError(f"the GPU has no memory for the weights; end what else runs there, or use another: {str(error).splitlines()[0]}") from error
    log.info("loaded %s in %.1f s", args.model_shape or args.model, time.perf_counter() - began)
    return Loaded(decoder=decoder, kernels=kernels_for(device, args.deterministic), kv_dtype=kv_dtype, device=device, positions=positions)
