"""Which devices there are to test on, and how close the Triton kernels must come to float64."""

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
on_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
CLUSTERS = {"cpu": ["--device", "cpu"], "cuda": ["--device", "cuda", "--dtype", "float32", "--kv-tokens", "16384", "--threads", "2"]}
"""Options of `cluster start` for a test that compares devices."""
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
"""Triton's interpreter multiplies bfloat16 matrices wrongly, so that type is for the GPU."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def name(value: object) -> str:
    """A short id for a test parameter."""
    return str(value).removeprefix("torch.")


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Memory full of NaN."""
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype) -> Tensor:
    """Normal values from the default CPU generator, so that a seed gives the same ones everywhere."""
    return torch.randn(*shape).to(DEVICE, dtype)


def assert_close(found: Tensor, expected: Tensor, factor: float = 1.0) -> None:
    """Relative error in the 2-norm within the tolerance of the found type (times `factor`); NaN never passes."""
    assert found.shape == expected.shape
    error = float((found.double() - expected.double().to(found.device)).norm() / expected.double().norm().clamp(min=1e-30))
    assert error <= TOLERANCE[found.dtype] * factor, f"relative error {error:.2e}"
