"""The speed of this device's memory, which figures are measured against."""

import statistics
import time

import torch

NBYTES = {"cuda": 2 << 30, "cpu": 128 << 20}
REPEATS = 9


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second by a large copy: the median of several."""
    source = torch.empty(NBYTES[device.type] // 2, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    times = [_seconds(source, target) for _ in range(REPEATS)]
    return 2 * source.nbytes / statistics.median(times[2:])


def _seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type != "cuda":
        began = time.perf_counter()
        torch.neg(source, out=target)
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.neg(source, out=target)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
