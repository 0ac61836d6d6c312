"""Tries a program: whether it compiles, and whether its masks come fast enough for a step."""

import random
import time

import numpy as np

from grammar.errors import GrammarError
from grammar.matcher import Library, Matcher
from grammar.place import placed

WALKS, STEPS = 4, 24
SEED = 1
MASK_SECONDS = 0.05
"""Of this thread's own time, for one mask."""


def try_out(library: Library, program: str) -> None:
    """Compile it and walk through its grammar a few times, at random. Raises GrammarError."""
    try:
        start = library.compile(program)
    except GrammarError as error:
        raise placed(library, program, error) from error
    pick = random.Random(SEED)
    for _ in range(WALKS):
        _walk(library, start.copy(), pick)


def _walk(library: Library, matcher: Matcher, pick: random.Random) -> None:
    for _ in range(STEPS):
        began = time.thread_time()
        mask = library.masks([matcher])[0]
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not allowed.size or matcher.failed:
            raise GrammarError(f"nothing can be said that it allows ({matcher.failed or 'it has no end'})")
        token = int(pick.choice(allowed))
        if token in library.ends:
            return
        if not matcher.accept([token]):
            raise GrammarError(f"it is too complex: {matcher.failed}")
        if time.thread_time() - began > MASK_SECONDS:
            raise GrammarError(f"it is too complex: a single token takes more than {1000 * MASK_SECONDS:.0f} ms")
