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
    """Quantised inputs are all that differs: their part of the error is as large as that of the weights, or nothing at one row."""
    length = 61
    ids = torch.tensor([(7 * i + 3) % 250 for i in range(rows * length)]).view(rows, length)
    reference = load_decoder(models / "rand-byte", CPU, torch.float32, 64, True)
    expected = [logprobs for logprobs, _ in steps(reference, ids, chunk, E4M3)]
    decoder = load_decoder(models / "rand-byte", DEVICE, torch.bfloat16, 64, True)
    found = [logprobs for logprobs, _ in steps(decoder, ids.to(DEVICE), chunk, E4M3)]
    error = torch.cat(found).cpu() - torch.cat(expected)
    assert 0 < float(error.abs().mean()) < (0.1 if rows == 1 else 0.4)
