"""What the page is sent: events of a stream, each encoded once for all who may see the same."""

from collections.abc import Collection

import msgspec
import numpy as np
from numpy.typing import NDArray

from messages.cluster import ClusterState
from messages.explain import Standing
from messages.live import Branch, LiveRows, LiveView
from transport.columns import I32, I64, pack_f32, pack_i32, pack_i64, pack_u8, view_f32, view_i32, view_i64

_encode = msgspec.json.Encoder().encode
_NUMBERS = ("prompt", "length", "computed", "limit", "cached", "preemptions", "age")
"""Columns of four bytes a row; 0 is the same in all of them."""


class Hello(msgspec.Struct, kw_only=True):
    """`admin`: everything is shown, and may be ended; `keys`: requests need an API key here."""

    model: str
    version: str
    frontend: str
    admin: bool
    keys: bool


class Scene(msgspec.Struct, kw_only=True):
    """A LiveView for a page. Columns are base64; `line_key` (i64) has the keys that JavaScript's numbers cannot hold. `mine` u8: whose rows these
    are to see; of the others the columns of numbers are 0."""

    time: float
    slots: int
    blocks: int
    block_size: int
    rows: LiveRows
    mine: bytes
    waiting: int
    waiting_tokens: int
    line: list[Standing]
    line_key: bytes
    waited: bytes
    branches: list[Branch]


class BlocksMap(msgspec.Struct):
    blocks: int
    map: bytes


class ClusterLine(msgspec.Struct, kw_only=True):
    """`model`: what is served now; `reason`: why it is not ready, or ""; `draining`: new requests are refused."""

    model: str
    phase: str
    reason: str
    draining: bool
    processes: "list[ProcessLine]"


class ProcessLine(msgspec.Struct, kw_only=True):
    """One process. `pid` for administrators only; `cpu` in cores, over the last second; `uptime` in seconds, None while it is dead."""

    name: str
    phase: str
    detail: str
    pid: int | None
    uptime: float | None
    restarts: int
    cpu: float | None
    memory: int


def event(name: str, body: object) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(body))


def scene(view: LiveView, own: Collection[int] | None = None) -> bytes:
    """For who may see the sequences of the keys in `own`, or with None all. Raises transport.columns.ColumnError."""
    rows, line, waited, branches = view.rows, view.line, view.waited, view.branches
    keys = view_i64(rows.key)
    numbers = {name: view_i32(getattr(rows, name), keys.size) for name in _NUMBERS}
    mine = np.ones(keys.size, dtype=np.bool_)
    if own is not None:
        mine = np.isin(keys, np.asarray(list(own), dtype=np.int64))
        rows, branches = _masked(rows, keys, numbers, mine), []
        line = [one if one.key in own else _hidden(one) for one in line]
        waited = pack_f32([seconds if one.key else 0.0 for one, seconds in zip(line, view_f32(waited, len(line)), strict=True)])
    shown = Scene(
        time=view.time,
        slots=view.slots,
        blocks=view.blocks,
        block_size=view.block_size,
        rows=rows,
        mine=pack_u8(mine),
        waiting=view.waiting,
        waiting_tokens=view.waiting_tokens,
        line=line,
        line_key=pack_i64([one.key for one in line]),
        waited=waited,
        branches=branches,
    )
    return event("scene", shown)


def _masked(rows: LiveRows, keys: I64, numbers: dict[str, I32], mine: NDArray[np.bool_]) -> LiveRows:
    """Columns whose values are 0 where they are somebody else's."""
    hidden = {name: pack_i32(np.where(mine, column, 0)) for name, column in numbers.items()}
    return msgspec.structs.replace(rows, key=pack_i64(np.where(mine, keys, 0)), **hidden)


def _hidden(one: Standing) -> Standing:
    """Its place and what it waits for, which say nothing of it."""
    return Standing(key=0, state=one.state, prompt_tokens=0, place=one.place, waits_for=one.waits_for)


def cluster(state: ClusterState, lines: list[ProcessLine], admin: bool) -> bytes:
    """Process ids are for administrators."""
    shown = lines if admin else [msgspec.structs.replace(line, pid=None) for line in lines]
    return event("processes", ClusterLine(model=state.model, phase=state.phase, reason=state.reason, draining=state.draining, processes=shown))
