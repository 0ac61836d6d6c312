"""Which rows to blame when steps keep failing."""

STRIKES = 3


class Suspects:
    """Rows that were in every failed step since one of them last got a token.

    A row that gets a token is cleared. Rows left after STRIKES failures in a row are the culprits, so a row that always breaks its step
    is failed in the end, with as few others as the failed steps had in common, and nothing loops for ever.
    """

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._strikes = 0

    def __bool__(self) -> bool:
        return bool(self._keys)

    def clear(self, keys: list[int]) -> None:
        """These rows got a token."""
        self._keys.difference_update(keys)

    def failed(self, keys: set[int]) -> set[int]:
        """A step with these rows failed. Returns the rows to fail, most often none."""
        common = self._keys & keys
        self._strikes = self._strikes + 1 if common else 1
        self._keys = common or keys
        if self._strikes < STRIKES:
            return set()
        culprits, self._keys = self._keys, set()
        return culprits
