"""`python -P -m grammar RUN_DIR`, started by a tokenizer process: tries programs, one a line, where they can take neither its time nor its memory.

Lines are JSON: in, a program; out, a list of what is wrong, empty when nothing is, and where. The first one out is `["",""]` when it is ready.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from grammar.errors import GrammarError
from grammar.llg import LlgLibrary
from grammar.matcher import Library
from grammar.trial import try_out
from grammar.vocabulary_file import read_vocabulary
from transport.lifetime import PR_SET_PDEATHSIG

NICE = 10
MOST_MEMORY = 256 << 20
"""Bytes that programs may take beyond what this process needs anyway."""


def main() -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    try:
        library = LlgLibrary(read_vocabulary(Path(sys.argv[1])))
    except GrammarError as error:
        _say(str(error))
        return 1
    _bound_memory()
    _say()
    for line in sys.stdin.buffer:
        _say(*_verdict(library, line))
    return 0


def _verdict(library: Library, line: bytes) -> tuple[str, str]:
    try:
        try_out(library, msgspec.json.decode(line, type=str))
    except GrammarError as error:
        return str(error), error.place
    return "", ""


def _say(sentence: str = "", place: str = "") -> None:
    sys.stdout.buffer.write(msgspec.json.encode((sentence, place)) + b"\n")
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    with open("/proc/self/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file.read().splitlines())
    most = int(fields[b"VmData"].split()[0]) * 1024 + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    sys.exit(main())
