"""Stands in for an outbox: keeps what was sent."""

import msgspec

from messages.request import Cancel, Generate


class FakeOutbox:
    """`full`: it takes nothing."""

    def __init__(self) -> None:
        self.sent: list[msgspec.Struct] = []
        self.full = False

    def send(self, message: msgspec.Struct) -> bool:
        if not self.full:
            self.sent.append(message)
        return not self.full

    def taken(self) -> list[msgspec.Struct]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def cancelled(self) -> list[int]:
        """Keys, in order."""
        return [key for message in self.sent if isinstance(message, Cancel) for key in message.keys]


class FakeTokenizer:
    """An outbox to a tokenizer process; what was sent to it waits to be answered."""

    def __init__(self) -> None:
        self.asked: list[Generate] = []

    def send(self, message: msgspec.Struct) -> bool:
        if isinstance(message, Generate):
            self.asked.append(message)
        return True
