"""From the scheduler to the frontends with somebody who looks: slots, line and blocks as they are, a few times a second."""

from typing import Annotated

import msgspec

from messages.explain import Standing

LIVE_FEED = "live"
"""The name of the feed in the run directory."""
MOST_LINE, MOST_BRANCHES = 256, 6
MAX_COLUMN_BYTES = 1 << 26

# Values of the `phase` column.
PREFILL, DECODE, PAUSED = 1, 2, 3
# Values of two bits each in `LiveView.blocks_map`.
BLOCK_FREE, BLOCK_RUNNING, BLOCK_CACHED, BLOCK_SHARED = range(4)

Column = Annotated[bytes, msgspec.Meta(max_length=MAX_COLUMN_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class LiveRows(msgspec.Struct, frozen=True, kw_only=True):
    """Columns, one value for each running row, by slot ascending.

    `slot` i32; `key` i64; `phase` u8 (PAUSED: no step since the view before has touched it); tokens as i32: `prompt`, `length` (prompt +
    generated), `computed` (in blocks, or in a plan sent), `limit` (length at which it ends), `cached` (of its prompt, at its first admission);
    `preemptions` i32; `age` f32: seconds since it arrived.
    """

    slot: Column
    key: Column
    phase: Column
    prompt: Column
    length: Column
    computed: Column
    limit: Column
    cached: Column
    preemptions: Column
    age: Column


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One branch of the prefix tree, from its top: `blocks` in it, and the `users` that its first block has now."""

    blocks: Count
    users: Count


class LiveView(msgspec.Struct, frozen=True, kw_only=True, tag="live_view"):
    """Everything at `time` (UNIX seconds). Without a worker there are no slots and no blocks.

    `line`: the next in the line, at most MOST_LINE of `waiting`, and with `waited` (f32) for how long each of them has waited; both may be
    older than the rest when the line is long. `blocks_map`: two bits for each block, the first block in the lowest; the same block has the same
    place always. `branches`: the largest. Both are up to a second old.
    """

    time: float
    slots: Count
    blocks: Count
    block_size: Count
    rows: LiveRows
    waiting: Count
    waiting_tokens: Count
    line: Annotated[list[Standing], msgspec.Meta(max_length=MOST_LINE)]
    waited: Column
    blocks_map: Column
    branches: Annotated[list[Branch], msgspec.Meta(max_length=MOST_BRANCHES)]
