"""Clusters that several modules ask: each starts once for the whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.devices import CLUSTERS, on_gpu


@pytest.fixture(scope="session")
def chain(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "chain-byte", "--threads", "1") as running:
        yield running


@pytest.fixture(scope="session")
def dice(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "dice-byte", "--threads", "1", "--chunk-tokens", "256") as running:
        yield running


@pytest.fixture(scope="session")
def spm(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "chain-spm", "--threads", "1") as running:
        yield running


@pytest.fixture(scope="session")
def tiny(models: Path) -> Iterator[Cluster]:
    """dice-byte with a pool so small that a few requests at once are preempted."""
    options = ["--kv-tokens", "112", "--block-size", "4", "--max-context", "112", "--chunk-tokens", "16", "--log-level", "debug"]
    with running_cluster(models / "dice-byte", "--threads", "1", *options) as running:
        yield running


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=on_gpu)])
def smol(smollm2: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The default model."""
    with running_cluster(smollm2, "--max-context", "1024", *CLUSTERS[request.param]) as running:
        yield running
