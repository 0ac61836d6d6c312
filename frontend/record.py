"""One HTTP request from its arrival to its end: what the access log and the spans say of it, and how it counts."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import web

from frontend.register import Entry
from frontend.streams import Sequence as Choice

CLIENT_CLOSED = 499
MAX_PATH = 200
OTHER = "other"
OPERATIONS = {
    "/v1/chat/completions": "chat", "/v1/responses": "chat", "/v1/messages": "chat", "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}  # fmt: skip
"""Patterns of the routes that run sequences, and the names of what they do in OpenTelemetry's conventions for generative AI."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_UNKNOWN = "-"

Watcher: TypeAlias = "Callable[[Record], None]"


@dataclass(eq=False, slots=True)
class Record:
    """Times are monotonic seconds. `path` is without its query, cut; `handler` the route's pattern, OTHER for none; `error` the code of the error.

    `entry` is set once it runs something. `sent` counts bytes written to the client, with headers and HTTP's framing. `watchers` are called once, at
    the end.
    """

    request_id: str
    client: str
    method: str
    path: str
    handler: str
    trace: dict[str, str]
    watchers: Sequence[Watcher]
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    status: int = CLIENT_CLOSED
    error: str | None = None
    entry: Entry | None = None
    sent: int = 0

    def end(self, sent: int = 0) -> None:
        """It is over, and `sent` more bytes were written. May be called again."""
        if self.ended is None:
            self.ended = time.monotonic()
            self.sent += sent
            for watcher in self.watchers:
                watcher(self)

    @property
    def generates(self) -> bool:
        """It asks for sequences, whether it gets any or not."""
        return self.handler in OPERATIONS

    @property
    def problem(self) -> str | None:
        """The code of what went wrong, before the answer or in the middle of it."""
        problem = None if self.entry is None else self.entry.run.problem
        return problem.code if problem is not None else self.error

    def choices(self) -> Iterator[Choice]:
        """The sequences that count in the metrics, in order of their index."""
        if self.entry is not None:
            yield from (choice for group in self.entry.run.groups if group.counted for choice in group.sequences)

    @property
    def prompt_tokens(self) -> int:
        groups = () if self.entry is None else self.entry.run.groups
        return sum(group.prompt_tokens or 0 for group in groups if group.counted)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices())


RECORD: web.RequestKey[Record] = web.RequestKey("record", Record)


def record_of(request: web.Request, request_id: str, watchers: Sequence[Watcher]) -> Record:
    """A new one, of a request that has just arrived."""
    resource = request.match_info.route.resource
    return Record(
        request_id=request_id,
        client=request.remote or _UNKNOWN,
        method=request.method if request.method in _METHODS else OTHER,
        path=request.rel_url.raw_path[:MAX_PATH],
        handler=OTHER if resource is None else resource.canonical,
        trace={name: value for name in ("traceparent", "tracestate") if (value := request.headers.get(name)) is not None},
        watchers=watchers,
    )
