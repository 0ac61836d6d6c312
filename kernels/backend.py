"""Which kernels run on which device. A device set has the members of `Reference`, with the same signatures."""

import os
from typing import Any

import torch

from kernels.native import build
from kernels.quantised import quant_linear
from kernels.reference import attention, bias, decode_row, embedding, fp8, linear, mask, mlp, norm, products, resident, rope, rope_kv, sampling


class Reference:
    """The plain-torch set, for CPU."""

    Linear = linear.Linear
    Fp8Linear = fp8.Fp8Linear
    quant_linear = staticmethod(quant_linear)
    embed = staticmethod(embedding.embed)
    rms_norm = staticmethod(norm.rms_norm)
    add_rms_norm = staticmethod(norm.add_rms_norm)
    rope_table = staticmethod(rope.rope_table)
    rope_rows = staticmethod(rope_kv.rope_rows)
    rope_attend = staticmethod(decode_row.rope_attend)
    plan_attention = staticmethod(attention.plan_attention)
    copy_blocks = staticmethod(attention.copy_blocks)
    silu_mul = staticmethod(mlp.silu_mul)
    new_rows = staticmethod(products.new_rows)
    norm_linear = staticmethod(products.norm_linear)
    linear_add = staticmethod(products.linear_add)
    norm_gate_up = staticmethod(products.norm_gate_up)
    sample = staticmethod(sampling.sample)
    apply_bias = staticmethod(bias.apply_bias)
    apply_mask = staticmethod(mask.apply_mask)
    logprobs = staticmethod(bias.logprobs)
    score = staticmethod(bias.score)
    write_words = staticmethod(resident.write_words)
    begin_rows = staticmethod(resident.begin_rows)
    sampling_columns = staticmethod(resident.sampling_columns)
    start_rows = staticmethod(resident.start_rows)
    finish_rows = staticmethod(resident.finish_rows)


Kernels = type[Reference]
AttentionBatch = Any
"""What a set's `plan_attention` gives: only kernels of the same set can read it."""


def kernels_for(device: torch.device, deterministic: bool = False) -> Kernels:
    """The kernel set for `device`; if `deterministic`, that whose results for a row do not depend on what else is in a step.

    Raises ValueError for a device that has none.
    """
    if device.type == "cpu":
        if deterministic:
            return _in_order()
        return Reference
    if device.type == "cuda":  # Triton need not exist where only the CPU is used
        if deterministic:
            from kernels.invariant_set import Invariant

            return Invariant
        from kernels.triton_set import Triton

        return Triton
    raise ValueError(f"no kernels for device {device}; use cpu or cuda")


def _in_order() -> Kernels:
    """The set for a CPU that is deterministic."""
    if build.library() is None:
        reason = f"{build.SWITCH}=0 turns it off" if os.environ.get(build.SWITCH) == "0" else "see the log; for example: apt install gcc libc6-dev"
        raise ValueError(f"--deterministic on a CPU needs the kernel that is compiled at the start: {reason}")
    from kernels.invariant_host_set import InvariantHost

    return InvariantHost
