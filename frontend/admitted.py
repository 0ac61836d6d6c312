"""How many requests were let in and have not been answered."""


class Admitted:
    """A context for each of them."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self.count -= 1
