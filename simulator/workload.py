"""What is sent to the simulated scheduler, and when."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from messages.sampling import SamplingParams
from transport.columns import I32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """How one sequence of a job ends, if not at its limit of tokens.

    `stops_after`: tokens generated, the last of which is an end token. `leaves_after`: its client goes (`stop_string`: a stop string has
    matched) once it has got so many tokens; with 0 the client goes `patience` seconds after the job was sent. `answer`: what is generated,
    where that matters.
    """

    stops_after: int | None = None
    leaves_after: int | None = None
    patience: float = 0.0
    stop_string: bool = False
    answer: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One Admit, sent at `at` (virtual seconds). `group` is the workload's own mark, such as the user it belongs to."""

    at: float
    prompt: I32
    max_tokens: int | None
    choices: Sequence[Choice] = (Choice(),)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    group: int = 0


class Workload(Protocol):
    """`requests` is the number of jobs it comes to; `vocab` exceeds every prompt token."""

    @property
    def name(self) -> str: ...
    @property
    def requests(self) -> int: ...
    @property
    def vocab(self) -> int: ...

    def jobs(self) -> list[Job]:
        """What is sent whatever happens, in order of time."""

    def after(self, job: Job, answer: I32, now: float) -> Job | None:
        """What follows the end of a job, if anything; `answer` holds the tokens of the choice that ended last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedWorkload:
    """Jobs at fixed times: an open loop."""

    name: str
    fixed: list[Job]
    vocab: int

    @property
    def requests(self) -> int:
        return len(self.fixed)

    def jobs(self) -> list[Job]:
        return self.fixed

    def after(self, job: Job, answer: I32, now: float) -> Job | None:
        return None
