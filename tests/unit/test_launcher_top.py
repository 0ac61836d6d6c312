"""`top`: the screen that is made of what the stream tells."""

import argparse
import base64
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import top
from launcher.errors import LauncherError
from launcher.top_text import screen, seconds
from transport.columns import pack_f32, pack_i32, pack_i64, pack_u8


def told(rows: int, line: int) -> dict[str, Any]:
    ints = pack_i32([5] * rows)
    columns = dict.fromkeys(("prompt", "length", "computed", "limit", "cached", "preemptions"), ints)
    columns |= {"slot": pack_i32(range(rows)), "key": pack_i64([1] * rows), "phase": pack_u8([2] * rows), "age": pack_f32([61.0] * rows)}
    scene = {
        "time": 0.0, "slots": 8, "blocks": 10, "block_size": 16, "waiting": line, "waiting_tokens": 9, "branches": [],
        "rows": {name: text(data) for name, data in columns.items()}, "waited": text(pack_f32([2.0] * line)),
        "line": [{"place": 1 + at, "waits_for": "slot", "prompt_tokens": 3, "start_seconds": 0.2, "first_token_seconds": 0.25} for at in range(line)],
    }  # fmt: skip
    process = {"name": "worker0", "phase": "ready", "pid": 7, "uptime": 3700.0, "restarts": 1, "cpu": 0.5, "memory": 2**20, "detail": ""}
    series = {"generated": [12.0], "kv_running": [0.5], "kv_cached": [0.25], "first_p50": [None]}
    processes = {"model": "small", "processes": [process]}
    return {"hello": {"model": "tiny"}, "scene": scene, "processes": processes, "sample": {"time": [0.0], "series": series}}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_everything_is_on_the_screen() -> None:
    lines = screen(told(2, 1), 200, 40)
    everything = "\n".join(lines)
    assert lines[0].startswith("small  ")  # another model than when the stream began
    for part in ("12 tokens/s", "running 2 of 8, waiting 1", "[####################==========..........] 50 % running", "up 1 h 1 min", "1 min 1 s",
                 "a free slot", "in 200 ms", "in 250 ms"):  # fmt: skip
        assert part in everything, part


class Server:
    """Its streams: each an end, or an error at its end, after what it tells."""

    def __init__(self, *streams: tuple[list[str], Exception | None]) -> None:
        self._streams = iter(streams)

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        names, error = next(self._streams)
        yield from ((name, {}) for name in names)
        if error is not None:
            raise error


def test_a_stream_that_breaks_off_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, args = LauncherError("broken"), argparse.Namespace(url=None, port=None)
    server = Server((["hello", "scene"], None), ([], broken), (["scene"], broken), ([], broken))
    monkeypatch.setattr(top, "find_server", lambda url, port, patience: server)
    clock = iter([0.0, 0.0, 1.0, 29.0, 29.0, 29.0, 60.0])
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    told: dict[str, Any] = {}
    found = top._follow(args, told, 30.0)
    assert [str(lost or "")[:6] for lost in itertools.islice(found, 6)] == ["", "", "the se", "broken", "", "broken"]
    with pytest.raises(LauncherError, match="broken"):
        next(found)
    assert told.keys() == {"hello", "scene"}


def test_a_server_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "find_server", lambda url, port, patience: Server(([], None)))
    with pytest.raises(LauncherError, match="cluster status"):
        next(top._follow(argparse.Namespace(url=None, port=None), {}, 30.0))


def test_the_screen_is_not_left() -> None:
    for height in (16, 24, 50):
        lines = screen(told(100, 60), 60, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= 60
        assert any("more" in line for line in lines)


def test_without_a_worker_there_is_a_screen_too() -> None:
    empty = told(0, 0)
    del empty["sample"], empty["processes"]
    lines = screen(empty, 100, 24)
    assert lines[0].startswith("tiny  ")
    assert "running 0 of 8" in "\n".join(lines)
    del empty["hello"]
    assert screen(empty, 100, 24)[1:] == lines[1:]


def test_seconds_for_people() -> None:
    assert [seconds(value) for value in (None, 2e-5, 0.02, 2.0, 63.0, 7300.0)] == ["-", "20 us", "20 ms", "2.0 s", "1 min 3 s", "2 h 1 min"]
