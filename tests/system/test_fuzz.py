"""The API against what a fuzzer makes of its own description."""

import pytest

from tests.clients.fuzz_api import fuzz


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing_in_half_a_minute() -> None:
    """Installed by pip in an environment of its own the first time."""
    assert fuzz(30, seed=1) == 0
