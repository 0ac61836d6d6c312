"""Plays the frontend's neighbours over the real sockets: the supervisor's feed and inbox, and one or more tokenizer processes."""

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import zmq

from frontend.args import FrontendArgs
from messages.cluster import LOADING, READY, ClusterState, ProcessReport, ProcessState, ToSupervisor
from messages.explain import Explain
from messages.request import Cancel, Detokenize, FromFrontend, Generate, Tokenize
from messages.text import Detokenized, Ended, FromTokenizer, Started, TextDelta, Tokenized
from tests.support.waiting import wait_until
from transport.reports import CLUSTER_FEED, SUPERVISOR
from transport.security import Security
from transport.sockets import Feed, Inbox, Outbox
from transport.tls import pinned_context

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tiny"
CONTEXT = 2048
FRONTEND, OTHER = "frontend0", "frontend1"
TIMEOUT = 30.0

Message = Generate | Cancel | Tokenize | Detokenize | Explain
Script = Callable[[Message], Iterable[FromTokenizer]]


def cluster_state(
    ready: bool = True,
    incarnation: int = 1,
    reason: str = "",
    phase: str = READY,
    worker: str = READY,
    tokenizer: str = READY,
    frontends: Iterable[str] = (),
    stop_seconds: float | None = None,
) -> ClusterState:
    """A cluster of one tokenizer, a scheduler and a worker; `incarnation` is the tokenizer's, `worker` and `tokenizer` the phases of those.

    `frontends`: names of those that are ready, where they know each other.
    """
    return ClusterState(
        ready=ready,
        phase=phase,
        reason=reason,
        model=MODEL,
        started=0.0,
        processes=[
            ProcessState(name="tokenizer0", incarnation=incarnation, pid=1, phase=tokenizer),
            ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": CONTEXT}, gauges={"running": 3.0, "waiting": 2.0}),
            ProcessState(name="worker0", incarnation=1, pid=3, phase=worker, detail="" if worker == READY else "loading weights", progress=0.43),
            *(ProcessState(name=name, incarnation=1, pid=4, phase=READY) for name in frontends),
        ],
        stop_seconds=stop_seconds,
    )


LOADING_STATE = cluster_state(ready=False, phase=LOADING, worker=LOADING)


def say(*texts: str, finish: str = "stop", prompt_tokens: int = 5) -> Script:
    """A script: every choice says these texts, one token each, then ends; questions about text get fixed answers."""

    def script(message: Message) -> Iterator[FromTokenizer]:
        if isinstance(message, Generate):
            yield Started(message.keys[0], prompt_tokens)
            for text in texts:
                yield from (TextDelta(key, text, [7]) for key in message.keys)
            yield from (Ended(key=key, finish=finish, completion_tokens=len(texts)) for key in message.keys)
        elif isinstance(message, Tokenize):
            yield Tokenized(message.key, [1, 2, 3], ["a", "b", "c"] if message.with_text else [])
        elif isinstance(message, Detokenize):
            yield Detokenized(message.key, "abc")

    return script


def silent(message: Message) -> Iterable[FromTokenizer]:
    """A script that never answers."""
    return ()


