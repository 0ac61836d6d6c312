"""The tokenizer process alone: special tokens that are seen, prompts that have opened something, and texts that are put behind what was generated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.admit import Admit
from messages.request import Delivered, Generate, TextPrompt
from messages.text import Ended, Started, TextDelta
from messages.tokens import RUNNING
from tests.support.tokenizer_neighbours import Neighbours, admitted, generate, ids_of, tokens
from transport.columns import pack_i32

A = 64


@pytest.fixture(scope="module")
def byte(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Neighbours]:
    folder = tmp_path_factory.mktemp("r")
    folder.chmod(0o700)
    with Neighbours(folder, models / "chain-byte") as neighbours:
        yield neighbours.start()


def test_special_tokens_that_are_to_be_seen(byte: Neighbours) -> None:
    user, system = (ids_of(byte, text)[0] for text in ("<|user|>", "<|system|>"))
    admitted(byte, generate(3, shown=["<|user|>", "<|unknown|>", "A"]))
    byte.send(tokens((3, system, RUNNING, 0), (3, user, RUNNING, 1)))
    assert byte.hear() == TextDelta(3, "<|user|>", [system, user])


@pytest.mark.parametrize(
    ("key", "prompt", "opened"), [(11, "A<|user|>", True), (12, "A<|user|>\n\n", True), (13, "<|user|>A", False), (14, "A", False)]
)
def test_a_prompt_that_ends_with_what_was_asked_about(byte: Neighbours, key: int, prompt: str, opened: bool) -> None:
    byte.send(generate(key, TextPrompt(prompt), opening="<|user|>"))
    started = byte.hear()
    assert isinstance(started, Started)
    assert started.opened == opened
    byte.scheduled()


def closed(key: int, closing: str, delivered: list[int], **options: Any) -> Generate:
    most = options.pop("max_tokens", None)
    request = generate(key, **options)
    resumed = [Delivered(pack_i32(delivered), 0, closing)]
    return msgspec.structs.replace(request, resumed=resumed, stop=msgspec.structs.replace(request.stop, max_tokens=most))


def test_a_text_that_goes_on_from_what_is_there(byte: Neighbours) -> None:
    ids = ids_of(byte, "bc")
    byte.send(closed(5, "bc", [A]))
    assert isinstance(byte.hear(), Started)
    assert byte.hear() == TextDelta(5, "bc", ids)
    admit = byte.scheduled()
    assert isinstance(admit, Admit)
    assert admit.resumed == [pack_i32([A, *ids])]
    byte.send(tokens((5, A, RUNNING, 1 + len(ids))))
    assert byte.hear() == TextDelta(5, "a", [A])


def test_it_leaves_room_for_one_more_token(byte: Neighbours) -> None:
    byte.send(closed(6, "bcd", [A], max_tokens=3))
    assert isinstance(byte.hear(), Started)
    assert byte.hear() == TextDelta(6, "b", ids_of(byte, "b"))
    admit = byte.scheduled()
    assert isinstance(admit, Admit)
    assert len(admit.resumed[0]) == 8
    byte.send(closed(7, "bcd", [A, A], max_tokens=3))
    assert isinstance(byte.hear(), Started)
    assert byte.scheduled() == msgspec.structs.replace(admit, keys=[7], seeds=[1007], resumed=[pack_i32([A, A])])


def test_a_stop_string_in_it_ends_the_sequence(byte: Neighbours) -> None:
    byte.send(closed(8, "bcd", [A], strings=["c"]))
    assert isinstance(byte.hear(), Started)
    ended = byte.hear()
    assert isinstance(ended, Ended)
    assert (ended.text, ended.finish, ended.stop_reason, ended.completion_tokens, ended.ids) == ("b", "stop", "c", 3, ids_of(byte, "bc"))
    assert byte.silent()
