"""A frontend for the tests of one file, with the test as its peers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.frontend_peers import Frontend, Peers, running, say

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
    while not peers.received.empty():
        peers.received.get_nowait()
    return shared
