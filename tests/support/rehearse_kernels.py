"""Compiles what a worker's rehearsal comes to, for an H200 and without a GPU: prints each kernel and how many kinds of it there are.

Run as a script, without TRITON_INTERPRET.
"""

from collections import Counter
from typing import Any

import msgspec
import torch
import triton
from triton.backends.compiler import GPUTarget

import kernels.launch
from checkpoint.shapes import SHAPES
from checkpoint.tensors import expected_tensors
from kernels import resident
from kernels.compiler import Compiler
from kernels.reference import linear
from kernels.triton_set import Triton
from worker import weights
from worker.memory import Cache
from worker.resident.engine import ResidentEngine
from worker.weights import build_decoder, dummy_reader

CONFIG = msgspec.structs.replace(SHAPES["qwen3-0.6b"], vocab=1000, layers=1)
SLOTS, POSITIONS, TOKENS, THREADS = 16, 4096, 128, 2


class NoDevice:
    """A driver for kernels that are never run."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def engine() -> ResidentEngine:
    """On the CPU, for launches that only compile."""
    device, dtype = torch.device("cpu"), torch.bfloat16
    shapes = {name: tuple(shape) for name, shape in expected_tensors(CONFIG).items()}
    decoder = build_decoder(CONFIG, dummy_reader(shapes, device, dtype), Triton, dtype, POSITIONS, lambda share: None, None, device)
    small = torch.zeros(CONFIG.layers, 2, CONFIG.kv_heads, 16, CONFIG.head_dim, dtype=dtype)
    return ResidentEngine(decoder, Cache(small, small.clone()), Triton, SLOTS, POSITIONS // 16, TOKENS)


def main() -> None:
    triton.runtime.driver.set_active(NoDevice())  # type: ignore[arg-type]
    empty, found = torch.empty, Counter[str]()

    def heard(*, src: Any, **more: Any) -> None:
        found[src.name] += 1

    triton.knobs.compilation.listener = heard
    for owner, name, value in (
        (torch.cuda, "get_device_capability", lambda: (9, 0)),
        (torch, "empty", lambda *sizes, **more: empty(*sizes, **more).zero_()),  # tokens that no kernel writes here
        (kernels.launch, "run", kernels.launch.launch),
        (resident, "run", kernels.launch.launch),
        (linear, "_can_pack", lambda weight: False),
        (weights, "FAST_ROWS", 1),
    ):
        setattr(owner, name, value)
    compiler, made = Compiler(THREADS), engine()
    setattr(made._graphs, "_ahead", True)  # noqa: B010
    with compiler.only():
        made.rehearse()
    compiler.wait()
    compiler.close()
    for name, count in found.items():
        print(name, count, flush=True)


if __name__ == "__main__":
    main()
