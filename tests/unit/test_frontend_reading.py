"""Answers that are read while processes die, clients are slow and deltas come in any sizes: each field is that of an undisturbed answer."""

import asyncio
import dataclasses
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dialects.events import Arguments, CallStart, Content, Event, Reasoning
from dialects.registry import REASONING, TOOLS
from frontend.answers import merged
from frontend.reading import Reading
from frontend.streams import Run
from messages.cluster import READY
from messages.request import Cancel, Delivered, Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, Started, TextDelta, Texts
from tests.unit.test_frontend_resubmission import Bench

CALLS = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "add", "arguments": {}}</tool_call>'
TEXT = f"Two.\n</think>\n\nSure. {CALLS}"
TOKEN = b"\x07\x00\x00\x00"
OFFERED: dict[str, dict[str, Any]] = {"add": {}}
READING = Reading(TOOLS["hermes"], OFFERED, REASONING["think"])
KINDS: tuple[Any, ...] = (Content, Reasoning, CallStart, Arguments)


class Stage(Bench):
    """One request whose answer is read; its messages come as the test wants."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.read = self.dispatcher.open()
        generate = Generate(
            frontend="frontend0", keys=self.dispatcher.new_keys(1), seeds=[0], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()
        )
        self.read.generate(generate, None, lambda: reading)
        self.dispatcher.receive(Started(self.key, 5, True))

    @property
    def key(self) -> int:
        return next(iter(self.read.live))

    def say(self, text: str, tokens: int = 1, alone: bool = False) -> None:
        message = TextDelta(self.key, text, [7] * tokens) if alone else Texts([self.key], [text], [tokens], TOKEN * tokens)
        self.dispatcher.receive(message)

    def end(self, text: str = "", finish: str = "stop") -> None:
        total = self.read.generated_tokens + 1
        self.dispatcher.receive(Ended(key=self.key, finish=finish, text=text, tokens=1, ids=[2], completion_tokens=total))

    def die(self) -> None:
        """The tokenizer that has the request, or the scheduler."""
        route = self.read.route
        assert route is not None
        self.hear(**{route.tokenizer: (self.processes[route.tokenizer][0] + 1, READY)})
        self.dispatcher.receive(Started(self.key, 5, True))


def fields(run: Run) -> tuple[str, str, list[tuple[str, str]], str | None]:
    """Content, reasoning, calls and finish reason of all that has come."""
    ((_, piece),) = merged(run.taken())
    events: list[Event] = piece.events
    names = [event.name for event in events if isinstance(event, CallStart)]
    arguments = ["".join(event.text for event in events if isinstance(event, Arguments) and event.index == number) for number in range(len(names))]
    return piece.text, "".join(event.text for event in events if isinstance(event, Reasoning)), list(zip(names, arguments, strict=True)), piece.finish


WHOLE = "Sure.", "Two.", [("add", '{"a": 1}'), ("add", "{}")], "tool_calls"


@given(
    places=st.lists(st.integers(1, len(TEXT) - 1), max_size=20, unique=True).map(sorted),
    deaths=st.sets(st.integers(0, 20), max_size=4),
    alone=st.booleans(),
    last=st.booleans(),
)
def test_deaths_and_sizes_change_nothing(places: list[int], deaths: set[int], alone: bool, last: bool) -> None:
    async def scene() -> None:
        stage = Stage(READING)
        edges = [0, *places, len(TEXT)]
        parts = [TEXT[begin:end] for begin, end in itertools.pairwise(edges)]
        final = parts.pop() if last else ""
        for number, part in enumerate(parts):
            stage.say(part, alone=alone)
            if number in deaths:
                stage.die()
        stage.end(final)
        assert fields(stage.read) == WHOLE
        assert stage.read.done

    asyncio.run(scene())


async def test_a_death_before_the_closing_text_is_there() -> None:
    """It is asked for again, and for no third time."""
    stage = Stage(Reading(reasoning=REASONING["think"], budget=2))
    stage.say("One ")
    first = stage.key
    stage.say("two ")
    closing = Delivered(TOKEN * 2, 0, "\n</think>\n\n")
    assert stage.key != first
    cancel, again = stage.outbox.taken()[-2:]
    assert cancel == Cancel([first], finished=True)
    assert isinstance(again, Generate)
    assert (again.keys, again.resumed) == ([stage.key], [closing])
    stage.dispatcher.receive(Texts([first], ["three "], [1], TOKEN))
    stage.die()
    again = stage.outbox.taken()[-1]
    assert isinstance(again, Generate)
    assert again.resumed == [closing]
    stage.say("\n</think>\n\n", tokens=2)
    stage.die()
    again = stage.outbox.taken()[-1]
    assert isinstance(again, Generate)
    assert again.resumed == [Delivered(TOKEN * 4, 0)]
    stage.end("Yes.")
    assert fields(stage.read) == ("Yes.", "One two", [], "stop")
    assert stage.read.reasoning_tokens == 4


async def test_a_reasoning_that_cannot_be_closed_is_left_alone() -> None:
    stage = Stage(Reading(reasoning=REASONING["think"], budget=1))
    keys = set()
    for _ in range(10):
        keys.add(stage.key)
        stage.say("on ")
    assert len(keys) == 4
    stage.end()
    assert fields(stage.read) == ("", "on " * 10, [], "stop")


async def test_an_answer_that_ends_with_its_one_call() -> None:
    stage = Stage(dataclasses.replace(READING, single=True))
    for at in range(0, len(TEXT), 4):
        if not stage.read.live:
            break
        stage.say(TEXT[at : at + 4], alone=at % 8 == 0)
    assert fields(stage.read) == (WHOLE[0], WHOLE[1], WHOLE[2][:1], "tool_calls")
    assert stage.read.done
    assert any(isinstance(message, Cancel) and message.finished for message in stage.outbox.sent)
    assert stage.read.completion_tokens == stage.read.generated_tokens
