"""The tokenizer process alone over its real sockets: requests, streams, cancelling, deaths, hostile frames."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.admit import Abort, Admit
from messages.request import Cancel, ChatPrompt, Delivered, Detokenize, Generate, TextPrompt, Tokenize, TokenPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Begun, Detokenized, Ended, FromTokenizer, Problem, Started, TextDelta, Texts, Tokenized
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH, RUNNING, LogprobColumns, Refused, Tokens
from tests.support.tokenizer_neighbours import PATIENCE, Neighbours, admitted, chat, generate, ids_of, problem_of, tokens
from transport.columns import pack_f32, pack_i32, pack_i64, pack_u8, view_i32

BOS, EOS, EOT = 292, 293, 294
THE = 267  # ` the`, one token


KEYS = range(1, 400)
"""Those of sequences, in all tests here."""


@pytest.fixture
def own(run_dir: Path, models: Path) -> Iterator[Neighbours]:
    """For a test that leaves something behind."""
    with Neighbours(run_dir, models / "chain-byte") as neighbours:
        yield neighbours.start()


@pytest.fixture
def byte(byte: Neighbours) -> Iterator[Neighbours]:
    yield byte
    byte.settle(KEYS)


def answers(neighbours: Neighbours) -> None:
    """The process still serves."""
    neighbours.send(Tokenize(frontend="frontend0", key=1, prompt=TextPrompt("A")))
    assert neighbours.hear() == Tokenized(1, [BOS, 32])


def play(neighbours: Neighbours, key: int, ids: list[int], finish: int) -> tuple[str, Ended, list[TextDelta]]:
    """Generate `ids` one step at a time; gives the whole text, the end, and the deltas before it."""
    for index, token in enumerate(ids):
        neighbours.send(tokens((key, token, finish if index == len(ids) - 1 else RUNNING, index)))
    deltas = []
    while not isinstance(message := neighbours.hear(), Ended):
        assert isinstance(message, TextDelta)
        deltas.append(message)
    return "".join(delta.text for delta in deltas) + message.text, message, deltas


def text_of(message: FromTokenizer) -> str:
    assert isinstance(message, TextDelta | Ended)
    return message.text


def test_reports_and_ends_at_sigterm(run_dir: Path, models: Path) -> None:
    with Neighbours(run_dir, models / "chain-byte") as neighbours:
        report = neighbours.start().report(lambda report: report.phase == "ready")
        assert report.facts == {"chat": 1, "vocab": 312, "tool_parser": "none", "reasoning_parser": "none"}
        admitted(neighbours, generate(5))
        report = neighbours.report(lambda report: report.gauges.get("sequences") == 1)
        assert report.counters["prompt_tokens"] == 2
        neighbours.process.send_signal(signal.SIGINT)
        answers(neighbours)
        assert neighbours.terminate() == 0
        ended = neighbours.hear()
        assert isinstance(ended, Ended)
        assert ended.problem is not None
        assert ended.problem.code == "shutting_down"
        assert neighbours.errors() == ""


def test_prompts_become_ids(byte: Neighbours) -> None:
    admit = admitted(byte, generate(7, chat({"role": "user", "content": "A"}), keys=[7, 8]))
    assert view_i32(admit.prompt).tolist() == [292, 295, 32, 294, 296]
    assert (admit.tokenizer, admit.keys, admit.seeds, admit.end_ids) == ("tokenizer0", [7, 8], [1007, 1008], [EOS, EOT])
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    admit = admitted(byte, generate(9, chat({"role": "user", "content": parts})))
    assert len(admit.prompt) == 4 * 7
    admit = admitted(byte, generate(10, TextPrompt("<|bos|>A"), ignore_eos=True, token_ids=[64]))
    assert view_i32(admit.prompt).tolist() == [BOS, 32]
    assert admit.end_ids == [64]
    admit = admitted(byte, generate(11, TokenPrompt([311])))
    assert view_i32(admit.prompt).tolist() == [311]


def test_streams_whole_characters(byte: Neighbours) -> None:
    admitted(byte, generate(3))
    ids = ids_of(byte, "\U0001fae0ZD")
    text, ended, deltas = play(byte, 3, ids, FINISH_LENGTH)
    assert text == "\U0001fae0ZD"
    assert [(delta.text, len(delta.ids)) for delta in deltas] == [("\U0001fae0", 4), ("Z", 1)]
    assert (ended.finish, ended.completion_tokens, ended.tokens) == ("length", 6, 1)


def test_end_token_is_counted_but_not_shown(byte: Neighbours) -> None:
    admitted(byte, generate(3))
    text, ended, _ = play(byte, 3, [*ids_of(byte, " the cat"), EOT], FINISH_END_TOKEN)
    assert (text, ended.finish, ended.stop_reason, ended.completion_tokens) == (" the cat", "stop", None, 3)


def test_stop_string_over_tokens(byte: Neighbours) -> None:
    admitted(byte, generate(3, strings=["ldEN"], include_stop_string=True))
    text, ended, _ = play(byte, 3, [*ids_of(byte, "Hello worldEND"), EOS], FINISH_END_TOKEN)
    assert (text, ended.finish, ended.stop_reason, ended.completion_tokens) == ("Hello worldEN", "stop", "ldEN", 3)
    assert byte.scheduled() == Abort([3], finished=True)
    assert byte.silent()


def test_stop_string_that_is_a_special_token(byte: Neighbours) -> None:
    admit = admitted(byte, generate(3, strings=["<|user|>"], token_ids=[64]))
    assert admit.end_ids == [64, EOS, EOT, 295]
    text, ended, _ = play(byte, 3, [*ids_of(byte, " the"), 295], FINISH_END_TOKEN)
    assert (text, ended.finish, ended.stop_reason) == (" the", "stop", "<|user|>")
    admitted(byte, generate(4, token_ids=[64]))
    text, ended, _ = play(byte, 4, [*ids_of(byte, " the"), 64], FINISH_END_TOKEN)
    assert (text, ended.stop_reason) == (" the", 64)


def test_special_token_shown_then_matched_as_text(byte: Neighbours) -> None:
    admitted(byte, generate(3, strings=["<|user|>"], skip_special_tokens=False))
    text, ended, _ = play(byte, 3, [*ids_of(byte, " the"), EOT, 295], RUNNING)
    assert (text, ended.finish, ended.stop_reason) == (" the<|eot|>", "stop", "<|user|>")


def test_sentencepiece_keeps_the_leading_space(run_dir: Path, models: Path) -> None:
    with Neighbours(run_dir, models / "chain-spm") as spm:
        spm.start()
        admitted(spm, generate(3, TextPrompt("the")))
        admitted(spm, generate(4, TextPrompt("the"), frontend="frontend1"))
        hello = ids_of(spm, "Hello world cat")
        spm.send(tokens((4, hello[1], RUNNING, 0), (3, hello[0], RUNNING, 0)))
        spm.send(tokens((3, hello[1], RUNNING, 1), (4, hello[2], FINISH_LENGTH, 1)))
        spm.send(tokens((3, hello[2], FINISH_LENGTH, 2)))
        assert [text_of(spm.hear()) for _ in range(3)] == [" Hello", " world", " cat"]
        assert [text_of(spm.hear("frontend1")) for _ in range(2)] == [" world", " cat"]


def test_logprobs_echo_and_cached(byte: Neighbours) -> None:
    admitted(byte, generate(3, TextPrompt("AB"), echo=True))
    logprobs = LogprobColumns(row=pack_i32([0]), chosen=pack_f32([-0.5]), count=pack_i32([2]), top_ids=pack_i32([64, 65]), top=pack_f32([-0.5, -1.0]))
    byte.send(tokens((3, 64, RUNNING, 0), logprobs=logprobs, cached={3: 16}))
    delta = byte.hear()
    assert isinstance(delta, TextDelta)
    assert delta.text == "ABa"
    entry = delta.logprobs[0]
    assert (entry.token, entry.piece, entry.logprob, entry.top) == (64, b"a", -0.5, [(64, b"a", -0.5), (65, b"b", -1.0)])
    byte.send(tokens((3, EOS, FINISH_END_TOKEN, 1)))
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert (ended.cached_tokens, ended.text, ended.completion_tokens) == (16, "", 2)
    assert delta.cached == 16


@pytest.mark.parametrize(
    ("prompt", "code", "param", "words"),
    [
        (TextPrompt("", add_special_tokens=False), "empty_prompt", "prompt", "no tokens"),
        (TokenPrompt([]), "empty_prompt", "prompt", "no tokens"),
        (TokenPrompt([312]), "invalid_token_id", "prompt", "312 is outside"),
        (TokenPrompt([64] * 2048), "context_length_exceeded", "prompt", "2048 tokens. However, your prompt resulted in 2048 tokens"),
        (TextPrompt("a" * 2047), "context_length_exceeded", "prompt", "resulted in 2048 tokens"),
        (TextPrompt("a" * 5_000_000), "context_length_exceeded", "prompt", "at least 2048 tokens"),
        (TextPrompt("a" * 30_000), "context_length_exceeded", "prompt", "at least 2048 tokens"),
        (chat({"role": "user", "content": "a" * 2100}), "context_length_exceeded", "messages", "your messages resulted in 2104 tokens"),
        (chat({"role": "robot", "content": "A"}), "chat_template_error", "messages", "role not supported: robot"),
        (chat({"content": "A"}), "invalid_messages", "messages", "messages[0] has no role"),
        (chat({"role": "user", "content": [{"type": "image_url"}]}), "invalid_messages", "messages", "'image_url'"),
        (chat({"role": "user", "content": 7}), "invalid_messages", "messages", "content must be"),
        (chat(), "invalid_messages", "messages", "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_refusals(byte: Neighbours, prompt: Any, code: str, param: str, words: str) -> None:
    problem = problem_of(byte, generate(3, prompt))
    assert (problem.status, problem.code, problem.param) == (400, code, param)
    assert words in problem.message
    admitted(byte, generate(3))
    byte.send(Cancel([3]))
    assert byte.scheduled() == Abort([3])


def test_the_longest_prompt_that_fits(byte: Neighbours) -> None:
    assert len(admitted(byte, generate(3, TextPrompt("a" * 2046))).prompt) == 4 * 2047


def test_bad_stops_are_refused(byte: Neighbours) -> None:
    assert problem_of(byte, generate(3, strings=["x" * 5000])).param == "stop"
    assert problem_of(byte, generate(3, strings=[""])).code == "invalid_stop"
    assert problem_of(byte, generate(3, token_ids=[312])).param == "stop_token_ids"


def test_without_a_template(run_dir: Path, models: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(models / "dice-byte", tmp_path / "model"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    template = settings.pop("chat_template")
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with Neighbours(run_dir, model) as neighbours:
        assert neighbours.start().report(lambda report: report.phase == "ready").facts["chat"] == 0
        problem = problem_of(neighbours, generate(3, chat({"role": "user", "content": "A"})))
        assert (problem.status, problem.code) == (400, "no_chat_template")
        assert "--chat-template" in problem.message
        admitted(neighbours, generate(4))
    (model / "chat_template.jinja").write_text(template)
    with Neighbours(run_dir, model) as neighbours:
        admitted(neighbours.start(), generate(3, chat({"role": "user", "content": "A"})))
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    with Neighbours(run_dir, model) as neighbours:
        assert neighbours.process.wait(timeout=PATIENCE) == 1
        assert "syntax error" in neighbours.errors()
    override = "{{ messages[0].content }}"
    with Neighbours(run_dir, model, chat_template=override) as neighbours:
        admit = admitted(neighbours.start(), generate(3, chat({"role": "user", "content": "A"})))
        assert view_i32(admit.prompt).tolist() == [32]


def test_cancel_in_every_state(own: Neighbours) -> None:
    own.know(4_000_000)
    own.process.send_signal(signal.SIGSTOP)  # until all are on their way: long texts are encoded one after the other, and the first takes a while
    for key, words in ((6, 200_000), (3, 20_000), (7, 20_000)):
        own.send(generate(key, TextPrompt("Hello " * words)))
    own.send(Cancel([3, 999]))
    own.process.send_signal(signal.SIGCONT)
    assert [message.keys for message in (own.scheduled(), own.scheduled()) if isinstance(message, Admit)] == [[6], [7]]
    assert [message.key for message in (own.hear(), own.hear()) if isinstance(message, Started)] == [6, 7]
    own.send(Cancel([6, 7]))
    assert own.scheduled() == Abort([6, 7])
    admitted(own, generate(4, keys=[4, 5]))
    own.send(Cancel([4]))
    assert own.scheduled() == Abort([4])
    own.send(tokens((4, 64, RUNNING, 0), (5, 65, RUNNING, 0)))
    assert own.hear() == TextDelta(5, "b", [65])
    own.send(Cancel([5]))
    assert own.scheduled() == Abort([5])
    assert own.silent()
    admitted(own, generate(3))


def test_the_times_of_first_tokens_go_before_their_text_and_each_once(byte: Neighbours) -> None:
    admitted(byte, generate(11))
    admitted(byte, generate(12))
    times = {"queued": pack_f32([0.5, 0.25, 9.0]), "prefilled": pack_f32([1.5, 0.75, 9.0])}
    byte.send(tokens((11, 64, RUNNING, 0), (12, 64, RUNNING, 0), (99, 64, RUNNING, 0), **times))
    begun = byte.hear()
    assert begun == Begun([11, 12], pack_f32([0.5, 0.25]), pack_f32([1.5, 0.75]))
    assert byte.hear() == Texts([11, 12], ["a", "a"], [1, 1], pack_i32([64, 64]))
    byte.send(tokens((11, 64, RUNNING, 0), queued=pack_f32([1.0]), prefilled=pack_f32([1.0])))  # seen before: ignored
    byte.send(tokens((11, 64, RUNNING, 1), queued=pack_f32([1.0]), prefilled=b""))  # no row of index 0
    byte.send(tokens((11, 65, FINISH_LENGTH, 1)))
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert ended.completion_tokens == 2
    byte.send(Cancel([12]))
    answers(byte)


def test_refused_and_failed_sequences(byte: Neighbours) -> None:
    full = Problem(status=503, code="queue_full", message="full")
    admitted(byte, generate(3))
    byte.send(Refused(3, full))
    assert byte.hear() == Ended(key=3, problem=full, refused=True)
    admitted(byte, generate(4))
    byte.send(tokens((4, 64, RUNNING, 0)))
    byte.send(tokens((4, -1, FINISH_ERROR, 1), problems={4: full}))
    assert byte.hear() == TextDelta(4, "a", [64])
    assert byte.hear() == Ended(key=4, problem=full, completion_tokens=1)
    byte.send(tokens((4, 64, RUNNING, 2)))
    assert byte.silent()


def test_before_the_context_is_known(run_dir: Path, models: Path) -> None:
    with Neighbours(run_dir, models / "chain-byte", context=None) as neighbours:
        neighbours.start()
        problem = problem_of(neighbours, generate(3))
        assert (problem.status, problem.code, problem.retry_after) == (503, "not_ready", 1.0)
        answers(neighbours)
        neighbours.know(64)
        assert problem_of(neighbours, generate(3, TokenPrompt([64] * 64))).code == "context_length_exceeded"


def test_tokenize_and_detokenize(byte: Neighbours) -> None:
    byte.send(Tokenize(frontend="frontend0", key=6, prompt=TextPrompt("A the"), with_text=True))
    assert byte.hear() == Tokenized(6, [BOS, 32, THE], ["<|bos|>", "A", " the"])
    byte.send(Tokenize(frontend="frontend1", key=6, prompt=chat({"role": "user", "content": "A"})))
    assert byte.hear("frontend1") == Tokenized(6, [292, 295, 32, 294, 296])
    byte.send(Detokenize(frontend="frontend0", key=6, ids=[BOS, 32, EOS], skip_special_tokens=True))
    assert byte.hear() == Detokenized(6, "A")
    byte.send(Detokenize(frontend="frontend0", key=6, ids=[BOS, 32]))
    assert byte.hear() == Detokenized(6, "<|bos|>A")
    assert problem_of(byte, Detokenize(frontend="frontend0", key=6, ids=[312])).code == "invalid_token_id"


def test_hostile_frames_change_nothing(own: Neighbours) -> None:
    admitted(own, generate(3))
    whole = msgspec.msgpack.encode(generate(50))
    frames = [b"", b"\xc1", b"\x00" * 1000, os.urandom(4096), whole[:-5], whole + b"x", b"\x91" * 100_000, msgspec.msgpack.encode({"type": "tokens"})]
    contract: list[msgspec.Struct] = [
        generate(51, frontend="nobody"),
        generate(3),
        generate(52, keys=[52, 52]),
        msgspec.structs.replace(generate(54), resumed=[Delivered(b""), Delivered(b"")]),
        Generate(frontend="frontend0", incarnation=1, keys=[53], seeds=[], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()),
        Tokens(key=b"x", token=b"", finish=b"", index=b""),
        Tokens(key=pack_i64([3]), token=pack_i32([64, 65]), finish=pack_u8([0]), index=pack_i32([0])),
        tokens((3, 100_000, RUNNING, 0)),
        tokens((3, -5, RUNNING, 0)),
        tokens((3, 64, 9, 0)),
        tokens((3, 64, RUNNING, -1)),
        Tokenize(frontend="../x", key=1, prompt=TextPrompt("A")),
    ]
    columns = LogprobColumns(row=pack_i32([5]), chosen=pack_f32([0]), count=pack_i32([9]), top_ids=b"", top=b"")
    contract.append(tokens((3, 64, RUNNING, 0), logprobs=columns))
    for frame in frames:
        own.send_frame(frame)
    for message in contract:
        own.send(message)
    unreadable = Generate(
        frontend="frontend0", incarnation=1, keys=[60], seeds=[1],
        prompt=ChatPrompt([{"role": msgspec.Raw(b"\xc0"), "content": msgspec.Raw(b"\xa1a")}]),
        sampling=SamplingParams(), stop=StopRules(),
    )  # fmt: skip
    assert problem_of(own, unreadable).status == 400
    own.send(tokens((3, 64, RUNNING, 0)))
    assert own.hear() == TextDelta(3, "a", [64])
    report = own.report(lambda report: report.counters.get("bad_frames", 0) >= len(frames) + len(contract))
    assert report.counters["bad_frames"] == len(frames) + len(contract)
    assert own.nothing_scheduled()


def test_a_lost_token_ends_the_sequence(byte: Neighbours) -> None:
    admitted(byte, generate(3))
    byte.send(tokens((3, 64, RUNNING, 0)))
    byte.send(tokens((3, 64, RUNNING, 0)))
    byte.send(tokens((3, 64, RUNNING, 2)))
    assert byte.hear() == TextDelta(3, "a", [64])
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert ended.problem is not None
    assert (ended.problem.code, ended.problem.passing) == ("request_interrupted", True)
    assert byte.scheduled() == Abort([3], finished=True)


def test_a_huge_text_does_not_stop_the_streams(own: Neighbours) -> None:
    own.know(4_000_000)
    admitted(own, generate(3))
    index = 0
    for key in (4, 5, 6):  # once more if the machine had no time for one of the two
        own.send(generate(key, TextPrompt("Hello world " * 200_000)))
        begun, worst, first = time.monotonic(), 0.0, index
        while own.nothing_scheduled(0.02):
            begin = time.monotonic()
            own.send(tokens((3, 64, RUNNING, index)))
            heard = own.hear()
            while isinstance(heard, Started):  # the long prompt is through, and the loop ends
                heard = own.hear()
            assert heard == TextDelta(3, "a", [64])
            worst, index = max(worst, time.monotonic() - begin), index + 1
        taken = time.monotonic() - begun
        assert isinstance(admit := own.scheduled(), Admit)
        assert len(admit.prompt) > 4 * 400_000
        if index - first > 3 and worst < taken / 2:
            return
    pytest.fail(f"{index - first} tokens in {taken:.2f} s, one of them in {worst:.2f} s")


def test_many_short_requests_at_once(byte: Neighbours) -> None:
    for key in range(100, 300):
        byte.send(generate(key, TextPrompt(f"Hello {key}")))
    admits = [byte.scheduled() for _ in range(200)]
    assert [admit.keys[0] for admit in admits] == list(range(100, 300))
