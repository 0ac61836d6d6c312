"""Which kernels run on which device. A device set has the members of `Reference`, with the same signatures."""

import torch

from kernels.quantised import quant_linear
from kernels.reference import attention, embedding, linear, mlp, norm, rope, sampling


class Reference:
    """The plain-torch set, for CPU."""

    Linear = linear.Linear
    quant_linear = staticmethod(quant_linear)
    AttentionBatch = attention.AttentionBatch
    embed = staticmethod(embedding.embed)
    rms_norm = staticmethod(norm.rms_norm)
    add_rms_norm = staticmethod(norm.add_rms_norm)
    rope_table = staticmethod(rope.rope_table)
    rotate = staticmethod(rope.rotate)
    plan_attention = staticmethod(attention.plan_attention)
    write_kv = staticmethod(attention.write_kv)
    copy_blocks = staticmethod(attention.copy_blocks)
    attend = staticmethod(attention.attend)
    silu_mul = staticmethod(mlp.silu_mul)
    sample = staticmethod(sampling.sample)


Kernels = type[Reference]


def kernels_for(device: torch.device) -> Kernels:
    """The kernel set for `device`. Raises ValueError for a device that has none."""
    if device.type == "cpu":
        return Reference
    raise ValueError(f"no kernels for device {device}; use cpu")
