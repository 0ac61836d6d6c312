"""What is in a recording: every end, every step; no token ids where there should be none; and what a damaged file gives."""

import random
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from messages.admit import Admit
from messages.result import Attached, Prepared, StepFailed, StepResult
from messages.sampling import SamplingParams
from scheduler.recorder import start_recording
from scheduler.recording import (
    CANCELLED,
    ERROR,
    FRAME,
    LENGTH,
    MAGIC,
    MAX_FRAME_BYTES,
    REFUSED,
    STOP,
    STOP_STRING,
    UNIT,
    UNIT_BYTES,
    Arrived,
    Computed,
    Ended,
    Planned,
    Reader,
    Received,
    RecordingError,
    Turn,
)
from scheduler.replay import replay
from tests.support import null_worker
from tests.support.recordings import RecordedBench, broken_admit, churn, frames_of, read_all, written
from tests.support.scheduler_bench import arguments, attached, prompt_of
from transport.columns import pack_i32, view_i32

VOCAB = 50_000


@pytest.mark.parametrize("tokens", [True, False])
def test_every_end_is_recorded(tokens: bool, tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path / "r", tokens, max_queue=8)
    churn(bench, 3)
    frames = frames_of(tmp_path / "r")
    ends = {end.key: end for end in frames if isinstance(end, Ended)}
    admitted = [content.message if isinstance(content, Received) else content for content in frames]
    keys = {key for content in admitted if isinstance(content, Admit | Arrived) for key in content.keys}
    assert set(ends) == keys
    assert {end.reason for end in ends.values()} == {STOP, LENGTH, STOP_STRING, CANCELLED, ERROR, REFUSED}
    for client in bench.clients.values():
        for key, given in client.tokens.items():
            assert ends[key].generated == len(given)
            if tokens:
                assert view_i32(ends[key].output).tolist() == given
        assert {ends[key].reason for key in client.refused} <= {REFUSED}


@pytest.mark.parametrize("tokens", [True, False])
def test_why_a_grammar_was_refused_is_kept_with_tokens_only(tokens: bool, tmp_path: Path) -> None:
    """The reason may quote what a client sent."""
    bench = RecordedBench(tmp_path / "r", tokens)
    for program in ("good", null_worker.REFUSED):
        bench.admit(prompt_of(5), 3, program=program)
        bench.settle()
    bench.recorder.stop()
    answers = [content.message for content in frames_of(tmp_path / "r") if isinstance(content, Received) and isinstance(content.message, Prepared)]
    assert [answer.problem for answer in answers] == ["", "asked to refuse" if tokens else "not kept"]
    if tokens:
        assert replay(tmp_path / "r").difference is None


@pytest.mark.parametrize("tokens", [True, False])
def test_steps_have_their_work_and_their_times(tokens: bool, tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path / "r", tokens, attached(blocks=64, slots=4, context=60, width=15, step_tokens=16), chunk_tokens=8)
    bench.admit(prompt_of(12), 3)
    bench.settle()
    bench.recorder.stop()
    frames = frames_of(tmp_path / "r")
    steps = [content for content in frames if isinstance(content, Planned)]
    assert [(step.step, step.prefill, step.decode, step.context) for step in steps] == [(1, 8, 0, 8), (2, 4, 0, 12), (3, 0, 1, 13), (4, 0, 1, 14)]
    assert [bool(step.digest) for step in steps] == [tokens] * 4
    results = [content.message if isinstance(content, Received) else content for content in frames]
    assert [(result.session, result.step) for result in results if isinstance(result, StepResult | Computed)] == [
        (step.session, step.step) for step in steps
    ]


def test_lost_tokens_end_with_none(tmp_path: Path) -> None:
    for tokens in (True, False):
        path = tmp_path / str(tokens)
        recorder = start_recording(arguments(record=str(path), record_tokens=tokens))
        recorder.received(msgspec.structs.replace(broken_admit(), prompt=pack_i32(range(40))), 1.0)
        recorder.ended(2**40, ERROR, view_i32(b""), 40)
        recorder.stop()
        assert frames_of(path)[-1] == Ended(2**40, ERROR, 0, b"")


