"""What a frontend does when a tokenizer or the scheduler dies: it holds, sends again what it has, and takes nothing from the dead."""

import asyncio
import math
import time
from array import array
from typing import Any

import msgspec
import pytest

from frontend import resubmission
from frontend.cluster import ClusterView
from frontend.dispatcher import Dispatcher
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.resubmission import HOLD_SECONDS, MAX_HELD
from frontend.search import ALONE, HEARD, SETTLE_SECONDS, SUSPECT, TRIAL_SECONDS
from frontend.streams import Run
from messages.cluster import DEAD, LOADING, READY, ClusterState, ProcessState
from messages.explain import Explain
from messages.request import Cancel, Delivered, Generate, TextPrompt, Tokenize
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, Problem, Started, TextDelta, Texts, Tokenized
from tests.support.outbox import FakeOutbox

PASSING = Problem(status=503, code="not_ready", message="wait", passing=True)


class Bench:
    """A dispatcher, two tokenizers, and what the supervisor says of them."""

    def __init__(self, name: str = "frontend0", frontends: tuple[str, ...] = ()) -> None:
        self.processes = dict.fromkeys(("tokenizer0", "tokenizer1", "scheduler", *frontends), (1, READY))
        self.peer_suspects = 0
        self.view = ClusterView(["tokenizer0", "tokenizer1"], frontends)
        self.metrics = Metrics("m", self.view)
        self.outbox = FakeOutbox()
        self.dispatcher = Dispatcher(name, dict.fromkeys(("tokenizer0", "tokenizer1"), self.outbox), self.view, self.metrics)
        self.told: dict[str, Any] = {"model": "m"}
        self.hear()

    def tell(self, **fields: Any) -> None:
        """The supervisor says so too, and the dispatcher follows it."""
        self.told |= fields
        self.hear()

    def hear(self, **changes: tuple[int, str]) -> None:
        """The state changes, and the dispatcher follows it."""
        self.processes |= changes
        facts: dict[str, int | float | str] = {"context": 100}
        told = {"suspects": float(self.peer_suspects)}
        processes = [
            ProcessState(
                name=name, incarnation=number, pid=1, phase=phase, gauges=told if name == "frontend0" else {},
                facts=facts if name == "scheduler" and phase == READY else {},
            )
            for name, (number, phase) in self.processes.items()
        ]  # fmt: skip
        self.view.update(ClusterState(ready=True, phase=READY, reason="", started=0.0, processes=processes, **self.told))
        self.dispatcher.follow()

    def ask(self, n: int = 1, prompts: int = 1, seed: int = 0) -> tuple[Run, list[int]]:
        run = self.dispatcher.open()
        for number in range(prompts):
            keys, seeds = self.dispatcher.new_keys(n), [seed + 10 * number + choice for choice in range(n)]
            run.generate(
                Generate(frontend="frontend0", keys=keys, seeds=seeds, prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules())
            )
        return run, list(run.live)

    def taken(self) -> list[msgspec.Struct]:
        return self.outbox.taken()

    def number(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"pagewire_{name}", {"model_name": "m"}) or 0.0


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def ids(*numbers: int) -> bytes:
    return array("i", numbers).tobytes()


def said(run: Run) -> list[tuple[int, str]]:
    return [(index, event if isinstance(event, str) else event.text) for index, event in run.taken()]


