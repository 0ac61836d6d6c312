"""API keys: the file, the commands that change it, and who is let in by it."""

import argparse
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from frontend.access import ANYBODY, Access, Caller
from frontend.connections import room_for
from frontend.errors import ApiError
from launcher.cli import main
from launcher.errors import LauncherError
from launcher.security import security_from, with_own_key
from transport.key_file import KeyFileError, KeyLimits, given_key, new_key, parse, read_keys, salt_of
from transport.private_file import PrivateFileError
from transport.security import Security

HASH = "sha256$" + "0" * 16 + "$" + "0" * 64


def make_file(path: Path, *names: str, admin: str = "") -> dict[str, str]:
    """A file of keys; the keys by name."""
    made = {name: new_key(name, admin=name == admin) for name in names}
    path.write_text("# a comment\n\n" + "".join(line.text() + "\n" for _, line in made.values()))
    path.chmod(0o600)
    return {name: key for name, (key, _) in made.items()}


def refused(access: Access, **headers: str) -> ApiError:
    with pytest.raises(ApiError) as error:
        access.caller({name.replace("_", "-"): value for name, value in headers.items()})
    assert error.value.status == 401
    assert error.value.headers() == {"WWW-Authenticate": 'Bearer realm="pagewire"'}
    return error.value


def test_a_key_is_kept_as_a_salted_hash() -> None:
    key, line = new_key("alice", tenant="team", admin=True)
    other, _ = new_key("alice")
    assert key != other
    assert key.removeprefix(f"pw-{line.salt}-") not in line.text()
    assert salt_of(key) == line.salt
    assert line.matches(key)
    assert not line.matches(key[:-1] + ("A" if key[-1] != "A" else "B"))
    assert parse([line.text()], "file") == [line]
    assert line.text().endswith(":admin,tenant=team")
    assert given_key("mine", "correct horse battery".replace(" ", "-")).admin
    assert given_key("mine", "x" * 16).digest != given_key("mine", "x" * 16).digest  # a salt each


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alice", "line 1: expected name:sha256"),
        ("alice:secret-key-in-the-clear", "line 1: expected"),
        (f"al ice:{HASH}", "the name of a key"),
        (f":{HASH}", "the name of a key"),
        (f"alice:{HASH}:root", "options of a key"),
        (f"alice:{HASH}:tenant=a,tenant=b", "options of a key"),
        (f"alice:{HASH}:tenant=/", "the tenant of a key"),
        (f"alice:{HASH}:rpm=0", "options of a key"),
        (f"alice:{HASH}:rpm=1e3", "options of a key"),
        (f"alice:{HASH}:tpm=1000000000000", "options of a key"),
        (f"alice:{HASH}:requests=2,requests=3", "each at most once"),
        (f"alice:{HASH}:admin,admin", "each at most once"),
        (f"alice:{HASH}\nalice:{HASH.replace('0' * 16, '1' * 16)}", "name of the key 'alice' comes twice"),
        (f"launcher:{HASH}", "a key that the launcher has itself"),
        (f"environment:{HASH}:admin", "a key that the launcher has itself"),
        (f"alice:{HASH}:tenant=launcher", "a key that the launcher has itself"),
        (f"alice:{HASH}\nbob:{HASH}", "salt of the key 'bob' comes twice"),
        ("\n".join(f"a{i}:{HASH}" for i in range(10_001)), "more than 10000"),
    ],
)
def test_lines_that_are_none(text: str, words: str) -> None:
    with pytest.raises(KeyFileError) as error:
        parse(text.splitlines(), "file")
    assert words in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o644, 0o601])
def test_a_file_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    make_file(path, "alice")
    path.chmod(mode)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        read_keys(path)
    path.chmod(0o640)
    assert [line.name for line in read_keys(path)] == ["alice"]


