"""What a null worker remembers: its simulated KV memory, and what each row must find in it."""

import zlib
from array import array
from collections.abc import Set
from dataclasses import dataclass, field

POISON = -7
CELL_BYTES = 8
SPACE_SHIFT = 48
"""Rows whose seeds differ from this bit on must never share a block (a test gives each cache namespace its own number)."""
NO_SPACE = -1


class ContractBrokenError(AssertionError):
    """The scheduler sent a plan that breaks the contract."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractBrokenError(what)


def cells(tokens: list[int], checksum: int) -> tuple[bytes, int]:
    """KV of `tokens` that follow a history of `checksum`, CELL_BYTES each; and the checksum after them."""
    values = array("q")
    for token in tokens:
        checksum = zlib.crc32(token.to_bytes(4, "little"), checksum)
        values.append((checksum & 0x7FFF_FFFF) << 32 | token)
    return values.tobytes(), checksum


@dataclass(slots=True)
class Row:
    """What a worker keeps of one slot, and what it must find in KV memory.

    `content`: the cells of positions 0..`length`; `checksum`: of their tokens. `claimed`: table entries that are shared or were found fit
    for writing. `copied`: blocks that are private copies. `seen`: tokens named for the penalties.
    `worded`: it has words that must not be finished; `grammar`: the number of what it follows; `scored`: logprobs of its prompt were asked for.
    """

    seed: int
    prompt_len: int
    logprobs: int
    penalties: bool
    table: list[int] = field(default_factory=list)
    length: int = 0
    last: int | None = None
    content: bytearray = field(default_factory=bytearray)
    checksum: int = 0
    claimed: int = 0
    copied: set[int] = field(default_factory=set)
    seen: bytes | None = None
    worded: bool = False
    grammar: int | None = None
    scored: bool = False

    @property
    def follows(self) -> bool:
        """What it may say depends on what it has said."""
        return self.worded or self.grammar is not None

    @property
    def space(self) -> int:
        return self.seed >> SPACE_SHIFT


class Memory:
    """KV blocks: their cells, whose namespace they are of, how many tables name them, how many plans in flight may touch them."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.cells = [bytearray(array("q", [POISON] * block_size).tobytes()) for _ in range(blocks)]
        self.size = block_size
        self.space = [NO_SPACE] * blocks
        self.users = [0] * blocks
        self.touched = [0] * blocks

    def read(self, table: list[int], length: int) -> bytes:
        """The cells of positions 0..`length` of a row."""
        return b"".join([self.cells[block] for block in table])[: length * CELL_BYTES]

    def swap(self, row: Row, slot: int, index: int, block: int) -> bool:
        """A row may be made to use another block that holds the very same part of its history; False when the entry is a new one."""
        if index >= len(row.table):
            return False
        part = slice(index * self.size * CELL_BYTES, (index + 1) * self.size * CELL_BYTES)
        require(block not in row.table, f"block {block} twice in the table of slot {slot}")
        require(part.stop <= len(row.content) and index < row.claimed, f"entry {index} of slot {slot} is changed before it is complete")
        require(self.cells[block] == row.content[part], f"entry {index} of slot {slot} is changed to other content")
        require(self.space[block] == row.space, f"slot {slot} is made to share a block of another namespace")
        self.users[row.table[index]] -= 1
        self.users[block] += 1
        row.table[index] = block
        return True

    def claim(self, row: Row, slot: int, index: int, sources: Set[int]) -> None:
        """The row is about to write to its block `index`; `sources` are copied in the same plan."""
        block = row.table[index]
        require(self.users[block] == 1, f"slot {slot} writes to block {block}, which {self.users[block]} rows hold")
        if index >= row.claimed:
            require(self.touched[block] == 0, f"slot {slot} writes to block {block}, which a plan in flight touches")
            require(block not in sources, f"slot {slot} writes to block {block}, which is copied in the same plan")
            row.claimed = index + 1
            self.space[block] = row.space
