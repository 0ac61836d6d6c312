"""A worker whose device fails ends with a sentence and starts again; one without memory for a step goes on with smaller ones. No token is lost."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, Cluster, running_cluster
from tests.support.completions import complete, open_session
from tests.support.devices import CLUSTERS, on_gpu
from tests.support.waiting import wait_until

SCRIPT = ROOT / "tests" / "support" / "launch_broken.py"
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]
PROMPTS = [[(31 * position + 7 * row) % 250 for position in range(length)] for row, length in enumerate((300, 20, 500, 77))]
STEP = 12
TOKENS = 40


def options(device: str) -> list[str]:
    return [*CLUSTERS[device], "--max-context", "2048", "--prefix-cache", "off"]


async def ask(cluster: Cluster) -> list[str]:
    """Texts of all prompts at once: greedy, past every end token."""
    async with open_session(cluster) as session:
        answers = await asyncio.gather(*(complete(session, cluster, prompt, max_tokens=TOKENS, logprobs=None) for prompt in PROMPTS))
    return [answer.choices[0].text for answer in answers]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is made when the worker has broken."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return tmp_path / "broken"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "device", "message"),
    [
        ("error", "cpu", "illegal memory access"),
        pytest.param("assert", "cuda", "device-side assert", marks=on_gpu),
        pytest.param("address", "cuda", "CUDA error: an illegal memory access", marks=on_gpu),
    ],
)
def test_a_device_that_fails(models: Path, broken: Path, monkeypatch: pytest.MonkeyPatch, how: str, device: str, message: str) -> None:
    monkeypatch.setenv("PAGEWIRE_TEST_BREAK", f"{how}:{STEP}:{broken}")
    with running_cluster(models / "rand-byte", *options(device), script=SCRIPT) as cluster:
        interrupted = asyncio.run(ask(cluster))
        assert broken.exists()
        log = cluster.log()
        assert "the device failed, the process ends and its sequences run again: " in log, log[-4000:]
        assert message in log
        assert "worker0 died (exit code 1); starting it again" in log
        assert "Traceback" not in log
        wait_until(lambda: cluster.state().ready)  # a report comes every half second
        assert asyncio.run(ask(cluster)) == interrupted


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_no_memory_for_a_step(models: Path, broken: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setenv("PAGEWIRE_TEST_BREAK", f"memory:2:{broken}")
    with running_cluster(models / "rand-byte", *options(device), "--chunk-tokens", "128", script=SCRIPT) as cluster:  # prompts of several plans
        interrupted = asyncio.run(ask(cluster))
        assert broken.exists()
        wait_until(lambda: "the session is dropped: no memory for it; from now on steps have at most" in cluster.log())
        assert [process.restarts for process in cluster.state().processes] == [0] * 4
        assert asyncio.run(ask(cluster)) == interrupted
