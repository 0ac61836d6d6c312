"""The size of prompt chunks when tokens are to come at a steady pace."""

FIRST = 64
LEAST = 16
WEIGHT = 0.2
CHEAPEST = 1e-7
LONGEST = 600.0


class Pace:
    """Chunks of at most `most` tokens; with a `target` (seconds) cut so that a step takes about so long while rows decode.

    A step is taken to cost what a step of decode rows alone costs, and a price per prompt token, in seconds. Both are moving averages of what the
    worker reports; a mixed step that was quicker than decode rows alone shows that these have become cheaper.
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
        affordable = min(self._most, (self._target - self._decode) / self._price)
        return max(min(LEAST, self._most), int(affordable))

    def add(self, prefill: int, rows: int, seconds: float) -> None:
        """A step with `prefill` prompt tokens and `rows` decode rows took `seconds`."""
        if self._target is None or not 0.0 < seconds < LONGEST:
            return
        if rows and not prefill:
            self._decode = seconds if not self._decode else self._decode + WEIGHT * (seconds - self._decode)
        elif prefill >= LEAST:
            self._decode = min(self._decode, seconds) if rows else self._decode
            price = max((seconds - (self._decode if rows else 0.0)) / prefill, CHEAPEST)
            self._price = price if not self._price else self._price + WEIGHT * (price - self._price)
