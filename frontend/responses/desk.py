"""What one frontend has for /v1/responses: what it keeps, its journal, and the way to those that other frontends keep."""

import asyncio
import re

from frontend.responses.journal import Journal
from frontend.responses.links import Links
from frontend.responses.store import Kept, Store

_ID = re.compile(r"resp_([0-9a-f]{2})[0-9a-f]{32}")

AT_ONCE = 256
"""Background responses that the engine has at a time, of one frontend: the others wait here, so that its line has room for clients who wait."""


class Desk:
    """`name` is this frontend's, `keeper` that of the one with the journal ("": there is none). Its ids say where a response is kept."""

    def __init__(self, name: str = "frontend0", keeper: str = "", links: Links | None = None) -> None:
        self.name = name
        self.keeper = keeper
        self.links = Links() if links is None else links
        self.id_prefix = f"resp_{_number(name):02x}"
        self.store = Store(self._lost)
        self.journal: Journal | None = None
        self.places = asyncio.Semaphore(AT_ONCE)

    def _lost(self, kept: Kept) -> None:
        if kept.durable and self.journal is not None:
            self.journal.forget(kept.id)

    def elsewhere(self, name: str) -> str | None:
        """Which other frontend keeps the response of this id; None when this one does, or nobody."""
        found = _ID.fullmatch(name)
        if found is None:
            return None
        return next((peer for peer in self.links.peers if _number(peer) == int(found[1], 16)), None)


def _number(name: str) -> int:
    digits = re.search(r"[0-9]+$", name)
    return 0 if digits is None else int(digits[0])
