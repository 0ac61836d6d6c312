"""Rotary position embedding: one table and one rotation, for prefill and decode alike.

Frequencies follow transformers' `modeling_rope_utils` (default, linear, llama3, yarn and dynamic NTK scaling).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Field for field what a checkpoint says; `original_context` is the context before scaling, in tokens."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def _powers(theta: float, head_dim: int) -> Tensor:
    return torch.pow(theta, torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim)


def _llama3(spec: RopeSpec, frequencies: Tensor) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    smooth = (spec.original_context / wavelengths - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = (1 - smooth) * frequencies / spec.factor + smooth * frequencies
    low = wavelengths > spec.original_context / spec.low_freq_factor
    high = wavelengths < spec.original_context / spec.high_freq_factor
    return torch.where(low, frequencies / spec.factor, torch.where(high, frequencies, blend))


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_attention(spec: RopeSpec) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return _yarn_scale(spec.factor, spec.mscale) / _yarn_scale(spec.factor, spec.mscale_all_dim)
    return _yarn_scale(spec.factor, 1.0)


def _yarn(spec: RopeSpec, head_dim: int) -> Tensor:
    def dimension(rotations: float) -> float:
        return head_dim * math.log(spec.original_context / (rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    powers = _powers(spec.theta, head_dim)
    return 1.0 / (spec.factor * powers) * ramp + 1.0 / powers * (1 - ramp)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32 and the factor on cos and sin. Raises ValueError for an unknown kind.

    For `dynamic` these hold up to the original context; `rope_table` goes on from there.
    """
    plain = 1.0 / _powers(spec.theta, head_dim)
    if spec.kind in ("default", "dynamic"):
        return plain, 1.0
    if spec.kind == "linear":
        return plain / spec.factor, 1.0
    if spec.kind == "llama3":
        return _llama3(spec, plain), 1.0
    if spec.kind == "yarn":
        return _yarn(spec, head_dim), _yarn_attention(spec)
    raise ValueError(f"unknown rope kind {spec.kind!r}")


def _dynamic_angles(spec: RopeSpec, head_dim: int, positions: Tensor, angles: Tensor) -> None:
    """Past the original context every position gets the base of the sequence that ends with it.

    That is what transformers computes when it generates token by token. A base of the whole sequence, as in its prefill, would make the
    result depend on how a prompt is cut into chunks and would disagree with the keys already in the cache.
    """
    original, half = spec.original_context, head_dim // 2
    late = positions[original:]
    stretch = spec.factor * (late + 1) / original - (spec.factor - 1)
    base = spec.theta * stretch ** (head_dim / (head_dim - 2))
    exponent = torch.arange(half, dtype=torch.float32) * 2 / head_dim
    angles[original:] = late[:, None] / base[:, None] ** exponent[None]


def rope_table(spec: RopeSpec, head_dim: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0..length-1, [length, head_dim] each; the first half of sin is negated, ready for `rotate`."""
    frequencies, scale = inverse_frequencies(spec, head_dim)
    positions = torch.arange(length, dtype=torch.float32)
    angles = positions[:, None] * frequencies[None]
    if spec.kind == "dynamic" and 0 < spec.original_context < length:
        _dynamic_angles(spec, head_dim, positions, angles)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate pairs (i, i + D/2) of every head of `x_TND` by the table rows of its token (`sin` as `rope_table` gives it)."""
    turned = torch.roll(x_TND, x_TND.shape[-1] // 2, -1)
    return (x_TND * cos_TD[:, None]).addcmul_(turned, sin_TD[:, None])
