"""Requests by their names: what is found, what is forgotten, and what a card says of a request at every stage."""

import pytest

from frontend.cards import Card, card
from frontend.cluster import ClusterView
from frontend.dispatcher import Dispatcher
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.register import Entry, Register
from frontend.streams import ABORT, Run
from messages.cluster import READY, ClusterState, ProcessState
from messages.explain import PREFILL, Standing
from messages.request import Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, Problem, Started, TextDelta
from tests.support.outbox import FakeOutbox

SCHEDULER = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})


class Bench:
    """A dispatcher and the requests in it."""

    def __init__(self, register: Register | None = None) -> None:
        view = ClusterView(["tokenizer0"], clock=lambda: 0.0)
        tokenizer = ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY)
        view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[tokenizer, SCHEDULER]))
        self.outbox = FakeOutbox()
        self.dispatcher = Dispatcher("frontend0", {"tokenizer0": self.outbox}, view, Metrics("m", view))
        self.register = register or Register()

    def enter(self, name: str, request_id: str = "", n: int = 1) -> tuple[Entry, list[int]]:
        entry = Entry(name, request_id, "/v1/completions", False, 0, self.dispatcher.open())
        self.register.enter(entry)
        self.generate(entry.run, n)
        return entry, list(entry.run.live)

    def generate(self, run: Run, n: int) -> None:
        keys = self.dispatcher.new_keys(n)
        run.generate(Generate(frontend="f", keys=keys, seeds=[0] * n, prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()))

    def leave(self, entry: Entry) -> None:
        entry.run.close()
        self.register.leave(entry)

    def name_of(self, asked: str) -> str | None:
        found = self.register.find(asked)
        return None if found is None else found.id


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_name_means_the_newest_that_runs_or_else_has_ended(bench: Bench) -> None:
    entries = [bench.enter(f"cmpl-{number}", "same")[0] for number in range(3)]
    assert bench.name_of("same") == "cmpl-2"
    bench.leave(entries[2])
    assert bench.name_of("same") == "cmpl-1"
    bench.leave(entries[0])
    bench.leave(entries[1])
    assert bench.name_of("same") == "cmpl-1"
    assert bench.name_of("cmpl-0") == "cmpl-0"
    assert bench.name_of("other") is None
    assert isinstance(bench.register.find("cmpl-0"), Card)


async def test_the_oldest_that_have_ended_are_forgotten() -> None:
    bench = Bench(Register(max_ended=3, max_choices=10))
    for number in range(5):
        bench.leave(bench.enter(f"cmpl-{number}")[0])
    assert [bench.name_of(f"cmpl-{number}") is not None for number in range(5)] == [False, False, True, True, True]
    bench.leave(bench.enter("cmpl-wide", n=20)[0])  # too many choices: it alone is kept
    assert (bench.name_of("cmpl-4"), bench.name_of("cmpl-wide")) == (None, "cmpl-wide")
    bench.leave(bench.enter("cmpl-last", n=10)[0])
    assert (bench.name_of("cmpl-wide"), bench.name_of("cmpl-last")) == (None, "cmpl-last")


async def test_only_what_runs_is_listed(bench: Bench) -> None:
    _, (key,) = bench.enter("cmpl-0")
    bench.enter("cmpl-1")
    bench.dispatcher.receive(Started(key, 1))
    assert [entry.id for entry in bench.register.newest()] == ["cmpl-1", "cmpl-0"]
    bench.dispatcher.receive(Ended(key=key, finish="stop"))
    assert [entry.id for entry in bench.register.newest()] == ["cmpl-1"]


async def test_a_card_before_the_first_prompt_is_sent(bench: Bench) -> None:
    entry = Entry("cmpl-0", "", "/v1/completions", False, 0, bench.dispatcher.open())
    told = card(entry, {}, entry.run.arrived)
    assert (told.state, told.choices) == ("encoding", [])


async def test_a_standing_says_more_than_the_frontend_knows(bench: Bench) -> None:
    entry, (first, second) = bench.enter("cmpl-0", n=2)
    bench.dispatcher.receive(Started(first, 7))
    bench.dispatcher.receive(Ended(key=first, finish="length", completion_tokens=4, cached_tokens=2))
    standings = {key: Standing(key=key, state=PREFILL, prompt_tokens=7, computed_tokens=5) for key in (first, second)}
    told = card(entry, standings, entry.run.arrived + 1.5)
    assert told.state == "prefill"
    done, running = told.choices
    assert (done.state, done.reason, done.generated_tokens, done.cached_tokens, done.computed_tokens) == ("finished", "length", 4, 2, None)
    assert (running.state, running.age_seconds, running.computed_tokens) == ("prefill", 1.5, 5)


async def test_cancelling_keeps_what_has_ended_and_happens_once(bench: Bench) -> None:
    entry, (first, second) = bench.enter("cmpl-0", n=2)
    bench.dispatcher.receive(Started(first, 1))
    bench.dispatcher.receive(TextDelta(second, "x", [7]))
    bench.dispatcher.receive(Ended(key=first, finish="stop"))
    entry.cancel()
    entry.cancel()
    bench.leave(entry)
    told = bench.register.find("cmpl-0")
    assert isinstance(told, Card)
    assert [(choice.state, choice.reason) for choice in told.choices] == [("finished", "stop"), ("cancelled", "cancelled")]
    assert [event if isinstance(event, str) else event.text for _, event in entry.run.taken()] == ["x", ""]
    with pytest.raises(ApiError) as caught:
        await entry.run.held()
    assert (caught.value.status, caught.value.code) == (499, "cancelled")


async def test_how_requests_end(bench: Bench) -> None:
    failed, (key,) = bench.enter("cmpl-0")
    bench.dispatcher.receive(Ended(key=key, problem=Problem(status=500, code="non_finite", message="no")))
    gone, _ = bench.enter("cmpl-1")
    gone.run.close(ABORT)
    bench.outbox.full = True
    refused = Entry("cmpl-2", "", "/v1/completions", False, 0, bench.dispatcher.open())
    with pytest.raises(ApiError) as caught:
        bench.generate(refused.run, 1)
    assert caught.value.status == 503
    told = [card(entry, {}, 0.0).choices[0] for entry in (failed, gone, refused)]
    assert [(choice.state, choice.reason) for choice in told] == [("error", "non_finite"), ("cancelled", "client_closed"), ("error", "overloaded")]
