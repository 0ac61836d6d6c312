"""Requests at random times: prompts without a common prefix, each with the same number of new tokens."""

import random

import numpy as np

from simulator.workload import FixedWorkload, Job

IDS = 32_000


def random_load(*, requests: int, rate: float, prompt_tokens: int, max_tokens: int, seed: int) -> FixedWorkload:
    """`requests` jobs of a Poisson process of `rate` a second, from 0; with rate 0 all at once. The same for the same seed."""
    chance = random.Random(seed)
    ids = np.random.default_rng(seed)
    at, jobs = 0.0, []
    for _ in range(requests):
        jobs.append(Job(at=at, prompt=ids.integers(0, IDS, prompt_tokens, dtype=np.int32), max_tokens=max_tokens))
        at += chance.expovariate(rate) if rate else 0.0
    return FixedWorkload(name="random", fixed=jobs, vocab=IDS)
