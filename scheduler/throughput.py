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

    def seconds_for(self, tokens: float) -> float | None:
        """Seconds until `tokens` have been computed; None before anything was measured."""
        return tokens * self._seconds / self._tokens if self._tokens and self._seconds else None

    def retry_after(self, tokens: float) -> float:
        """`seconds_for` between SHORTEST and LONGEST, UNKNOWN for None."""
        seconds = self.seconds_for(tokens)
        return UNKNOWN if seconds is None else float(round(min(LONGEST, max(SHORTEST, seconds)), 1))
