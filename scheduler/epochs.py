"""Retirement: what a plan in flight may still touch is not free yet."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Epochs(Generic[T]):
    """Things given up, each with its epoch: the last plan that may touch it. They come out when that plan has retired.

    Plans retire one by one, in order; `retired` is the newest.
    """

    def __init__(self) -> None:
        self.retired = 0
        self._held: dict[int, list[T]] = {}

    def give(self, thing: T, epoch: int) -> list[T]:
        """Hand over; gives back what is free at once: [thing] when its epoch has already retired, else []."""
        if epoch <= self.retired:
            return [thing]
        self._held.setdefault(epoch, []).append(thing)
        return []

    def retire(self, step: int) -> list[T]:
        """Plan `step` has retired; gives everything that is now free."""
        self.retired = step
        return self._held.pop(step, [])

    def held(self) -> list[T]:
        """What is still waiting."""
        return [thing for things in self._held.values() for thing in things]
