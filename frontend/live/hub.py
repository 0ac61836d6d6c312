"""Between the cluster and the open pages: listens to the scheduler while there is a page, and keeps the history always."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import zmq

from frontend.cluster import ClusterView
from frontend.errors import ApiError
from frontend.live import frames
from frontend.live.history import Buckets, History, column_of_one
from frontend.live.processes import Processes
from frontend.metrics import Metrics
from frontend.register import Register
from messages.live import LIVE_FEED, LiveView
from transport.columns import ColumnError
from transport.sockets import Subscription

log = logging.getLogger(__name__)

MOST_VIEWERS = 64
"""Open pages of administrators, who are everybody where there are no keys, and as many again of all other keys together."""
MOST_OF_A_KEY = 8
SAMPLE_SECONDS = 1.0
LISTEN_SECONDS = 0.1
RETRY_SECONDS = 10.0
TOO_MANY = "too_many_viewers"


@dataclass(eq=False)
class Viewer:
    """One open page. `owner`: whose sequences it may see, None for all. Of each kind of event the newest waits until it can be written."""

    owner: str | None
    waiting: dict[str, bytes] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, kind: str, data: bytes) -> None:
        self.waiting[kind] = data
        self.wake.set()

    def taken(self) -> bytes:
        """All that waits."""
        data, self.waiting = b"".join(self.waiting.values()), {}
        self.wake.clear()
        return data


class Hub:
    """`run` for as long as the process serves."""

    def __init__(self, run_dir: str, view: ClusterView, metrics: Metrics, register: Register) -> None:
        self._run_dir = run_dir
        self._view = view
        self._metrics = metrics
        self._register = register
        self._history = History()
        self._processes = Processes()
        self._viewers: set[Viewer] = set()
        self._listening: asyncio.Task[None] | None = None
        self._map = b""
        self.closed = False

    def join(self, owner: str | None) -> Viewer:
        """A new page. Raises ApiError: 429 when the key of this name has its share of them open, 503 when there are too many."""
        if owner is not None and sum(viewer.owner == owner for viewer in self._viewers) >= MOST_OF_A_KEY:
            raise ApiError(429, TOO_MANY, f"This API key has {MOST_OF_A_KEY} live pages open; close one.", retry_after=RETRY_SECONDS)
        if sum((viewer.owner is None) == (owner is None) for viewer in self._viewers) >= MOST_VIEWERS:
            raise ApiError(503, TOO_MANY, f"{MOST_VIEWERS} live pages are open; close one.", retry_after=RETRY_SECONDS)
        viewer = Viewer(owner)
        viewer.offer("history", frames.event("history", self._history.columns()))
        if self._map:
            viewer.offer("blocks", self._map)
        self._viewers.add(viewer)
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self._listening is not None:
            self._listening.cancel()
            self._listening = None
            self._map = b""

    def close(self) -> None:
        """Every page's stream ends."""
        self.closed = True
        for viewer in self._viewers:
            viewer.wake.set()

    async def run(self) -> None:
        """Take a sample every second, for ever."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self._sample()

    async def _sample(self) -> None:
        scheduler, now = self._view.scheduler, time.time()
        if scheduler is not None:
            first, inter = (_buckets(family) for family in self._metrics.latencies())
            sample = self._history.add(now, scheduler.gauges, scheduler.lifetime(), first, inter)
            self._tell("sample", frames.event("sample", column_of_one(now, sample)))
        state = self._view.state
        if state is not None and self._viewers:
            lines = await asyncio.to_thread(self._processes.lines, state, time.monotonic())
            for admins in (True, False):
                self._tell("processes", frames.cluster(state, lines, admins), admins)

    def _tell(self, kind: str, data: bytes, admins: bool | None = None) -> None:
        for viewer in self._viewers:
            if admins is None or admins == (viewer.owner is None):
                viewer.offer(kind, data)

    async def _listen(self) -> None:
        """While anybody looks. The scheduler makes views because somebody listens."""
        context: zmq.Context[Any] = zmq.Context()
        feed: Subscription[LiveView] = Subscription(context, self._run_dir, LIVE_FEED, LiveView)
        try:
            while True:
                view = feed.latest()
                if view is not None:
                    self._show(view)
                await asyncio.sleep(LISTEN_SECONDS)
        finally:
            feed.close()
            context.term()

    def _show(self, view: LiveView) -> None:
        try:
            scenes = {owner: frames.scene(view, self._own(owner)) for owner in {viewer.owner for viewer in self._viewers}}
        except ColumnError as error:
            log.warning("a view of the scheduler was dropped: %s", error)
            return
        for viewer in self._viewers:
            viewer.offer("scene", scenes[viewer.owner])
        blocks = frames.event("blocks", frames.BlocksMap(view.blocks, view.blocks_map))
        if blocks != self._map:
            self._map = blocks
            self._tell("blocks", blocks)

    def _own(self, owner: str | None) -> set[int] | None:
        """The keys of the sequences that `owner` may see; None: all."""
        if owner is None:
            return None
        return {key for entry in self._register.live.values() if entry.key == owner for key in entry.run.live}


def _buckets(family: Any) -> Buckets:
    """Of one histogram of the metrics, of all models together."""
    counts: dict[float, float] = {}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            counts[bound] = counts.get(bound, 0.0) + sample.value
    return sorted(counts.items())