class Peers:
    """A thread that owns all sockets. `script` answers messages; `received` holds what the frontend sent; `send` speaks unasked."""

    def __init__(self, run_dir: Path) -> None:
        self.script: Script = say("Hello", " world")
        self.received: queue.Queue[Message] = queue.Queue()
        self.reports: queue.Queue[ProcessReport] = queue.Queue()
        self.state: ClusterState | None = cluster_state()
        self.run_dir = run_dir
        self._told = 0.0
        self._outgoing: queue.Queue[msgspec.Struct | bytes] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: msgspec.Struct | bytes) -> None:
        """To the frontend: a message, or a frame as it is."""
        self._outgoing.put(message)

    def expect(self, kind: type[Any]) -> Any:
        """The next message of this type from the frontend; others before it are dropped."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            message = self.received.get(timeout=max(0.01, deadline - time.monotonic()))
            if isinstance(message, kind):
                return message

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=TIMEOUT)

    def forget(self, frontend: "Frontend", headers: dict[str, str] | None = None) -> None:
        """All that was received. A question that the script answers comes behind what the frontend has sent before."""
        wait_until(lambda: frontend.post("/detokenize", {"tokens": [1]}, headers)[0] == 200, "the frontend takes no requests")
        while not self.received.empty():
            self.received.get_nowait()

    def _tell(self, feed: Feed) -> None:
        """The state, if the last time was a while ago: who sends much is not to be taken for a dead supervisor."""
        if time.monotonic() - self._told > 0.1:
            self._publish(feed)

    def _publish(self, feed: Feed) -> None:
        self._told = time.monotonic()
        if (state := self.state) is not None:
            feed.publish(state)

    def _run(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        supervisor: Inbox[ProcessReport] = Inbox(context, self.run_dir, SUPERVISOR, ToSupervisor)
        inbox: Inbox[Message] = Inbox(context, self.run_dir, "tokenizer0", FromFrontend)
        feed = Feed(context, self.run_dir, CLUSTER_FEED)
        outboxes = {name: Outbox(context, self.run_dir, name, linger_ms=100) for name in (FRONTEND, OTHER)}
        outbox = outboxes[FRONTEND]
        while not self._stop.is_set():
            self._publish(feed)
            for report in supervisor.drain():
                self.reports.put(report)
            inbox.wait(0.02)
            for message in inbox.drain():
                self.received.put(message)
                for answer in self.script(message):
                    self._tell(feed)
                    outboxes[getattr(message, "frontend", FRONTEND)].send(answer)
            with contextlib.suppress(queue.Empty):
                while True:
                    item = self._outgoing.get_nowait()
                    self._tell(feed)
                    if isinstance(item, bytes):
                        outbox.send_frame(item)
                    else:
                        outbox.send(item)
        closables: list[Inbox[Any] | Feed | Outbox] = [supervisor, inbox, feed, *outboxes.values()]
        for closable in closables:
            closable.close()
        context.term()


def start(run_dir: Path, port: int, body_limit: int, log: IO[str], **more: Any) -> subprocess.Popen[str]:
    """The frontend process; its log goes to the open file `log`. `more`: other arguments of it, and those of its `Security`."""
    security = Security(**{field: more.pop(field) for field in Security.__struct_fields__ if field in more})
    args = FrontendArgs(
        name=more.pop("name", FRONTEND),
        incarnation=1,
        run_dir=str(run_dir),
        host="127.0.0.1",
        port=port,
        model_name=more.pop("model_name", MODEL),
        tokenizers=["tokenizer0"],
        created=1_700_000_000,
        body_limit=body_limit,
        security=security,
        **more,
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PAGEWIRE_PROCESS": msgspec.json.encode(args).decode()}
    return subprocess.Popen([sys.executable, "-P", "-m", "frontend"], env=environment, stderr=log, text=True)


class Frontend:
    """The process under test and a small HTTP client for it."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], certificate: str | None = None) -> None:
        self.process = process
        self.certificate = certificate
        self.port = 0
        self._log = log

    def wait_for_port(self, peers: Peers) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.port:
            report = peers.reports.get(timeout=max(0.01, deadline - time.monotonic()))
            if report.pid == self.process.pid:
                self.port = int(report.facts.get("port", 0))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, status: int, path: str = "/health") -> None:
        """Until `path` answers with this status."""
        deadline = time.monotonic() + TIMEOUT
        while self.get(path)[0] != status:
            assert time.monotonic() < deadline, f"{path} never became {status}"
            time.sleep(0.02)

    def connection(self) -> http.client.HTTPConnection:
        """A new one, which trusts the certificate alone where there is one."""
        if self.certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT, context=pinned_context(self.certificate))

    def call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        connection = self.connection()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return self.call("GET", path)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        """The answer's JSON; `body` is bytes or a JSON value."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, got, answer = self.call("POST", path, raw, {"Content-Type": "application/json", **(headers or {})})
        return status, got, json.loads(answer)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """All events of a stream: JSON values, and '[DONE]' as text."""
        status, headers, answer = self.call("POST", path, json.dumps({**body, "stream": True}).encode())
        assert status == 200, answer
        assert headers["content-type"].startswith("text/event-stream")
        return events(answer)

    def open(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A raw connection with the request sent; the caller reads and closes it."""
        raw = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(raw)) + raw)
        return connection

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        text = self.get("/metrics")[2].decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(s.value for s in samples if s.name == f"pagewire_{name}" and labels.items() <= s.labels.items())

    def wait_metric(self, name: str, value: float, **labels: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while (found := self.metric(name, **labels)) != value:
            assert time.monotonic() < deadline, f"{name} is {found}, not {value}"
            time.sleep(0.02)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=TIMEOUT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=TIMEOUT)

    def log(self) -> str:
        """What the process has logged so far. It writes at the place of the same open file, which this leaves alone."""
        number = self._log.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode()


def events(answer: bytes) -> list[Any]:
    """The data of server-sent events."""
    found = []
    for block in answer.decode().split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


@contextlib.contextmanager
def running(run_dir: Path, ready: bool = True, body_limit: int = 1 << 20, **more: Any) -> Iterator[tuple[Frontend, Peers]]:
    """A frontend with its peers; ready when `ready`. `more`: other arguments of the process."""
    with contextlib.ExitStack() as stack:
        peers = Peers(run_dir)
        stack.callback(peers.close)
        if not ready:
            peers.state = LOADING_STATE
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        frontend = Frontend(start(run_dir, 0, body_limit, log, **more), log, more.get("tls_cert"))
        stack.callback(frontend.kill)
        frontend.wait_for_port(peers)
        if ready:
            frontend.wait(200)
        yield frontend, peers


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """What comes of a connection until `mark` is in it."""
    data = b""
    while mark not in data:
        got = connection.recv(65536)
        assert got, data
        data += got
    return data
