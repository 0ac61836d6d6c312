"""Changing what a running cluster serves: what people ask the supervisor for, and how far it is."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

WAITING, ENDING, LOADING, RETURNING, ROLLING, DONE, FAILED = "waiting", "ending", "loading", "returning", "rolling", "done", "failed"
"""How far a change is: running requests are waited for; old processes end; new ones load; those before come back; frontends are started again, one
after the other; it is over; it is over and failed."""

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of tokenizers, scheduler and worker, by the names they have at a start; those that are UNSET stay as they are. Paths are whole.

    `own_name`: what the model of `model_path` is called when nobody has given the served one a name, now or before.
    """

    model_path: Text | UnsetType = UNSET
    own_name: Text | UnsetType = UNSET
    model_name: Text | UnsetType = UNSET
    device: Text | UnsetType = UNSET
    dtype: Text | UnsetType = UNSET
    kv_dtype: Text | UnsetType = UNSET
    weights: Text | UnsetType = UNSET
    deterministic: bool | UnsetType = UNSET
    threads: Count | UnsetType = UNSET
    kv_tokens: Count | UnsetType = UNSET
    gpu_memory_utilization: Share | UnsetType = UNSET
    block_size: Size | UnsetType = UNSET
    max_slots: Size | UnsetType = UNSET
    max_step_tokens: Size | UnsetType = UNSET
    chunk_tokens: Size | UnsetType = UNSET
    max_context: Size | UnsetType = UNSET
    run_ahead: Size | UnsetType = UNSET
    prefix_cache: bool | UnsetType = UNSET
    target_itl: Seconds | UnsetType = UNSET
    chat_template: Text | UnsetType = UNSET
    generation_config: bool | UnsetType = UNSET
    tool_parser: Text | UnsetType = UNSET
    reasoning_parser: Text | UnsetType = UNSET
    dummy_weights: bool | UnsetType = UNSET


class DrainCommand(msgspec.Struct, frozen=True, tag="drain"):
    """Refuse new requests, let all others finish. Answered with ClusterState, or Declined. May be sent again."""


class ResumeCommand(msgspec.Struct, frozen=True, tag="resume"):
    """Take requests again. Answered as DrainCommand."""


class ReloadCommand(msgspec.Struct, frozen=True, kw_only=True, tag="reload"):
    """Let running requests finish, hold all others, and go on with these options. After `wait` seconds what still runs ends with an error.

    Answered with ClusterState, whose `change` is the new one, or Declined.
    """

    options: ModelOptions = ModelOptions()
    wait: Seconds | None = None


class CancelCommand(msgspec.Struct, frozen=True, tag="cancel_reload"):
    """Take back the reload that is going on: what was served before is served again. Answered with ClusterState, or Declined. May be sent again."""


class FinishCommand(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Refuse new requests, let all others finish for at most `wait` seconds (None: as long as they take), and shut the cluster down.

    Nothing takes it back. Answered with ClusterState.
    """

    wait: Seconds | None = None


class RestartCommand(msgspec.Struct, frozen=True, kw_only=True, tag="restart"):
    """Start every process again: running requests pause, and each frontend lets its own finish for `wait` seconds. Answered as ReloadCommand."""

    wait: Seconds | None = None


class Declined(msgspec.Struct, frozen=True, tag="declined"):
    """Nothing is done."""

    reason: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The last reload or restart: the `number`th, of `kind` "reload" or "restart". `model`: the name asked for.

    `error`: why it failed, or that it was cancelled, known while the processes before come back. `note`: what is going on, in words.
    """

    number: int
    kind: str
    phase: str
    model: str
    note: str = ""
    error: str = ""

    @property
    def over(self) -> bool:
        return self.phase in (DONE, FAILED)
