"""The frontend's part of the live page: files for everybody, events for who has a key, and a scheduler that is asked only while somebody looks."""

import base64
import contextlib
import functools
import hashlib
import http.client
import json
import socket
import tempfile
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from frontend.access import ANYBODY
from frontend.errors import ApiError
from frontend.live.control import require_admin
from messages.change import Declined, DrainCommand, ResumeCommand
from messages.cluster import CONTROL, Command, CommandReply
from messages.explain import Standing
from messages.live import LIVE_FEED, Branch, LiveRows, LiveView
from messages.request import Generate
from tests.support.frontend_peers import MODEL, Frontend, Peers, cluster_state, running, silent
from tests.support.waiting import wait_until
from transport.columns import pack_f32, pack_i32, pack_i64, pack_u8
from transport.key_file import new_key
from transport.sockets import address
from transport.watched_feed import WatchedFeed

STATIC = Path(__file__).resolve().parents[2] / "frontend" / "static"
OTHERS = 4711


class Site:
    def __init__(self, folder: Path) -> None:
        made = {name: new_key(name, admin=name == "boss") for name in ("alice", "boss")}
        self.keys = {name: key for name, (key, _) in made.items()}
        file = folder / "keys"
        file.write_text("".join(line.text() + "\n" for _, line in made.values()))
        file.chmod(0o600)
        self.file = str(file)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("transport.watched_feed.HIGH_WATER_MARK", 0)  # what is shown waits until it can go out
            self.feed = WatchedFeed(self.context, folder, LIVE_FEED)
        self.frontend: Frontend
        self.peers: Peers

    def as_(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"}

    def close(self) -> None:
        self.feed.close()
        self.context.term()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        site = Site(Path(folder))
        with running(Path(folder), api_keys=site.file) as (site.frontend, site.peers):
            yield site
        site.close()


@pytest.fixture(autouse=True)
def unwatched(site: Site) -> None:
    """What is shown goes to the pages of the test: those of the test before are listened for no more."""
    wait_until(lambda: not site.feed.watched, "it still listens")


class Page:
    """An open stream of events."""

    def __init__(self, connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
        self._connection = connection
        connection.request("GET", "/live/events", headers=headers)
        self.response = connection.getresponse()
        self._name = ""

    def next(self, name: str) -> Any:
        """The data of the next event of this name."""
        while line := self.response.readline():
            field, _, value = line.decode().strip().partition(": ")
            if field == "event":
                self._name = value
            elif field == "data" and self._name == name:
                return json.loads(value)
        raise AssertionError(f"the stream ended before {name}")

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextlib.contextmanager
def page(site: Site, name: str) -> Iterator[Page]:
    opened = Page(site.frontend.connection(), site.as_(name))
    try:
        yield opened
    finally:
        opened.close()


def test_a_head_has_no_events(site: Site) -> None:
    connection = site.frontend.connection()
    for method in ("HEAD", "HEAD", "GET"):
        connection.request(method, "/live/events" if method == "HEAD" else "/health/live", headers=site.as_("boss"))
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream" if method == "HEAD" else "application/json")
        response.read()
    connection.close()


def column(text: str, code: str) -> list[Any]:
    return list(array(code, base64.b64decode(text)))


def view(*keys: int) -> LiveView:
    """Every key runs in a slot and waits in the line too, with the same numbers."""
    ones = pack_i32([7] * len(keys))
    rows = LiveRows(
        slot=pack_i32(range(len(keys))), key=pack_i64(keys), phase=pack_u8([2] * len(keys)), prompt=ones, length=ones, computed=ones, limit=ones,
        cached=ones, preemptions=ones, age=pack_f32([1.5] * len(keys)),
    )  # fmt: skip
    line = [Standing(key=key, state="waiting", prompt_tokens=7, place=1 + place, waits_for="slot") for place, key in enumerate(keys)]
    return LiveView(
        time=1.0, slots=8, blocks=6, block_size=16, rows=rows, waiting=len(keys), waiting_tokens=7, line=line, waited=pack_f32([2.0] * len(keys)),
        blocks_map=b"\xe4\x01", branches=[Branch(blocks=3, users=1)],
    )  # fmt: skip


def show(site: Site, shown: LiveView) -> None:
    """To the frontend, once it listens."""
    wait_until(lambda: site.feed.watched, "nobody listens")
    site.feed.publish(shown)


def test_files_need_no_key_and_allow_nothing_from_elsewhere(site: Site) -> None:
    files = (("/", "index.html", "text/html"), ("/static/app.js", "app.js", "text/javascript"), ("/static/style.css", "style.css", "text/css"))
    for path, name, kind in files:
        status, headers, body = site.frontend.call("GET", path, headers={"Accept": "text/html,*/*"})
        assert (status, headers["content-type"], body) == (200, f"{kind}; charset=utf-8", (STATIC / name).read_bytes())
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert site.frontend.call("GET", path, headers={"Accept": "text/html", "If-None-Match": headers["etag"]})[::2] == (304, b"")
    assert site.frontend.get("/static/nothing.js")[0] == 404
    assert site.frontend.get("/static/..%2Faccess.py")[0] == 404
    assert site.frontend.get("/static/__init__.py")[0] == 404


def test_the_page_has_nothing_inline(site: Site) -> None:
    text = (STATIC / "index.html").read_text()
    assert " style=" not in text
    assert "<style" not in text
    assert " on" not in {word[:3] for word in text.split('"')[::2]}
    assert text.count("<script") == text.count('<script type="module" src="/static/app.js"></script>') == 1


def test_what_is_vendored_is_what_was_published() -> None:
    told = json.loads((STATIC / "vendored.json").read_text())
    for name, digest in told["files"].items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name


def test_events_and_the_hint_need_a_key(site: Site) -> None:
    assert site.frontend.get("/live/events")[0] == 401
    assert site.frontend.get("/")[0] == 401
    status, _, body = site.frontend.call("GET", "/", headers=site.as_("alice"))
    assert (status, MODEL in body.decode()) == (200, True)


def test_the_scheduler_is_listened_to_while_a_page_is_open(site: Site) -> None:
    assert not site.feed.watched
    with page(site, "boss") as first, page(site, "boss") as second:
        assert (first.next("hello")["admin"], first.next("history").keys()) == (True, {"time", "series"})
        show(site, view(OTHERS))
        for opened in (first, second):
            scene = opened.next("scene")
            assert (scene["slots"], scene["waiting"], column(scene["rows"]["key"], "q"), column(scene["mine"], "B")) == (8, 1, [OTHERS], [1])
            assert scene["branches"] == [{"blocks": 3, "users": 1}]
            assert opened.next("blocks") == {"blocks": 6, "map": base64.b64encode(b"\xe4\x01").decode()}
        assert {one["name"]: one["pid"] for one in second.next("processes")["processes"]} == {"tokenizer0": 1, "scheduler": 2, "worker0": 3}
        assert first.next("sample")["series"]["running"] == [3.0]
    wait_until(lambda: not site.feed.watched, "it still listens")


def test_the_model_is_the_one_that_is_served_now(site: Site) -> None:
    before, site.peers.state = site.peers.state, msgspec.structs.replace(cluster_state(), model="another")
    with page(site, "boss") as opened:
        while opened.next("processes")["model"] != "another":
            pass
        with page(site, "boss") as later:
            assert later.next("hello")["model"] == "another"
        site.peers.state = before
        while opened.next("processes")["model"] != MODEL:
            pass


def test_a_key_sees_its_own_requests_and_the_shape_of_others(site: Site) -> None:
    site.peers.script = silent
    with contextlib.closing(site.frontend.connection()) as connection, page(site, "alice") as opened:
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "A", "stream": True}), site.as_("alice"))
        (own,) = site.peers.expect(Generate).keys
        hello = opened.next("hello")
        assert (hello["admin"], hello["keys"]) == (False, True)
        show(site, view(OTHERS, own))
        scene = opened.next("scene")
        assert column(scene["mine"], "B") == [0, 1]
        assert column(scene["rows"]["phase"], "B") == [2, 2]
        assert column(scene["rows"]["key"], "q") == column(scene["line_key"], "q") == [0, own]
        assert [column(scene["rows"][name], "i") for name in ("prompt", "length", "cached")] == [[0, 7]] * 3
        assert column(scene["rows"]["age"], "f") == [0.0, 1.5]
        assert [(one["place"], one["prompt_tokens"]) for one in scene["line"]] == [(1, 0), (2, 7)]
        assert column(scene["waited"], "f") == [0.0, 2.0]
        assert scene["branches"] == []
        assert {one["pid"] for one in opened.next("processes")["processes"]} == {None}
        status, _, body = site.frontend.call("GET", f"/v1/requests/{own}", headers=site.as_("alice"))
        assert (status, json.loads(body)["choices"][0]["sequence"]) == (200, str(own))
        assert site.frontend.call("GET", f"/v1/requests/{OTHERS}", headers=site.as_("alice"))[0] == 404


