"""A worker on a CPU with keys and values in fewer bits: the same in chunks, decoded, copied and in shared blocks, and close to the exact one."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from messages.plan import Copies
from tests.support.engines import every_logprobs, last_logprobs, make_engine, poison, tokens_of
from tests.support.plans import Chunk, Planner, Row
from transport.columns import pack_i32
from worker.step import Engine

IDS = [(7 * i + 3) % 250 for i in range(100)]


def engine_with(models: Path, kv_dtype: str) -> Engine:
    engine = make_engine(models / "rand-byte", kv_tokens=512, kv_dtype=kv_dtype)
    poison(engine)
    return engine


@pytest.mark.parametrize(("kv_dtype", "stored", "tolerance"), [("fp8", torch.float8_e4m3fn, 0.3), ("bfloat16", torch.bfloat16, 0.03)])
def test_close_to_float32(models: Path, kv_dtype: str, stored: torch.dtype, tolerance: float) -> None:
    engine = engine_with(models, kv_dtype)
    assert engine.cache.k.dtype == engine.cache.v.dtype == stored
    exact = every_logprobs(engine_with(models, "auto"), IDS, 60)
    found = every_logprobs(engine, IDS, 60)
    assert 0 < float(np.abs(found - exact).mean()) < tolerance
    poison(engine)
    # A sum in another order may move a value to the next code.
    np.testing.assert_allclose(last_logprobs(engine, IDS, [13, 64, 100]), found[-1], atol=0.1)


def test_a_copied_and_a_shared_block(models: Path) -> None:
    """A row that goes on in a copy of another's block, and one that begins with a block of it, as the prefix cache lets it."""
    engine, planner = engine_with(models, "fp8"), Planner()
    expected = tokens_of(engine.run(planner.start(Row(slot=0, prompt=IDS[:24], blocks=[1, 2]))))
    rest = [Chunk(3, 16, IDS[16:24], True)]
    assert tokens_of(engine.run(planner.plan(admit=[Row(slot=3, prompt=IDS[:24], blocks=[1, 7])], chunks=rest))) == expected
    plan = planner.plan(admit=[Row(slot=4, prompt=IDS[:24], blocks=[9, 8])], chunks=[Chunk(4, 16, IDS[16:24], True)])
    assert tokens_of(engine.run(msgspec.structs.replace(plan, copies=Copies(source=pack_i32([1]), target=pack_i32([9]))))) == expected


def test_a_quarter_of_the_memory(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        wide, narrow = engine_with(models, "auto"), engine_with(models, "fp8")
    assert narrow.cache.blocks == wide.cache.blocks
    assert 4 * narrow.cache.k.nbytes == wide.cache.k.nbytes
    first, second = (float(message.split(" KiB a token")[0].split()[-1]) for message in caplog.messages if "KiB a token" in message)
    assert first == pytest.approx(4 * second, abs=0.3)


def test_fp8_weights_are_refused(models: Path) -> None:
    with pytest.raises(ValueError, match="--weights fp8 needs a GPU"):
        make_engine(models / "rand-byte", weights="fp8")
