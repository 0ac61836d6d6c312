"""The Triton set, for CUDA devices (and for the interpreter in tests). What torch already does at the speed of memory is the reference's."""

from typing import Any

from kernels import attention, decode_row, fp8, mask, mlp, norm, products, resident, ring, rope_kv, sampling
from kernels.backend import Reference


class Triton(Reference):
    """Same members as `Reference`; batches of `plan_attention` are this set's own."""

    Fp8Linear: Any = fp8.Fp8Linear
    rms_norm = staticmethod(norm.rms_norm)
    add_rms_norm = staticmethod(norm.add_rms_norm)
    rope_rows = staticmethod(rope_kv.rope_rows)
    rope_attend: Any = staticmethod(decode_row.rope_attend)
    plan_attention: Any = staticmethod(attention.plan_attention)
    silu_mul = staticmethod(mlp.silu_mul)
    new_rows = staticmethod(ring.new_rows)
    norm_linear: Any = staticmethod(products.norm_linear)
    linear_add: Any = staticmethod(products.linear_add)
    norm_gate_up: Any = staticmethod(products.norm_gate_up)
    sample = staticmethod(sampling.sample)
    apply_mask = staticmethod(mask.apply_mask)
    write_words = staticmethod(resident.write_words)
    begin_rows = staticmethod(resident.begin_rows)
    sampling_columns = staticmethod(resident.sampling_columns)
    start_rows = staticmethod(resident.start_rows)
    finish_rows = staticmethod(resident.finish_rows)
