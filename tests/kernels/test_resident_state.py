"""The resident engine's bookkeeping against the waiting engine's, with a made-up model: each token's logits follow from the row's whole history."""

import queue
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.backend import Kernels, Reference
from kernels.reference import resident, sampling
from kernels.reference.sampling import GREEDY_BELOW, Sampled, SamplingBatch
from messages.plan import Copies, StepPlan
from messages.result import StepResult
from tests.support.plans import Chunk, Planner, Row
from transport.columns import pack_i32, pack_slots, view_i32
from worker.compilers import Compilers
from worker.decoder import Decoder, StepInput
from worker.engine import DeviceError, StepError
from worker.memory import Cache
from worker.resident.engine import ResidentEngine
from worker.resident.graphs import padded_sizes
from worker.resident.layout import tiles_of

VOCAB, BLOCK, BLOCKS, SLOTS = 97, 4, 40, 12


class Numbers(Reference):
    """Reference kernels that find the rows with a temperature by themselves, as the Triton sampler does, and refuse words set twice in a step."""

    @staticmethod
    def write_words(arena: Tensor, pairs: Tensor) -> None:
        index, words = pairs
        resident.write_words(arena, pairs)
        if not torch.equal(arena[index.long()], words):
            raise AssertionError("two words for one place: a GPU would keep either")

    @staticmethod
    def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
        rows = torch.nonzero(batch.temperature >= GREEDY_BELOW).flatten().tolist()
        return sampling.sample(logits, replace(batch, random=rows, filtered=rows if batch.filtered else []))


