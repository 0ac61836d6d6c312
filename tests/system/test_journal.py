"""Background responses and a journal: everything is killed in the middle, started again, and nothing is lost."""

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until

SEEDS = (1, 2, 3, 4)
ASKED: dict[str, Any] = {"input": "A", "max_output_tokens": 300, "temperature": 1.0}
UNENDING = {"ignore_eos": True}
LONG = {"max_output_tokens": 2000}
TRIES = 5


def client_of(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=8, timeout=60)


def under_way(cluster: Cluster, client: openai.OpenAI) -> list[Any]:
    """The same responses again, each with some text: the worker is stopped in the midst of the last ones; how many there are in the end depends on
    how fast it was."""
    made: list[Any] = []
    for _ in range(TRIES):
        new = [
            client.responses.create(**ASKED, background=True, metadata={"seed": str(seed)}, extra_body={"seed": seed} | UNENDING) for seed in SEEDS
        ]
        made += new
        wait_until(lambda: all(client.responses.retrieve(one.id).output_text for one in new))  # noqa: B023
        cluster.kill("worker0", signal.SIGSTOP)
        if any(client.responses.retrieve(one.id).status == "in_progress" for one in new):
            return made
        cluster.kill("worker0", signal.SIGCONT)
    raise AssertionError("all had ended each time")


def kill(cluster: Cluster, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it goes with the launcher
            process.send_signal(signal.SIGKILL)
    cluster.process.wait(timeout=30)
    psutil.wait_procs(processes, timeout=30)


@pytest.mark.timeout(240)
def test_everything_is_killed_and_nothing_is_lost(models: Path, tmp_path: Path) -> None:
    """With two frontends before and one after: the file does not know how many there are."""
    journal = tmp_path / "journal"
    model, options = models / "dice-byte", ("--journal", str(journal))
    with running_cluster(model, "--frontends", "2", "--hang-timeout", "0", *options, stop_check=False) as cluster, client_of(cluster) as client:
        create, retrieve = client.responses.create, client.responses.retrieve
        undisturbed = [create(**ASKED, background=True, extra_body={"seed": seed} | UNENDING) for seed in SEEDS]
        processes = [psutil.Process(pid) for pid in (cluster.pid, *cluster.pids().values())]  # the launcher first: it ends nothing in order
        wait_until(lambda: {retrieve(made.id).status for made in undisturbed} == {"incomplete"}, seconds=60)
        expected = [retrieve(made.id) for made in undisturbed]
        cancelled = create(**ASKED | LONG, background=True, extra_body=UNENDING)
        assert client.responses.cancel(cancelled.id).status == "cancelled"
        again = under_way(cluster, client)
        kill(cluster, processes)
    with running_cluster(model, *options) as cluster, client_of(cluster) as client:
        retrieve = client.responses.retrieve
        assert [retrieve(made.id).to_dict() for made in undisturbed] == [made.to_dict() for made in expected]
        wait_until(lambda: {retrieve(made.id).status for made in again} == {"incomplete"}, seconds=60)
        assert [retrieve(made.id).output_text for made in again] == [made.output_text for made in expected] * (len(again) // len(SEEDS))
        assert len({made.output_text for made in expected}) == len(SEEDS)
        assert retrieve(again[0].id).metadata == {"seed": "1"}
        assert retrieve(cancelled.id).status == "cancelled"
        assert re.search(rf"{5 + len(again)} responses, [1-4] of them unfinished; 0 damaged records", cluster.log())
    assert os.stat(journal).st_mode & 0o777 == 0o600