def ids(length: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}/{place}").randrange(1000, VOCAB) for place in range(length)]


def wide() -> Attached:
    return attached(blocks=512, block_size=16, slots=8, width=32, step_tokens=256, context=500, vocab=VOCAB)


def test_without_tokens_no_token_is_in_the_file(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path / "r", False, wide(), chunk_tokens=256)
    prompt, secret = ids(100, 1), "sk-secret-tenant"
    message = Admit(
        tokenizer="tokenizer0",
        keys=[1],
        seeds=[4_123_456_789_012],
        prompt=pack_i32(prompt),
        sampling=SamplingParams(logprobs=5),
        end_ids=[49_999],
        max_tokens=60,
        tenant=secret,
        cache_salt=secret,
    )
    bench.engine.receive(message, bench.now)
    bench.settle()
    bench.engine.receive(StepFailed(session=1, step=999, message=f"token {prompt[3]}"), bench.now)
    bench.recorder.stop()
    data = (tmp_path / "r").read_bytes()
    for tokens in (prompt, bench.clients["tokenizer0"].tokens[1], ids(100, 1)[16:]):
        for pair in pairwise(tokens):
            assert struct.pack("<ii", *pair) not in data
            assert msgspec.msgpack.encode(pair)[1:] not in data
    assert secret.encode() not in data
    assert msgspec.msgpack.encode(49_999) not in data
    assert struct.pack(">Q", 4_123_456_789_012) not in data
    assert str(prompt[3]).encode() not in data


def units_of(path: Path) -> list[bytes]:
    return [content.units for content in frames_of(path) if isinstance(content, Arrived)]


def recorded_prompts(path: Path, prompts: list[tuple[list[int], str, str]]) -> list[bytes]:
    bench = RecordedBench(path, False, wide(), chunk_tokens=256)
    for key, (prompt, tenant, salt) in enumerate(prompts):
        message = Admit(
            tokenizer="tokenizer0",
            keys=[key],
            seeds=[key],
            prompt=pack_i32(prompt),
            sampling=SamplingParams(),
            end_ids=[],
            max_tokens=2,
            tenant=tenant,
            cache_salt=salt,
        )
        bench.engine.receive(message, bench.now)
    bench.settle()
    bench.recorder.stop()
    return units_of(path)


def shared(a: bytes, b: bytes) -> int:
    """Whole units at the beginning of both; nothing further on may be the same."""
    pairs = [a[at : at + UNIT_BYTES] == b[at : at + UNIT_BYTES] for at in range(0, min(len(a), len(b)), UNIT_BYTES)]
    assert pairs == sorted(pairs, reverse=True)
    return sum(pairs)


