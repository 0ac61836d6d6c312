"""Which request to blame when the processes that it goes through keep dying: suspects run apart from all others, half of them at a time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frontend.cluster import ClusterView

if TYPE_CHECKING:
    from frontend.streams import Run

HEARD = -1
"""The strikes of a request of which tokens have come since it was sent: the next death says nothing of it."""
SUSPECT, ALONE = 2, 3
"""Deaths with nothing come of it in between that make a request a suspect; and so many more in which nothing else was out, that condemn it."""
TRIAL_SECONDS = 15.0
"""How long all others wait for a trial at most. A request that ends a process later than that is taken for one that gets on."""
SETTLE_SECONDS = 1.0
"""Longer than until other frontends have heard that this one has suspects."""
SUSPECTS = "suspects"
"""The gauge by which they hear it."""


class Search:
    """The trial that is under way. Times are in seconds of the view's clock.

    A death is held against a request when nothing has come of it since it was sent (`Run.strikes`). Of the suspects with the most strikes half are
    sent, and nothing else until something has come of each of them or has ended; when their process dies, half of these are next. So n suspects
    cost at most log2(n) deaths, rounded up, and ALONE more for the one that is left. Of several frontends one searches at a time.
    """

    def __init__(self, view: ClusterView, name: str) -> None:
        self._view = view
        self._name = name
        self._group: list[Run] = []
        self._waiting = 0
        self._since = self._died = 0.0

    def died(self, dead: Sequence["Run"], now: float) -> None:
        """These were out when a process on their way died."""
        for run in dead:
            if run.strikes == HEARD:
                run.lone_deaths = 0
            elif len(dead) == 1 and run.strikes >= SUSPECT:
                run.lone_deaths += 1
            run.strikes += 1
        gone = set(dead)
        self._group = [run for run in self._group if run not in gone]
        self._died = now

    def _on_trial(self, now: float) -> bool:
        return now - self._since < TRIAL_SECONDS and any(run.live and run.route is not None and run.strikes != HEARD for run in self._group)

    def holds(self, now: float) -> bool:
        """New requests have to wait."""
        return self._on_trial(now) or (self._waiting > 0 and self._is_our_turn())

    def suspects(self, now: float) -> int:
        """How many are searched, or wait for it."""
        return self._waiting + (len(self._group) if self._on_trial(now) else 0)

    def next(self, runs: Sequence["Run"], now: float) -> list["Run"]:
        """Which of those that wait may be sent, to be told with `sent`."""
        waiting = [run for run in runs if run.route is None and run.live]
        suspects = [run for run in waiting if run.strikes >= SUSPECT]
        self._waiting = len(suspects)
        if self._on_trial(now):
            return []
        self._group = []
        if not suspects or not self._is_our_turn():
            return [run for run in waiting if run.strikes < SUSPECT]
        return _half(suspects) if not self._view.has_peers or now - self._died >= SETTLE_SECONDS else []

    def sent(self, run: "Run", now: float) -> None:
        """It goes out."""
        if run.strikes >= SUSPECT:
            self._group.append(run)
            self._waiting, self._since = self._waiting - 1, now
        run.strikes = max(run.strikes, 0)

    def _is_our_turn(self) -> bool:
        """No frontend with a name before this one's searches."""
        return not any(name < self._name and number for name, number in self._view.told_by_peers(SUSPECTS).items())


def _half(suspects: list["Run"]) -> list["Run"]:
    most = max(run.strikes for run in suspects)
    likeliest = [run for run in suspects if run.strikes == most]
    return likeliest[: (len(likeliest) + 1) // 2]
