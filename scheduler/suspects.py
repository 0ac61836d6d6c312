"""Which row to blame when steps keep failing: suspects run apart from the others, half of them at a time."""

STRIKES = 2
"""Failures in a row with the same rows in flight, after which these run apart."""
PROOF = 2
"""Tokens in one session that clear a row: one comes from its prompt chunks, one from a decode step."""
ALONE = 3
"""Failures of a row with nothing else in flight, and without PROOF between them, that condemn it. Whether the row did it or somebody who kills the
worker each time cannot be told apart, and a row that is always given another chance would keep everybody from being served."""
MOST_REST = 30.0
NO_REST, REST, RESTED = range(3)


class Suspects:
    """Rows that were in flight at every failure since one of them got on, and the search for the one that is to blame.

    A search is a series of sessions, each begun with `begin`. In a trial only the `_group` may run, one half of the suspects; when it gets on,
    it is cleared, and the other half is next; when it fails, the others are let go. So n suspects cost at most log2(n) failures more, rounded up, and
    ALONE - 1 for the row that is left: nobody is condemned who has not failed alone. After a failed trial all but the suspects run for as long as
    they had to wait for it, MOST_REST seconds at most; what fails meanwhile is searched later. Times are in seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._need: dict[int, int] = {}
        self._alone: dict[int, int] = {}
        self._strikes = 0
        self._search: list[int] = []
        self._later: set[int] = set()
        self._group: set[int] = set()
        self._rest = NO_REST
        self._waiting_since = 0.0
        self._rest_until = 0.0

    def __bool__(self) -> bool:
        """Somebody is watched."""
        return bool(self._need)

    @property
    def trial(self) -> bool:
        """In this session suspects run apart."""
        return bool(self._group)

    @property
    def lone(self) -> bool:
        """This session is the trial of one row."""
        return len(self._group) == 1

    def holds(self, key: int) -> bool:
        """This row may not run in the present session."""
        return key not in self._group if self._group else key in self._search or key in self._later

    def failed(self, keys: set[int], company: bool = False) -> int | None:
        """The session failed with these rows in flight, at least one, and in the `company` of some that have ended since, which may be to blame.

        Returns the row to fail, if one is found.
        """
        common = self._need.keys() & keys
        if self._group:
            self._search, self._need = sorted(common or keys), {}
            self._rest = REST
        elif self._rest:
            self._later |= keys
            self._rest = NO_REST
        else:
            self._strike(common, keys)
        watched = {*self._need, *self._search, *self._later}
        self._alone = {key: times for key, times in self._alone.items() if key in watched}
        return self._condemned(keys) if len(keys) == 1 and not company else None

    def _strike(self, common: set[int], keys: set[int]) -> None:
        self._strikes = self._strikes + 1 if common else 1
        self._need = dict.fromkeys(common or keys, PROOF)
        if self._strikes == STRIKES:
            self._strikes = 0
            self._search = sorted(self._need)

    def _condemned(self, keys: set[int]) -> int | None:
        [key] = keys
        self._alone[key] = self._alone.get(key, 0) + 1
        if self._alone[key] < ALONE:
            return None
        self.ended(key)
        return key

    def progressed(self, keys: list[int]) -> None:
        """These rows got a token each."""
        for key in self._need.keys() & keys:
            self._need[key] -= 1
            if not self._need[key]:
                self.ended(key)

    def ended(self, key: int) -> None:
        """This row is over or cleared."""
        self._need.pop(key, None)
        self._alone.pop(key, None)
        self._later.discard(key)
        if key in self._search:
            self._search.remove(key)

    def begin(self, live: int, now: float) -> None:
        """A new session begins, with so many live rows in all."""
        before, self._group = self._group, set()
        if not self._search:
            self._search, self._later = sorted(self._later), set()
        if self._rest == RESTED or live <= len(self._later.union(self._search)):
            self._rest = NO_REST
        if not self._search:
            self._need = dict.fromkeys(self._need, PROOF)
            return
        self._need = {}
        if not self._rest:
            self._group = set(self._search[: (len(self._search) + 1) // 2])
            self._need = dict.fromkeys(self._group, PROOF)
            self._waiting_since = self._waiting_since if before else now

    def attached(self, now: float) -> None:
        """The session can run."""
        self._rest_until = now + min(MOST_REST, now - self._waiting_since)

    def finished(self, now: float, idle: bool) -> bool:
        """The session has served its purpose and another one is to begin. `idle`: it has nothing to compute."""
        if self._group:
            return not self._need
        if not self._search and not self._later:
            self._rest = NO_REST
        if self._rest and (idle or now >= self._rest_until):
            self._rest = RESTED
        return self._rest == RESTED
