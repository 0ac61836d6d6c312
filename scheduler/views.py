"""What people see of the scheduler: read from its state a few times a second while somebody looks. Nothing is changed."""

import heapq
import time

import numpy as np

from messages.explain import Standing
from messages.live import BLOCK_CACHED, BLOCK_RUNNING, BLOCK_SHARED, DECODE, MOST_BRANCHES, MOST_LINE, PAUSED, PREFILL, Branch, LiveRows, LiveView
from scheduler.explain import Scene, ahead, standings
from scheduler.session import Session
from scheduler.slots import RUNNING
from transport.columns import I64, pack_f32, pack_i32, pack_i64, pack_u8

MOST_SORTED = 4096
"""A longer line is counted and not looked through: nothing but its first ones would be shown, and a step would wait for it."""
LINE_SECONDS = 0.002
"""For each request in line: a long one is looked through the less often."""
MAP_SECONDS = 1.0
_NO_ROWS = LiveRows(slot=b"", key=b"", phase=b"", prompt=b"", length=b"", computed=b"", limit=b"", cached=b"", preemptions=b"", age=b"")
_PLACES = np.asarray([0, 2, 4, 6], dtype=np.uint8)


class Views:
    """Views one after the other; what is costly is made less often than the rest and shown again meanwhile."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._step = 0
        self._touched: I64 = np.zeros(0, dtype=np.int64)
        self._line: list[Standing] = []
        self._waited = b""
        self._map = b""
        self._branches: list[Branch] = []
        self._line_due = self._map_due = 0.0

    def view(self, scene: Scene, now: float) -> LiveView:
        """The scene at `now` (the engine's clock)."""
        session = scene.session
        if now >= self._line_due:
            self._look_at_line(scene, now)
        if session is not self._session:
            self._session, self._step, self._map, self._branches, self._map_due = session, 0, b"", [], 0.0
            self._touched = np.zeros(0 if session is None else session.geometry.slots, dtype=np.int64)
        if session is not None and now >= self._map_due:
            self._look_at_blocks(session, now)
        return LiveView(
            time=time.time(),
            slots=0 if session is None else session.geometry.slots,
            blocks=0 if session is None else session.geometry.blocks,
            block_size=0 if session is None else session.geometry.block_size,
            rows=_NO_ROWS if session is None else self._rows(session, now),
            waiting=len(scene.waiting),
            waiting_tokens=scene.waiting.tokens,
            line=self._line,
            waited=self._waited,
            blocks_map=self._map,
            branches=self._branches,
        )

    def _rows(self, session: Session, now: float) -> LiveRows:
        slots = session.slots
        rows = np.flatnonzero(slots.state == RUNNING)
        phase = np.where(slots.decoding[rows], DECODE, PREFILL)
        if session.next_step > self._step:
            phase[slots.last_step[rows] == self._touched[rows]] = PAUSED
        self._step, self._touched = session.next_step, slots.last_step.copy()
        requests = [request for request in slots.requests if request is not None]
        return LiveRows(
            slot=pack_i32(rows),
            key=pack_i64(slots.key[rows]),
            phase=pack_u8(phase),
            prompt=pack_i32(slots.prompt_len[rows]),
            length=pack_i32(slots.length[rows]),
            computed=pack_i32(slots.planned[rows]),
            limit=pack_i32(slots.limit[rows]),
            cached=pack_i32([request.cached for request in requests]),
            preemptions=pack_i32([request.preemptions for request in requests]),
            age=pack_f32([now - request.arrived for request in requests]),
        )

    def _look_at_line(self, scene: Scene, now: float) -> None:
        number = len(scene.waiting)
        self._line_due = now + LINE_SECONDS * number
        self._line, self._waited = [], b""
        if 0 < number <= MOST_SORTED:
            waiting = scene.waiting.all()
            line = ahead(waiting)
            first = heapq.nsmallest(MOST_LINE, waiting, key=lambda request: line[request.key][0])
            self._line = standings(first, line, scene)
            self._waited = pack_f32([now - request.arrived for request in first])

    def _look_at_blocks(self, session: Session, now: float) -> None:
        self._map_due = now + MAP_SECONDS
        pool = session.pool
        refs, kept = pool.blocks.refs, pool.kept
        states = np.zeros(-(-refs.size // 4) * 4, dtype=np.uint8)
        states[: refs.size] = np.where(refs > 1, BLOCK_SHARED, np.where(refs == 1, BLOCK_RUNNING, kept * BLOCK_CACHED))
        self._map = np.bitwise_or.reduce(states.reshape(-1, 4) << _PLACES, axis=1).astype(np.uint8).tobytes()
        largest = heapq.nlargest(MOST_BRANCHES, pool.tree.branches.items(), key=lambda branch: branch[1])
        self._branches = [Branch(blocks=blocks, users=int(refs[top])) for top, blocks in largest]
