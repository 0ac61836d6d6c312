"""A line of the access log: who asked what, how it ended, how long it took. Never a word of a prompt or an answer, a query or a header."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from frontend.record import Record

JSON, TEXT = "json", "text"

Format = Callable[[Record], bytes]


class Line(msgspec.Struct, kw_only=True):
    """Null is what is not known, or does not apply. `time`: of the end, RFC 3339 in UTC. `finish`: the different ends of the choices, in order.

    `queue_seconds` and `ttft_seconds` are of the choice that came first: in the scheduler's line, and from the arrival of the request to its text.
    """

    time: str
    frontend: str
    request_id: str
    id: str | None = None
    client: str
    method: str
    path: str
    status: int
    error: str | None = None
    model: str | None = None
    stream: bool | None = None
    choices: int | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    ttft_seconds: float | None = None
    duration_seconds: float
    bytes: int


def line_of(record: Record, frontend: str) -> Line:
    ended = record.began if record.ended is None else record.ended
    line = Line(
        time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        frontend=frontend,
        request_id=record.request_id,
        client=record.client,
        method=record.method,
        path=record.path,
        status=record.status,
        error=record.problem,
        duration_seconds=_rounded(ended - record.began),
        bytes=record.sent,
    )
    if record.entry is not None:
        _fill(line, record)
    return line


def _fill(line: Line, record: Record) -> None:
    entry, choices = record.entry, list(record.choices())
    if entry is None:
        return
    line.id, line.model, line.stream, line.choices = entry.id, entry.run.model, entry.stream, sum(len(group.sequences) for group in entry.run.groups)
    if not choices:
        return
    line.finish = ",".join(dict.fromkeys(choice.end or "" for choice in choices))
    line.prompt_tokens, line.completion_tokens, line.cached_tokens = record.prompt_tokens, record.completion_tokens, entry.run.cached_tokens
    begun = [(choice.begun, choice.queued) for choice in choices if choice.begun is not None]
    spoken = [choice.first_token for choice in choices if choice.first_token is not None]
    line.queue_seconds = _rounded(min(begun)[1]) if begun else None
    line.ttft_seconds = _rounded(min(spoken) - record.began) if spoken else None


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def formatter(kind: str, frontend: str) -> Format:
    """Makes whole lines, with their ends, of `kind` JSON (an object) or TEXT (name=value, without what is null)."""
    encode = msgspec.json.Encoder().encode
    if kind == JSON:
        return lambda record: encode(line_of(record, frontend)) + b"\n"
    return lambda record: _text(msgspec.structs.asdict(line_of(record, frontend)))


def _text(fields: dict[str, Any]) -> bytes:
    words = (f"{name}={_word(value)}" for name, value in fields.items() if value is not None)
    return " ".join(words).encode("utf-8", "backslashreplace") + b"\n"


def _word(value: Any) -> str:
    """A value without spaces and quotes stands as it is; any other is a JSON string."""
    word = str(value).lower() if isinstance(value, bool) else str(value)
    return word if word.isprintable() and not set(word) & set(' "=') else msgspec.json.encode(word).decode()
