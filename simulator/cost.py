"""How long a worker takes over a step: a linear model of the step's work, kept as a small JSON file."""

from pathlib import Path
from typing import Annotated

import msgspec

from simulator.errors import SimulatorError
from simulator.work import Work

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]

DEFAULT = Path(__file__).with_name("default_cost.json")
MAX_BYTES = 1 << 16


class FitQuality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a fitted model tells the steps it was fitted to. Times in milliseconds; `explained` is R squared."""

    steps: int
    measured_s: float
    predicted_s: float
    residual_ms: float
    median_error_ms: float
    explained: float


class CostModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Seconds of a step = base + prefill_token * prompt tokens + decode_row * rows decoded + context_token * KV positions read.

    `latency` is the seconds a message takes between scheduler and worker, one way. `source` says where the numbers come from.
    """

    name: Text
    base: Seconds
    prefill_token: Seconds = 0.0
    decode_row: Seconds = 0.0
    context_token: Seconds = 0.0
    latency: Seconds = 0.0
    source: Text = ""
    fit: FitQuality | None = None

    def seconds(self, work: Work) -> float:
        """The time a worker takes over `work`."""
        return self.base + self.prefill_token * work.prefill_tokens + self.decode_row * work.decode_rows + self.context_token * work.context_tokens


def load_cost_model(path: Path = DEFAULT) -> CostModel:
    """Read and check a model. Raises SimulatorError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SimulatorError(f"cannot read the cost model {path}: {error.strerror}; make one with `simulate RECORDING --fit {path}`") from error
    if len(data) > MAX_BYTES:
        raise SimulatorError(f"{path} has more than {MAX_BYTES} bytes and is no cost model; make one with `simulate RECORDING --fit FILE`")
    try:
        model = msgspec.json.decode(data, type=CostModel)
    except msgspec.DecodeError as error:
        raise SimulatorError(f"{path} is no cost model: {error}; it has a name, and seconds for base, prefill_token, decode_row, ...") from error
    if not model.seconds(Work(1, 1, 1)):
        raise SimulatorError(f"the cost model {path} has steps that take no time: give `base` or another of its numbers a value above 0")
    return model


def save_cost_model(model: CostModel, path: Path) -> None:
    """Write a model as indented JSON. Raises SimulatorError."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=2) + b"\n")
    except OSError as error:
        raise SimulatorError(f"cannot write the cost model {path}: {error.strerror}; name a file in a folder that exists") from error
