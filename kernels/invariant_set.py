"""The Triton set whose results do not depend on what else is in a step (`--deterministic`), for CUDA devices and for the interpreter in tests."""

from typing import Any

from kernels.invariant import attention, products, sampling
from kernels.reference.products import new_rows
from kernels.triton_set import Triton


class Invariant(Triton):
    """Same members as `Triton`. Weights of FP8 have no kernels here."""

    rope_attend: Any = staticmethod(attention.rope_attend)
    new_rows = staticmethod(new_rows)
    norm_linear: Any = staticmethod(products.norm_linear)
    linear_add: Any = staticmethod(products.linear_add)
    norm_gate_up: Any = staticmethod(products.norm_gate_up)
    sample: Any = staticmethod(sampling.sample)
    logprobs = staticmethod(sampling.logprobs)
    score = staticmethod(sampling.score)
