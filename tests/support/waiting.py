"""Waiting for a condition that another process or thread brings about."""

import asyncio
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], what: str = "", seconds: float = 30.0) -> None:
    """Fails, saying `what`, when it is not so after `seconds`."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, what or "it has not come"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """As `wait_until`, while other tasks go on. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)
