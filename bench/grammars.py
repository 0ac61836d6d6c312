"""`launch.py bench grammars`, or `python -m bench.grammars MODEL`: what rows that follow a grammar cost a step, for 1 and for 64 of them.

Each row has a schema of its own and goes through it at random. A step's `masks` are there so long after its tokens are: meanwhile the device
computes the next step, whose sampler waits for them. `apply` is what they add to sampling.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grammar.llg import LlgLibrary
from grammar.program import program_of
from grammar.vocabulary_file import TokenBytes
from kernels.backend import kernels_for
from messages.constraint import Constraint
from tokenizer_proc.vocabulary import Vocabulary, load_vocabulary
from transport.columns import I32, I64
from worker.matching import Masks, Matching

ROWS = 1, 64
STEPS = 200
COMPILED = 20


def program(number: int) -> str:
    """A tool's arguments, say: other names in each."""
    text, count = {"type": "string", "maxLength": 60}, {"type": "integer"}
    item = {"type": "object", "properties": {"id": count, f"label_{number}": text}, "required": ["id"], "additionalProperties": False}
    properties = {f"name_{number}": text, "kind": {"enum": ["a", "b", "c"]}, "items": {"type": "array", "items": item}, "note": {"type": "null"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return program_of(Constraint("json_schema", json.dumps(schema)))


def library_of(vocabulary: Vocabulary) -> LlgLibrary:
    ends = sorted(end for end in vocabulary.end_ids if end < vocabulary.size)
    return LlgLibrary(TokenBytes(vocabulary.pieces.of[: vocabulary.size], vocabulary.pieces.special | vocabulary.end_ids, ends))


class Walk:
    """`rows` rows, each at a random place of its grammar."""

    def __init__(self, library: LlgLibrary, vocab: int, rows: int) -> None:
        self._library = library
        self._matching = Matching(vocab)
        self._matching.use(library)
        self._matching.grammars = {number: library.compile(program(number)) for number in range(rows)}
        self._slots: I32 = np.arange(rows, dtype=np.int32)
        self._said: I64 = np.zeros(rows, np.int64)
        self._pick = random.Random(rows)
        for slot in range(rows):
            self._matching.admit(slot, slot)
        self._masks = self._wait()

    def _wait(self) -> Masks:
        return self._matching.wait(self._matching.wanted(self._slots, self._said))

    def step(self) -> tuple[float, float, Masks]:
        """Seconds from the step's tokens to the next masks, and of cores meanwhile."""
        tokens = [self._choose(mask) for mask in self._masks.words]
        for slot, token in enumerate(tokens):
            if token in self._library.ends:
                self._matching.release(slot)
                self._matching.admit(slot, slot)
                self._said[slot] = 0
        self._wait()
        began, used = time.perf_counter(), time.process_time()
        for slot, token in enumerate(tokens):
            if token not in self._library.ends:
                self._matching.note(self._matching.rows[slot], [token])
                self._said[slot] += 1
        self._masks = self._wait()
        return time.perf_counter() - began, time.process_time() - used, self._masks

    def _choose(self, mask: I32) -> int:
        return int(self._pick.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))


def apply_seconds(masks: Masks, vocab: int, device: torch.device) -> float:
    """Of changing the logits on the device, the copy of the masks to it counted; the median of several."""
    kernels, found = kernels_for(device), []
    logits = torch.randn(len(masks.row), vocab, device=device)
    for _ in range(STEPS // 10):
        began = time.perf_counter()
        kernels.apply_mask(logits, torch.from_numpy(masks.row).to(device), torch.from_numpy(masks.words).to(device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found[2:])


def measure(model: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """One line for compiling, one for each number of rows. Milliseconds."""
    vocabulary = load_vocabulary(model)
    began = time.perf_counter()
    library = library_of(vocabulary)
    opened = time.perf_counter() - began
    began = time.perf_counter()
    for number in range(COMPILED):
        library.masks([library.compile(program(1000 + number))])
    yield {"vocabulary": vocabulary.size, "open_ms": 1e3 * opened, "compile_ms": 1e3 * (time.perf_counter() - began) / COMPILED}
    for rows in ROWS:
        walk = Walk(library, vocabulary.size, rows)
        times, used = [], []
        for _ in range(STEPS):
            seconds, of_cores, masks = walk.step()
            times.append(seconds)
            used.append(of_cores)
        times.sort()
        yield {
            "rows": rows,
            "masks_ms": 1e3 * statistics.median(times),
            "masks_p99_ms": 1e3 * times[len(times) * 99 // 100],
            "masks_core_ms": 1e3 * statistics.median(used),
            "masks_core_p99_ms": 1e3 * sorted(used)[len(used) * 99 // 100],
            "apply_ms": 1e3 * apply_seconds(masks, vocabulary.size, device),
        }


def main() -> int:
    for line in measure(Path(sys.argv[1]), torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")):
        print(json.dumps({name: round(value, 3) for name, value in line.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
