"""What a tokenizer notes in a trace, and that it forgets what ended otherwise."""

import json
from pathlib import Path

import msgspec
import pytest

from messages.request import Cancel, Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, Started, TextDelta
from messages.tokens import Tokens
from tokenizer_proc.tracing import Tracing
from transport import trace_file
from transport.columns import pack_i32, pack_i64, pack_u8
from transport.trace import Trace


def test_batches_and_encodings(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json")
    trace_file.begin(path)
    tracing = Tracing(Trace(path, "tokenizer0"))
    sent: list[msgspec.Struct] = []

    def keep(message: msgspec.Struct) -> bool:
        sent.append(message)
        return True

    send = tracing.watching(keep)
    for key in (10, 20, 30, 40):
        tracing.handling(generate(key), 1.0)
    tracing.handled(generate(10), 1.0)
    assert send(Started(10, 7))
    assert send(TextDelta(10, "a", [64]))
    assert send(Ended(key=20))
    tracing.handling(Cancel([30, 99]), 2.0)
    send(Started(99, 1))
    batch = Tokens(key=pack_i64([10, 20]), token=pack_i32([1, 2]), finish=pack_u8([0, 0]), index=pack_i32([0, 0]))
    tracing.handling(batch, 3.0)
    tracing.handled(batch, 3.0)
    tracing.close()
    trace_file.finish(path)
    events = json.loads(Path(path).read_text())
    assert [(event["ts"], event["id"], event["args"]) for event in events if event["name"] == "encode" and event["ph"] == "b"] == [
        (1e6, "0xa", {"prompt_tokens": 7})
    ]
    assert [event["args"] for event in events if event["name"] == "detokenise"] == [{"rows": 2}]
    assert tracing._encoding == {40: 1.0}
    assert len(sent) == 4


def generate(key: int) -> Generate:
    return Generate(frontend="frontend0", keys=[key, key + 1], seeds=[1, 2], prompt=TextPrompt("a"), sampling=SamplingParams(), stop=StopRules())


@pytest.mark.parametrize("message", [Cancel([1]), Ended(key=1)])
def test_what_was_never_there(message: msgspec.Struct, tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json")
    trace_file.begin(path)
    tracing = Tracing(Trace(path, "tokenizer0"))
    tracing.handling(message, 1.0)
    tracing.watching(lambda message: True)(message)
    tracing.close()
    assert not tracing._encoding