@pytest.mark.parametrize("dead", ["scheduler", "tokenizer"])
async def test_what_was_delivered_is_sent_again_and_the_rest_comes(bench: Bench, dead: str) -> None:
    run, (first, second) = bench.ask(n=2)
    assert run.route is not None
    name = "scheduler" if dead == "scheduler" else run.route.tokenizer
    bench.taken()
    bench.dispatcher.receive(Started(first, 5))
    bench.dispatcher.receive(Texts([first, second], ["a", "bc"], [1, 2], ids(7, 8, 9), {second: 16}))
    bench.dispatcher.receive(TextDelta(first, "d", [6]))
    bench.hear(**{name: (1, DEAD)})
    cancel, *others = bench.taken()
    assert cancel == Cancel([first, second])
    assert (len(others), run.route is None) == ((0, True) if dead == "scheduler" else (1, False))  # there is another tokenizer
    bench.hear(**{name: (2, LOADING)})
    bench.hear(**{name: (2, READY)})
    (again,) = others or bench.taken()
    assert isinstance(again, Generate)
    assert not {first, second} & set(again.keys)
    assert (again.seeds, again.resumed) == ([0, 1], [Delivered(ids(7, 6)), Delivered(ids(8, 9), 16)])
    bench.dispatcher.receive(Texts([first, second], ["late", "late"], [1, 1], ids(1, 1)))
    bench.dispatcher.receive(Ended(key=first, finish="stop", completion_tokens=9))
    one, two = again.keys
    bench.dispatcher.receive(Started(one, 5))
    bench.dispatcher.receive(Texts([two], ["e"], [1], ids(5)))
    bench.dispatcher.receive(Ended(key=one, finish="stop", text="f", tokens=1, ids=[4], completion_tokens=3))
    bench.dispatcher.receive(Ended(key=two, finish="length", completion_tokens=3, cached_tokens=16))
    assert said(run) == [(0, "a"), (1, "bc"), (0, "d"), (1, "e"), (0, "f"), (1, "")]
    assert run.done
    assert (run.prompt_tokens, run.completion_tokens, len(bench.dispatcher)) == (5, 6, 0)
    numbers = [bench.number(name) for name in ("generation_tokens_total", "sequences_started_total", "prompt_tokens_total")]
    assert numbers == [6, 2, 5]


async def test_only_what_has_not_ended_is_sent_again(bench: Bench) -> None:
    run, keys = bench.ask(n=2, prompts=2)
    bench.taken()
    for key in (keys[0], keys[2]):
        bench.dispatcher.receive(Started(key, 5))
    for key in (keys[0], keys[2], keys[3]):
        bench.dispatcher.receive(Ended(key=key, finish="stop", completion_tokens=0))
    bench.hear(scheduler=(2, READY))
    cancel, again = bench.taken()
    assert cancel == Cancel([keys[1]])
    assert isinstance(again, Generate)
    assert (again.seeds, again.resumed) == ([1], [Delivered(b"")])
    assert [sequence.end for group in run.groups for sequence in group.sequences] == ["stop", None, "stop", "stop"]


@pytest.mark.parametrize("ended", [0, 1])
async def test_a_prompt_is_scored_for_its_first_choice_or_not_at_all(bench: Bench, ended: int) -> None:
    run = bench.dispatcher.open()
    keys = bench.dispatcher.new_keys(2)
    run.generate(
        Generate(
            frontend="frontend0", keys=keys, seeds=[1, 2], prompt=TextPrompt("A"), sampling=SamplingParams(prompt_logprobs=3), stop=StopRules(),
            score_first=True,
        )
    )  # fmt: skip
    bench.taken()
    bench.dispatcher.receive(Started(keys[0], 5))
    bench.dispatcher.receive(Ended(key=keys[ended], finish="stop", completion_tokens=0))
    bench.hear(scheduler=(2, READY))
    _, again = bench.taken()
    assert isinstance(again, Generate)
    assert (again.seeds, again.sampling.prompt_logprobs) == ([2 - ended], 3 if ended else -1)


async def test_new_requests_wait_for_a_way_and_go_out_as_they_came(bench: Bench) -> None:
    bench.hear(scheduler=(1, DEAD))
    runs = [bench.ask()[0] for _ in range(3)]
    assert bench.taken() == []
    bench.hear(scheduler=(2, LOADING))
    assert bench.taken() == []
    bench.hear(scheduler=(2, READY))
    sent = bench.taken()
    assert {message.keys[0] for message in sent if isinstance(message, Generate)} == {key for run in runs for key in run.live}
    assert all(isinstance(message, Generate) and message.resumed == [] for message in sent)