def test_what_is_no_file_of_keys_is_refused(tmp_path: Path) -> None:
    large, fifo, raw = tmp_path / "large", tmp_path / "fifo", tmp_path / "raw"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    raw.write_bytes(b"\xff\x00")
    os.mkfifo(fifo, 0o600)
    for path, words in ((tmp_path, "not a plain file"), (fifo, "not a plain file"), (tmp_path / "none", "No such file"), (large, "larger than")):
        path.chmod(0o600) if path.is_file() else None
        with pytest.raises(PrivateFileError, match=words):
            read_keys(path)
    raw.chmod(0o600)
    with pytest.raises(KeyFileError, match="not a file of keys"):
        read_keys(raw)


def test_who_is_let_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = make_file(path, "alice", "boss", admin="boss")
    access = Access(str(path), [given_key("environment", "a-key-from-outside").text()])
    assert access.caller({"Authorization": f"Bearer {keys['alice']}"}) == Caller("alice", "alice", "alice")
    assert access.caller({"Authorization": f"bearer  {keys['alice']} "}).name == "alice"
    assert access.caller({"x-api-key": keys["boss"]}) == Caller("boss", "boss", None)
    assert access.caller({"Authorization": "Basic eA==", "x-api-key": keys["alice"]}).name == "alice"
    assert access.caller({"Authorization": "Bearer a-key-from-outside"}).owner is None
    assert refused(access).code == "missing_api_key"
    assert refused(access, Authorization="Bearer").code == "missing_api_key"
    assert refused(access, Authorization="Basic " + keys["alice"]).code == "missing_api_key"
    for wrong in (keys["alice"][:-1], keys["alice"] + "A", keys["alice"].upper(), "x" * 900, "\udcff\udc00", keys["alice"][:20] + keys["boss"][20:]):
        error = refused(access, Authorization=f"Bearer {wrong}")
        assert error.code == "invalid_api_key"
        assert wrong not in error.message
    assert refused(access, Authorization=f"Bearer {'wrong'}", x_api_key=keys["alice"]).code == "invalid_api_key"  # not a second try
    assert Access().caller({}) == ANYBODY


def test_a_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    alice = {"x-api-key": make_file(path, "alice")["alice"]}
    access = Access(str(path))
    bob_path = tmp_path / "new"
    bob = {"x-api-key": make_file(bob_path, "bob")["bob"]}
    for text, mode in (("nonsense " + alice["x-api-key"], 0o600), (bob_path.read_text(), 0o666)):
        path.write_text(text)
        path.chmod(mode)
        access.refresh()
        assert access.caller(alice).name == "alice"
    path.unlink()
    access.refresh()
    assert access.caller(alice).name == "alice"
    assert [record.levelname for record in caplog.records].count("ERROR") == 3
    assert "1 keys read before stay" in caplog.text
    assert alice["x-api-key"] not in caplog.text
    bob_path.rename(path)
    access.refresh()
    assert access.caller(bob).name == "bob"
    refused(access, x_api_key=alice["x-api-key"])
    path.write_text("")
    access.refresh()  # an empty file is one: it lets nobody in
    refused(access, x_api_key=bob["x-api-key"])


def test_a_process_that_never_had_a_good_file_lets_nobody_in(tmp_path: Path) -> None:
    access = Access(str(tmp_path / "none"))
    refused(access, x_api_key=new_key("alice")[0])


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "keys"
    file = ["--file", str(path)]
    assert main(["keys", "add", "alice", *file]) == 0
    key, said = capsys.readouterr()
    assert key.count("\n") == 1
    assert key.strip() not in said + path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Access(str(path)).caller({"x-api-key": key.strip()}).name == "alice"
    assert main(["keys", "add", "boss", "--admin", "--tenant", "team", *file]) == 0
    assert main(["keys", "add", "alice", *file]) == 2
    assert "comes twice" in capsys.readouterr().err
    assert main(["keys", "add", "no name", *file]) == main(["keys", "add", "launcher", *file]) == main(["keys", "add", "environment", *file]) == 2
    assert main(["keys", "list", *file]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["alice", "tenant", "alice"], ["boss", "tenant", "team", "admin"]]
    assert main(["keys", "remove", "alice", *file]) == 0
    assert main(["keys", "remove", "alice", *file]) == 1
    assert [line.name for line in read_keys(path)] == ["boss"]
    path.chmod(0o644)
    assert main(["keys", "add", "eve", *file]) == 2
    assert "chmod 600" in capsys.readouterr().err
    assert sorted(os.listdir(path.parent)) == ["keys"]


