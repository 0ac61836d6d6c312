"""The load generator and its figures, against a stand-in server."""

import argparse
import asyncio
import itertools
import json

import pytest

from launcher import bench, load
from launcher.errors import LauncherError
from launcher.figures import percentile, summarise, table
from tests.support.fake_server import MODEL, FakeServer


def target(server: FakeServer, max_tokens: int = 4, timeout: float = 60.0) -> load.Target:
    return load.Target(url=server.url, model=MODEL, max_tokens=max_tokens, timeout=timeout)


def closed(server: FakeServer, requests: int = 3, streams: int = 1, **options: float) -> load.Measurement:
    goal = target(server, timeout=options.get("timeout", 60.0))
    return asyncio.run(load.closed_loop(goal, [[1, 2, 3]] * requests, streams, lambda outcome: None))


def test_percentiles_interpolate() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_arrivals_are_poisson_and_repeat() -> None:
    times = load.arrival_times(10.0, 2000, seed=1)
    assert times == load.arrival_times(10.0, 2000, seed=1)
    assert times != load.arrival_times(10.0, 2000, seed=2)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.1)
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert sum(gap < 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.05)


def test_prompts_repeat_and_differ() -> None:
    prompts = load.make_prompts(range(50), 4, 16, seed=3)
    assert prompts == load.make_prompts(range(50), 4, 16, seed=3)
    assert [len(prompt) for prompt in prompts] == [16] * 4
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 4


@pytest.mark.parametrize("streams", [1, 3, 8])
def test_closed_loop_keeps_its_concurrency(streams: int) -> None:
    with FakeServer(at_once=streams) as server:
        measured = closed(server, requests=12, streams=streams)
        assert server.most_running == streams
    assert [outcome.error for outcome in measured.outcomes] == [None] * 12
    assert {outcome.tokens for outcome in measured.outcomes} == {4}
    assert {outcome.prompt_tokens for outcome in measured.outcomes} == {3}
    assert all(len(outcome.gaps) == 3 for outcome in measured.outcomes)


def test_open_loop_counts_from_the_due_time() -> None:
    """Ten requests due within milliseconds at a server that takes one per 30 ms: the last one waited for all the others."""
    with FakeServer(serial_seconds=0.03, at_once=10) as server:
        measured = asyncio.run(load.open_loop(target(server), [[1]] * 10, 2000.0, 0, lambda outcome: None))
    waits = sorted(outcome.first - outcome.due for outcome in measured.outcomes if outcome.first is not None)
    assert len(waits) == 10
    assert waits[-1] >= 0.25
    assert measured.seconds >= 0.3


@pytest.mark.parametrize(
    ("trouble", "error"),
    [("busy", "HTTP 429"), ("cut", "stream cut"), ("error", "stream error worker_lost"), ("short", "wrong number of tokens"), ("hang", "timeout")],
)
def test_failures_are_counted_by_kind(trouble: str, error: str) -> None:
    with FakeServer(trouble) as server:
        result = summarise("1 stream", closed(server, requests=2, timeout=0.3 if trouble == "hang" else 60.0))
    assert result["errors"] == {error: 2}
    assert (result["ok"], result["total_tok_s"], result["ttft_ms"], result["stream_tok_s"]) == (0, 0.0, None, None)


def test_a_server_that_is_not_there() -> None:
    with FakeServer() as server:
        goal = target(server)
    measured = asyncio.run(load.closed_loop(goal, [[1]], 1, lambda outcome: None))
    assert [outcome.error for outcome in measured.outcomes] == ["ClientConnectorError"]


def test_figures() -> None:
    outcomes = [load.Outcome(due=0.0, sent=0.1, first=0.5, last=1.5, ended=1.6, gaps=[0.5, 0.5], tokens=3, prompt_tokens=7)]
    result = summarise("x", load.Measurement(outcomes=outcomes, seconds=1.6))
    assert result["stream_tok_s"] == 2.0
    assert result["total_tok_s"] == 1.88
    assert result["ttft_ms"] == {"p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert result["inter_token_ms"] == {"p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert len(table([result]).splitlines()) == 2


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(given)


def test_bench_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        given = arguments("--url", server.url, "--streams", "1,2", "--requests", "4", "--prompt-tokens", "5", "--max-tokens", "3", "--json")
        assert bench.run(given) == 0
        measured = [body for body in server.bodies if body["max_tokens"] == 3]
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert [run["load"] for run in report["runs"]] == ["1 stream", "2 streams"]
    assert [run["completion_tokens"] for run in report["runs"]] == [12, 12]
    assert report["machine"]["cores"] >= 1
    assert report["model"] == MODEL
    assert {"commit", "command", "seed", "prompt_tokens", "max_tokens"} <= report.keys()
    assert all(len(body["prompt"]) == 5 and body["ignore_eos"] for body in measured)
    assert "4 of 4 requests" in printed.err


def test_bench_open_loop_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        assert bench.run(arguments("--url", server.url + "/", "--rate", "500", "--requests", "5", "--max-tokens", "2")) == 0
    assert "500/s" in capsys.readouterr().out


def test_bench_tells_failure() -> None:
    with FakeServer() as server:
        url = server.url
    with pytest.raises(LauncherError, match="does not answer"):
        bench.run(arguments("--url", url))
    with FakeServer("busy") as server, pytest.raises(LauncherError, match="HTTP 429"):
        bench.run(arguments("--url", server.url))
    with pytest.raises(LauncherError, match="leave --url out"):
        bench.run(arguments("--url", url, "--start"))


@pytest.mark.parametrize("given", [["--streams", "0"], ["--streams", "x"], ["--rate", "0"], ["--rate", "nan"], ["--requests", "-1"]])
def test_bench_refuses_bad_flags(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(*given)
    assert given[0] in capsys.readouterr().err