async def test_a_request_that_waits_may_be_closed(bench: Bench) -> None:
    bench.hear(scheduler=(1, DEAD))
    run, _ = bench.ask()
    run.close()
    bench.hear(scheduler=(2, READY))
    assert (bench.taken(), len(bench.dispatcher)) == ([], 0)


async def test_waiting_is_bounded_in_number_and_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    running, _ = bench.ask()
    bench.hear(scheduler=(1, DEAD))
    waiting, _ = bench.ask(n=MAX_HELD)
    with pytest.raises(ApiError) as caught:
        bench.dispatcher.open()
    assert (caught.value.status, caught.value.headers()) == (503, {"Retry-After": "2"})
    for run in (running, waiting):
        run.arrived -= HOLD_SECONDS + 1
    bench.dispatcher.follow()
    assert running.problem is None
    assert waiting.problem == resubmission.TOO_LONG
    bench.dispatcher.open()


async def test_questions_about_text_are_put_again(bench: Bench) -> None:
    run = bench.dispatcher.open()
    key = bench.dispatcher.new_keys(1)[0]
    asking = asyncio.create_task(run.ask(Tokenize(frontend="frontend0", key=key, prompt=TextPrompt("A"))))
    await asyncio.sleep(0)
    bench.taken()
    bench.hear(scheduler=(2, READY))
    cancel, again = bench.taken()
    assert cancel == Cancel([key])
    assert isinstance(again, Tokenize)
    assert again.key != key
    bench.dispatcher.receive(Tokenized(again.key, [1]))
    assert await asyncio.wait_for(asking, 60) == Tokenized(again.key, [1])


async def test_a_passing_problem_is_not_the_clients(bench: Bench) -> None:
    run, (key,) = bench.ask()
    bench.taken()
    for _ in range(SUSPECT + ALONE + 2):
        bench.dispatcher.receive(Ended(key=key, problem=PASSING))
        assert run.problem is None
        bench.hear()
        cancel, again = bench.taken()
        assert cancel == Cancel([key])
        assert isinstance(again, Generate)
        key = again.keys[0]
    bench.view.stopping = True
    bench.dispatcher.receive(Ended(key=key, problem=PASSING))
    assert run.problem == PASSING


async def test_a_queue_that_is_full_when_it_is_sent_again_ends_it(bench: Bench) -> None:
    run, _ = bench.ask()
    bench.outbox.full = True
    bench.hear(scheduler=(2, READY))
    assert run.problem is not None
    assert (run.problem.code, len(bench.dispatcher)) == ("overloaded", 0)


def most_deaths(suspects: int) -> int:
    return SUSPECT + math.ceil(math.log2(suspects)) + ALONE


def tokens_for(bench: Bench, *keys: int) -> None:
    bench.dispatcher.receive(Texts(list(keys), ["x"] * len(keys), [1] * len(keys), ids(*[7] * len(keys))))


def play(bench: Bench, culprits: set[int], deadly: str, late: bool) -> int:
    """Processes that answer what was sent, request by request, until a deadly one comes; how often they died. `late`: at its second token."""
    deaths = 0
    for _ in range(400):
        sent = [message for message in bench.taken() if isinstance(message, Generate)]
        for message in sent:
            if message.seeds[0] in culprits and (not late or (message.resumed and message.resumed[0].tokens)):
                deaths += 1
                names = ("tokenizer0", "tokenizer1") if deadly == "tokenizer" else (deadly,)
                bench.hear(**dict.fromkeys(names, (deaths + 1, READY)))
                break
            bench.dispatcher.receive(Started(message.keys[0], 1))
            tokens_for(bench, message.keys[0])
            if message.seeds[0] not in culprits:
                bench.dispatcher.receive(Ended(key=message.keys[0], finish="stop", completion_tokens=1))
        bench.hear(**({"scheduler": (1000 + deaths, READY)} if late and not sent and not deaths else {}))
        if not len(bench.dispatcher):
            return deaths
    raise AssertionError("no end")


