"""Responses that outlive things: two frontends that know each other's, and a journal that outlives its process."""

import contextlib
import http.client
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from messages.cluster import STOPPING
from messages.request import Cancel, Generate
from tests.support.frontend_peers import FRONTEND, MODEL, OTHER, Frontend, Peers, cluster_state, running, say, start
from tests.support.responses import PATH, begun, client_of, conversation, ended, response, text_of, told, wait_for
from tests.support.waiting import wait_until

Two = tuple[Frontend, Frontend, Peers]


@contextlib.contextmanager
def another(neighbours: Peers, folder: Path, **more: Any) -> Iterator[Frontend]:
    """One more frontend process among the same neighbours."""
    with tempfile.TemporaryFile("w+") as log:
        frontend = Frontend(start(folder, 0, 1 << 20, log, **more), log)
        try:
            frontend.wait_for_port(neighbours)
            frontend.wait(200)
            yield frontend
        finally:
            frontend.kill()


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    """The second has the journal's keeper beside it. Each listens on a port of its own, so that a test says which one it asks."""
    with tempfile.TemporaryDirectory(prefix="pw-") as name:
        folder = Path(name)
        shared: dict[str, Any] = {"keeper": FRONTEND}
        with (
            running(folder, peers=(OTHER,), journal=str(folder / "journal"), **shared) as (keeper, peers),
            another(peers, folder, name=OTHER, peers=(FRONTEND,), **shared) as other,
        ):
            peers.state = cluster_state(frontends=(FRONTEND, OTHER))
            peers.script = say("Hello", " world")
            wait_until(lambda: keeper.get(f"{PATH}/resp_01{'0' * 32}")[0] == 404)
            wait_until(lambda: other.get(f"{PATH}/resp_00{'0' * 32}")[0] == 404)
            yield keeper, other, peers


def test_either_frontend_knows_the_responses_of_both(two: Two) -> None:
    keeper, other, peers = two
    peers.script = say("Hello", " world")
    for mine, yours in ((keeper, other), (other, keeper)):
        with client_of(mine) as here, client_of(yours) as there:
            made = here.responses.create(model=MODEL, input="A")
            assert peers.expect(Generate).frontend == (FRONTEND if mine is keeper else OTHER)
            assert there.responses.retrieve(made.id).to_dict() == made.to_dict()
            assert len(there.responses.input_items.list(made.id).data) == 1
            there.responses.create(model=MODEL, input="B", previous_response_id=made.id)
            assert conversation(peers.expect(Generate)) == [("user", "A"), ("assistant", "Hello world"), ("user", "B")]
            with pytest.raises(openai.BadRequestError):
                there.responses.cancel(made.id)
            there.responses.delete(made.id)
            for either in (here, there):
                with pytest.raises(openai.NotFoundError) as error:
                    either.responses.create(model=MODEL, input="B", previous_response_id=made.id)
                assert error.value.code == "previous_response_not_found"


def test_what_is_to_be_durable_goes_to_the_keeper(two: Two) -> None:
    """Asked of the other one: kept, streamed, cancelled by the keeper, which alone runs it; earlier turns come from wherever they are."""
    keeper, other, peers = two
    peers.script = say("Hello", " world")
    with client_of(other) as there:
        earlier = there.responses.create(model=MODEL, input="A")
        peers.expect(Generate)
        name, asking = begun(other, peers, input="B", previous_response_id=earlier.id)
        assert (asking.frontend, name[5:7]) == (FRONTEND, "00")
        assert conversation(asking) == [("user", "A"), ("assistant", "Hello world"), ("user", "B")]
        events = there.responses.retrieve(name, stream=True)
        assert [next(events).type for _ in range(2)] == ["response.created", "response.queued"]
        told(peers, asking, "Hello", " world")
        assert [event.type for event in events][-1] == "response.completed"
        assert text_of(ended(keeper, name)) == "Hello world"
        received = other.metric("requests_received_total"), keeper.metric("requests_received_total")
        second, cancelled = begun(other, peers)
        assert there.responses.cancel(second).status == "cancelled"
        assert peers.expect(Cancel).keys == cancelled.keys
        assert (other.metric("requests_received_total"), keeper.metric("requests_received_total")) == (received[0] + 1, received[1])


