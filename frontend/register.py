"""Requests by the names people know them by: those that run, and the last ones that have ended."""

import time
from dataclasses import dataclass, field

from frontend.cards import Card, card
from frontend.streams import ABORT, Run
from messages.text import Problem

MAX_ENDED = 1000
MAX_ENDED_CHOICES = 20_000
MAX_DIGITS = 19
"""Of the key of a sequence."""
CANCELLED = Problem(status=499, code="cancelled", message="The request was cancelled by DELETE /v1/requests.")


@dataclass(eq=False)
class Entry:
    """A running request. `id` is that of its response, `request_id` its X-Request-Id, `key` the name of the API key, `created` UNIX seconds."""

    id: str
    request_id: str
    endpoint: str
    stream: bool
    priority: int
    run: Run
    key: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def cancel(self) -> None:
        """End it: its client is told, with CANCELLED. What has ended already stays as it is."""
        if self.run.live:
            self.run.fail(CANCELLED, ABORT)


class Register:
    """`live` by response id, in order of arrival. At most `max_ended` requests, and about `max_choices` choices of them, are remembered."""

    def __init__(self, max_ended: int = MAX_ENDED, max_choices: int = MAX_ENDED_CHOICES) -> None:
        self.live: dict[str, Entry] = {}
        self._ended: dict[str, Card] = {}
        self._choices = 0
        self._max_ended = max_ended
        self._max_choices = max_choices

    def enter(self, entry: Entry) -> None:
        self.live[entry.id] = entry

    def leave(self, entry: Entry) -> None:
        """The request is over; nothing of its run is kept."""
        del self.live[entry.id]
        ended = self._ended[entry.id] = card(entry, {}, time.monotonic())
        self._choices += len(ended.choices)
        while len(self._ended) > 1 and (len(self._ended) > self._max_ended or self._choices > self._max_choices):
            oldest = self._ended.pop(next(iter(self._ended)))
            self._choices -= len(oldest.choices)

    def find(self, name: str, owner: str | None = None) -> Entry | Card | None:
        """By response id, else by X-Request-Id, else by the `sequence` of a choice: the newest that runs, or else that has ended.

        `owner`: only those of the key of this name.
        """
        found = self.live.get(name) or self._ended.get(name)
        if found is not None:
            return found if _belongs(found, owner) else None
        known: list[Entry | Card] = [*reversed(self.live.values()), *reversed(self._ended.values())]
        return next((request for request in known if request.request_id == name and _belongs(request, owner)), None) or self._with(name, owner)

    def _with(self, sequence: str, owner: str | None) -> Entry | Card | None:
        if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= MAX_DIGITS):
            return None
        key = int(sequence)
        runs = (entry for entry in self.live.values() if key in entry.run.live and _belongs(entry, owner))
        ended = (card for card in self._ended.values() if _belongs(card, owner) and any(choice.sequence == sequence for choice in card.choices))
        return next(runs, None) or next(ended, None)

    def newest(self, owner: str | None = None) -> list[Entry]:
        """Those with a sequence that runs, the newest first; `owner` as in `find`."""
        return [entry for entry in reversed(self.live.values()) if entry.run.live and _belongs(entry, owner)]


def _belongs(request: Entry | Card, owner: str | None) -> bool:
    return owner is None or request.key == owner
