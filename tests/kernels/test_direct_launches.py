"""Launches around Triton's binder start what those through it start, and their keys tell apart whatever Triton's do."""

from pathlib import Path

from tests.kernels.test_triton_compiles import compiled


def test_launches_around_the_binder(tmp_path: Path) -> None:
    assert set(compiled("direct_launches.py", tmp_path)) == {"keys", "calls"}
