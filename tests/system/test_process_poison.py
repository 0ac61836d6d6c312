"""A request that ends the scheduler or a tokenizer whenever it comes there fails alone: the cluster lives, and its neighbours finish."""

from pathlib import Path

import pytest

from tests.support.cluster import running_cluster
from tests.support.figures import busy
from tests.support.waiting import until
from tests.system.test_worker_death import PATIENCE, POISON, PROMPTS, SCRIPT, ask, break_at, poisoned

NEIGHBOURS = 15
MOST_DEATHS = 2 + 4 + 3


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize(("process", "how"), [("scheduler", "step"), ("tokenizer_proc", "text")])
async def test_it_fails_alone(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, how: str) -> None:
    deaths = tmp_path / "deaths"
    break_at(monkeypatch, how, ",".join(map(str, POISON)), deaths)
    monkeypatch.setenv("PAGEWIRE_TEST_PROCESS", process)
    prompts = [[row, *PROMPTS[row % len(PROMPTS)]] for row in range(NEIGHBOURS)]
    with running_cluster(models / "rand-byte", "--max-context", "512", "--frontends", "2", script=SCRIPT) as cluster:
        undisturbed = await ask(cluster, prompts)
        assert not deaths.exists()
        texts, status, answer = await poisoned(cluster, prompts)
        assert texts == undisturbed
        assert (status, answer["error"]["code"]) == (500, "request_interrupted")
        assert 5 <= len(deaths.read_text().splitlines()) <= MOST_DEATHS
        await until(lambda: cluster.state().ready and set(busy(cluster).values()) == {0.0})
