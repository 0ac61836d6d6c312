"""The size of prompt chunks when tokens are to come at a steady pace."""

FIRST = 64
LEAST = 16
WEIGHT = 0.2


class Pace:
    """Chunks of at most `most` tokens; with a `target` (seconds) cut so that a step takes about so long while rows decode.

    A step is taken to cost what a step of decode rows alone costs, and a price per prompt token. Both are moving averages of what the worker reports.
    """

    def __init__(self, target: float | None, most: int) -> None:
        self._target = target
        self._most = most
        self._decode = 0.0
        self._price = 0.0

    def chunk(self, rows: int) -> int:
        """Prompt tokens that may go beside `rows` decode rows."""
        if self._target is None or not rows:
            return self._most
        if not self._price:
            return min(FIRST, self._most)
        return max(min(LEAST, self._most), min(self._most, int((self._target - self._decode) / self._price)))

    def add(self, prefill: int, rows: int, seconds: float) -> None:
        """A step with `prefill` prompt tokens and `rows` decode rows took `seconds`."""
        if self._target is None or seconds <= 0.0:
            return
        if rows and not prefill:
            self._decode = seconds if not self._decode else self._decode + WEIGHT * (seconds - self._decode)
        elif prefill >= LEAST:
            price = max(seconds - (self._decode if rows else 0.0), 0.0) / prefill
            self._price = price if not self._price else self._price + WEIGHT * (price - self._price)
