"""The ring's products against float64, on a GPU: its kernel is written in Gluon, which has no interpreter; kernels.skinny is its twin elsewhere."""

import pytest
import torch

from kernels import ring
from tests.support.devices import DEVICE, GPU, assert_close, poisoned, randn

pytestmark = pytest.mark.skipif(not GPU, reason="Gluon runs on a GPU only")

BF16, EPS = torch.bfloat16, 1e-5
SHAPES = [
    (3, 64, 40), (64, 1024, 1000), (17, 576, 504), (65, 3072, 576), (130, 200, 24), (256, 1024, 96), (200, 4096, 1024),
    (50, 3072, 1024), (200, 2048, 512), (64, 2048, 2048),
]  # fmt: skip
SETTINGS = [
    ring.Settings(64, 32, 128, 4, 4), ring.Settings(64, 64, 64, 6, 3, 2), ring.Settings(64, 16, 128, 3, 2, 4), ring.Settings(128, 64, 64, 8, 4),
    ring.Settings(128, 32, 128, 2, 2, 4), ring.Settings(256, 32, 64, 4, 4), ring.Settings(256, 32, 64, 4, 4, 8),
    ring.Settings(64, 64, 128, 2, 2, 8), ring.Settings(128, 64, 64, 4, 4, 4), ring.Settings(64, 128, 64, 4, 4, 8),
]  # fmt: skip
CASES = [(*shape, settings) for shape, settings in zip(SHAPES, SETTINGS, strict=True)]
"""Each has kernels of its own to compile, so not every shape comes with every tile."""


def rms(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


@pytest.mark.parametrize(("rows", "size", "count", "settings"), CASES, ids=str)
def test_products(rows: int, size: int, count: int, settings: ring.Settings) -> None:
    torch.manual_seed(size)
    x, weight, bias = randn(rows, size, dtype=BF16), randn(2 * count, size, dtype=BF16) / size**0.5, randn(count, dtype=BF16)
    expected = x.double() @ weight.double().T
    gate, up = expected.chunk(2, -1)
    out = poisoned(rows, count, dtype=BF16)
    ring.product(x, weight[:count], bias, out, settings=settings)
    assert_close(out, gate + bias.double())
    wide = poisoned(rows, count, dtype=torch.float32)
    ring.product(x, weight[:count], None, wide, settings=settings)
    assert_close(wide, gate, 100.0)
    out.fill_(torch.nan)
    ring.product(x, weight, None, out, gated=True, settings=settings)
    assert_close(out, gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize(("rows", "size", "count", "settings"), CASES, ids=str)
def test_a_sum_made_ready_for_its_norm(rows: int, size: int, count: int, settings: ring.Settings) -> None:
    torch.manual_seed(count)
    x, weight, residual = randn(rows, size, dtype=BF16), randn(count, size, dtype=BF16) / size**0.5, randn(rows, count, dtype=BF16)
    norm, then = randn(count, dtype=BF16), randn(2 * 48, count, dtype=BF16) / count**0.5
    before = residual.double() + x.double() @ weight.double().T
    scaled = ring.product(x, weight, None, residual, add=True, settings=settings, norm_N=norm)
    assert_close(residual, before)
    assert scaled is not None
    assert_close(scaled.x, residual.double() * norm.double())
    assert_close(scaled.squares.sum(1), residual.double().square().sum(1))
    product = (rms(residual.double()) * norm.double()) @ then.double().T
    gate, up = product.chunk(2, -1)
    for gated, expected in ((False, product), (True, gate * torch.sigmoid(gate) * up)):
        out = poisoned(*expected.shape, dtype=BF16)
        ring.product(scaled.x, then, None, out, gated, settings=settings, squares=scaled.squares, eps=EPS)
        assert_close(out, expected)


def test_what_lies_behind_an_input_changes_nothing() -> None:
    x, weight = ring.new_rows(randn(1, 1, dtype=BF16), 70, 256), randn(64, 256, dtype=BF16) / 16
    x.copy_(randn(70, 256, dtype=BF16))
    torch.as_strided(x, (128, 256), (256, 1))[70:] = torch.nan
    out = poisoned(70, 64, dtype=BF16)
    ring.product(x, weight, None, out)
    assert_close(out, x.double() @ weight.double().T)


@pytest.mark.parametrize("settings", [ring.Settings(128, 32, 64, 4, 4, 8), ring.Settings(64, 64, 64, 4, 4, 8)], ids=str)
def test_the_same_bits_again_and_counters_ready(settings: ring.Settings) -> None:
    x, weight = randn(100, 2048, dtype=BF16), randn(320, 2048, dtype=BF16)
    found = []
    for _ in range(3):
        out = poisoned(100, 320, dtype=BF16)
        ring.product(x, weight, None, out, settings=settings)
        found.append(out)
        assert not (ring._scratch(DEVICE)[1] % settings.parts).any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_what_fits() -> None:
    x, weight = randn(8, 64, dtype=BF16), randn(16, 64, dtype=BF16)
    assert ring.fits(x, weight) == (torch.cuda.get_device_capability()[0] == 9)
    assert not ring.fits(x.float(), weight.float())
    assert not ring.fits(x[:, :60].contiguous(), weight[:, :60].contiguous())
    assert not ring.fits(randn(ring.MOST_ROWS + 1, 64, dtype=BF16), weight)


def test_parts_that_shares_cannot_be_made_of_are_refused() -> None:
    x, weight = randn(64, 1024, dtype=BF16), randn(512, 1024, dtype=BF16)
    with pytest.raises(ValueError, match="3 parts of 16 tiles"):
        ring.product(x, weight, None, poisoned(64, 512, dtype=BF16), settings=ring.Settings(64, 32, 128, 4, 4, 3))
