"""One updating line on a terminal, plain lines elsewhere; log lines pass above it unharmed."""

import os
import shutil
import sys
import threading
import time
from typing import TextIO

MIB = 1 << 20
BAR_WIDTH = 24
PLAIN_SECONDS = 1.0


class StatusLine:
    """Shows the newest status on `stream`. On a terminal the line is rewritten in place; elsewhere each different `key` gives one line.

    May be used from several threads.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.Lock()
        self._text = ""
        self._key = ""

    def show(self, text: str, key: str | None = None) -> None:
        """Replace the status; `key` (default: the text) decides whether a plain stream gets a new line."""
        with self._lock:
            if self._live:
                if text != self._text:
                    self._text = text
                    self._draw()
            elif (key if key is not None else text) != self._key:
                self._write(text + "\n")
            self._key = key if key is not None else text

    def line(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._write(("\r\x1b[K" if self._live and self._text else "") + text + "\n")
            if self._live and self._text:
                self._draw()

    def clear(self) -> None:
        """Take the status away (on a terminal)."""
        with self._lock:
            if self._live and self._text:
                self._write("\r\x1b[K")
            self._text = self._key = ""

    def _draw(self) -> None:
        width = max(20, shutil.get_terminal_size().columns - 1)
        self._write(f"\r\x1b[K{self._text[:width]}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone; the work goes on
            self._live = False


class ByteBar:
    """A progress bar over a known number of bytes, drawn on a StatusLine. Where there is no terminal: a line every 10 %, at most one a second."""

    def __init__(self, line: StatusLine, label: str, total: int) -> None:
        self._line, self._label, self._total = line, label, total
        self._started = self._told = time.monotonic()
        self._key = ""
        self.update(0)

    def update(self, done: int) -> None:
        done, now = min(done, self._total), time.monotonic()
        share = done / self._total if self._total else 1.0
        filled = round(share * BAR_WIDTH)
        rate = done / MIB / max(1e-3, now - self._started)
        if not self._key or now - self._told >= PLAIN_SECONDS:
            self._key, self._told = f"{self._label} {int(share * 10)}", now
        bar = "#" * filled + "-" * (BAR_WIDTH - filled)
        text = f"{self._label} [{bar}] {share:4.0%}  {done / MIB:.1f} of {self._total / MIB:.1f} MiB  {rate:.1f} MiB/s"
        self._line.show(text, self._key)
