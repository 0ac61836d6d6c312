"""The process's life: bind at once, follow the cluster, serve, drain, stop."""

import asyncio
import logging
import math
import time
from typing import Any

import zmq
from aiohttp import web

from frontend.access import Access
from frontend.args import FrontendArgs
from frontend.certificate import Certificate
from frontend.cluster import ClusterView
from frontend.connections import Connections, room_for
from frontend.core import Core
from frontend.cors import Cors
from frontend.dispatcher import Dispatcher
from frontend.explain import answer_peer
from frontend.keepers import Keepers
from frontend.metrics import Metrics
from frontend.peers import Peers
from frontend.port import Port
from frontend.responses import background, restoring
from frontend.responses.desk import Desk
from frontend.responses.figures import DeskCollector
from frontend.responses.links import Links, socket_path
from frontend.responses.private import make_private_app
from frontend.search import SUSPECTS
from frontend.service import make_app
from frontend.shared_metrics import report
from frontend.streams import ContractError, Sender
from frontend.tracing import Tracing
from frontend.watching import Watching
from messages.cluster import BEGUN, INTAKE, LETS_IN, OPEN, READY, STOPPING, ClusterState
from messages.peers import FindRequests, FoundRequests, FromPeer, OfKeys
from messages.text import FromTokenizer, Problem
from transport.clock import Clock
from transport.lifetime import Lifetime
from transport.reports import CLUSTER_FEED, Reporter
from transport.sockets import Inbox, Outbox, Subscription
from transport.trace import open_trace

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
SAMPLE_SECONDS = 0.25
DRAIN_SECONDS = 3.5
GOODBYE_SECONDS = 1.0
LINGER_SECONDS = 0.5
"""For the requests of connections that were made before the port was left to the other frontends."""
LAST_WORDS_SECONDS = 0.5


