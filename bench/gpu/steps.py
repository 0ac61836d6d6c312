"""Times whole model steps on the GPU, random weights: `python -m bench.gpu.steps [--models A,B] [--kv fp8] [--weights fp8] [--deterministic]`.

A decode step (the forward pass of R rows and their sampling) is replayed from a CUDA graph; a prefill step of 8,192 tokens runs eagerly. The floor
reads all weights and all keys and values once, at the copy bandwidth of the same run. Nothing of the worker's own time is in these numbers.
"""

import argparse
import math
import statistics

import torch
from torch import Tensor

from bench.gpu.case import DEVICE, copy_bandwidth, seconds
from checkpoint.config import ModelConfig, RopeConfig
from checkpoint.tensors import expected_tensors
from kernels.backend import kernels_for
from kernels.reference.fp8 import E4M3
from kernels.reference.sampling import SamplingBatch
from worker.decoder import Decoder, StepInput
from worker.weights import build_decoder

BLOCK = 16
MODELS = {
    "qwen3-0.6b": ModelConfig(
        family="qwen3", hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072, vocab=151_936, context=4096, norm_eps=1e-6,
        rope=RopeConfig(), tied_head=True, qk_norm=True,
    ),
    "llama3.2-1b": ModelConfig(
        family="llama", hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256, context=4096, norm_eps=1e-5,
        rope=RopeConfig(), tied_head=True,
    ),
    "llama3.1-8b": ModelConfig(
        family="llama", hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14_336, vocab=128_256, context=4096, norm_eps=1e-5,
        rope=RopeConfig(), tied_head=False,
    ),
}  # fmt: skip
ROWS = [(1, 512), (2, 512), (8, 1088), (64, 1150), (128, 800), (256, 800)]
"""Rows of a decode step and keys of each."""
PROMPT, PROMPTS = 1024, 8


def make_decoder(config: ModelConfig, fp8: bool = False, deterministic: bool = False) -> Decoder:
    shapes = {name: tuple(shape) for name, shape in expected_tensors(config).items()}

    def read(name: str) -> Tensor:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=DEVICE)
        return torch.empty(shape, device=DEVICE, dtype=torch.bfloat16).normal_(0, float(shape[-1]) ** -0.5)

    return build_decoder(config, read, kernels_for(DEVICE, deterministic), torch.bfloat16, 2048, lambda share: None, None, DEVICE, fp8)


class Step:
    """One step of `rows` rows that compute their last `count` of `length` tokens."""

    def __init__(self, decoder: Decoder, rows: int, length: int, count: int, kv_dtype: torch.dtype = torch.bfloat16) -> None:
        config = decoder.config
        self.kernels, self.decoder = decoder.kernels, decoder
        blocks = -(-length // BLOCK)
        table = torch.randperm(rows * blocks, device=DEVICE).view(rows, blocks)
        shape = (config.layers, rows * blocks + 1, config.kv_heads, BLOCK, config.head_dim)
        self.k, self.v = (torch.empty(shape, device=DEVICE, dtype=torch.bfloat16).normal_().to(kv_dtype) for _ in range(2))
        starts = [length - count] * rows
        singles = rows if count == 1 else 0
        plan = self.kernels.plan_attention(table, starts, [count] * rows, singles, config.heads, config.kv_heads, BLOCK)
        self.input = StepInput(
            tokens=torch.randint(config.vocab, (rows * count,), device=DEVICE),
            positions=torch.arange(length - count, length, device=DEVICE).repeat(rows),
            wanted=torch.arange(count - 1, rows * count, count, device=DEVICE) if count > 1 else None,
            full=plan,
            windowed=plan,
        )
        ones, ints = torch.ones(rows, device=DEVICE), torch.arange(rows, device=DEVICE)
        self.batch = SamplingBatch(
            temperature=ones * 0.6, top_p=ones, top_k=ints * 0, min_p=ones * 0, seed=ints, position=ints, random=list(range(rows))
        )

    def run(self) -> Tensor:
        token: Tensor = self.kernels.sample(self.decoder.forward(self.input, self.k, self.v), self.batch).token
        return token


def eager_seconds(step: Step, repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step.run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e-3)
    return statistics.median(times[1:])


def weight_bytes(config: ModelConfig, fp8: bool) -> int:
    """What a step reads of the weights: an embedding that is not the head too is read by rows only."""
    read = {key: math.prod(shape) for key, shape in expected_tensors(config).items() if config.tied_head or key != "model.embed_tokens.weight"}
    return sum(size * (1 if fp8 and ".layers." in key and "norm" not in key else 2) for key, size in read.items())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--kv", choices=["auto", "fp8"], default="auto", help="format of keys and values")
    parser.add_argument("--weights", choices=["auto", "fp8"], default="auto", help="format of the weights of the layers")
    parser.add_argument("--deterministic", action="store_true", help="with the kernels of that mode")
    args = parser.parse_args()
    kv_dtype = E4M3 if args.kv == "fp8" else torch.bfloat16
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, kv {args.kv}, weights {args.weights}")
    for name in args.models.split(","):
        config = MODELS[name]
        decoder = make_decoder(config, args.weights == "fp8", args.deterministic)
        weights = weight_bytes(config, args.weights == "fp8")
        token = 2 * kv_dtype.itemsize * config.layers * config.kv_heads * config.head_dim
        for rows, length in ROWS:
            step = Step(decoder, rows, length, 1, kv_dtype)
            took = seconds(lambda _, step=step: step.run(), 1, inner=10)  # type: ignore[misc]
            floor = (weights + rows * length * token) / bandwidth
            print(f"{name:12} decode R{rows:<3} S{length:<4} {took * 1e3:8.3f} ms  floor {floor * 1e3:7.3f}  {floor / took:6.1%}", flush=True)
            del step
        step = Step(decoder, PROMPTS, PROMPT, PROMPT, kv_dtype)
        took = eager_seconds(step)
        print(f"{name:12} prefill {PROMPTS} x {PROMPT} {took * 1e3:8.2f} ms  {PROMPTS * PROMPT / took / 1e3:8.1f} k tok/s", flush=True)
        del step, decoder
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
