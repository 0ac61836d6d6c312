"""How a GPU's memory is shared out, with made-up amounts, and how a worker ends whose device failed."""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from checkpoint.shapes import SHAPES
from messages.result import OK
from tests.support.devices import on_gpu
from tests.support.engines import SilentReporter, make_engine, worker_args
from tests.support.plans import Planner, Row
from tests.support.resident import Playing
from transport.columns import view_u8
from transport.lifetime import Lifetime
from worker import __main__ as process
from worker.decoder import Decoder
from worker.engine import DeviceError
from worker.load import load_engine
from worker.memory import PoolError, lacks_memory
from worker.pulse import Pulse
from worker.resident.budget import GIB, RESERVE, Budget, make_cache
from worker.resident.engine import ResidentEngine
from worker.resident.graphs import Graphs, Key
from worker.resident.load import largest_step

CONFIG = SHAPES["qwen3-0.6b"]
BLOCK = 16 * 114_688
DEVICE = torch.device("meta")


def budget(used: int) -> Budget:
    return Budget(total=100 * GIB, used=used, weights=used // 2, activations=3 * GIB, graphs=2 * GIB)


def make(monkeypatch: pytest.MonkeyPatch, found: Budget, kv_tokens: int, there: int = 1 << 60, dtype: torch.dtype = torch.bfloat16) -> int:
    """Tokens of the pool when only `there` bytes can be had."""
    real = torch.empty

    def empty(*shape: Any, **settings: Any) -> torch.Tensor:
        made = real(*shape, **settings)
        if 2 * made.nbytes > there:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made

    monkeypatch.setattr("worker.resident.budget.torch.empty", empty)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device=None: (GIB, 100 * GIB))
    decoder = cast(Decoder, type("Model", (), {"config": CONFIG}))
    cache = make_cache(decoder, dtype, found, 0.9, kv_tokens, 16, DEVICE)
    assert cache.block_size == 16
    return cache.blocks * 16


def test_the_pool_is_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tokens = make(monkeypatch, budget(10 * GIB), 0)
    assert tokens == ((75 * GIB - RESERVE) // BLOCK - 1) * 16
    assert f"({tokens} tokens)" in caplog.text
    assert make(monkeypatch, budget(10 * GIB), 1000) == 1008
    assert make(monkeypatch, budget(10 * GIB), 0, dtype=torch.float8_e4m3fn) == ((75 * GIB - RESERVE) // (BLOCK // 2) - 1) * 16


def test_the_pool_shrinks_rather_than_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make(monkeypatch, budget(10 * GIB), 0, there=60 * GIB)
    assert 0.9 * 60 * GIB < tokens * 114_688 < 60 * GIB


def test_no_room_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PoolError, match="raise --gpu-memory-utilization"):
        make(monkeypatch, budget(86 * GIB), 0)


def test_steps_are_halved_until_they_fit_and_leave_room_for_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def measured(tokens: int) -> Budget:
        tried.append(tokens)
        if tokens > 5000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Budget(total=100 * GIB, used=80 * GIB, weights=80 * GIB, activations=tokens << 21, graphs=0)

    tokens, found = largest_step(8448, 256, 2 << 20, 0.9, measured)
    assert (tokens, tried) == (2112, [8448, 4224, 2112])
    assert found.activations == 2112 << 21
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device=None: (GIB, 100 * GIB))
    with pytest.raises(PoolError, match=r"no memory for a step: 1.0 of 100.0 GiB are free"):
        largest_step(10_000, 6000, 1, 0.9, measured)


class EmptyGraph:
    """As torch's: ends with a warning when nothing was captured."""

    def capture_begin(self, **settings: object) -> None:
        self.begun = True

    def capture_end(self) -> None:
        assert self.begun
        warnings.warn("The CUDA Graph is empty. This usually means ...", UserWarning, stacklevel=1)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: out of memory")], ids=repr)
