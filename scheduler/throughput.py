"""How fast tokens are computed, measured over the last busy seconds: for the Retry-After of a full queue."""

WINDOW_SECONDS = 10.0
SHORTEST, LONGEST, UNKNOWN = 1.0, 60.0, 5.0


class Throughput:
    """Tokens (prefill and decode alike) per second in which a plan was in flight; older seconds count half."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens += tokens
        self._seconds += seconds
        if self._seconds > WINDOW_SECONDS:
            self._tokens /= 2
            self._seconds /= 2

    def retry_after(self, tokens: float) -> float:
        """Seconds until `tokens` have been computed, between SHORTEST and LONGEST; UNKNOWN before anything was measured."""
        if not self._tokens or not self._seconds:
            return UNKNOWN
        return float(round(min(LONGEST, max(SHORTEST, tokens * self._seconds / self._tokens)), 1))
