"""What the scheduler reports as numbers now."""

from scheduler.live import Live
from scheduler.session import Session
from scheduler.waiting import Waiting


def gauges(session: Session | None, waiting: Waiting, live: Live) -> dict[str, float]:
    """blocks == blocks_free + blocks_cached + blocks_retiring + blocks_used."""
    slots = slots_free = blocks = free = cached = retiring = 0
    if session is not None:
        slots, slots_free = session.geometry.slots, session.slots.free
        pool = session.pool
        blocks, free, cached, retiring = session.geometry.blocks, pool.blocks.free, pool.unused, pool.blocks.retiring
    return {
        "running": len(live) - len(waiting),
        "waiting": len(waiting),
        "waiting_tokens": waiting.tokens,
        "live_tokens": live.reserved,
        "slots": slots,
        "slots_used": slots - slots_free,
        "blocks": blocks,
        "blocks_free": free,
        "blocks_cached": cached,
        "blocks_retiring": retiring,
        "blocks_used": blocks - free - cached - retiring,
    }
