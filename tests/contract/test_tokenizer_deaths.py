"""The tokenizer process alone while it or its neighbours die: what goes on, from where, and what is heard no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.admit import Abort, Admit
from messages.request import Cancel, Delivered, Generate
from messages.sampling import SamplingParams
from messages.text import Ended, Started, TextDelta
from messages.tokens import FINISH_LENGTH, RUNNING
from tests.support.tokenizer_neighbours import Neighbours, admitted, generate, ids_of, problem_of, tokens
from transport.columns import pack_i32


@pytest.fixture
def byte(run_dir: Path, models: Path) -> Iterator[Neighbours]:
    with Neighbours(run_dir, models / "chain-byte") as neighbours:
        yield neighbours.start()


def again(key: int, *delivered: list[int], **options: Any) -> Generate:
    """A request sent again, with the tokens its frontend has of each choice."""
    request = generate(key, **({"keys": list(range(key, key + len(delivered)))} | options))
    return msgspec.structs.replace(request, resumed=[Delivered(pack_i32(ids), 16) for ids in delivered])


def test_a_scheduler_that_dies_is_waited_for(byte: Neighbours) -> None:
    """What its frontends want again they send again, under new keys; what comes meanwhile is on its way already."""
    admitted(byte, generate(3))
    byte.send(tokens((3, 64, RUNNING, 0)))
    assert byte.hear() == TextDelta(3, "a", [64])
    byte.incarnations["scheduler"] = 2
    byte.publish(None, phase="loading")
    assert byte.silent()
    byte.send(Cancel([3]))
    assert byte.scheduled() == Abort([3])
    assert admitted(byte, again(5, [64])).resumed == [pack_i32([64])]
    byte.send(tokens((3, 65, RUNNING, 1), (5, 65, FINISH_LENGTH, 1)))
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert (ended.key, ended.text, ended.ids, ended.completion_tokens) == (5, "b", [65], 2)
    assert byte.silent()


def test_a_killed_tokenizer_goes_on_where_its_frontend_was(byte: Neighbours) -> None:
    """Half a character and half a stop string were held back when it died."""
    letter = ids_of(byte, "\U0001fae0")
    admitted(byte, generate(3, strings=["abc"]))
    for index, token in enumerate([66, 64, 65, *letter[:2]]):
        byte.send(tokens((3, token, RUNNING, index)))
    heard = byte.hear()
    assert heard == TextDelta(3, "c", [66])
    byte.restart()
    byte.start()  # it refuses what comes before it knows the cluster's state
    byte.send(again(5, heard.ids, strings=["abc"]))
    admit = byte.scheduled()
    assert isinstance(admit, Admit)
    assert (admit.keys, admit.incarnation, admit.resumed) == ([5], 2, [pack_i32([66])])
    assert byte.hear() == Started(5, 2)
    for index, token in enumerate([64, 65, *letter], start=1):
        byte.send(tokens((5, token, RUNNING, index)))
    assert byte.hear() == TextDelta(5, "ab\U0001fae0", [64, 65, *letter])


def test_a_prompts_logprobs_are_asked_for_once(byte: Neighbours) -> None:
    """Of two choices one had begun when its scheduler died: the other's prompt is scored again, its own is not."""
    request = again(3, [64], [])
    request = msgspec.structs.replace(request, sampling=SamplingParams(prompt_logprobs=0))
    byte.send(request)
    other, begun = byte.scheduled(), byte.scheduled()
    assert isinstance(begun, Admit)
    assert isinstance(other, Admit)
    assert (begun.keys, begun.seeds, begun.resumed, begun.sampling.prompt_logprobs) == ([3], [1003], [pack_i32([64])], -1)
    assert (other.keys, other.seeds, other.resumed, other.sampling.prompt_logprobs) == ([4], [1004], [b""], 0)
    assert byte.hear() == Started(3, 2)
    byte.send(tokens((3, 65, RUNNING, 1)))
    assert byte.hear() == TextDelta(3, "b", [65])


def test_what_cannot_have_been_delivered_is_refused(byte: Neighbours) -> None:
    """Half a character, a token of another model, a text that had ended: nothing goes on from there."""
    half = ids_of(byte, "\U0001fae0")[:2]
    for delivered, options in ((half, {}), ([64, 312], {}), ([-1], {}), ([64, 65], {"strings": ["ab"]})):
        assert problem_of(byte, again(3, delivered, **options)).status == 500
    broken = msgspec.structs.replace(again(3, [64]), resumed=[Delivered(b"abc")])
    assert problem_of(byte, broken).status == 500
    assert byte.nothing_scheduled()


def test_frontend_restart_aborts_its_sequences(byte: Neighbours) -> None:
    """Those of the new one are not touched, however early they come, and nothing late of the old one counts."""
    admitted(byte, generate(3))
    admitted(byte, generate(4, frontend="frontend1", incarnation=1))
    admitted(byte, generate(6, frontend="frontend1", incarnation=2))
    byte.incarnations["frontend1"] = 2
    byte.publish(2048)
    assert byte.scheduled() == Abort([4])
    byte.send(generate(5, frontend="frontend1", incarnation=1))
    assert byte.nothing_scheduled()
    byte.send(tokens((3, 64, RUNNING, 0), (4, 64, RUNNING, 0)))
    assert byte.hear() == TextDelta(3, "a", [64])
    assert byte.silent("frontend1")
