"""The public package against a stand-in server: what it sends, what it gives back, how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire import LLM, PagewireError, SamplingParams
from pagewire.client import Server
from pagewire.cluster import server_below
from pagewire.llm import _arguments
from pagewire.paths import app_root
from tests.support.fake_server import MODEL, FakeServer

ROOT = Path(__file__).resolve().parents[2]
USER = {"role": "user", "content": "hello"}


def test_generate_keeps_the_order_of_prompts_and_choices() -> None:
    with FakeServer() as server, LLM(url=server.url) as llm:
        prompts: list[str | list[int]] = ["a", "b", [1, 2]]
        done = llm.generate(prompts, SamplingParams(n=2, temperature=0, max_tokens=2))
        assert [(item.prompt_index, item.index, item.text) for item in done] == [
            (0, 0, "echo a"),
            (0, 1, "echo a"),
            (1, 0, "echo b"),
            (1, 1, "echo b"),
            (2, 0, "echo [1, 2]"),
            (2, 1, "echo [1, 2]"),
        ]
        assert done[0].finish_reason == "length"
        assert done[0].usage["completion_tokens"] == 2
        assert all(body["temperature"] == 0 and body["n"] == 2 and "top_p" not in body for body in server.bodies)


@pytest.mark.parametrize(("prompts", "sent"), [("a", ["a"]), ([5, 6], [[5, 6]]), ([], []), ((7,), [[7]])])
def test_generate_takes_one_prompt_or_many(prompts: list[int] | str, sent: list[object]) -> None:
    with FakeServer() as server, LLM(url=server.url) as llm:
        assert len(llm.generate(prompts)) == len(sent)
        assert [body["prompt"] for body in server.bodies] == sent


def test_chat_and_models() -> None:
    with FakeServer() as server, LLM(url=server.url + "/") as llm:
        assert [item.text for item in llm.chat([USER], SamplingParams(logprobs=3))] == ["echo hello"]
        assert server.bodies == [{"messages": [USER], "logprobs": True, "top_logprobs": 3}]
        assert llm.models() == [MODEL]


def test_stream() -> None:
    with FakeServer() as server, LLM(url=server.url) as llm:
        assert list(llm.stream("x")) == ["w0 ", "w1 ", "w2 "]
        assert list(llm.stream([USER], SamplingParams(max_tokens=1))) == ["w0 "]
        assert [sorted(body) for body in server.bodies] == [["prompt", "stream"], ["max_tokens", "messages", "stream"]]
        with pytest.raises(ValueError, match="one answer"):
            next(llm.stream("x", SamplingParams(n=2)))


@pytest.mark.parametrize(("trouble", "code"), [("busy", "queue_full"), ("error", "worker_lost"), ("cut", "stream_cut")])
def test_trouble_is_an_error_with_its_code(trouble: str, code: str) -> None:
    with FakeServer(trouble) as server, LLM(url=server.url) as llm:
        with pytest.raises(PagewireError) as caught:
            list(llm.stream("x"))
        assert caught.value.code == code


def test_options_become_flags() -> None:
    assert _arguments("m", {"max_context": 64, "dummy_weights": True, "detach": False}) == ["--model", "m", "--max-context", "64", "--dummy-weights"]
    assert _arguments(None, {}) == []
    assert _arguments(None, {"prefix_cache": False}) == ["--prefix-cache", "off"]
    assert _arguments(None, {"prefix_cache": True, "generation_config": False}) == ["--prefix-cache", "on", "--generation-config", "off"]


def test_a_cluster_that_does_not_start_tells_why() -> None:
    with pytest.raises(RuntimeError, match="no-such-model"):
        LLM("no-such-model-anywhere")


@pytest.mark.parametrize(
    ("told", "key", "found"),
    [
        ({"url": "http://127.0.0.1:7"}, None, Server("http://127.0.0.1:7")),
        ({"url": "https://127.0.0.1:7", "tls_cert": "/a.pem"}, "pw-1", Server("https://127.0.0.1:7", "pw-1", "/a.pem")),
    ],
    ids=["plain", "key and certificate"],
)
def test_a_private_cluster_says_how_it_is_reached(told: dict[str, str], key: str | None, found: Server, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "info.json").write_text(json.dumps(told))
    if key is not None:
        (tmp_path / "7" / "key").write_text(key)
    assert server_below(tmp_path) == found


def test_the_application_of_a_clone_is_its_root() -> None:
    assert app_root() == ROOT


def test_importing_pagewire_imports_no_process() -> None:
    code = "import sys, pagewire; print(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"launcher", "messages", "transport", "frontend", "scheduler", "worker", "torch", "aiohttp", "zmq", "msgspec"}
