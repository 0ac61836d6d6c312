"""Checked access to the values of a config: every number has a type and bounds, every error names the file and the key."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

import msgspec

from checkpoint.errors import CheckpointError

MAX_JSON_BYTES = 16 << 20


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite number, small enough for float64, that is not a bool."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 64
    return isinstance(value, float) and math.isfinite(value)


def short(value: object) -> str:
    """The value as text for an error message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """A mapping with checked getters. A key that is absent or null has the default; without a default it is an error."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.values = values
        self.source = source

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def get(self, key: str) -> object:
        """The raw value, None when absent."""
        return self.values.get(key)

    def fail(self, key: str, wanted: str) -> CheckpointError:
        """The error for a bad or missing value."""
        if not self.has(key):
            return CheckpointError(f"{self.source}: `{key}` is missing; expected {wanted}")
        return CheckpointError(f"{self.source}: `{key}` is {short(self.get(key))}; expected {wanted}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number with low <= value <= high."""
        value = self.values.get(key)
        value = default if value is None else value
        if not is_number(value) or value != int(value) or not low <= value <= high:
            raise self.fail(key, f"a whole number from {low} to {high}")
        return int(value)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number with low <= value <= high."""
        value = self.values.get(key)
        value = default if value is None else value
        if not is_number(value) or not low <= value <= high:
            raise self.fail(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Like `number`, None when absent."""
        return self.number(key, low, high) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def table(self, key: str) -> "Fields | None":
        """A nested object as Fields; None when absent, null or empty."""
        value = self.values.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value, f"{self.source}: {key}")

    def ids(self, key: str, vocab: int) -> list[int]:
        """Token ids from an int, a list of ints or null, each in 0..vocab-1, without repeats."""
        value = self.values.get(key)
        if value is None:
            return []
        found = value if isinstance(value, list) else [value]
        numbers = [int(item) for item in found[:1024] if is_number(item) and item == int(item) and 0 <= item < vocab]
        if len(numbers) != len(found):
            raise self.fail(key, f"a token id below {vocab}, a list of them, or null")
        return list(dict.fromkeys(numbers))


def read_bounded(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a small file. Raises CheckpointError when it cannot be read or is larger than `limit`."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > limit:
        raise CheckpointError(f"{path}: larger than {limit} bytes, which no file of this kind is")
    return raw


def decode_object(raw: bytes, source: str) -> dict[str, object]:
    """A JSON object. Raises CheckpointError for anything else."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{source}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: expected a JSON object")
    return value


def read_json(path: Path) -> Fields:
    """The JSON object in a file, as Fields."""
    return Fields(decode_object(read_bounded(path), str(path)), str(path))
