"""The shape of a session: what the worker has, and the context limit that follows from it."""

from dataclasses import dataclass

from messages.result import Attached
from scheduler.errors import ContractError


@dataclass(frozen=True, slots=True)
class Geometry:
    """Counts of slots, blocks, tokens. `context` is the effective limit of prompt + generated tokens of one sequence, `wanted` what it would
    be with more KV memory.
    """

    slots: int
    blocks: int
    block_size: int
    table_width: int
    max_step_tokens: int
    context: int
    wanted: int
    vocab: int

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions` tokens of KV."""
        return -(-positions // self.block_size)


def geometry_of(attached: Attached, max_context: int | None) -> Geometry:
    """The effective geometry; the context is lowered until one sequence of that length fits the pool. Raises ContractError."""
    sizes = (attached.blocks, attached.block_size, attached.max_slots, attached.max_blocks_per_slot, attached.max_step_tokens, attached.vocab)
    if min(sizes) < 1 or attached.context < 2:
        raise ContractError(f"a worker attached with an impossible geometry: {attached}")
    width = min(attached.max_blocks_per_slot, attached.blocks)
    wanted = attached.context if max_context is None else min(attached.context, max_context)
    return Geometry(
        slots=attached.max_slots,
        blocks=attached.blocks,
        block_size=attached.block_size,
        table_width=attached.max_blocks_per_slot,
        max_step_tokens=attached.max_step_tokens,
        context=min(wanted, width * attached.block_size),
        wanted=wanted,
        vocab=attached.vocab,
    )