def test_limits_of_a_key_are_set_and_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    file = ["--file", str(path)]
    assert main(["keys", "add", "alice", "--requests", "4", "--tpm", "100_000", *file]) == 0
    key = capsys.readouterr().out.strip()
    assert Access(str(path)).caller({"x-api-key": key}).limits == KeyLimits(requests=4, tpm=100_000)
    assert path.read_text().splitlines()[-1].endswith(":requests=4,tpm=100000")
    assert main(["keys", "limit", "alice", "--rpm", "60", "--requests", "0", *file]) == 0
    assert "alice: rpm=60, tpm=100000" in capsys.readouterr().err
    assert Access(str(path)).caller({"x-api-key": key}).limits == KeyLimits(rpm=60, tpm=100_000)
    assert main(["keys", "list", *file]) == 0
    assert capsys.readouterr().out.split() == ["alice", "tenant", "alice", "rpm=60", "tpm=100000"]
    assert main(["keys", "limit", "bob", *file]) == 1
    assert main(["keys", "limit", "alice", "--rpm", "0", "--tpm", "0", *file]) == 0
    assert "alice: no limits" in capsys.readouterr().err
    assert not Access(str(path)).caller({"x-api-key": key}).limits


def start_options(**options: Any) -> argparse.Namespace:
    none = {"api_keys": None, "tls_cert": None, "tls_key": None, "cors_origin": None, "max_connections": 4096, "host": "127.0.0.1"}
    none |= {"max_unsent_bytes": 1 << 20}
    return argparse.Namespace(**none | options)


def test_a_start_checks_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    make_file(path, "alice")
    security = security_from(start_options(api_keys=str(path)))
    assert security.keyed
    key, known = with_own_key(security)
    assert key is not None
    assert Access(known.api_keys, known.key_lines).caller({"x-api-key": key}).owner is None
    assert with_own_key(security_from(start_options())) == (None, Security())
    for options, words in (
        ({"api_keys": str(tmp_path / "none")}, "No such file"),
        ({"tls_cert": "x"}, "belong together"),
        ({"tls_cert": str(path), "tls_key": str(path)}, "no certificate and key"),
    ):
        with pytest.raises(LauncherError, match=words):
            security_from(start_options(**options))
    assert capsys.readouterr().err == ""
    security_from(start_options(host="0.0.0.0"))
    assert "no API keys" in capsys.readouterr().err


def test_the_key_of_the_environment_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_API_KEY", "correct-horse-battery")
    security = security_from(start_options())
    assert "PAGEWIRE_API_KEY" not in os.environ
    assert "correct" not in repr(security)
    assert Access(None, security.key_lines).caller({"Authorization": "Bearer correct-horse-battery"}).name == "environment"
    monkeypatch.setenv("PAGEWIRE_API_KEY", "short")
    with pytest.raises(LauncherError, match="16 to 512"):
        security_from(start_options())


@pytest.mark.parametrize(
    ("limits", "connections", "set_to"),
    [
        ((1024, 4096), 1000, [(1128, 4096)]),
        ((1024, 1024), 896, [(1024, 1024)]),
        ((8192, 8192), 1000, []),
        ((100, -1), 1000, [(1128, -1)]),
        ((10, 10), 1, [(10, 10)]),
    ],
)
def test_connections_fit_into_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], connections: int, set_to: list[tuple[int, int]]
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda kind: limits)
    monkeypatch.setattr("resource.setrlimit", lambda kind, pair: raised.append(pair))
    assert room_for(1000) == connections
    assert raised == set_to
