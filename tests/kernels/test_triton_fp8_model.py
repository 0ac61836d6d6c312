"""A whole model with FP8 weights and an FP8 cache on the Triton kernels, against the reference kernels with the same weights."""

from pathlib import Path

import pytest
import torch

from bench.gpu.quality import load_decoder, steps
from kernels.reference.fp8 import E4M3
from tests.support.devices import DEVICE, GPU

CPU = torch.device("cpu")


@pytest.mark.skipif(not GPU, reason="takes minutes in the interpreter")
@pytest.mark.parametrize(("rows", "chunk"), [(1, 1), (2, 3), (3, 30)], ids=["one-row", "few-rows", "many-rows"])
def test_close_to_the_reference(models: Path, rows: int, chunk: int) -> None:
    """At one row no more than the reference kernels lose in bfloat16; with more, inputs are quantised too: as much again."""
    length = 61
    ids = torch.tensor([(7 * i + 3) % 250 for i in range(rows * length)]).view(rows, length)

    def logprobs(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        decoder = load_decoder(models / "rand-byte", device, dtype, 64, True)
        return torch.cat([found for found, _ in steps(decoder, ids.to(device), chunk, E4M3)]).cpu()

    exact = logprobs(CPU, torch.float32)
    own, found = [float((logprobs(device, torch.bfloat16) - exact).abs().mean()) for device in (CPU, DEVICE)]
    assert 0 < found < (1.25 * own if rows == 1 else 0.4)
