"""Products with packed weights against float64, on every instruction set this machine has; building the kernel, and doing without."""

import ctypes
import logging
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import quantised
from kernels.native import build
from kernels.quantised import KINDS, QuantLinear, dense_linear, quant_linear
from tests.support.gguf_quants import quantise_q4_k, quantise_q6_k

ROOT = Path(__file__).resolve().parents[2]
COUNTS = [1, 2, 3, 4, 5, 8, 15, 16, 17, 47, 48, 64, 113]
SETS = {"native": [], "avx2": ["-mno-avx512f"], "portable": ["-mno-avx2", "-mno-avx512f"]}
SIZES = [("Q4_0", 37, 96), ("Q4_1", 37, 352), ("Q4_1", 16, 32), ("Q8_0", 37, 352), ("Q8_0", 1, 32), ("Q4_K", 37, 512), ("Q6_K", 37, 512)]

needs_compiler = pytest.mark.skipif(build.library() is None, reason="no C compiler, or the kernel is switched off")


@pytest.fixture(scope="module", params=SETS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel for one instruction set."""
    flags = SETS[request.param]
    if build.library() is None or (flags and platform.machine() != "x86_64"):
        pytest.skip("cannot be compiled here")
    return build.load(build.compile_source(flags, tmp_path_factory.mktemp("native")))


@pytest.fixture(autouse=True)
def nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make(kind: str, rows: int, columns: int, seed: int = 0) -> tuple[NDArray[np.uint8], Tensor]:
    """Random weights as stored bytes, and the float32 values that these stand for."""
    values = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)
    own = {"Q4_K": quantise_q4_k, "Q6_K": quantise_q6_k}
    number = gguf.GGMLQuantizationType[kind]
    data = own[kind](values) if kind in own else gguf.quants.quantize(values, number)
    return data, torch.from_numpy(np.array(gguf.quants.dequantize(data, number)))


def check(found: Tensor, x: Tensor, weight: Tensor) -> None:
    """Within what float32 sums of that length may differ by: a share of the sum of the magnitudes."""
    expected = x.double() @ weight.double().T
    room = x.double().abs() @ weight.double().abs().T
    assert found.shape == expected.shape
    assert float(((found - expected).abs() / room).max()) < 2e-6


@pytest.mark.parametrize(("kind", "rows", "columns"), SIZES)
def test_against_float64(library: ctypes.CDLL, threads: int, kind: str, rows: int, columns: int) -> None:
    data, weight = make(kind, rows, columns)
    linear = QuantLinear(library, KINDS[kind](data), None)
    for count in COUNTS:
        x = torch.from_numpy(np.random.default_rng(count).standard_normal((count, columns), dtype=np.float32))
        check(linear(x), x, weight)


@pytest.mark.parametrize(("kind", "rows", "columns"), [("Q4_1", 37, 608), ("Q8_0", 37, 352), ("Q6_K", 20, 512)])
def test_a_row_is_the_same_bits_beside_any_others(library: ctypes.CDLL, threads: int, kind: str, rows: int, columns: int) -> None:
    data, _ = make(kind, rows, columns)
    linear = QuantLinear(library, KINDS[kind](data), None)
    x = torch.from_numpy(np.random.default_rng(7).standard_normal((130, columns), dtype=np.float32))
    alone = torch.cat([linear(row[None]) for row in x])
    assert [count for count in range(1, 130) if not torch.equal(linear(x[1 : 1 + count]), alone[1 : 1 + count])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_values_gguf_gives(library: ctypes.CDLL, kind: str) -> None:
    data, weight = make(kind, 37, 256)
    linear = QuantLinear(library, KINDS[kind](data), None)
    ids = torch.tensor([36, 0, 17, 17])
    found = linear.embed(ids, 6)
    torch.testing.assert_close(found[:4], weight[ids], rtol=1e-6, atol=1e-6)
    assert not found[4:].any()
    for wrong in (-1, 37):
        with pytest.raises(IndexError):
            linear.embed(torch.tensor([0, wrong]), 2)


def test_rows_of_a_batch_do_not_touch_each_other(library: ctypes.CDLL) -> None:
    data, _ = make("Q4_1", 40, 64)
    linear = QuantLinear(library, KINDS["Q4_1"](data), None)
    for count in (3, 64):
        x = torch.randn(count, 64)
        clean = linear(x)
        x[1] = torch.nan
        dirty = linear(x)
        assert dirty[1].isnan().all()
        assert torch.equal(dirty[2:], clean[2:])
        assert torch.equal(dirty[0], clean[0])


@needs_compiler
def test_extreme_scales_and_empty_input() -> None:
    data, _ = make("Q8_0", 16, 64)
    blocks = data.reshape(16, 2, 34).copy()
    blocks[..., :2] = np.array([6e-8], np.float16).view(np.uint8)
    linear = quant_linear([("Q8_0", blocks.reshape(16, -1))])
    assert linear is not None
    x = torch.randn(2, 64)
    check(linear(x), x, torch.from_numpy(gguf.quants.dequantize(blocks.reshape(16, -1), gguf.GGMLQuantizationType.Q8_0)))
    assert linear(torch.empty(0, 64)).shape == (0, 16)
    with pytest.raises(ValueError, match="not float32"):
        linear(torch.randn(2, 32))


@needs_compiler
def test_parts_and_bias() -> None:
    parts = [make("Q4_K", rows, 256, seed) for seed, rows in enumerate((20, 7, 5))]
    bias = torch.randn(32)
    linear = quant_linear([("Q4_K", data) for data, _ in parts], bias)
    assert linear is not None
    for count in (2, 64):
        x = torch.randn(count, 256)
        check(linear(x) - bias, x, torch.cat([weight for _, weight in parts]))
    assert linear.nbytes == 2 * 16 * 8 * 24


@needs_compiler
def test_what_cannot_be_packed() -> None:
    four, eight = make("Q4_1", 16, 32)[0], make("Q8_0", 16, 32)[0]
    assert quant_linear([("Q4_1", four), ("Q8_0", eight)]) is None
    assert quant_linear([("F16", four)]) is None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and no library loaded before or kept after."""
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv(build.SWITCH, raising=False)
    build.library.cache_clear()
    yield tmp_path
    build.library.cache_clear()


def test_without_a_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    for _ in range(2):
        assert quantised.quant_linear([("Q8_0", make("Q8_0", 16, 32)[0])]) is None
    assert len(caplog.records) == 1
    assert "install gcc" in caplog.text


@pytest.mark.parametrize("script", ["echo 'no headers' >&2; exit 1", "exit 0"], ids=["fails", "makes nothing"])
def test_with_a_broken_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: str) -> None:
    compiler = fresh / "cc1"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    assert build.library() is None
    assert len(caplog.records) == 1
    assert list((fresh / "cache" / "native").glob("*")) == []


