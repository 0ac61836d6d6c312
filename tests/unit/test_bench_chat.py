"""`bench chat`: its conversations against a stand-in server, and its figures."""

import argparse
import asyncio
import json
from typing import Any

import pytest

from launcher import bench_chat, conversations, load
from launcher.chat_figures import Chats, compare, report_text, summarise
from launcher.conversations import Turn, make_script
from launcher.errors import LauncherError
from tests.support.fake_server import MODEL, FakeServer


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_chat.add_arguments(parser)
    return parser.parse_args(given)


def outcome(first: float = 0.5, error: str | None = None, prompt: int = 100, cached: int = 0) -> load.Outcome:
    return load.Outcome(due=0.0, sent=0.0, first=first, last=first, ended=2.0, prompt_tokens=prompt, cached_tokens=cached, tokens=4, error=error)


def chats(cache: str, later: float, texts: str, cached: int = 0) -> Chats:
    """One user, a turn per letter of `texts`; later turns take `later` seconds to their first token."""
    outcomes = [outcome() if number == 1 else outcome(later, cached=cached) for number in range(1, len(texts) + 1)]
    turns = [Turn(user=0, number=number, text=text, outcome=found) for number, (text, found) in enumerate(zip(texts, outcomes, strict=True), 1)]
    return Chats(cache=cache, model="m", turns=turns)


def test_scripts_repeat_and_differ() -> None:
    words = ["some", "words", "to", "draw", "from"]
    script = make_script(words, users=3, turns=4, system_words=50, user_words=20, seed=1)
    assert script == make_script(words, users=3, turns=4, system_words=50, user_words=20, seed=1)
    assert script != make_script(words, users=3, turns=4, system_words=50, user_words=20, seed=2)
    assert len(script.system.split()) == 50
    messages = [message for user in script.messages for message in user]
    assert ([len(user) for user in script.messages], {len(message.split()) for message in messages}) == ([4] * 3, {20})
    assert len(set(messages)) == 12


def test_each_turn_brings_the_conversation_so_far() -> None:
    script = make_script(["a", "b"], users=2, turns=3, system_words=9, user_words=5, seed=0)
    with FakeServer() as server:
        target = load.Target(url=server.url, model=MODEL, max_tokens=3)
        turns = asyncio.run(conversations.converse(target, script, lambda outcome: None))
        bodies = server.bodies
    assert sorted((turn.user, turn.number) for turn in turns) == [(user, number) for user in (0, 1) for number in (1, 2, 3)]
    assert {turn.text for turn in turns} == {"w0 w1 w2 "}
    assert {(body["temperature"], body["stream"], body["max_tokens"]) for body in bodies} == {(0, True, 3)}
    last = next(body["messages"] for body in bodies if len(body["messages"]) == 6 and body["messages"][1]["content"] == script.messages[0][0])
    answer = {"role": "assistant", "content": "w0 w1 w2 "}
    questions = [{"role": "user", "content": text} for text in script.messages[0]]
    assert last == [{"role": "system", "content": script.system}, questions[0], answer, questions[1], answer, questions[2]]
    assert [(turn.outcome.prompt_tokens, turn.outcome.cached_tokens) for turn in turns if turn.user == 1] == [(14, 9), (22, 17), (30, 25)]


def test_users_talk_at_the_same_time() -> None:
    script = make_script(["a"], users=5, turns=2, system_words=1, user_words=1, seed=0)
    with FakeServer(at_once=5) as server:
        asyncio.run(conversations.converse(load.Target(url=server.url, model=MODEL, max_tokens=1), script, lambda outcome: None))
        assert server.most_running == 5


def test_an_answer_without_text_comes_when_it_ends() -> None:
    with FakeServer() as server:
        target = load.Target(url=server.url, model=MODEL, max_tokens=0)

        async def ask() -> tuple[str, load.Outcome]:
            async with load.new_session() as session:
                return await conversations.ask(session, target, [{"role": "user", "content": "hello"}])

        text, found = asyncio.run(ask())
    assert (text, found.error, found.gaps) == ("", None, [])
    assert found.first is not None
    assert found.due <= found.first <= found.ended


