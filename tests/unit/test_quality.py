"""The script that measures what FP8 costs in quality, on a CPU and a tiny model."""

import math
import re
from pathlib import Path

import pytest
import torch

from bench.gpu.quality import TEXTS, Baseline, Shape, compare, parse_shape, sequences, text
from tokenizer_proc.vocabulary import load_vocabulary

CPU = torch.device("cpu")


def test_text_and_shapes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("b")
    assert text(tmp_path / "a") == "b"
    assert len(TEXTS) == 3
    assert "Apache License" in text()
    assert parse_shape("4x2048x512") == Shape(4, 2048, 512)
    assert sequences(list(range(100)), Shape(8, 40, 1), CPU).tolist() == [list(range(40)), list(range(40, 80))]
    with pytest.raises(ValueError, match="fewer than 200"):
        sequences([1] * 100, Shape(1, 200, 1), CPU)


def test_figures() -> None:
    """Two tokens of a vocabulary of two: the first variant is uniform, the second sure of the right one at three to one."""
    following = torch.tensor([0, 1])
    baseline = Baseline()
    first = baseline.measure(iter([(torch.full((2, 2), 0.5).log(), following)]))
    assert first.perplexity == pytest.approx(2.0)
    assert (first.divergence, first.agreement, first.difference) == (0.0, 1.0, 0.0)
    second = baseline.measure(iter([(torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log(), following)]))
    assert second.perplexity == pytest.approx(4 / 3)
    assert second.divergence == pytest.approx(math.log(0.5) - (math.log(0.75) + math.log(0.25)) / 2)
    assert second.difference == pytest.approx(math.log(2 / 3), rel=1e-5)
    assert second.error == pytest.approx(0.0, abs=1e-6)


def test_a_table(models: Path) -> None:
    model = models / "rand-byte"
    ids = load_vocabulary(model).encode(text()[:1000], False)
    lines = list(compare(model, CPU, torch.float32, ids, [Shape(2, 64, 32), Shape(3, 20, 1)]))
    assert len(lines) == 10
    assert lines[5].startswith("3 sequences of 20 tokens, 1 of each a step, float32")
    divergences = [float(found) for found in re.findall(r"KL ([-+.\d]+)", "\n".join(lines))]
    assert divergences[0] == divergences[4] == 0.0
    assert all(0 < found < 1 for found in divergences[1:4] + divergences[5:])
