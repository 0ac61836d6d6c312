"""What has happened to the choices of a request, as its card tells it to those who ask for it."""

from collections.abc import Mapping

import msgspec

from frontend.cards import Card
from messages.explain import Life, Moment


def with_lives(card: Card, lives: Mapping[str, Life]) -> Card:
    """`lives` by the `sequence` of a choice; null for a choice that has none, or of which only what came after another life is known."""
    choices = [msgspec.structs.replace(choice, life=None if choice.resumed else _told(lives.get(choice.sequence))) for choice in card.choices]
    return msgspec.structs.replace(card, choices=choices)


def _told(life: Life | None) -> list[Moment] | None:
    return None if life is None else [_rounded(moment) for moment in life.moments]


def _rounded(moment: Moment) -> Moment:
    """To tenths of a millisecond."""
    return msgspec.structs.replace(moment, at=round(moment.at, 4), until=None if moment.until is None else round(moment.until, 4))
