"""What the service needs of an engine, whichever device it computes on."""

from collections.abc import Callable
from typing import Protocol

from checkpoint.config import ModelConfig
from messages.plan import StepPlan
from messages.result import StepResult
from worker.memory import Cache
from worker.slots import Slots
from worker.totals import Totals
from worker.tracing import Tracing


class DeviceError(Exception):
    """The device failed: nothing that is on it can be used any more, and this process must end."""


class StepError(Exception):
    """The step was not run, for want of memory, though the device is sound: this session is over, the next one may have smaller steps."""


class StepEngine(Protocol):
    """`start` once, then for every session `reset` and `submit` its plans in order. All calls from one thread."""

    @property
    def slots(self) -> Slots: ...
    @property
    def cache(self) -> Cache: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def totals(self) -> Totals: ...
    @property
    def max_step_tokens(self) -> int:
        """Most tokens of a step in the next session."""

    def start(self, deliver: Callable[[StepResult], object], tracing: Tracing | None = None) -> None:
        """`deliver` gets every result, in order, perhaps on another thread; `tracing` hears of every step."""

    def reset(self) -> None: ...
    def submit(self, plan: StepPlan, queued: float = 0.0) -> None:
        """Raises PlanError or StepError (the session is unusable after that), or DeviceError."""

    def check(self) -> None:
        """Raises DeviceError when a step failed after it was submitted."""

    def idle(self) -> bool:
        """Use a quiet moment to get ready for later; False when there is nothing to do."""

    def close(self) -> None: ...
