"""On a GPU, 64 rows: one that is not finite harms no neighbour, the same batch gives the same bits again, a large pool the same as a small one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from kernels.backend import kernels_for
from messages.plan import Copies, StepPlan
from messages.result import NON_FINITE, OK, StepResult
from tests.kernels.test_resident_families import FAMILIES
from tests.support.devices import GPU
from tests.support.engines import tokens_of
from tests.support.plans import Chunk, Planner, Row
from tests.support.resident import Playing, random_decoder
from transport.columns import pack_i32, view_i32, view_u8
from worker.memory import allocate
from worker.resident.engine import ResidentEngine

pytestmark = pytest.mark.skipif(not GPU, reason="needs a GPU: there are no graphs elsewhere, and the interpreter is slow")
ROWS, WIDTH, BAD = 64, 6, 17
BLOCKS = ROWS * WIDTH
DTYPE = torch.bfloat16
DEVICE = torch.device("cuda")
LARGE = 270_000
"""Blocks of 16 tokens x 2 heads x 128 numbers of 2 bytes: one layer of keys alone takes more than 2^31 bytes."""


def rows() -> list[Row]:
    """Greedy, drawn, filtered, with penalties and with logprobs, by turns; prompts of 3 to 34 tokens."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9},
        {"temperature": 1.1, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.7, "repetition": 1.2, "frequency": 0.2},
        {"logprobs": 5},
    ]
    return [
        Row(
            slot=slot, prompt=[(37 * token + 11 * slot) % 1000 for token in range(3 + slot % 32)], seed=1000 + slot,
            blocks=range(slot * WIDTH, slot * WIDTH + WIDTH), **kinds[slot % len(kinds)],
        )
        for slot in range(ROWS)
    ]  # fmt: skip


def plain(row: Row) -> Row:
    """Without what takes a row's sampling out of the graph."""
    return replace(row, repetition=1.0, frequency=0.0, logprobs=-1)


def plans(batch: list[Row], decodes: int, session: int = 1) -> list[StepPlan]:
    """Half the rows at once, the others one by one in mixed steps, then decode."""
    planner, half = Planner(session), len(batch) // 2
    found = [planner.plan(admit=batch[:half], chunks=[Chunk(row.slot, 0, row.prompt, True) for row in batch[:half]])]
    for number, row in enumerate(batch[half:], half):
        found.append(planner.plan(admit=[row], chunks=[Chunk(row.slot, 0, row.prompt, True)], decode=[other.slot for other in batch[:number]]))
    return [*found, *(planner.plan(decode=None if step else [row.slot for row in batch]) for step in range(decodes))]


def make(family: str, blocks: int, layers: int = 3) -> Playing:
    torch.cuda.set_stream(torch.cuda.Stream())
    config = msgspec.structs.replace(FAMILIES[family], layers=layers, window_layers=FAMILIES[family].window_layers[:layers])
    decoder = random_decoder(config, DEVICE, DTYPE)
    cache = allocate(config, DTYPE, blocks, 16, DEVICE)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    torch.cuda.synchronize()
    return Playing(ResidentEngine(decoder, cache, kernels_for(DEVICE), ROWS, 32, 2048))


@pytest.fixture
def playing() -> Iterator[Playing]:
    made = make("qwen3", BLOCKS)
    yield made
    made.engine.close()


def bits(results: list[StepResult]) -> list[StepResult]:
    """What of the results must be the same when the same plans are run again."""
    return [msgspec.structs.replace(result, session=0, seconds=0.0, queued=0.0) for result in results]


def test_the_same_batch_gives_the_same_bits(playing: Playing) -> None:
    """First eagerly, then from graphs, and once more: tokens and logprobs."""
    runs = []
    for session in (1, 2, 3):
        playing.engine.reset()
        runs.append(bits(playing.play(plans(rows(), 12, session))))
    assert playing.engine.graphs > 0
    assert runs[1] == runs[2]
    assert runs[0] == runs[1]
    assert all((view_u8(result.status) == OK).all() for result in runs[0])
    assert len({token for result in runs[0] for token in tokens_of(result)}) > 200


@pytest.mark.parametrize(("apart", "mixed"), [(False, False), (True, False), (False, True)], ids=["in-the-graph", "sampled-apart", "mixed"])
def test_a_row_that_is_not_finite_harms_no_neighbour(playing: Playing, apart: bool, mixed: bool) -> None:
    """NaN in a block of one row: it fails at once and for good, and the others' tokens are what they are without it."""
    batch = rows() if apart else [plain(row) for row in rows()]
    at = 10 if mixed else len(plans(batch, 0)) + 6
    expected = [dict(zip(view_i32(result.slot).tolist(), tokens_of(result), strict=True)) for result in playing.play(plans(batch, 12))]
    playing.engine.reset()
    every = plans(batch, 12, 2)
    playing.play(every[:at])
    playing.engine.cache.v[:, BAD * WIDTH] = torch.nan
    torch.cuda.synchronize()
    for result, wanted in zip(playing.play(every[at:]), expected[at:], strict=True):
        slots = view_i32(result.slot).tolist()
        status = dict(zip(slots, view_u8(result.status).tolist(), strict=True))
        assert [slot for slot in slots if status[slot] == NON_FINITE] == [BAD]
        found = dict(zip(slots, tokens_of(result), strict=True))
        assert found.pop(BAD) == -1
        assert found == {slot: token for slot, token in wanted.items() if slot != BAD}


@pytest.mark.timeout(300)
def test_a_pool_of_more_than_2_31_bytes() -> None:
    """Rows whose blocks lie at both ends of it, one after a copy of a block across it, get the tokens of a small pool."""
    small, large = make("qwen3", BLOCKS, 2), make("qwen3", LARGE, 2)
    try:
        assert large.engine.cache.k[0].nbytes > 2**31
        batch = [plain(row) for row in rows()[:8]]
        far = [replace(row, blocks=[LARGE - 1 - block for block in row.blocks]) if row.slot % 2 else row for row in batch]
        expected, found = (small.play(plans(batch, 12)), large.play(plans(far, 12)))
        assert [tokens_of(result) for result in found] == [tokens_of(result) for result in expected]
        for playing, end in ((small, BLOCKS - 1), (large, LARGE - 1)):
            planner = Planner(2)
            playing.engine.reset()
            first = replace(batch[0], prompt=list(range(40)), blocks=[end, 1, 2])
            second = replace(first, slot=1, blocks=[9, 8, 7])
            plan = planner.start(first)
            again = planner.plan(admit=[second], chunks=[Chunk(1, 16, list(range(16, 40)), True)])
            copying = msgspec.structs.replace(again, copies=Copies(source=pack_i32([end]), target=pack_i32([9])))
            whole, copied = (tokens_of(result) for result in playing.play([plan, copying]))
            assert whole == copied
    finally:
        small.engine.close()
        large.engine.close()