@pytest.mark.parametrize(("depth", "columns"), [(88, 40), (33, 7), (600, 65)], ids=str)
def test_a_dense_product_is_the_same_for_any_number_of_rows(
    library: ctypes.CDLL, depth: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "library", lambda: library)
    torch.manual_seed(depth)
    x, weight, bias = torch.randn(101, depth), torch.randn(columns, depth), torch.randn(columns)
    product = dense_linear(weight, bias)
    whole = product(x)
    torch.testing.assert_close(whole, (x.double() @ weight.double().T + bias).float(), atol=1e-4, rtol=1e-5)
    for count in (1, 2, 3, 4, 5, 7, 8, 9, 47, 48, 49):
        assert torch.equal(product(x[3 : 3 + count]), whole[3 : 3 + count])


def test_switched_off(fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    with caplog.at_level(logging.INFO):
        assert build.library() is None
    assert len(caplog.records) == 1


@needs_compiler
def test_a_damaged_file_in_the_cache_is_built_again(fresh: Path) -> None:
    path = build.compile_source()
    path.write_bytes(b"")
    assert build.library() is not None
    assert path.stat().st_size > 0


@needs_compiler
def test_no_code_is_loaded_from_a_folder_that_others_can_write(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = fresh / "cache" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert build.library() is None
    assert "chmod 700" in caplog.text


@needs_compiler
def test_many_processes_build_at_once(fresh: Path) -> None:
    code = "from kernels.native import build; assert build.library() is not None"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, "-P", "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(timeout=100) for process in running] == [0, 0, 0]
    folder = fresh / "cache" / "native"
    assert len(list(folder.iterdir())) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
