"""The rotary table: published vectors, and one rotation for every path."""

import math

import pytest
import torch

from kernels.reference.rope import RopeSpec, inverse_frequencies, rope_table, rotate

LLAMA3 = RopeSpec(theta=5e5, kind="llama3", factor=32.0, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0)


def test_llama3_frequencies() -> None:
    scaled, factor = inverse_frequencies(LLAMA3, 64)
    plain, _ = inverse_frequencies(RopeSpec(theta=5e5), 64)
    assert factor == 1.0
    torch.testing.assert_close(scaled[:15], plain[:15], rtol=0, atol=0)
    expected = {15: 1.290547928e-3, 16: 4.295567966e-4, 17: 9.708287803e-5, 18: 1.946163818e-5, 31: 9.418306725e-8}
    for pair, value in expected.items():
        assert float(scaled[pair]) == pytest.approx(value, rel=2e-6)
    torch.testing.assert_close(scaled[18:], plain[18:] / 32)


def test_linear_divides() -> None:
    linear, _ = inverse_frequencies(RopeSpec(kind="linear", factor=4.0), 64)
    torch.testing.assert_close(linear, inverse_frequencies(RopeSpec(), 64)[0] / 4)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    spec = RopeSpec(kind="yarn", factor=4.0, original_context=2048)
    yarn, factor = inverse_frequencies(spec, 64)
    plain, _ = inverse_frequencies(RopeSpec(), 64)
    assert factor == pytest.approx(0.1 * math.log(4) + 1)
    assert float(yarn[0]) == pytest.approx(float(plain[0]))
    assert float(yarn[-1]) == pytest.approx(float(plain[-1]) / 4)
    assert inverse_frequencies(RopeSpec(kind="yarn", factor=4.0, original_context=2048, attention_factor=0.5), 64)[1] == 0.5


def test_dynamic_is_plain_up_to_the_original_context_and_does_not_depend_on_the_length() -> None:
    spec = RopeSpec(kind="dynamic", factor=2.0, original_context=128)
    short, long = rope_table(spec, 32, 200)[0], rope_table(spec, 32, 400)[0]
    torch.testing.assert_close(short[:128], rope_table(RopeSpec(), 32, 128)[0], rtol=0, atol=0)
    torch.testing.assert_close(long[:200], short, rtol=1e-5, atol=1e-5)
    assert not torch.equal(short[150], rope_table(RopeSpec(), 32, 200)[0][150])


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="longrope"):
        inverse_frequencies(RopeSpec(kind="longrope"), 64)


def test_rotation_pairs_halves() -> None:
    cos, sin = rope_table(RopeSpec(), 8, 50)
    x = torch.randn(50, 3, 8)
    turned = rotate(x, cos, sin)
    low, high = x[..., :4], x[..., 4:]
    c, s = cos[:, None, :4], sin[:, None, 4:]
    torch.testing.assert_close(turned, torch.cat((low * c - high * s, high * c + low * s), -1))


def test_scores_depend_on_distance_only() -> None:
    cos, sin = rope_table(LLAMA3, 64, 4000)
    q, k = torch.randn(1, 1, 64), torch.randn(1, 1, 64)
    near = (rotate(q, cos[110:111], sin[110:111]) * rotate(k, cos[100:101], sin[100:101])).sum()
    far = (rotate(q, cos[3910:3911], sin[3910:3911]) * rotate(k, cos[3900:3901], sin[3900:3901])).sum()
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
