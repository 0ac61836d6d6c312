"""What happened, moment by moment, in columns that grow."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP_COLUMNS = ("start", "seconds", "prefill_tokens", "decode_rows", "context_tokens", "sampled")
GAUGE_COLUMNS = ("at", "running", "waiting", "blocks_used", "blocks_cached")


class Trace:
    """Rows of numbers under `names`, read back as columns (f64)."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._rows: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *values: float) -> None:
        """One value for each name."""
        self._rows.append(values)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        table = np.asarray(self._rows, dtype=np.float64).reshape(-1, len(self._names))
        return {name: table[:, place] for place, name in enumerate(self._names)}


@dataclass(slots=True)
class Latencies:
    """Virtual seconds: `ttft` and `whole` (from the sending of a request to its first and last token), and `gaps` between tokens of a sequence."""

    ttft: list[NDArray[np.float64]] = field(default_factory=list)
    whole: list[NDArray[np.float64]] = field(default_factory=list)
    gaps: list[NDArray[np.float64]] = field(default_factory=list)


def joined(parts: list[NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.empty(0)
