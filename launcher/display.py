"""What a person sees of a cluster that starts: on this terminal, or through a pipe from a detached supervisor."""

import json
import logging
import os
import shlex
import sys
from typing import Any

import msgspec

from launcher.errors import program
from launcher.progress import StatusLine
from launcher.specs import ClusterOptions
from messages.cluster import CHANGING, DRAINING, READY, STOPPING, ClusterState

log = logging.getLogger(__name__)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line from a detached supervisor: `kind` is status, ready or failed."""

    kind: str
    text: str


def status_text(state: ClusterState) -> str:
    """The progress of a start in one line: the processes that are not ready yet, the slowest first."""
    waiting = [process for process in state.processes if process.phase != READY]
    waiting.sort(key=lambda process: process.progress is None)
    parts = [f"{process.name} {process.detail or process.phase}" for process in waiting]
    return "starting: " + ", ".join(parts) if parts else "starting: all processes are ready"


def status_key(text: str) -> str:
    """Text without its numbers, so that a plain log gets a line per phase and not per percent."""
    return "".join(letter for letter in text if not letter.isdigit())


def ready_text(options: ClusterOptions, state: ClusterState) -> str:
    """What to do now that the cluster is ready: URL, a request to paste, how to chat and how to stop."""
    facts: dict[str, Any] = {}
    for process in state.processes:
        facts |= process.facts
    if facts.get("chat", True):
        path, body = "chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    else:
        path, body = "completions", {"prompt": "The capital of France is", "max_tokens": 32, "temperature": 0}
    request = json.dumps({"model": options.model_name, **body}).replace("'", "'\\''")
    context = f", context {facts['context']} tokens" if "context" in facts else ""
    if facts.get("wanted_context", 0) > facts.get("context", 0):
        context += f" instead of {facts['wanted_context']}: the KV memory holds no more, see --kv-tokens"
    command, security = program(), options.security
    shown = "-H \"Authorization: Bearer $PAGEWIRE_API_KEY\" " if security.keyed else ""
    shown += f"--cacert {shlex.quote(security.tls_cert)} " if security.tls_cert else ""
    return (
        f"Pagewire is ready at {options.url} (model {options.model_name}{context})\n\n"
        f"  curl {options.url}/v1/{path} -H 'Content-Type: application/json' \\\n    {shown}-d '{request}'\n\n"
        f"  talk to it:  {command} chat --port {options.port}\n"
        f"  stop it:     {command} cluster stop --port {options.port}"
    )


class TerminalAudience:
    """A start in the foreground: status line and the processes' lines on stderr, the ready text on stdout unless the access log goes there."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._line = StatusLine()
        self._ready = False
        self._failure = ""
        set_up_logging(self)

    def state(self, state: ClusterState) -> None:
        if state.phase in (STOPPING, DRAINING, CHANGING):
            self._line.show(state.reason, status_key(state.reason))
        elif not self._ready and not state.ready:
            text = status_text(state)
            self._line.show(text, status_key(text))
        else:
            self._line.clear()

    def ready(self, state: ClusterState) -> None:
        self._ready = True
        self._line.clear()
        try:
            where = sys.stderr if self._options.access_log == "" else sys.stdout
            print(ready_text(self._options, state) + " (or Ctrl-C)", file=where, flush=True)
        except OSError as error:
            log.warning("cannot write to standard output: %s", error)

    def line(self, text: str) -> None:
        self._line.line(text)

    def failed(self, message: str) -> None:
        self._failure = message

    def close(self) -> None:
        """The failure comes last, below what the processes still wrote while they ended."""
        self._line.clear()
        if self._failure:
            self._line.line(f"error: {self._failure}")


class PipeAudience:
    """A detached start: events go to `report_fd` until the cluster is ready or has failed, lines go to standard error (the log file)."""

    def __init__(self, options: ClusterOptions, report_fd: int) -> None:
        self._options = options
        self._fd = report_fd
        set_up_logging(self)

    def state(self, state: ClusterState) -> None:
        if not state.ready:
            self._send(Event(kind="status", text=status_text(state)))

    def ready(self, state: ClusterState) -> None:
        self._send(Event(kind="ready", text=ready_text(self._options, state)))
        self.close()

    def line(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def failed(self, message: str) -> None:
        self.line(f"error: {message}")
        self._send(Event(kind="failed", text=message))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _send(self, event: Event) -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, msgspec.json.encode(event) + b"\n")
        except OSError:  # nobody waits for this start any more; the cluster runs on
            self.close()


class _AudienceHandler(logging.Handler):
    def __init__(self, audience: "TerminalAudience | PipeAudience") -> None:
        super().__init__()
        self._audience = audience

    def emit(self, record: logging.LogRecord) -> None:
        self._audience.line(self.format(record))


def set_up_logging(audience: "TerminalAudience | PipeAudience") -> None:
    """The supervisor's own log lines look like those of its processes and go the same way."""
    handler = _AudienceHandler(audience)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s supervisor %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
