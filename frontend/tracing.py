"""A frontend's spans in a trace: each sequence of a request, from the arrival of the request to its end."""

from typing import TYPE_CHECKING

from messages.trace import Value
from transport.trace import Trace

if TYPE_CHECKING:
    from frontend.streams import Sequence

REQUEST = "request"


class Tracing:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def ended(self, sequence: "Sequence") -> None:
        """Called once for every sequence that was accepted."""
        arrived, group = sequence.run.arrived, sequence.group
        args: dict[str, Value] = {
            "prompt_tokens": (group.prompt_tokens or 0) if group is not None else 0,
            "tokens": sequence.tokens,
            "choice": sequence.index,
            "end": sequence.end or "",
        }
        if sequence.first_token is not None:
            args["first_token_ms"] = round((sequence.first_token - arrived) * 1e3, 3)
        self._trace.long_span(REQUEST, sequence.key, arrived, sequence.ended, args)

    def close(self) -> None:
        self._trace.close()
