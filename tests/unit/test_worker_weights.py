"""Quantised files: packed weights, where the kernel can be compiled, give what expanded ones give."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.native import build
from tests.support.engines import every_logprobs, make_engine
from tests.support.gguf_files import write_twin


@pytest.fixture
def fresh_library() -> Iterator[None]:
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.mark.usefixtures("fresh_library")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_packed_equals_expanded(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    if build.library() is None:
        pytest.skip("no C compiler")
    path = tmp_path / "model.gguf"
    write_twin(models / "rand-byte", path, kind=kind)
    ids = [(7 * i + 3) % 256 for i in range(120)]
    with caplog.at_level(logging.INFO):
        packed = every_logprobs(make_engine(path), ids, 100)
    assert "products with packed matrices" in caplog.text
    build.library.cache_clear()
    monkeypatch.setenv(build.SWITCH, "0")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        expanded = every_logprobs(make_engine(path), ids, 100)
    assert "packed matrices" not in caplog.text
    assert "PAGEWIRE_NATIVE=0" in caplog.text
    np.testing.assert_allclose(packed, expanded, atol=1e-4)


def test_bfloat16_is_expanded(models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "model.gguf"
    write_twin(models / "rand-byte", path, kind="Q8_0")
    with caplog.at_level(logging.INFO):
        engine = make_engine(path, dtype="bfloat16")
    assert "packed matrices" not in caplog.text
    assert engine.cache.k.dtype == torch.bfloat16