@pytest.mark.parametrize("who", ["boss", "alice"])
@pytest.mark.parametrize(
    "columns", [dict.fromkeys(LiveRows.__struct_fields__, b"xyz"), {"key": b"xyz"}, {"prompt": pack_i32([7] * 3)}], ids=["all", "keys", "one"]
)
def test_a_view_with_broken_columns_is_dropped(site: Site, who: str, columns: dict[str, bytes]) -> None:
    broken = msgspec.structs.replace(view(1, 2), rows=msgspec.structs.replace(view(1, 2).rows, **columns))
    dropped = site.frontend.log().count("a view of the scheduler was dropped")

    def is_dropped() -> bool:
        """Shown again and again: the page of the test before may still be listened for, but not for long."""
        show(site, broken)
        return site.frontend.log().count("a view of the scheduler was dropped") > dropped

    with page(site, who) as opened:
        opened.next("history")
        wait_until(is_dropped)
        show(site, view(5))
        assert column(opened.next("scene")["rows"]["key"], "q") == [5 if who == "boss" else 0]


@contextlib.contextmanager
def supervisor(site: Site, reply: CommandReply | bytes) -> Iterator[list[Any]]:
    """Answers every command with `reply`, in a thread. Gives what it has heard."""
    heard: list[Any] = []
    over = threading.Event()
    socket = site.context.socket(zmq.REP)
    socket.bind(address(Path(site.file).parent, CONTROL))

    def answer() -> None:
        while not over.is_set():
            if socket.poll(20):
                heard.append(msgspec.msgpack.decode(socket.recv(), type=Command))
                socket.send(reply if isinstance(reply, bytes) else msgspec.msgpack.encode(reply))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()
        socket.close(linger=1000)


