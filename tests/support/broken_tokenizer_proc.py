"""A tokenizer that dies of a request, for tests alone: `python -m tests.support.broken_tokenizer_proc` with PAGEWIRE_TEST_BREAK=HOW:WHEN:FILE.

It ends by a segmentation fault whenever a prompt of token ids has all those of WHEN, which are joined by commas, one after the other; each time a
line is added to FILE. HOW `read`: when it comes; `text`: when the first tokens of its answer come.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from messages.request import Generate, TokenPrompt
from messages.tokens import Tokens
from tokenizer_proc import service
from tokenizer_proc.__main__ import main
from transport.columns import pack_i32, view_i64

_how, _when, _done = os.environ["PAGEWIRE_TEST_BREAK"].split(":", 2)
_poison = pack_i32([int(token) for token in _when.split(",")])
_keys: set[int] = set()
_handle = service.Service.handle


def handle(self: service.Service, message: Any) -> None:
    if isinstance(message, Generate) and isinstance(message.prompt, TokenPrompt) and _poison in pack_i32(message.prompt.ids):
        _keys.update(message.keys)
        _die_if("read")
    if isinstance(message, Tokens) and not _keys.isdisjoint(view_i64(message.key).tolist()):
        _die_if("text")
    _handle(self, message)


def _die_if(how: str) -> None:
    if how == _how:
        with Path(_done).open("a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    setattr(service.Service, "handle", handle)  # noqa: B010
    sys.exit(main())