def test_prompts_share_what_they_shared_in_whole_units(tmp_path: Path) -> None:
    base = ids(70, 1)
    other = [*base[:40], 7, *base[41:]]
    a, b, c, d, e, f = recorded_prompts(
        tmp_path / "r", [(base, "", ""), (other, "", ""), (base[:15], "", ""), (base, "t", ""), (base, "", "s"), (base[16:], "", "")]
    )
    assert [len(units) // UNIT_BYTES for units in (a, b, c, d, e, f)] == [4, 4, 0, 4, 4, 3]
    assert shared(a, b) == 40 // UNIT
    assert shared(a, d) == shared(a, e) == shared(d, e) == shared(a, f) == 0


def test_the_key_is_another_one_for_each_recording(tmp_path: Path) -> None:
    first = recorded_prompts(tmp_path / "1", [(ids(32, 1), "t", "")])
    assert first != recorded_prompts(tmp_path / "2", [(ids(32, 1), "t", "")])


def test_an_answer_in_the_next_prompt_is_shared_too(tmp_path: Path) -> None:
    bench = RecordedBench(tmp_path / "r", False, wide(), chunk_tokens=256)
    [key] = bench.admit(ids(40, 1), 30)
    bench.settle()
    whole = [*ids(40, 1), *bench.clients["tokenizer0"].tokens[key]]
    bench.admit([*whole, *ids(20, 2)], 1)
    bench.settle()
    bench.recorder.stop()
    first, second = units_of(tmp_path / "r")
    end = next(content for content in frames_of(tmp_path / "r") if isinstance(content, Ended))
    assert len(end.output) == 2 * UNIT_BYTES
    assert second.startswith(first + end.output)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "whole"
    churn(RecordedBench(path, tokens=True), 5, rounds=20)
    return path


def test_a_file_cut_anywhere_gives_what_is_whole(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    frames, unread = read_all(whole)
    assert unread == 0
    smallest = len(written(tmp_path / "empty").read_bytes())
    known = 0
    for size in range(smallest + 200, len(data), 97):
        (tmp_path / "cut").write_bytes(data[:size])
        found, unread = read_all(tmp_path / "cut")
        assert known <= found <= frames
        assert 0 <= unread < size
        known = found
    report = replay(tmp_path / "cut")
    assert report.difference is None
    assert report.unread == unread


def test_a_flipped_bit_is_found(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    for place in range(0, len(data), 53):
        bad = bytearray(data)
        bad[place] ^= 1 << (place % 8)
        (tmp_path / "bad").write_bytes(bad)
        found = damage(tmp_path / "bad")
        assert found is None or found <= place


def damage(path: Path) -> int | None:
    """The offset of the damage; None for a length that reaches beyond the end, which looks like a file cut off."""
    try:
        _, unread = read_all(path)
    except RecordingError as error:
        return error.offset
    assert unread > 0
    return None


def raw(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "another file": lambda _: b"GGUF" * 100,
    "no header": lambda _: MAGIC,
    "half a header": lambda good: good[: len(MAGIC) + 20],
    "header of another kind": lambda _: MAGIC + raw(msgspec.msgpack.encode(Turn(1.0))),
    "header that is deep": lambda _: MAGIC + raw(b"\x91" * 100_000),
    "huge frame": lambda good: good + FRAME.pack(MAX_FRAME_BYTES + 1, 0),
    "frame of nothing": lambda good: good + bytes(8),
    "unknown frame": lambda good: good + raw(msgspec.msgpack.encode(["nonsense", 1])),
    "not an array": lambda good: good + raw(b"\xc0"),
    "deep": lambda good: good + raw(b"\x91" * 100_000),
    "bytes left over": lambda good: good + raw(msgspec.msgpack.encode(Turn(1.0)) + b"\x00"),
    "prompt of 2**50 tokens": lambda good: good + raw(msgspec.msgpack.encode(["admit", 1.0, "t", [1], 2**50, b"", {}, None, 0, "", ""])),
    "answer of 2**50 tokens": lambda good: good + raw(msgspec.msgpack.encode(["end", 1, "stop", 2**50, b"12345678"])),
    "negative count": lambda good: good + raw(msgspec.msgpack.encode(["plan", 1, 1, -1, 0, 0, b""])),
    "message of no kind": lambda good: good + raw(msgspec.msgpack.encode(["in", 1.0, {"type": "nonsense"}])),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_their_offset(name: str, tmp_path: Path) -> None:
    good = written(tmp_path / "good", Turn(1.0)).read_bytes()
    (tmp_path / "bad").write_bytes(HOSTILE[name](good))
    with pytest.raises(RecordingError) as refused:
        read_all(tmp_path / "bad")
    assert refused.value.offset in (0, len(MAGIC), len(good))


def test_a_length_beyond_the_end_is_the_end(tmp_path: Path) -> None:
    good = written(tmp_path / "r", Turn(1.0))
    with good.open("ab") as file:
        file.write(FRAME.pack(MAX_FRAME_BYTES, 0) + b"abc")
    assert read_all(good) == (1, 11)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path / "none")
