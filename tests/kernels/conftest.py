"""Triton kernels run on the GPU when there is one and in Triton's interpreter otherwise, which must be chosen before they are imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.support.interpreter import convert_fp8_as_a_gpu_does

    convert_fp8_as_a_gpu_does()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """A test draws what it draws alone, whatever was drawn before it."""
    torch.manual_seed(0)
