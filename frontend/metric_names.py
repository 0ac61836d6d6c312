"""How the names of our metrics begin, and which model they count for."""

from typing import Protocol

PREFIX = "pagewire_"


class Served(Protocol):
    """`model`: what is served now."""

    @property
    def model(self) -> str: ...