def test_a_full_disk_refuses_what_is_durable_and_nothing_else(two: Two) -> None:
    """The limit of a file's size is the disk that is full: the process gets an error for every write beyond it."""
    keeper, other, peers = two
    path, pid = peers.run_dir / "journal", keeper.process.pid
    name, asking = begun(keeper, peers, input="x" * 300_000)  # more than the log of the process, which has the same limit
    size = path.stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
    for frontend in (keeper, other):
        status, headers, answer = frontend.post(PATH, {"input": "A", "background": True})
        assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "journal_unavailable", "10")
    peers.script = say("Hello", " world")
    assert keeper.post(PATH, {"input": "A"})[0] == 200
    assert keeper.call("DELETE", f"{PATH}/{name}")[0] == 503
    told(peers, asking, "Hello", " world")
    assert text_of(ended(keeper, name)) == "Hello world"
    wait_until(lambda: path.stat().st_size == size)  # while its end is tried again there is a piece of it behind the others
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(lambda: path.stat().st_size > size)  # the end that was owed
    wait_until(lambda: "the journal is written again" in keeper.log())  # and is on the disk
    begun(keeper, peers)


def test_a_keeper_that_is_away_is_told_of(two: Two) -> None:
    keeper, other, peers = two
    name, asking = begun(keeper, peers)
    peers.state = cluster_state(frontends=(OTHER,))
    wait_until(lambda: other.get(f"{PATH}/{name}")[0] == 503)
    assert other.post(PATH, {"input": "A", "background": True})[2]["error"]["code"] == "not_ready"
    peers.state = cluster_state(frontends=(FRONTEND, OTHER))
    wait_until(lambda: other.get(f"{PATH}/{name}")[0] == 200)
    told(peers, asking, "Hello", " world")
    assert text_of(ended(other, name)) == "Hello world"


def test_the_socket_between_frontends_is_for_frontends(two: Two) -> None:
    keeper, _, peers = two
    connection = http.client.HTTPConnection("frontend0")
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(peers.run_dir / "http-0.sock"))
        connection.sock = raw
        connection.request("GET", f"{PATH}/resp_00{'0' * 32}")
        assert connection.getresponse().status == 400
    assert keeper.call("GET", "/conversations/x", headers={"X-Pagewire-Caller": "e30="})[0] == 404


def test_a_journal_outlives_its_process(tmp_path: Path) -> None:
    """Killed in the middle: what had not ended is made again with the seed it had, the rest is as it was."""
    path = tmp_path / "journal"
    with tempfile.TemporaryDirectory(prefix="pw-") as name:
        folder = Path(name)
        with running(folder, journal=str(path), keeper=FRONTEND) as (first, peers):
            finished, asking = begun(first, peers, metadata={"a": "b"}, instructions="I.")
            told(peers, asking, "Hello", " world")
            before = ended(first, finished)
            cancelled, _ = begun(first, peers)
            assert first.post(f"{PATH}/{cancelled}/cancel", {})[2]["status"] == "cancelled"
            deleted, _ = begun(first, peers)
            assert first.call("DELETE", f"{PATH}/{deleted}")[0] == 200
            running_, middle = begun(first, peers, input="R", max_output_tokens=3, temperature=0.7)
            told(peers, middle, "Half", end=False)
            wait_for(first, running_, lambda found: found["status"] == "in_progress")
            waiting, last = begun(first, peers, input="W", previous_response_id=finished)
            first.kill()
            while not peers.received.empty():
                peers.received.get_nowait()
            with another(peers, folder, journal=str(path), keeper=FRONTEND) as second:
                again = {message.seeds[0]: message for message in (peers.expect(Generate), peers.expect(Generate))}
                assert again.keys() == {middle.seeds[0], last.seeds[0]}
                assert (again[middle.seeds[0]].sampling, again[middle.seeds[0]].stop) == (middle.sampling, middle.stop)
                assert conversation(again[last.seeds[0]])[-3:] == [("user", "A"), ("assistant", "Hello world"), ("user", "W")]
                assert response(second, finished) == before
                assert (response(second, cancelled)["status"], second.get(f"{PATH}/{deleted}")[0]) == ("cancelled", 404)
                assert {response(second, name)["status"] for name in (running_, waiting)} == {"queued"}
                for message in again.values():
                    told(peers, message, "Hello", " world")
                assert {text_of(ended(second, name)) for name in (running_, waiting)} == {"Hello world"}
                with client_of(second) as client:
                    events = list(client.responses.retrieve(finished, stream=True))
                    assert [event.sequence_number for event in events] == list(range(len(events)))
                    assert events[-1].to_dict()["response"] == before
                _a_stop_in_order(peers, folder, path, second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _a_stop_in_order(peers: Peers, folder: Path, path: Path, frontend: Frontend) -> None:
    """What runs then is left for the next server, which must have the same model."""
    left, asking = begun(frontend, peers)
    told(peers, asking, "Half", end=False)
    peers.state = cluster_state(ready=False, phase=STOPPING, stop_seconds=1.0)
    frontend.wait(503)
    assert frontend.terminate() == 0
    peers.state = cluster_state()
    with another(peers, folder, journal=str(path), keeper=FRONTEND, model_name="other") as third:
        answer = ended(third, left)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "model_not_found")
