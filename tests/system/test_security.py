"""A cluster of two frontends with keys and TLS: its user's own commands work, nobody else gets in, and no key is where it does not belong."""

import http.client
import json
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests.support.certificates import make_certificate
from tests.support.cluster import ROOT, Cluster, environment, running_cluster
from tests.support.frames import INBOXES, Frames
from tests.support.waiting import wait_until
from transport.key_file import KeyLimits, new_key
from transport.sockets import address
from transport.tls import pinned_context

OTHER = {"frontend1"}
"""Gets no frames: one of its kind is enough."""
FEW = 6
LIMITED = "few", "several", "some"
"""Keys of so many requests a minute."""
OUTSIDE = "a-key-from-the-environment"
Kept = tuple[Cluster, dict[str, str], Path]


@pytest.fixture(scope="module")
def kept(models: Path) -> Iterator[Kept]:
    """The cluster, its keys by name, and the folder of its files; at the end the files that it wrote are searched for keys."""
    with tempfile.TemporaryDirectory(prefix="pw-") as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEWIRE_API_KEY", OUTSIDE)
        folder = Path(name)
        made = {who: new_key(who) for who in ("alice", "bob")} | {name: new_key(name, limits=KeyLimits(rpm=FEW)) for name in LIMITED}
        file = folder / "keys"
        file.write_text("".join(line.text() + "\n" for _, line in made.values()))
        file.chmod(0o600)
        certificate, key = make_certificate(folder, "localhost")
        options = ["--api-keys", str(file), "--tls-cert", str(certificate), "--tls-key", str(key), "--frontends", "2", "--threads", "1"]
        written = [folder / "trace", folder / "record"]
        options += ["--trace", str(written[0]), "--record", str(written[1]), "--record-tokens", "--log-level", "debug"]
        keys = {who: key for who, (key, _) in made.items()} | {"environment": OUTSIDE}
        with running_cluster(models / "chain-byte", *options) as cluster:
            patch.delenv("PAGEWIRE_API_KEY")
            own = (cluster.run_dir / "key").read_text()
            yield cluster, keys, folder
        for path in written:
            content = path.read_bytes()
            assert content
            for secret in (*keys.values(), own):
                assert secret.encode() not in content, path


def ask(kept: Kept, key: str | None, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    cluster, _, folder = kept
    connection = http.client.HTTPSConnection("127.0.0.1", cluster.port, timeout=30, context=pinned_context(folder / "localhost.pem"))
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"x-api-key": key} if key else {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def launch(kept: Kept, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "launch.py"), *arguments]
    return subprocess.run(command, env=environment(kept[0].root) | variables, capture_output=True, text=True, timeout=60, check=False)


def test_both_frontends_know_the_keys(kept: Kept) -> None:
    for _ in range(8):  # the kernel deals connections out
        for name in ("alice", "bob", "environment"):
            assert ask(kept, kept[1][name], "GET", "/v1/models")[0] == 200
        assert ask(kept, None, "GET", "/v1/models")[0] == 401
        assert ask(kept, None, "GET", "/health")[0] == 200
    body = {"prompt": [5, 6], "max_tokens": 2}
    status, done = ask(kept, kept[1]["alice"], "POST", "/v1/completions", body)
    assert status == 200

    def told(name: str) -> set[int]:
        """Whichever frontend is asked."""
        return {ask(kept, kept[1][name], "GET", f"/v1/requests/{done['id']}")[0] for _ in range(4)}

    assert told("bob") == {404}
    for name in ("alice", "environment"):
        wait_until(lambda name=name: told(name) == {200}, name)  # type: ignore[misc]  # one that the other does not answer in time knows nothing of it


def test_both_frontends_count_a_key_once(kept: Kept) -> None:
    """Connections go to either of them; a minute's worth of requests is let in, and what comes back of it meanwhile. One key of a few must do: a
    frontend that does not answer for half a second is not waited for."""
    found = []
    for name in LIMITED:
        began = time.monotonic()
        statuses = [ask(kept, kept[1][name], "POST", "/v1/completions", {"prompt": "A", "max_tokens": 1})[0] for _ in range(3 * FEW)]
        back = int((time.monotonic() - began) * FEW / 60)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= FEW
        found.append(statuses.count(200) - back)
        if found[-1] <= FEW + 1:
            return
    raise AssertionError(f"let in beyond what came back: {found}")


