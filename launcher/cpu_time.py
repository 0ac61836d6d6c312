"""Processor time of other processes: what a change costs or saves can be told even where the cores are shared with others."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Seconds in a process's own code, and in the kernel on its behalf."""

    user: float
    system: float

    @classmethod
    def of(cls, pids: Sequence[int]) -> "Cpu":
        """What these processes have used so far, together."""
        import psutil

        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return cls(user=sum(time.user for time in times), system=sum(time.system for time in times))

    def since(self, before: "Cpu") -> "Cpu":
        return Cpu(user=self.user - before.user, system=self.system - before.system)

    @property
    def total(self) -> float:
        return round(self.user + self.system, 2)
