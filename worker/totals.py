"""What a worker has computed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Since the start of the process. `seconds` of steps on the device, `gap_seconds` between steps that followed at once."""

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    seconds: float = 0.0
    gap_seconds: float = 0.0

    def with_step(self, prefill_tokens: int, decode_tokens: int, seconds: float, gap: float = 0.0) -> "Totals":
        """One step more, after a gap of so many seconds."""
        return Totals(
            steps=self.steps + 1,
            prefill_tokens=self.prefill_tokens + prefill_tokens,
            decode_tokens=self.decode_tokens + decode_tokens,
            seconds=self.seconds + seconds,
            gap_seconds=self.gap_seconds + gap,
        )
