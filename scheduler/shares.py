"""Fair shares between tenants: deficit round robin over tokens (Shreedhar and Varghese, 1995)."""

from collections.abc import Collection, Mapping

QUANTUM = 1024


class Shares:
    """Each tenant has a credit in tokens. Who has some may have a request admitted; prompt tokens are charged then, generated ones as they come.

    When no waiting tenant has credit a new round gives everybody QUANTUM. Generated tokens are charged afterwards, so a credit may be negative.
    A tenant is known as long as it has live requests: old debts and hoards are forgotten.
    """

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}
        self._live: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    def reset(self, tenants: list[str]) -> None:
        """Begin anew with one live request for each of `tenants` (which may repeat)."""
        self._credit.clear()
        self._live.clear()
        for tenant in tenants:
            self.join(tenant)

    def join(self, tenant: str) -> None:
        """The tenant has one live request more."""
        self._live[tenant] = self._live.get(tenant, 0) + 1
        self._credit.setdefault(tenant, 0)

    def leave(self, tenant: str) -> None:
        """One less."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant], self._credit[tenant]

    def turn(self, waiting: Collection[str]) -> str:
        """Whose request is next; the same until somebody is charged. `waiting` are one or more known tenants."""
        if len(self._credit) == 1:
            return next(iter(self._credit))
        best = max(self._credit[tenant] for tenant in waiting)
        if best <= 0:
            rounds = -best // QUANTUM + 1
            for tenant, credit in self._credit.items():
                self._credit[tenant] = min(credit + rounds * QUANTUM, QUANTUM)
        return next(tenant for tenant, credit in self._credit.items() if credit > 0 and tenant in waiting)

    def charge_each(self, tokens: Mapping[str, int]) -> None:
        """`charge` of several tenants."""
        for tenant, number in tokens.items():
            self.charge(tenant, number)

    def charge(self, tenant: str, tokens: int) -> None:
        """The tenant has used `tokens`. Without credit it goes to the end of the round."""
        if len(self._credit) == 1:
            return
        credit = self._credit[tenant]
        if credit > 0 >= credit - tokens:
            del self._credit[tenant]
        self._credit[tenant] = credit - tokens
