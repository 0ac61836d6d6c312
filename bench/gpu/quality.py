"""What FP8 costs in quality: `python -m bench.gpu.quality --model FILE [--text FILE] [--device cpu] [--shapes 4x1792x512,32x128x1]`.

The perplexity of a model on a text (this repository's LICENSE, README.md and CONTRIBUTING.md, one after the other), teacher forced through the
worker's own decoder and cache: R sequences of L tokens, C tokens of each in a step. With C of 1 all are decode rows; R x C decides which
products are taken. Beside it, position by position against the first variant: the mean divergence of the distributions (KL, in nats), how often
both find the same token likeliest, and the difference in mean loss with its standard error.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from checkpoint.config import read_config
from checkpoint.tensors import open_tensors
from kernels.backend import kernels_for
from tokenizer_proc.vocabulary import load_vocabulary
from worker.decoder import Decoder, StepInput
from worker.formats import KV_DTYPES, resolve_dtype
from worker.memory import allocate
from worker.weights import build_decoder, to_tensor

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("LICENSE", "README.md", "CONTRIBUTING.md")
BLOCK = 16
VARIANTS = (("auto", "auto"), ("fp8", "auto"), ("auto", "fp8"), ("fp8", "fp8"))
"""Formats of keys and values, and of the weights."""


@dataclass(frozen=True)
class Shape:
    """`rows` sequences of `length` tokens, `chunk` of each in a step."""

    rows: int
    length: int
    chunk: int


def text(path: Path | None = None) -> str:
    """What the file holds, or this repository's documents. Raises OSError, as in an installed copy, which has none."""
    return "\n".join((ROOT / name).read_text() for name in TEXTS) if path is None else path.read_text()


def load_decoder(model: Path, device: torch.device, dtype: torch.dtype, positions: int, fp8: bool) -> Decoder:
    """As the worker loads it, but on a CPU too where the worker refuses FP8 weights."""
    config = read_config(model)
    source = open_tensors(model, config)
    try:
        stored = source.names()

        def read(name: str) -> Tensor:
            return to_tensor(source.read(name), stored[name].dtype)

        return build_decoder(config, read, kernels_for(device), dtype, positions, lambda share: None, None, device, fp8)
    finally:
        source.close()


def steps(decoder: Decoder, ids_RL: Tensor, chunk: int, kv_dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities [tokens, V] of every step, and the tokens that follow [tokens]; the last token of a sequence predicts nothing."""
    (rows, length), config, device = ids_RL.shape, decoder.config, ids_RL.device
    kernels = kernels_for(device)
    blocks = -(-length // BLOCK)
    cache = allocate(config, kv_dtype, rows * blocks, BLOCK, device)
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(rows * blocks, generator=generator).view(rows, blocks).to(device)
    for start in range(0, length - 1, chunk):
        count = min(chunk, length - 1 - start)
        geometry = [start] * rows, [count] * rows, rows if count == 1 else 0, config.heads, config.kv_heads, BLOCK
        full = kernels.plan_attention(table, *geometry)
        windowed = full if config.window is None else kernels.plan_attention(table, *geometry, window=config.window)
        tokens = ids_RL[:, start : start + count].flatten()
        positions = torch.arange(start, start + count, device=device).repeat(rows)
        step = StepInput(tokens=tokens, positions=positions, wanted=None, full=full, windowed=windowed)
        logits = decoder.forward(step, cache.k, cache.v)[: len(tokens)]
        yield logits.float().log_softmax(-1), ids_RL[:, start + 1 : start + 1 + count].flatten()


@dataclass(frozen=True)
class Quality:
    """Of one variant, against the first: mean loss, KL and differences in nats."""

    perplexity: float
    divergence: float
    agreement: float
    difference: float
    error: float


class Baseline:
    """Keeps what the first variant predicts and compares the others with it."""

    def __init__(self) -> None:
        self._steps: list[Tensor] = []
        self._losses: Tensor | None = None

    def measure(self, found: Iterator[tuple[Tensor, Tensor]]) -> Quality:
        first = self._losses is None
        losses, divergences, same = [], [], []
        for number, (logprobs, following) in enumerate(found):
            if first:
                self._steps.append(logprobs)
            expected = self._steps[number]
            losses.append(-logprobs.gather(1, following[:, None])[:, 0])
            divergences.append((expected.exp() * (expected - logprobs)).sum(1))
            same.append((expected.argmax(1) == logprobs.argmax(1)).float())
        loss = torch.cat(losses).double()
        if self._losses is None:
            self._losses = loss
        difference = loss - self._losses
        return Quality(
            perplexity=math.exp(float(loss.mean())),
            divergence=float(torch.cat(divergences).double().mean()),
            agreement=float(torch.cat(same).mean()),
            difference=float(difference.mean()),
            error=float(difference.std()) / math.sqrt(len(difference)),
        )


def sequences(ids: list[int], shape: Shape, device: torch.device) -> Tensor:
    """Tokens [rows, length] of the text, from its beginning; fewer rows where it is too short. Raises ValueError when it has not even one."""
    rows = min(shape.rows, len(ids) // shape.length)
    if rows == 0:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than {shape.length}")
    return torch.tensor(ids[: rows * shape.length], device=device).view(rows, shape.length)


@torch.inference_mode()
def compare(model: Path, device: torch.device, dtype: torch.dtype, ids: list[int], shapes: list[Shape]) -> Iterator[str]:
    """Lines of the table."""
    decoders = {weights: load_decoder(model, device, dtype, max(shape.length for shape in shapes), weights == "fp8") for weights in ("auto", "fp8")}
    for shape in shapes:
        tokens, baseline = sequences(ids, shape, device), Baseline()
        yield f"{tokens.shape[0]} sequences of {shape.length} tokens, {shape.chunk} of each a step, {str(dtype).removeprefix('torch.')} on {device}"
        for kv, weights in VARIANTS:
            found = baseline.measure(steps(decoders[weights], tokens, shape.chunk, dtype if kv == "auto" else KV_DTYPES[kv]))
            yield (
                f"  kv {kv:4} weights {weights:4}  perplexity {found.perplexity:8.4f}  loss {found.difference:+.5f} +- {found.error:.5f}  "
                f"KL {found.divergence:.5f}  same token {found.agreement:7.2%}"
            )


def parse_shape(text: str) -> Shape:
    """From "4x2048x512". Raises ValueError."""
    rows, length, chunk = (int(part) for part in text.split("x"))
    return Shape(rows, length, chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="another text; an installed copy has none of its own")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--shapes", default="4x1792x512,32x128x1", help="sequences x tokens x tokens a step, separated by commas")
    args = parser.parse_args()
    device = torch.device(args.device)
    ids = load_vocabulary(args.model).encode(text(args.text), False)
    shapes = [parse_shape(part) for part in args.shapes.split(",")]
    for line in compare(args.model, device, resolve_dtype(args.dtype, device), ids, shapes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