class Sums:
    """A model whose cache keeps each token, and whose logits are made from the sum of (position + 1) x token over the row, read through its table."""

    def __init__(self) -> None:
        self.config = CONFIG_SMALL
        self.fail: RuntimeError | None = None

    def hidden(self, step: StepInput, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """The logits themselves."""
        if self.fail is not None:
            raise self.fail
        batch = step.full
        tokens, positions, slots = step.tokens.tolist(), step.positions.tolist(), batch.slot.tolist()
        for token, position, slot in zip(tokens, positions, slots, strict=True):
            k_cache[0, batch.table[slot, position // BLOCK], 0, position % BLOCK, 0] = token
        logits = torch.zeros(len(tokens), VOCAB)
        for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
            blocks = batch.table[slot, : position // BLOCK + 1].long()
            history = k_cache[0, blocks, 0, :, 0].flatten()[: position + 1]
            weighed = int((history * torch.arange(1, position + 2)).sum())
            logits[row] = torch.from_numpy(np.random.default_rng(weighed).normal(size=VOCAB) * 2).float()
        return logits

    def logits(self, x: Tensor, wanted: Tensor | None) -> Tensor:
        return x if wanted is None else x[wanted.long()]


SIZES = {"vocab": VOCAB, "heads": 4, "kv_heads": 2, "head_dim": 2, "hidden": 8, "mlp": 8, "window": None, "layers": 1}
CONFIG_SMALL = cast(Any, type("Config", (), SIZES))


class Expected:
    """The rows of a test, computed one by one."""

    def __init__(self, row: Row) -> None:
        self.row, self.tokens = row, list(row.prompt)

    def next(self) -> int:
        weighed = sum((position + 1) * token for position, token in enumerate(self.tokens))
        logits = torch.from_numpy(np.random.default_rng(weighed).normal(size=VOCAB) * 2).float()[None]
        row, length, prompt = self.row, len(self.tokens), len(self.row.prompt)
        counts, seen = torch.zeros(1, VOCAB), torch.zeros(1, VOCAB, dtype=torch.bool)
        seen[0, self.tokens] = True
        for token in self.tokens[prompt:]:
            counts[0, token] += 1
        batch = SamplingBatch(
            temperature=torch.tensor([row.temperature]), top_p=torch.tensor([row.top_p]), top_k=torch.tensor([row.top_k]),
            min_p=torch.tensor([row.min_p]), seed=torch.tensor([row.seed]), position=torch.tensor([length]), filtered=[0],
            penalties=sampling.Penalties(
                row=torch.tensor([0]), counts=counts, seen=seen, repetition=torch.tensor([row.repetition]), presence=torch.tensor([row.presence]),
                frequency=torch.tensor([row.frequency]),
            ),
        )  # fmt: skip
        self.tokens.append(int(Numbers.sample(logits, batch).token[0]))
        return self.tokens[-1]


class World:
    """An engine over `Sums`, and the results as they come."""

    def __init__(self, compilers: Compilers | None = None, fill_up: bool | None = None) -> None:
        self.model = Sums()
        cache = Cache(torch.full((1, BLOCKS + 1, 2, BLOCK, 2), torch.nan), torch.zeros(1, BLOCKS + 1, 2, BLOCK, 2))
        self.engine = ResidentEngine(cast(Decoder, self.model), cache, cast(Kernels, Numbers), SLOTS, 10, 64, compilers, fill_up)
        self.results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
        self.engine.start(self.results.put)
        self.engine.reset()

    def play(self, plans: list[StepPlan]) -> list[dict[int, int]]:
        """Launch all, then read all: the token of each sampled slot."""
        for plan in plans:
            self.engine.submit(plan)
        found = [self.results.get(timeout=60) for _ in plans]
        return [dict(zip(view_i32(result.slot).tolist(), view_i32(result.token).tolist(), strict=True)) for result in found]


@pytest.fixture(params=[False, True], ids=["as they come", "filled up"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(fill_up=request.param)
    yield made
    made.engine.close()


def test_rows_come_and_go_while_steps_run_ahead(world: World) -> None:
    """Random traffic: rows of all kinds of sampling enter slots and blocks that others have just left, in chunks, and all get their own tokens."""
    rng = np.random.default_rng(1)
    planner, plans, expected = Planner(), [], list[dict[int, int]]()
    rows: dict[int, Expected] = {}
    freed: list[int] = []
    for step in range(60):
        admit, chunks, due = [], [], dict[int, int]()
        decode = sorted(rows)
        for slot in decode:
            due[slot] = rows[slot].next()
        free = [slot for slot in range(SLOTS) if slot not in rows and slot not in freed][:1]
        if step % 2 == 0 and free:
            slot = free[0]
            made = Row(
                slot=slot, prompt=rng.integers(0, VOCAB, int(rng.integers(1, 9))).tolist(), blocks=[slot * 3 + i for i in (2, 0, 1)],
                seed=int(rng.integers(2**62)), temperature=float(rng.choice([0.0, 0.7])), top_k=int(rng.choice([0, 5])),
                repetition=float(rng.choice([1.0, 1.3])), frequency=float(rng.choice([0.0, 0.5])),
            )  # fmt: skip
            admit, chunks = [made], [Chunk(slot, 0, made.prompt, True)]
            entered = Expected(made)
            due[slot] = entered.next()
        plans.append(planner.plan(admit=admit, chunks=chunks, decode=decode, release=freed))
        expected.append(due)
        freed = [slot for slot in decode if len(rows[slot].tokens) >= 3 * BLOCK or rng.random() < 0.1]
        for slot in freed:
            del rows[slot]
        if admit:
            rows[admit[0].slot] = entered
    assert world.play(plans) == expected


def test_copied_blocks_and_empty_plans(world: World) -> None:
    planner = Planner()
    first = Row(slot=0, prompt=[5, 6, 7], blocks=[0, 1])
    second = Row(slot=1, prompt=[5, 6, 7], blocks=[9, 8])
    plan = planner.plan(admit=[second], chunks=[Chunk(1, 2, [7], True)], decode=[0])
    copying = StepPlan(
        session=plan.session, step=2, admit=plan.admit, append=plan.append, prefill=plan.prefill, decode=plan.decode,
        copies=Copies(source=pack_i32([0]), target=pack_i32([9])),
    )  # fmt: skip
    found = world.play([Planner().start(first), copying, StepPlan(session=1, step=3, release=pack_i32([0, 1]))])
    assert found[1][1] == found[0][0]
    assert found[2] == {}


def test_an_error_of_the_device_is_told_as_such(world: World) -> None:
    world.model.fail = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(DeviceError, match="illegal memory access"):
        world.engine.submit(Planner().start(Row(slot=0, prompt=[1], blocks=[0])))


def test_a_step_without_memory_ends_the_session_and_the_next_one_has_smaller_steps(world: World) -> None:
    """Rows were placed and lengths counted for the step that failed: the new session must not believe them."""
    planner = Planner()
    rows = [Row(slot=slot, prompt=[5 + slot, 6], blocks=[3 * slot, 3 * slot + 1]) for slot in range(3)]
    chunks = [Chunk(row.slot, 0, row.prompt, True) for row in rows]
    plans = [planner.plan(admit=rows, chunks=chunks), planner.plan(decode=[2, 0, 1])]
    expected = world.play([*plans, planner.plan(decode=None)])
    world.engine.reset()
    for plan in plans:
        world.engine.submit(plan)
    world.model.fail = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    with pytest.raises(StepError, match=r"at most 32 tokens: CUDA out of memory. Tried to allocate 2.00 GiB.$"):
        world.engine.submit(StepPlan(session=1, step=3, decode=pack_slots(np.array([1, 2, 0], np.int32))))
    world.model.fail = None
    assert world.engine.max_step_tokens == 32
    world.engine.check()
    world.engine.reset()
    for _ in plans:
        world.results.get(timeout=60)
    assert world.play([*plans, StepPlan(session=1, step=3, decode=None)]) == expected
    for _ in range(3):
        world.model.fail = torch.OutOfMemoryError("CUDA out of memory")
        with pytest.raises(StepError):
            world.engine.submit(StepPlan(session=1, step=4, decode=None))
        world.engine.reset()
        world.model.fail = None
        world.play([*plans, StepPlan(session=1, step=3, decode=None)])
    assert world.engine.max_step_tokens == SLOTS


def test_an_error_seen_by_the_thread_that_reads_comes_up_later() -> None:
    world = World()

    def refuse(result: StepResult) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    world.engine.start(refuse)
    world.engine.submit(Planner().start(Row(slot=0, prompt=[1], blocks=[0])))
    world.engine.close()
    with pytest.raises(DeviceError, match="launch failure"):
        world.engine.check()


def test_graphs_wait_for_those_that_compile() -> None:
    answers = [False, False, True]
    world = World(cast(Compilers, type("Slow", (), {"ended": staticmethod(lambda seconds: answers.pop(0))})))
    assert [world.engine.idle() for _ in range(4)] == [True, True, False, False]
    world.engine.close()


def test_padded_sizes() -> None:
    assert padded_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert padded_sizes(1) == [1]
    assert padded_sizes(16) == [1, 2, 4, 8, 16]


def test_tiles_cover_every_token_once_and_begin_with_the_last_positions() -> None:
    start, count = np.array([0, 100, 7]), np.array([130, 1, 64])
    tiles = tiles_of(start, count, 64)
    assert tiles.tolist() == [[128, 2], [130, 1], [64, 64], [131, 64], [0, 64]]
    assert tiles_of(start[:0], count[:0], 64).shape == (0, 2)
