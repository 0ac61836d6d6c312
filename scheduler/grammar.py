"""What a sequence's generated tokens follow."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Grammar:
    """One program. `tenant`: whose sequence needed it first. `users`: live sequences that need it. `ready`: the worker has it. `strikes`: workers
    that ended while they compiled it."""

    number: int
    program: str
    tenant: str = ""
    users: int = 0
    ready: bool = False
    strikes: int = 0
