"""A cost model from measured steps: least squares with coefficients that are not negative."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.cost import CostModel, FitQuality
from simulator.errors import SimulatorError
from simulator.work import Work

MIN_STEPS = 8
Matrix = NDArray[np.float64]


def fit_cost_model(name: str, works: Sequence[Work], seconds: Sequence[float], source: str) -> CostModel:
    """The model whose predictions have the least sum of squared errors. Raises SimulatorError for fewer than MIN_STEPS timed steps."""
    timed = [(work, spent) for work, spent in zip(works, seconds, strict=True) if spent > 0]
    if len(timed) < MIN_STEPS:
        raise SimulatorError(f"{len(timed)} steps with a time are too few to fit a cost model to: record at least {MIN_STEPS}, better thousands")
    columns = np.asarray([(1, work.prefill_tokens, work.decode_rows, work.context_tokens) for work, _ in timed], dtype=np.float64)
    measured = np.asarray([spent for _, spent in timed])
    base, prefill, decode, context = (float(f"{value:.6g}") for value in non_negative_least_squares(columns, measured).tolist())
    model = CostModel(name=name, base=base, prefill_token=prefill, decode_row=decode, context_token=context, source=source)
    predicted = np.asarray([model.seconds(work) for work, _ in timed])
    return CostModel(
        name=name, base=base, prefill_token=prefill, decode_row=decode, context_token=context, source=source, fit=_quality(measured, predicted)
    )


def non_negative_least_squares(columns: Matrix, values: Matrix) -> Matrix:
    """x >= 0 with the least |columns x - values|, exactly: for a few columns every set of those that are not 0 can be tried."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    scaled = columns / scale
    best, least = np.zeros(columns.shape[1]), float(values @ values)
    for size in range(1, columns.shape[1] + 1):
        for kept in map(list, combinations(range(columns.shape[1]), size)):
            found = np.linalg.lstsq(scaled[:, kept], values, rcond=None)[0]
            error = scaled[:, kept] @ found - values
            if (found >= 0).all() and float(error @ error) < least * (1 - 1e-9):
                least = float(error @ error)
                best = np.zeros(columns.shape[1])
                best[kept] = found
    best /= scale
    return best


def _quality(measured: Matrix, predicted: Matrix) -> FitQuality:
    error = predicted - measured
    spread = float(((measured - measured.mean()) ** 2).sum())
    return FitQuality(
        steps=measured.size,
        measured_s=round(float(measured.sum()), 6),
        predicted_s=round(float(predicted.sum()), 6),
        residual_ms=round(1000 * float(np.sqrt((error**2).mean())), 6),
        median_error_ms=round(1000 * float(np.median(np.abs(error))), 6),
        explained=round(1 - float((error**2).sum()) / spread, 6) if spread else 1.0,
    )