class Server:
    """One frontend process on the running loop. `serve` returns when SIGTERM has been obeyed."""

    def __init__(self, args: FrontendArgs, lifetime: Lifetime) -> None:
        self._args = args
        self._lifetime = lifetime
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox: Inbox[FromTokenizer | FromPeer] = Inbox(self._context, args.run_dir, args.name, FromTokenizer | FromPeer)
        self._cluster: Subscription[ClusterState] = Subscription(self._context, args.run_dir, CLUSTER_FEED, ClusterState)
        self._outboxes = {name: Outbox(self._context, args.run_dir, name, linger_ms=200) for name in (*args.tokenizers, *args.peers)}
        model: dict[str, Any] = {"model": args.model_name, "created": args.created}
        view = ClusterView(args.tokenizers, (args.name, *args.peers), started=args.incarnation > 1, **model)
        metrics = Metrics(args.model_name, view, args.name)
        self._watching = Watching(args, metrics, lambda: view.model)
        trace = open_trace(args)
        self._tracing = None if trace is None else Tracing(trace)
        tokenizers: dict[str, Sender] = {name: self._outboxes[name] for name in args.tokenizers}
        dispatcher = Dispatcher(args.name, tokenizers, view, metrics, self._tracing, args.most_held)
        outboxes = {name: self._outboxes[name] for name in args.peers}
        peers = Peers(args.name, outboxes, view.answers)
        security = args.security
        self._access = Access(security.api_keys, security.key_lines)
        doors: dict[str, Any] = {"access": self._access, "cors": Cors(security.cors_origins)}
        self._keepers = Keepers(args.name, args.incarnation, outboxes, view.ready)
        desk = Desk(args.name, args.keeper, Links(args.run_dir, args.peers, view.serves))
        parts: dict[str, Any] = {"peers": peers, "keepers": self._keepers, "watchers": self._watching.watchers, "responses": desk}
        self._core = Core(args, view, metrics, dispatcher, **parts, **doors)
        metrics.registry.register(DeskCollector(desk, metrics))
        self._certificate = Certificate(security.tls_cert, security.tls_key) if security.tls_cert and security.tls_key else None
        self._connections = Connections(room_for(security.max_connections), args.head_seconds, args.stall_seconds)
        self._answering: set[asyncio.Task[None]] = set()
        self._reporter = Reporter(args)
        self._samples: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._sampled = 0.0
        self._standing = (-1.0, False, False, False)

    async def serve(self) -> None:
        """Raises OSError when the port cannot be bound and JournalError when the journal cannot be used."""
        options: dict[str, Any] = {"handler_cancellation": True, "shutdown_timeout": LAST_WORDS_SECONDS, "access_log": None}
        runners = [web.AppRunner(app, **options) for app in self._apps()]
        for runner in runners:
            await runner.setup()
        try:
            await self._open_responses(runners[1:])
            port = Port(self._args, runners[0], self._connections, self._certificate)
            self._announce(await port.listen())
            self._inbox.listen(self._receive)
            refreshing = asyncio.create_task(self._keep_fresh())
            await self._follow()
            refreshing.cancel()
            self._reporter.phase(STOPPING)
            await port.leave()
            await self._drain()
        finally:
            for runner in runners:
                await runner.cleanup()
            await background.close(self._core)
            self._close()

    def _apps(self) -> list[web.Application]:
        """What clients reach, and what the other frontends reach, if there are any."""
        return [make_app(self._core), *([make_private_app(self._core)] if self._args.peers else [])]

    async def _open_responses(self, private: list[web.AppRunner]) -> None:
        """Before any client is served: what a journal holds is not asked for in vain."""
        if self._args.journal is not None:
            await restoring.open_journal(self._core, self._args.journal)
        for runner in private:
            await web.UnixSite(runner, socket_path(self._args.run_dir, self._args.name)).start()

    def _announce(self, port: int) -> None:
        log.info("listening on %s port %d", self._args.host, port)
        self._reporter.facts(port=port)
        self._reporter.phase(READY)

    def _receive(self, message: FromTokenizer | FromPeer) -> None:
        if isinstance(message, FoundRequests):
            self._core.peers.receive(message)
        elif isinstance(message, FindRequests):
            task = asyncio.get_running_loop().create_task(answer_peer(self._core, message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif isinstance(message, OfKeys):
            self._keepers.receive(message)
        else:
            self._take_in(message)

    def _take_in(self, message: FromTokenizer) -> None:
        try:
            self._core.dispatcher.receive(message)
        except ContractError as error:
            self._inbox.reject(str(error))

    async def _follow(self) -> None:
        """Take in cluster states and report numbers until asked to stop."""
        while not self._lifetime.stopping.is_set():
            self._poll()
            await asyncio.sleep(POLL_SECONDS)

    async def _keep_fresh(self) -> None:
        """Take in changes of the files of keys and certificate, in a thread: no request waits for a disk."""
        while True:
            await asyncio.sleep(self._args.refresh_seconds)
            await asyncio.to_thread(self._refresh)

    def _refresh(self) -> None:
        self._access.refresh()
        if self._certificate is not None:
            self._certificate.refresh()

    def _poll(self) -> None:
        self._core.view.look()
        state = self._cluster.latest()
        if state is not None:
            self._core.view.update(state)
        self._core.dispatcher.follow()
        self._core.metrics.serve(self._core.view.model)
        self._keepers.follow()
        gauges = self._tell(time.monotonic())
        if (standing := (gauges[INTAKE], gauges[BEGUN] > 0, gauges[OPEN] > 0, gauges[LETS_IN] > 0)) != self._standing:
            self._standing = standing
            self._reporter.hurry()  # somebody may wait for it

    def _tell(self, now: float) -> dict[str, float]:
        """The numbers of the next heartbeat; the gauges among them that are not of a metric. All metrics take a while: not each time."""
        dropped = sum(outbox.dropped for outbox in self._outboxes.values())
        gauges, counters = self._requests(), {"bad_frames": float(self._inbox.bad_frames), "dropped_sends": float(dropped)}
        counters["stalled_connections"] = float(self._connections.stalled)
        if self._args.peers and now - self._sampled >= SAMPLE_SECONDS:
            self._samples, self._sampled = report(self._core.metrics.registry), now
        self._reporter.numbers(gauges | self._samples[0], counters | self._samples[1])
        return gauges

    def _requests(self) -> dict[str, float]:
        state, dispatcher = self._core.view.state, self._core.dispatcher
        counts = {"live": len(dispatcher), OPEN: self._unfinished(), BEGUN: dispatcher.begun, SUSPECTS: dispatcher.suspects}
        counts |= {INTAKE: -1 if state is None else state.intake, LETS_IN: self._core.view.started}
        return {name: float(count) for name, count in counts.items()}

    async def _drain(self) -> None:
        """Let live requests end, then end them. New ones on open connections are refused, unless others of this port go on: those connections close,
        each with an answer."""
        alone = self._leave_seconds() is not None
        self._core.view.stopping, self._core.view.leaving = not alone, True
        clock = Clock()
        began = clock.now
        lingers = began + LINGER_SECONDS if alone else began
        while (now := clock.look()) < lingers or (self._is_busy(alone) and now - began < self._drain_seconds()):
            self._poll()
            await asyncio.sleep(POLL_SECONDS / 2)
        self._core.view.stopping = True
        if count := len(self._core.dispatcher):
            log.warning("ending %d live sequences", count)
        self._core.dispatcher.fail_all(Problem(status=503, code="shutting_down", message="The server is shutting down.", retry_after=5.0))

    def _is_busy(self, alone: bool) -> bool:
        return len(self._core.dispatcher) > 0 or (alone and self._unfinished() > 0)

    def _unfinished(self) -> int:
        """Requests that were let in: those that a client waits for, and those in the background."""
        return self._core.admitted.count + len(self._core.responses.store.running)

    def _drain_seconds(self) -> float:
        """The supervisor's deadline, less the time to say goodbye; DRAIN_SECONDS while it is not known."""
        state = self._core.view.state
        if state is not None and state.stop_seconds is not None:
            return state.stop_seconds - GOODBYE_SECONDS
        alone = self._leave_seconds()
        return DRAIN_SECONDS if alone is None else alone

    def _leave_seconds(self) -> float | None:
        """How long this frontend alone may take to end."""
        return next((process.leave_seconds for process in self._core.view.processes if process.name == self._args.name), None)

    def _close(self) -> None:
        self._tell(math.inf)  # what has ended since the last time is in the sums of those that go on
        self._inbox.close()
        self._cluster.close()
        for outbox in self._outboxes.values():
            outbox.close()
        if self._tracing is not None:
            self._tracing.close()
        self._watching.close()
        self._reporter.close()
        self._context.term()
