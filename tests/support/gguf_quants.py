"""Q4_K and Q6_K for tests: plain min-max quantisers, since the gguf package only reads these kinds. Errors: some 1/16 and 1/64 of a block's range."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 256


def halves(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Float16 bytes of one value per block, [blocks, 2]."""
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def pack_scales(scales: NDArray[np.uint8], minima: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The 12 bytes that hold eight 6-bit scales and eight 6-bit minima per block."""
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    return np.concatenate([low, middle, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], axis=1).astype(np.uint8)


def quantise_q4_k(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bytes [rows, columns / 256 * 144] of float32 [rows, columns]."""
    blocks = values.reshape(-1, 8, 32)
    lowest = np.maximum(-blocks.min(axis=2), 0.0)
    spread = (blocks.max(axis=2) + lowest) / 15
    top_spread, top_lowest = spread.max(axis=1) / 63, lowest.max(axis=1) / 63
    half_spread, half_lowest = (top.astype(np.float16).astype(np.float32) for top in (top_spread, top_lowest))
    scales = np.clip(np.ceil(spread / np.maximum(half_spread, 1e-12)[:, None]), 0, 63).astype(np.uint8)
    minima = np.clip(np.ceil(lowest / np.maximum(half_lowest, 1e-12)[:, None]), 0, 63).astype(np.uint8)
    step = np.maximum(half_spread[:, None] * scales, 1e-12)[:, :, None]
    levels = np.clip(np.round((blocks + (half_lowest[:, None] * minima)[:, :, None]) / step), 0, 15).astype(np.uint8)
    pairs = levels.reshape(-1, 4, 2, 32)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([halves(top_spread), halves(top_lowest), pack_scales(scales, minima), packed], axis=1).reshape(len(values), -1)


def quantise_q6_k(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bytes [rows, columns / 256 * 210] of float32 [rows, columns]."""
    blocks = values.reshape(-1, 16, 16)
    spread = np.abs(blocks).max(axis=2) / 31
    top = spread.max(axis=1) / 127
    half = top.astype(np.float16).astype(np.float32)
    scales = np.clip(np.ceil(spread / np.maximum(half, 1e-12)[:, None]), 0, 127).astype(np.int8)
    step = np.maximum(half[:, None] * scales, 1e-12)[:, :, None]
    levels = (np.clip(np.round(blocks / step), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (levels & 15).reshape(-1, 2, 2, 64)
    packed_low = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    high = levels >> 4
    packed_high = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return np.concatenate([packed_low, packed_high, scales.view(np.uint8), halves(top)], axis=1).reshape(len(values), -1)
