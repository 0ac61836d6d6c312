"""How much of the pool admission leaves to the rows that run."""

from transport.columns import I32

LONGEST = 4096
MOST = 0.5
RISE = 0.1
DECAY = 0.998
FORGOTTEN = 0.01


class Headroom:
    """A block for every running row, and a share of the tokens they may still generate (each counted up to LONGEST).

    The share is 0 until rows have to be preempted. Each preemption raises it, each plan lets it fade: a load whose rows really use their
    limits soon stops being admitted too tightly, and no other load pays for limits it never reaches.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.share = 0.0

    def preempted(self) -> None:
        self.share = min(MOST, self.share + RISE)

    def planned(self) -> None:
        self.share = self.share * DECAY if self.share > FORGOTTEN else 0.0

    def blocks(self, remaining: I32) -> int:
        """To be left free beside rows that may generate `remaining` tokens each."""
        tokens = self.share * float(remaining.clip(max=LONGEST).sum()) if self.share else 0.0
        return int(remaining.size + tokens // self._block_size)