def test_a_step_without_memory_for_its_graph_stays_eager(monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> None:
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr("torch.cuda.CUDAGraph", EmptyGraph)
    graphs, key, found = Graphs(torch.device("cuda"), 8), Key(1, "plain"), torch.zeros(1)
    answers: list[RuntimeError | None] = [None, error, None, None]

    def step() -> torch.Tensor:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return found

    assert [graphs.run(key, step) is found for _ in range(3)] == [True] * 3
    assert (answers, graphs.captured, graphs.lacks(key)) == ([], 0, False)


def test_what_is_said_when_memory_is_short() -> None:
    assert lacks_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not lacks_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.fixture
def crowded() -> Iterator[Callable[[float], None]]:
    """Take all of the GPU's memory but so many GiB, as another process may."""
    taken = []

    def crowd(left: float) -> None:
        taken.append(torch.empty(torch.cuda.mem_get_info()[0] - int(left * GIB), dtype=torch.uint8, device="cuda"))

    yield crowd
    taken.clear()
    gc.collect()
    torch.cuda.empty_cache()


def load(**changes: Any) -> ResidentEngine:
    args: dict[str, Any] = {
        "model_shape": "qwen3-0.6b",
        "dummy_weights": True,
        "device": "cuda",
        "kv_tokens": 0,
        "max_context": 2048,
        "threads": 0,
    } | changes
    engine = load_engine(worker_args(Path(), **args), SilentReporter())
    assert isinstance(engine, ResidentEngine)
    return engine


@on_gpu
def test_a_gpu_whose_share_is_taken(crowded: Callable[[float], None]) -> None:
    crowded(2.3)
    with pytest.raises(PoolError, match=r"no memory for keys and values: .* raise --gpu-memory-utilization"):
        load(gpu_memory_utilization=0.9)


@on_gpu
@pytest.mark.timeout(300)
def test_a_gpu_that_is_almost_full(crowded: Callable[[float], None]) -> None:
    """With 1.1 GiB of weights: smaller steps that work in 2.3 GiB, and their graphs too."""
    crowded(2.3)
    engine = load(max_step_tokens=32_768, gpu_memory_utilization=1.0)
    try:
        assert 8 <= engine.max_step_tokens < 32_768
        assert engine.cache.blocks * 16 >= engine.max_step_tokens
        prompt = [position % 1000 for position in range(min(2000, engine.max_step_tokens))]
        row = Row(slot=0, prompt=prompt, blocks=range(min(engine.cache.blocks, 126)))
        planner = Planner()
        results = Playing(engine).play([planner.start(row), *(planner.plan(decode=[0]) for _ in range(4))])
        assert all(view_u8(result.status).tolist() == [OK] for result in results)
        assert engine.graphs > 0
    finally:
        engine.close()


@on_gpu
def test_a_gpu_that_is_full(crowded: Callable[[float], None]) -> None:
    crowded(0.5)
    with pytest.raises(PoolError, match="no memory for the weights; end what else runs there"):
        load()


def test_weights_that_do_not_fit_say_what_to_do(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr("worker.load.build_decoder", fail)
    with pytest.raises(PoolError, match=r"no memory for the weights; .* Tried to allocate 2.00 GiB\.$"):
        make_engine(models / "dice-byte")


def test_a_failed_device_ends_the_process_with_a_sentence(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise DeviceError("CUDA error: an illegal memory access was encountered\nmore")

    def leave(code: int) -> None:
        raise SystemExit(code)

    reporter = SilentReporter()
    monkeypatch.setattr(reporter, "close", lambda: None, raising=False)
    monkeypatch.setattr("worker.service.Service.__init__", lambda *arguments: None)
    monkeypatch.setattr("worker.service.Service.run", fail)
    monkeypatch.setattr("os._exit", leave)
    lifetime = cast(Lifetime, type("Life", (), {"stopping": type("Never", (), {"is_set": staticmethod(lambda: False)})}))
    with pytest.raises(SystemExit) as ended:
        process._serve(worker_args(models / "dice-byte"), lifetime, 1, reporter, Pulse())
    assert ended.value.code == 1
    assert "illegal memory access" in reporter.said[-1]
    assert "more" not in reporter.said[-1]
