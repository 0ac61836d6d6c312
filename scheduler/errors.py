"""What can be wrong: with a message from a neighbour, or with ourselves."""


class ContractError(ValueError):
    """A message decoded but its content breaks the contract of `messages/`. Counted and dropped by the service."""


class InvariantError(RuntimeError):
    """`check()` found state that must never be. `problems` has one sentence for each finding."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def require(facts: dict[str, bool]) -> None:
    """Raises InvariantError with those sentences that say what is wrong: each is a key whose value says that it is not so."""
    problems = [sentence for sentence, holds in facts.items() if not holds]
    if problems:
        raise InvariantError(problems)
