"""A tokenizer's spans in a trace: the text of each batch of tokens, and the encoding of each prompt."""

import time

import msgspec

from messages.key import Key
from messages.request import Cancel, Generate
from messages.text import Ended, Started
from messages.tokens import Tokens
from tokenizer_proc.step_texts import Send
from transport.trace import Trace

KEY_BYTES = 8
DETOKENISE, ENCODE = "detokenise", "encode"


class Tracing:
    """Made on the thread of the event loop. Times are seconds of `time.monotonic()`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._track = trace.thread("text")
        self._encoding: dict[Key, float] = {}

    def handling(self, message: msgspec.Struct, begin: float) -> None:
        """`message` came at `begin` and is about to be handled."""
        if isinstance(message, Generate) and message.keys:
            self._encoding[message.keys[0]] = begin
        elif isinstance(message, Cancel):
            for key in message.keys:
                self._encoding.pop(key, None)

    def handled(self, message: msgspec.Struct, begin: float) -> None:
        """What it leads to on this thread is done."""
        if isinstance(message, Tokens):
            self._track.add(DETOKENISE, begin, time.monotonic(), {"rows": len(message.key) // KEY_BYTES})

    def watching(self, send: Send) -> Send:
        """`send` to a frontend, which also tells when a prompt is encoded."""

        def watched(message: msgspec.Struct) -> bool:
            if isinstance(message, Started | Ended):
                self._answered(message)
            return send(message)

        return watched

    def _answered(self, message: Started | Ended) -> None:
        begin = self._encoding.pop(message.key, None)
        if begin is not None and isinstance(message, Started):
            self._trace.long_span(ENCODE, message.key, begin, time.monotonic(), {"prompt_tokens": message.prompt_tokens})

    def close(self) -> None:
        self._trace.close()
