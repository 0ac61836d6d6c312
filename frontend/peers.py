"""The other frontends on this one's port: questions about requests that went to one of them."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from frontend.streams import Sender
from messages.peers import FindRequests, FoundRequests

PATIENCE_SECONDS = 3.0
"""Longer than one of them waits for the scheduler."""


class Found(NamedTuple):
    """`silent`: the names of those that were asked and did not answer."""

    answers: list[FoundRequests]
    silent: list[str]


class Peers:
    """`outboxes`: one per other frontend; none when there is only this one. Those of which `answers` says no are not asked."""

    def __init__(self, name: str, outboxes: Mapping[str, Sender], answers: Callable[[str], bool] = lambda _: True) -> None:
        self._name = name
        self._outboxes = outboxes
        self._answers = answers
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Future[FoundRequests]] = {}

    async def find(
        self, name: str | None = None, limit: int = 0, cancel: bool = False, owner: str | None = None, lives: bool = False
    ) -> Found:
        """What they answer within PATIENCE_SECONDS."""
        question = FindRequests(frontend=self._name, key=0, name=name, limit=limit, cancel=cancel, owner=owner, lives=lives)
        asked = [(peer, outbox) for peer, outbox in self._outboxes.items() if self._answers(peer)]
        waiting = {self._ask(outbox, msgspec.structs.replace(question, key=next(self._keys))): peer for peer, outbox in asked}
        if not waiting:
            return Found([], [])
        done, late = await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
        for future in late:
            future.cancel()
        return Found([future.result() for future in done], sorted(waiting[future] for future in late))

    def _ask(self, outbox: Sender, question: FindRequests) -> "asyncio.Future[FoundRequests]":
        future = self._waiting[question.key] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._waiting.pop(question.key))
        outbox.send(question)
        return future

    def answer(self, frontend: str, message: FoundRequests) -> None:
        """To the one that has asked."""
        if frontend in self._outboxes:
            self._outboxes[frontend].send(message)

    def receive(self, message: FoundRequests) -> None:
        """An answer. One that comes too late is dropped."""
        future = self._waiting.get(message.key)
        if future is not None and not future.done():
            future.set_result(message)
