"""Bytes of a request body to a checked Struct, and JSON values to the prompts other processes get."""

import hashlib
import re
import secrets
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from frontend.errors import invalid
from frontend.refusals import Neutral, strip
from messages.request import Prompt, TextPrompt, TokenId, TokenPrompt
from messages.sampling import MAX_BIASED

R = TypeVar("R", bound=msgspec.Struct)

MAX_PROMPTS = 1024
MAX_VALUES = 300_000
"""Objects, lists and keys in one body: decoding more would hold up everybody's streams, and no context holds a prompt of so many."""
SEED_BITS = 63
_LARGEST = 2**31 - 1
MAX_REASON = 300
"""Characters of a sentence about a value, which may have the value in it."""
MAX_BIAS = 100.0
_CLAMPED = ("max_tokens", "max_completion_tokens", "max_output_tokens", "top_k", "thinking_budget")
_INTEGERS = (
    *_CLAMPED, "n", "seed", "logprobs", "top_logprobs", "priority", "best_of", "min_tokens", "prompt_logprobs", "truncate_prompt_tokens",
)  # fmt: skip
_FIELD = re.compile(r" - at `\$\.(\w+)(.*)`$")
_TOKEN = re.compile(r"[0-9]{1,10}", re.ASCII)
_HALF = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u(?:d[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})|(?<!\\ud[89ab][0-9a-f]{2}\\u)d[c-f][0-9a-f]{2})", re.IGNORECASE
)
"""A \\u escape of a surrogate that is not one of a pair."""
_LOOK_BYTES = 1 << 20
"""So much of a bad body is looked through for what is wrong with it."""
_MISSING = re.compile(r"missing required field `(\w+)`(?: - at `\$\.([\w.\[\]]+)`)?")


def decode(body: bytes, kind: type[R], neutral: dict[str, Neutral]) -> R:
    """The request in `body`. null counts as absent, whole floats as integers, and the last of duplicate keys wins. Raises ApiError 400."""
    fields = strip(_json_object(body), kind.__struct_fields__, neutral)
    for name in _INTEGERS:
        if name in fields:
            fields[name] = _integer(name, fields[name])
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind) from error


def _json_object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_VALUES and sum(body.count(mark) for mark in (b"{", b"[", b'":')) > MAX_VALUES:
        raise invalid(f"The request body holds more than {MAX_VALUES} values.", code="too_many_values")
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise invalid("The request body is nested too deeply.", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(_not_json(body, str(error)), code="invalid_json") from error
    if not isinstance(value, dict):
        raise invalid("The request body must be a JSON object.", code="invalid_json")
    return value


def _not_json(body: bytes, text: str) -> str:
    if not body.strip():
        return "The request body is empty; it must be a JSON object."
    if ("surrogate" in text or "truncated" in text) and (found := _HALF.search(body, 0, _LOOK_BYTES)):
        return f"The request body is not valid JSON: the escape before byte {found.end()} is half of a surrogate pair, which is no character."
    return f"The request body is not valid JSON: {text}."


def _integer(name: str, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if name in _CLAMPED and isinstance(value, int) and not isinstance(value, bool):
        return min(value, _LARGEST)
    return value


def _explained(text: str, kind: type[msgspec.Struct]) -> Exception:
    """msgspec's sentence as a 400 that names the field."""
    if missing := _MISSING.search(text):
        name = f"{missing[2]}.{missing[1]}" if missing[2] else missing[1]
        return invalid(f"{name} is required.", name, "missing_parameter")
    if found := _FIELD.search(text):
        choices = "" if found[2] or not text.startswith("Invalid enum value") else _choices(kind, found[1])
        return invalid(f"{found[1]}{found[2]}: {text[: min(found.start(), MAX_REASON)]}{choices}.", found[1])
    return invalid(f"{text[:MAX_REASON]}.")


def _choices(kind: type[msgspec.Struct], name: str) -> str:
    """Those there are for a field, as the end of a sentence."""
    hint = get_type_hints(kind)[name]
    values = [value for part in (hint, *get_args(hint)) if get_origin(part) is Literal for value in get_args(part)]
    return f"; it may be {' or '.join(map(repr, values))}" if values else ""


def prompts(value: Any, add_special_tokens: bool, field: str = "prompt") -> list[Prompt]:
    """The prompts of a request, in order. Raises ApiError, which names the `field`, when there is none, or one has a wrong type or no token ids."""
    if isinstance(value, str):
        return [TextPrompt(value, add_special_tokens)]
    if not isinstance(value, list):
        raise invalid(f"{field} must be a string, a list of strings, a list of token ids or a list of such lists.", field)
    if not value:
        raise invalid(f"{field} is empty.", field)
    if isinstance(value[0], int):
        return [_token_prompt(value, field)]
    if len(value) > MAX_PROMPTS:
        raise invalid(f"{field} holds {len(value)} prompts; the limit is {MAX_PROMPTS} in one request.", field)
    if isinstance(value[0], str):
        return [TextPrompt(text, add_special_tokens) for text in _converted(value, list[str], field)]
    return [_token_prompt(ids, field) for ids in value]


def _token_prompt(ids: Any, field: str) -> TokenPrompt:
    if not ids:
        raise invalid(f"{field} is empty: it holds no token ids.", field)
    return TokenPrompt(_converted(ids, list[TokenId], field))


def _converted(value: Any, kind: Any, field: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid(f"{field}: {error}.", field) from error


def logit_bias(value: dict[str, float]) -> dict[int, float]:
    """By token id. Raises ApiError for keys that are no token ids and values outside -100 to 100."""
    if len(value) > MAX_BIASED:
        raise invalid(f"logit_bias holds {len(value)} tokens; the limit is {MAX_BIASED}.", "logit_bias")
    found: dict[int, float] = {}
    for name, bias in value.items():
        if not _TOKEN.fullmatch(name) or int(name) > _LARGEST:
            raise invalid(f"logit_bias: {name[:64]!r} is not a token id.", "logit_bias")
        if not abs(bias) <= MAX_BIAS:
            raise invalid(f"logit_bias: the value for token {name[:64]} must be from -{MAX_BIAS:.0f} to {MAX_BIAS:.0f}.", "logit_bias")
        found[int(name)] = bias
    return found


def seeds(seed: int | None, count: int) -> list[int]:
    """One seed of 63 bits per choice: random ones without `seed`; else `seed` itself for the first, hashes of it for the others."""
    if seed is None:
        return [secrets.randbits(SEED_BITS) for _ in range(count)]
    return [seed, *(_derived(seed, number) for number in range(1, count))]


def _derived(seed: int, number: int) -> int:
    digest = hashlib.blake2b(b"%d:%d" % (seed, number), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
