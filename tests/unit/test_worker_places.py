"""What the host says must change makes the rows on the device those of a step, and it is said once."""

import random

import numpy as np
import torch

from kernels.reference.resident import write_words
from worker.resident.arena import Arena, joined
from worker.resident.places import Places

SLOTS = 12


def test_places_follow_the_steps() -> None:
    chosen = random.Random(3)
    arena = Arena(SLOTS, 2, 99, torch.device("cpu"))
    places = Places(arena)
    for step in range(200):
        if step % 50 == 49:
            places.forget()
            arena.rows.fill_(SLOTS + 1)
        size = chosen.randint(1, SLOTS)
        slot = np.array(sorted(chosen.sample(range(SLOTS), chosen.randint(0, size))), np.int32)
        for _ in range(2):
            write_words(arena.words, torch.from_numpy(joined(places.changes(slot, size))))
            assert arena.rows[:size].tolist() == [*slot.tolist(), *[SLOTS] * (size - len(slot))]
        assert places.changes(slot.copy(), size) == places.changes(slot, size) == []