def test_no_tenant_finds_the_prompts_of_another_in_the_cache(kept: Kept) -> None:
    body = {"prompt": list(range(5, 69)), "max_tokens": 1}

    def cached(name: str) -> int:
        status, done = ask(kept, kept[1][name], "POST", "/v1/completions", body)
        assert status == 200
        return int(done["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(name) > 0 for name in ("alice", "alice", "bob", "bob")] == [False, True, False, True]


def test_the_users_own_commands_need_no_key(kept: Kept) -> None:
    done = launch(kept, "generate", "A", "--max-tokens", "2")
    assert (done.returncode, done.stderr) == (0, "")
    status = launch(kept, "cluster", "status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["requests"] == []  # null would mean that the frontend did not answer
    refused = launch(kept, "generate", "A", "--url", kept[0].url)
    assert refused.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr  # it does not know that certificate
    url = f"https://localhost:{kept[0].port}"
    told = launch(kept, "generate", "A", "--max-tokens", "2", "--url", url, SSL_CERT_FILE=str(kept[2] / "localhost.pem"), PAGEWIRE_API_KEY=OUTSIDE)
    assert (told.returncode, told.stderr) == (0, "")


def test_no_process_carries_or_logs_a_key(kept: Kept) -> None:
    cluster, keys, _ = kept
    secrets = [*keys.values(), (cluster.run_dir / "key").read_text()]
    for pid in cluster.pids().values():
        process = psutil.Process(pid)
        said = " ".join(process.cmdline()) + json.dumps(process.environ())
        assert not [secret for secret in secrets if secret in said]
    for text in (" ".join(psutil.Process(cluster.pid).cmdline()), cluster.log()):
        assert not [secret for secret in secrets if secret in text]


def test_the_run_directory_is_closed(kept: Kept) -> None:
    run_dir = kept[0].run_dir
    assert [stat.S_IMODE(path.stat().st_mode) for path in (run_dir, run_dir / "key")] == [0o700, 0o600]
    assert not stat.S_IMODE(run_dir.parent.stat().st_mode) & 0o077


def body_of(kept: Kept) -> Any:
    status, done = ask(kept, kept[1]["alice"], "POST", "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0})
    assert status == 200, done
    return done["choices"]


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_damaged_frames_at_every_socket(kept: Kept, count: int) -> None:
    """Whoever gets at a socket of the run directory with frames that are not quite right ends no process and no request of others."""
    cluster = kept[0]
    text, before = body_of(kept), {process.name: process for process in cluster.state().processes}
    memory = {name: psutil.Process(process.pid).memory_info().rss for name, process in before.items()}
    for name in INBOXES:
        throw(cluster.run_dir, name, count)
    wait_for_frames(cluster, {name: process.counters["bad_frames"] + count // 4 for name, process in before.items()})
    assert body_of(kept) == text
    after = {process.name: process for process in cluster.state().processes}
    assert {name: (process.pid, process.restarts) for name, process in after.items()} == {name: (p.pid, p.restarts) for name, p in before.items()}
    for name, process in after.items():
        assert psutil.Process(process.pid).memory_info().rss - memory[name] < 100 << 20, name
    assert "Traceback" not in cluster.log()


def throw(run_dir: Path, name: str, count: int) -> None:
    """At the inbox called `name`; the control socket answers each of them, with an empty frame or a status."""
    frames = Frames(name, count)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.REQ if name == "control" else zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 20_000)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.setsockopt(zmq.SNDTIMEO, 20_000)
    socket.connect(address(run_dir, name))
    try:
        for _ in range(count if name != "control" else max(20, count // 20)):  # it looks twenty times a second
            socket.send(frames.next())
            if name == "control":
                socket.recv()
    finally:
        socket.close()
        context.term()


def wait_for_frames(cluster: Cluster, wanted: dict[str, float]) -> None:
    deadline = time.monotonic() + 120
    while True:
        found = {process.name: process.counters.get("bad_frames", 0.0) for process in cluster.state().processes}  # a frame may be a report without
        if all(found[name] >= count for name, count in wanted.items() if name not in OTHER):
            return
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(0.1)