def test_figures_of_first_and_later_turns() -> None:
    found = summarise(chats("on", 0.1, "abc", cached=80), requests=4)
    assert (found["requests"], found["ok"], found["errors"]) == (4, 3, {"not sent": 1})
    assert (found["prompt_tokens"], found["cached_tokens"], found["hit_rate"]) == (300, 160, 0.5333)
    assert (found["first"]["hit_rate"], found["later"]["hit_rate"]) == (0.0, 0.8)
    assert (found["first"]["ttft_ms"]["p50"], found["later"]["ttft_ms"]["p90"]) == (500.0, 100.0)
    assert (found["seconds"], found["completion_tokens"], found["total_tok_s"]) == (2.0, 12, 6.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("abc", "abc", {"answers_compared": 3, "answers_different": 0, "same_texts": True}),
        ("abc", "abx", {"answers_compared": 3, "answers_different": 1, "same_texts": False}),
        ("abc", "ab", {"answers_compared": 2, "answers_different": 0, "same_texts": False}),
    ],
    ids=["same", "different", "one missing"],
)
def test_two_runs_compared(before: str, after: str, expected: dict[str, Any]) -> None:
    both = [chats("off", 0.8, before), chats("on", 0.1, after)]
    assert compare([summarise(one, 3) for one in both], both) == {"later_ttft_ratio": {"p50": 8.0, "p90": 8.0}, **expected}


def test_nothing_later_to_compare() -> None:
    both = [chats("off", 0.8, "a"), chats("on", 0.1, "a")]
    assert compare([summarise(one, 1) for one in both], both)["later_ttft_ratio"] is None


@pytest.mark.parametrize(
    ("texts", "line"), [("abc", "all 3 answers are the same with the cache and without"), ("abx", "1 of 3 answers that both runs gave differ")]
)
def test_the_report_for_people(texts: str, line: str) -> None:
    both = [chats("off", 0.8, "abc"), chats("on", 0.1, texts, cached=80)]
    runs = [summarise(one, 4) for one in both]
    asked = {"users": 1, "turns": 4, "system_tokens": 60, "user_tokens": 10, "max_tokens": 4}
    machine = {"cpu": "CPU", "cores": 2}
    text = report_text({"machine": machine, "model": "m", **asked, "runs": runs, "comparison": compare(runs, both)})
    lines = text.splitlines()
    assert "errors with cache off: not sent x1" in lines
    assert "time to first token of later turns is 8.0 times shorter with the prefix cache (p50; p90: 8.0)" in lines
    assert lines[-1] == line
    assert [row.split()[:7] for row in lines if row.split()[0] in {"off", "on"}] == [
        ["off", "3", "1", "6.0", "0%", "0%", "0%"],
        ["on", "3", "1", "6.0", "53%", "0%", "80%"],
    ]


def test_bench_chat_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--users", "3", "--turns", "4", "--system-tokens", "20", "--user-tokens", "10", "--max-tokens", "2"]
    with FakeServer() as server:
        assert bench_chat.run(arguments("--url", server.url + "/", "--json", *given)) == 0
        assert bench_chat.run(arguments("--url", server.url, *given)) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[0])
    [run] = report["runs"]
    assert (run["prefix_cache"], run["requests"], run["ok"], run["completion_tokens"]) == (None, 12, 12, 24)
    assert run["later"]["hit_rate"] > run["first"]["hit_rate"] > 0
    assert {"machine", "commit", "command", "seed"} <= report.keys()
    assert "comparison" not in report
    assert "12 of 12 requests, 0 failed" in printed.err
    assert f"{MODEL} on " in printed.out


@pytest.mark.parametrize(("trouble", "error"), [("cut", "stream cut"), ("error", "stream error worker_lost")])
def test_a_failed_request_ends_its_conversation_and_the_exit_code_tells(trouble: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def no_warm_up(target: load.Target) -> None:
        pass

    with FakeServer(trouble) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_chat, "_warm_up", no_warm_up)
        assert bench_chat.run(arguments("--url", server.url, "--users", "2", "--turns", "3", "--json")) == 1
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["errors"] == {error: 2, "not sent": 4}
    assert (run["ok"], run["hit_rate"], run["later"]["ttft_ms"]) == (0, None, None)


def test_bench_chat_tells_failure() -> None:
    with FakeServer("busy") as server, pytest.raises(LauncherError, match="HTTP 429"):
        bench_chat.run(arguments("--url", server.url))
    for given in (["--url", "http://127.0.0.1:1"], ["--port", "1"]):
        for flag in ("--start", "--compare"):
            with pytest.raises(LauncherError, match="leave --url and --port out"):
                bench_chat.run(arguments(flag, *given))


@pytest.mark.parametrize("given", [["--users", "0"], ["--turns", "0"], ["--system-tokens", "-1"], ["--user-tokens", "x"], ["--max-tokens", "0"]])
def test_bench_chat_refuses_bad_flags(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(*given)
    assert given[0] in capsys.readouterr().err
