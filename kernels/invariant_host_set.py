"""The set for a CPU whose results do not depend on what else is in a step (`--deterministic`), in float32 with float32 keys and values."""

from typing import Any

from kernels.backend import Reference
from kernels.invariant import host, host_sampling
from kernels.native import rows
from kernels.quantised import dense_linear


class InvariantHost(Reference):
    """Same members as `Reference`; batches of `plan_attention` are this set's own. It needs the compiled kernels (kernels.native.build)."""

    Linear: Any = staticmethod(dense_linear)
    rms_norm = staticmethod(rows.rms_norm)
    add_rms_norm = staticmethod(host.add_rms_norm)
    rope_attend: Any = staticmethod(host.rope_attend)
    plan_attention: Any = staticmethod(host.plan_attention)
    silu_mul = staticmethod(rows.silu_mul)
    norm_linear = staticmethod(host.norm_linear)
    norm_gate_up = staticmethod(host.norm_gate_up)
    sample = staticmethod(host_sampling.sample)
    logprobs = staticmethod(host_sampling.logprobs)
    score = staticmethod(host_sampling.score)
