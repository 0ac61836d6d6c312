"""`python -m launcher.null_engine`: in the place of all tokenizers, scheduler and worker for `bench frontend`; its text costs nothing to make.

Every running sequence gets a token at each step, as in a batch. The text of a delta is the time it was sent at (`STAMP`), so that whoever reads
it knows how long it was on the way.
"""

import sys
import time
from typing import Annotated, Any

import msgspec
import zmq

from messages.cluster import READY, STOPPING
from messages.key import Key
from messages.request import Cancel, FromFrontend, Generate
from messages.text import FINISH_LENGTH, Ended, Started, Texts
from transport.lifetime import Lifetime, ProcessArgs, read_arguments, set_up_logging
from transport.reports import Reporter
from transport.sockets import Inbox, Outbox

CONTEXT = 1 << 20
STAMP = " @%d"
"""Text of a delta: nanoseconds of the monotonic clock, which all processes of a machine share."""
IDLE_SECONDS = 0.005
LONGEST_LAG_SECONDS = 0.25
"""Steps that are due for longer are left out: an engine that falls behind is not a burst of old tokens afterwards."""


class NullEngineArgs(ProcessArgs, frozen=True, kw_only=True):
    """`rate`: tokens a second, of all sequences together."""

    frontends: list[str]
    rate: Annotated[float, msgspec.Meta(gt=0)]


class NullEngine:
    """`turn()` again and again."""

    def __init__(self, args: NullEngineArgs) -> None:
        self._rate = args.rate
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox: Inbox[FromFrontend] = Inbox(self._context, args.run_dir, args.name, FromFrontend)
        self._outboxes = {name: Outbox(self._context, args.run_dir, name) for name in args.frontends}
        self._left: dict[Key, int] = {}
        self._given: dict[Key, int] = {}
        self._frontend: dict[Key, str] = {}
        self._due = 0.0

    def turn(self) -> None:
        """Take in what is there, and give a step when it is due."""
        wait = self._due - time.monotonic() if self._left else IDLE_SECONDS
        if wait > 0:
            self._inbox.wait(wait)
        for message in self._inbox.drain():
            self._note(message)
        now = time.monotonic()
        if not self._left:
            self._due = now
        elif now >= self._due:
            self._due = max(self._due, now - LONGEST_LAG_SECONDS) + len(self._left) / self._rate
            self._step()

    def _note(self, message: FromFrontend) -> None:
        if isinstance(message, Generate):
            for key in message.keys:
                self._left[key] = message.stop.max_tokens or 1
                self._given[key] = 0
                self._frontend[key] = message.frontend
            self._outboxes[message.frontend].send(Started(message.keys[0], 1))
        elif isinstance(message, Cancel):
            for key in message.keys:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        for table in (self._left, self._given, self._frontend):
            table.pop(key, None)

    def _step(self) -> None:
        text = STAMP % time.monotonic_ns()
        going: dict[str, list[Key]] = {}
        ended = []
        for key, left in self._left.items():
            if left > 1:
                self._left[key] = left - 1
                self._given[key] += 1
                going.setdefault(self._frontend[key], []).append(key)
            else:
                ended.append(key)
        for frontend, keys in going.items():
            self._outboxes[frontend].send(Texts(keys, [text] * len(keys), [1] * len(keys), bytes(4 * len(keys))))
        for key in ended:
            end = Ended(key=key, finish=FINISH_LENGTH, text=text, tokens=1, completion_tokens=self._given[key] + 1)
            self._outboxes[self._frontend[key]].send(end)
            self._forget(key)

    def close(self) -> None:
        self._inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._context.term()


def main() -> int:
    args = read_arguments(NullEngineArgs)
    set_up_logging(args)
    lifetime, reporter, engine = Lifetime(args), Reporter(args), NullEngine(args)
    reporter.facts(context=CONTEXT)
    reporter.phase(READY)
    while not lifetime.stopping.is_set():
        engine.turn()
    reporter.phase(STOPPING)
    engine.close()
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
