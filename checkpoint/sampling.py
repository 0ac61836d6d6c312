"""The sampling that a model's authors recommend: generation_config.json of its folder."""

from pathlib import Path

from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields, read_json

LIMITS = {"temperature": (0.0, 100.0), "top_p": (1e-9, 1.0), "top_k": (-1.0, 2.0**31 - 1), "min_p": (0.0, 1.0), "repetition_penalty": (1e-9, 100.0)}


def sampling_defaults(model: Path) -> dict[str, float]:
    """The values of LIMITS that the model names; a `do_sample` beside them is not looked at. A GGUF file has none.

    Raises CheckpointError for a value that is no number in its range.
    """
    path = model / "generation_config.json"
    if not path.is_file():
        return {}
    fields = read_json(path)
    return {name: _value(fields, name) for name in LIMITS if fields.has(name)}


def _value(fields: Fields, name: str) -> float:
    value = fields.number(name, *LIMITS[name])
    if name == "top_k" and value != int(value):
        raise CheckpointError(f"{fields.source}: `top_k` is {value:g}; expected a whole number")
    return value
