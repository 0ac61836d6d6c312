"""Workload A, offline256: 256 prompts of 100 to 1,024 random ids and as many new tokens, all at once."""

import hashlib
import random

import numpy as np

from simulator.errors import SimulatorError
from simulator.workload import FixedWorkload, Job

SHA256 = "4805cfc27eefe48fed5b600ffb988e2062a56d6a47627274d913b45c60e99590"
PROMPTS, SHORTEST, LONGEST, IDS = 256, 100, 1024, 10_000


def offline256() -> FixedWorkload:
    """The workload that nano-vllm and mini-sglang publish, from seed 0. Raises SimulatorError when this Python draws other numbers."""
    chance = random.Random(0)
    prompts = [[chance.randint(0, IDS) for _ in range(chance.randint(SHORTEST, LONGEST))] for _ in range(PROMPTS)]
    lengths = [chance.randint(SHORTEST, LONGEST) for _ in range(PROMPTS)]
    columns = [np.asarray(ids, dtype="<i4") for ids in prompts]
    digest = hashlib.sha256(b"".join(column.tobytes() for column in [*columns, np.asarray(lengths, dtype="<i4")])).hexdigest()
    if digest != SHA256:
        raise SimulatorError(f"workload A has SHA-256 {digest} instead of {SHA256}: this Python's random module draws other numbers")
    jobs = [Job(at=0.0, prompt=prompt, max_tokens=length) for prompt, length in zip(columns, lengths, strict=True)]
    return FixedWorkload(name="A", fixed=jobs, vocab=IDS + 1)
