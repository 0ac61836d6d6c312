"""CPU time per step: plan, result and both messages. The bounds are loose (a busy machine); `launch.py bench scheduler` prints the figures."""

from typing import Any

import pytest

from simulator.bench import BenchOptions, measure

BOUNDS_US = {32: 1000.0, 256: 2000.0, 1024: 5000.0}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure(BenchOptions(rows=list(BOUNDS_US), steps=200, finished=5000), print)


def test_a_step_takes_microseconds(found: dict[str, Any]) -> None:
    for run in found["runs"]:
        assert run["step_us"]["median"] < BOUNDS_US[run["rows"]], run


def test_plans_carry_changes_only(found: dict[str, Any]) -> None:
    for run in found["runs"]:
        sizes, rows = run["plan_bytes"], run["rows"]
        if run["load"] == "steady":
            assert sizes["median_without_new_blocks"] <= 64
            assert sizes["max"] <= 80 + 12 * (rows // 16 + 1)
        elif rows <= 256:
            assert sizes["median"] <= 4096


def test_one_row_ends_in_each_step_of_the_churn(found: dict[str, Any]) -> None:
    for run in found["runs"]:
        assert run["finished_per_step"] == pytest.approx(1.0 if run["load"] == "churn" else 0.0, abs=0.1)


def test_the_cost_grows_neither_with_length_nor_with_history(found: dict[str, Any]) -> None:
    assert [(growth["small"], growth["large"]) for growth in found["growth"]] == [(100, 5000), (100, 30_000)]
    for growth in found["growth"]:
        assert growth["large_us"] < 2 * growth["small_us"] + 50, growth
