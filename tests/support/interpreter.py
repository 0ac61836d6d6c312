"""Corrects Triton's interpreter where it computes otherwise than a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernels.reference.fp8 import E4M3, converted

Convert = Callable[[Any, Any, Any, Any], Any]


def convert_fp8_as_a_gpu_does() -> None:
    """The interpreter's conversion to FP8 loses the carry of the rounding and does not saturate; take torch's instead."""
    own: Convert = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target != tl.float8e4nv or source != tl.float32:
            return own(values, source, target, rounding)
        codes = converted(torch.from_numpy(np.ascontiguousarray(values).view(np.float32)), E4M3)
        return codes.view(torch.uint8).numpy().reshape(values.shape)

    interpreter._convert_float = convert
