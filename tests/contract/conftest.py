"""A process for the tests of one file, with the test as its peers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.frontend_peers import Frontend, Peers, running, say
from tests.support.tokenizer_neighbours import Neighbours
from tests.support.utterances import with_parsers
from tests.support.waiting import wait_until

Pair = tuple[Frontend, Peers]


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), max_unsent_bytes=64 << 20) as pair:
        yield pair


@pytest.fixture
def ready(shared: Pair) -> Pair:
    """A ready frontend that other tests use too, its tokenizer saying 'Hello world'."""
    frontend, peers = shared
    peers.script = say("Hello", " world")
    frontend.wait_metric("frontend_live_sequences", 0)
    peers.forget(frontend)
    return shared


@pytest.fixture(scope="module")
def reading() -> Iterator[Pair]:
    """A frontend whose model has tool calls as Hermes and reasoning in `<think>`."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder)) as (frontend, peers):
        peers.state = with_parsers()
        wait_until(lambda: b'"tool_parser":"hermes"' in frontend.get("/v1/models")[2])
        yield frontend, peers


@pytest.fixture(scope="module")
def byte(models: Path) -> Iterator[Neighbours]:
    """A tokenizer process; files whose tests end it have one for each test."""
    patient = "tests.support.patient_tokenizer_proc"
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, Neighbours(Path(folder), models / "chain-byte", package=patient) as neighbours:
        yield neighbours.start()
