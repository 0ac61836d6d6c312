"""What has happened to sequences, for people who ask: a few moments of each, kept for a while after its end."""

from collections import OrderedDict
from collections.abc import Iterator

from messages.explain import COMPUTED, GOT_SLOT, INTERRUPTED, MOST_MOMENTS, OMITTED, PREEMPTED, Life, Moment

MOST_ENDED = 512


class Moments:
    """Of one sequence, at most MOST_MOMENTS: when there are more, chunks are told two as one, and if none can be, the oldest half is left out."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[Moment] = []

    def life(self, key: int) -> Life:
        return Life(key=key, moments=self._kept.copy())

    def got_slot(self, at: float, slot: int, cached: int) -> None:
        self._note(Moment(what=GOT_SLOT, at=at, slot=slot, tokens=cached))

    def computed(self, at: float, tokens: int) -> None:
        self._note(Moment(what=COMPUTED, at=at, tokens=tokens))

    def preempted(self, at: float, generated: int) -> None:
        self._note(Moment(what=PREEMPTED, at=at, tokens=generated))

    def interrupted(self, at: float, generated: int) -> None:
        self._note(Moment(what=INTERRUPTED, at=at, tokens=generated))

    def _note(self, moment: Moment) -> None:
        if len(self._kept) == MOST_MOMENTS:
            self._kept = list(_in_pairs(self._kept))
        if len(self._kept) == MOST_MOMENTS:
            self._kept = _without_oldest(self._kept)
        self._kept.append(moment)


def _in_pairs(moments: list[Moment]) -> Iterator[Moment]:
    """Every two chunks that follow each other as one."""
    first: Moment | None = None
    for moment in moments:
        if first is not None and moment.what == COMPUTED:
            tokens, steps = first.tokens + moment.tokens, first.steps + moment.steps
            yield Moment(what=COMPUTED, at=first.at, tokens=tokens, steps=steps, until=moment.at if moment.until is None else moment.until)
            first = None
            continue
        if first is not None:
            yield first
        first = moment if moment.what == COMPUTED else None
        if first is None:
            yield moment
    if first is not None:
        yield first


def _without_oldest(moments: list[Moment]) -> list[Moment]:
    old, rest = moments[: MOST_MOMENTS // 2], moments[MOST_MOMENTS // 2 :]
    steps = sum(moment.steps for moment in old)
    return [Moment(what=OMITTED, at=old[0].at, tokens=0, steps=steps, until=old[-1].at), *rest]


class Ended:
    """The moments of the last sequences that have ended, at most MOST_ENDED."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[int, Moments] = OrderedDict()

    def keep(self, key: int, moments: Moments) -> None:
        self._by_key[key] = moments
        self._by_key.move_to_end(key)  # a key may come again after its end
        if len(self._by_key) > MOST_ENDED:
            self._by_key.popitem(last=False)

    def find(self, key: int) -> Moments | None:
        return self._by_key.get(key)
