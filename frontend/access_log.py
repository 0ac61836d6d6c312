"""Lines for a file or a pipe from a thread of its own: whatever becomes of them, requests are served as fast as before.

A full disk, a reader that has gone and one that does not read are ordinary: lines are lost then, counted and told of once, and later ones are
written again as soon as that can be done. A file that was moved away (as logrotate does) is made anew.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.metric_names import PREFIX, Served

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
MOST_PENDING = 1 << 14
CLOSE_SECONDS = 2.0
PIECE_BYTES = 4096
"""Written at once, so that lines of several processes do not get into each other in a pipe (PIPE_BUF)."""


class AccessLog:
    """For the file at `path`, to which it appends, or the open descriptor `fd`. `lines` and `dropped` count those written and those lost."""

    def __init__(self, path: str | None, fd: int = -1) -> None:
        self.lines = 0
        self.dropped = 0
        self._path = path
        self._fd = fd
        self._pending: deque[bytes] = deque()
        self._failed = False
        self._torn = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        """A whole line, with its end. Returns at once."""
        if len(self._pending) < MOST_PENDING:
            self._pending.append(line)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write what is left, but do not wait for ever."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._pending:
            lines = self._taken()
            try:
                self._open()
                self._write(b"".join(lines))
            except OSError as error:
                self._lost(len(lines), error)
            else:
                self.lines += len(lines)
                self._recovered()

    def _taken(self) -> list[bytes]:
        """The next lines: as many as go into one piece, and one at least."""
        lines = [self._pending.popleft()]
        size = len(lines[0])
        while self._pending and size + len(self._pending[0]) <= PIECE_BYTES:
            lines.append(self._pending.popleft())
            size += len(lines[-1])
        return lines

    def _open(self) -> None:
        """The file at the path, whichever it is now."""
        if self._path is None:
            return
        if self._fd >= 0:
            try:
                if os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                    return
            except FileNotFoundError:
                pass
            os.close(self._fd)
            self._fd, self._torn = -1, False
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _write(self, data: bytes) -> None:
        rest = memoryview(b"\n" + data if self._torn else data)
        while rest:
            written = os.write(self._fd, rest)
            rest = rest[written:]
            self._torn = bool(rest)

    def _lost(self, lines: int, error: OSError) -> None:
        self.dropped += lines
        if not self._failed:
            self._failed = True
            log.error("access log: %s: lines are lost until they can be written again", error.strerror or error)

    def _recovered(self) -> None:
        if self._failed:
            self._failed = False
            log.warning("the access log goes on; %d lines were lost so far", self.dropped)


class AccessLogCollector(Collector):
    """The counts of `log` for Prometheus."""

    def __init__(self, log: AccessLog, served: Served) -> None:
        self._log = log
        self._served = served

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        written, lost = ("lines", "Lines written to the access log.", self._log.lines), ("dropped", "Lines lost to it.", self._log.dropped)
        for name, help_text, value in (written, lost):
            family = CounterMetricFamily(f"{PREFIX}access_log_{name}", help_text, labels=["model_name"])
            family.add_metric([self._served.model], value)
            yield family