def test_an_administrator_drains_and_nobody_else(site: Site) -> None:
    assert site.frontend.call("POST", "/live/drain")[0] == 401
    assert site.frontend.call("POST", "/live/drain", headers=site.as_("alice"))[0] == 403
    orders: list[tuple[str, CommandReply | bytes, int]] = [
        ("drain", cluster_state(), 200), ("resume", cluster_state(), 200), ("drain", Declined("the cluster is stopping"), 409), ("drain", b"", 503),
    ]  # fmt: skip
    for path, reply, status in orders:
        with supervisor(site, reply) as heard:
            order = functools.partial(site.frontend.call, "POST", f"/live/{path}", headers=site.as_("boss"))
            while (found := order()[0]) == 503 != status or not heard:  # as when this machine stands still for so long that nobody waits for it
                pass
        assert found == status
        assert set(map(type, heard)) == {DrainCommand if path == "drain" else ResumeCommand}


def test_a_key_that_is_removed_sees_no_more(tmp_path: Path) -> None:
    """Its page is cut off, and has to ask again; so is one whose key is no administrator's any more."""
    made = [new_key(name, admin=name == "boss") for name in ("boss", "alice")]
    file = tmp_path / "keys"

    def write(*lines: str) -> None:
        file.write_text("".join(line + "\n" for line in lines))
        file.chmod(0o600)

    write(*(line.text() for _, line in made))
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), api_keys=str(file)) as (frontend, _):
        boss, alice = (Page(frontend.connection(), {"Authorization": f"Bearer {key}"}) for key, _ in made)
        with contextlib.closing(boss), contextlib.closing(alice):
            for opened in (boss, alice):
                opened.next("processes")
            write(made[0][1].text().replace(":admin", ""))
            for opened in (boss, alice):
                with pytest.raises(AssertionError, match="the stream ended"):
                    opened.next("never")


def test_without_keys_nobody_drains() -> None:
    with pytest.raises(ApiError):
        require_admin(ANYBODY, keys=False)


def test_an_end_of_the_frontend_ends_its_streams(tmp_path: Path) -> None:
    """And what was sent on them is in the access log, once."""
    log = tmp_path / "log"
    with (
        tempfile.TemporaryDirectory(prefix="pw-") as folder,
        running(Path(folder), access_log=str(log)) as (frontend, _),
        socket.create_connection(("127.0.0.1", frontend.port), timeout=20) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(b"GET /live/events HTTP/1.1\r\nHost: x\r\n\r\n")
        received = answer.readline()
        while b"event: hello" not in received:
            received += answer.readline()
        assert frontend.terminate() == 0
        received += answer.read()
    (line,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["path"] == "/live/events"]
    assert line["bytes"] == len(received)