@pytest.mark.parametrize("late", [False, True], ids=["at once", "at its second token"])
@pytest.mark.parametrize("deadly", ["scheduler", "tokenizer"])
@pytest.mark.parametrize("place", [0, 4, 9])
async def test_a_request_that_ends_its_processes_is_found_and_given_up_alone(bench: Bench, deadly: str, place: int, late: bool) -> None:
    runs = [bench.ask(seed=number)[0] for number in range(10)]
    assert play(bench, {place}, deadly, late) <= most_deaths(10)
    assert [run.problem for run in runs] == [resubmission.CUT_OFF if number == place else None for number in range(10)]


async def test_two_of_them_are_both_found(bench: Bench) -> None:
    runs = [bench.ask(seed=number)[0] for number in range(16)]
    assert play(bench, {3, 12}, "scheduler", False) <= 2 * most_deaths(16)
    assert [number for number, run in enumerate(runs) if run.problem] == [3, 12]


async def test_a_request_of_which_tokens_come_between_deaths_is_no_suspect(bench: Bench) -> None:
    run, _ = bench.ask()
    for number in range(2, 3 * (SUSPECT + ALONE)):
        tokens_for(bench, next(iter(run.live)))
        bench.hear(scheduler=(number, READY))
        assert run.strikes == 0
    assert run.problem is None


async def test_deaths_in_company_condemn_nobody(bench: Bench) -> None:
    """Nothing comes of any of two requests on different tokenizers, so that both are always out when the scheduler dies."""
    one, other = bench.ask()[0], bench.ask()[0]
    for number in range(2, SUSPECT + 2):
        bench.hear(scheduler=(number, READY))
    assert (one.strikes, other.strikes, one.lone_deaths) == (SUSPECT, SUSPECT, 0)
    assert (one.route is None) != (other.route is None), "they are apart now"


async def test_all_others_wait_for_a_trial_but_not_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("frontend.dispatcher.time.monotonic", lambda: now)
    suspect, _ = bench.ask()
    for number in (2, 3):
        bench.hear(scheduler=(number, READY))
    assert (suspect.route is None, bench.dispatcher.suspects) == (False, 1)
    newcomer, _ = bench.ask()
    bench.dispatcher.follow()
    assert newcomer.route is None
    now += TRIAL_SECONDS + 1.0
    bench.dispatcher.follow()
    assert (newcomer.route is None, bench.dispatcher.suspects) == (False, 0)
    tokens_for(bench, next(iter(suspect.live)))
    assert suspect.strikes == HEARD


async def test_one_frontend_searches_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("frontend.dispatcher.time.monotonic", lambda: now)
    bench = Bench(name="frontend1", frontends=("frontend0", "frontend1"))
    suspect, _ = bench.ask()
    bench.hear(scheduler=(2, READY))
    bench.peer_suspects = 1
    bench.hear(scheduler=(3, READY))
    now += 2 * SETTLE_SECONDS
    bench.hear()
    newcomer, _ = bench.ask()
    assert (suspect.route is None, newcomer.route is None) == (True, False)
    bench.peer_suspects = 0
    bench.hear()
    assert suspect.route is not None


async def test_a_frontend_with_peers_tells_them_before_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("frontend.dispatcher.time.monotonic", lambda: now)
    bench = Bench(frontends=("frontend0", "frontend1"))
    suspect, _ = bench.ask()
    for number in (2, 3):
        bench.hear(scheduler=(number, READY))
    assert (suspect.route is None, bench.dispatcher.suspects) == (True, 1)
    now += SETTLE_SECONDS + 1.0
    bench.hear()
    assert suspect.route is not None


async def test_where_it_is_is_asked_on_its_way_only(bench: Bench) -> None:
    """A question about a request dies with the way it was put, without an answer about keys that are none any more."""
    run, (key,) = bench.ask()
    assert run.route is not None
    question = Run(bench.dispatcher, run.route)
    number = bench.dispatcher.new_keys(1)[0]
    asking = asyncio.create_task(question.ask(Explain(key=number, frontend="frontend0", keys=[key])))
    await asyncio.sleep(0)
    bench.hear(scheduler=(2, READY))
    with pytest.raises(ApiError):
        await asyncio.wait_for(asking, 60)
