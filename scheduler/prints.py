"""What a recording holds in place of texts: hashes under a key that is never stored."""

import hashlib
import os

from messages.admit import Admit
from scheduler.recording import UNIT, UNIT_BYTES
from transport.columns import I32

STEP = 4 * UNIT
KEY_BYTES = 32


class Prints:
    """Chains of BLAKE2b over whole units of UNIT tokens: each hash covers salt, tenant and every token so far. Secret as long as the key is."""

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)
        self._last: dict[int, bytes] = {}

    def label(self, text: str) -> str:
        """In place of a tenant or salt."""
        return self._hash(b"label" + text.encode()).hex() if text else ""

    def prompt(self, admit: Admit) -> bytes:
        """The units of a prompt; keeps where its chain stands for `answer`, for each new key until `answer` or `forget`."""
        root = self._hash(b"salt" + self.label(admit.tenant).encode() + b"/" + self.label(admit.cache_salt).encode())
        units = self._chain(root, admit.prompt)
        for key in admit.keys:
            self._last.setdefault(key, units[-UNIT_BYTES:] or root)
        return units

    def answer(self, key: int, tokens: I32, prompt_len: int) -> bytes:
        """The units of prompt + answer that end behind the prompt."""
        return self._chain(self._last.pop(key), tokens[prompt_len // UNIT * UNIT :].tobytes())

    def forget(self, key: int) -> None:
        self._last.pop(key, None)

    def _chain(self, last: bytes, tokens: bytes) -> bytes:
        units = []
        for at in range(0, len(tokens) - STEP + 1, STEP):
            last = self._hash(last + tokens[at : at + STEP])
            units.append(last)
        return b"".join(units)

    def _hash(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=UNIT_BYTES).digest()
