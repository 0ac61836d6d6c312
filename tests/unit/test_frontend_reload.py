"""What a frontend does with its requests while another model is put in the place of the one that is served."""

import asyncio
from typing import Any

import pytest

from frontend import resubmission
from frontend.errors import ApiError
from frontend.resubmission import HOLD_SECONDS
from frontend.streams import Run
from messages.change import LOADING as CHANGE_LOADING
from messages.change import Change
from messages.cluster import DEAD, LOADING, READY
from messages.request import Cancel, Delivered, Generate, TextPrompt, Tokenize
from messages.sampling import SamplingParams, StopRules
from messages.text import Begun, Ended, Started, Texts, Tokenized
from tests.unit.test_frontend_resubmission import Bench, ids, said

HOLD: dict[str, Any] = {"holding": True, "change": Change(number=1, kind="reload", phase=CHANGE_LOADING, model="new")}


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def new_model(bench: Bench, serving: int = 1, model: str = "new") -> None:
    """The processes end, others come, and requests are let go."""
    names = ("tokenizer0", "tokenizer1", "scheduler")
    bench.taken()
    bench.tell(serving=serving)
    bench.hear(**dict.fromkeys(names, (serving, DEAD)))
    bench.hear(**dict.fromkeys(names, (serving + 1, LOADING)))
    bench.hear(**dict.fromkeys(names, (serving + 1, READY)))
    assert not any(isinstance(message, Generate | Tokenize) for message in bench.taken())
    bench.tell(holding=False, cutting=False, model=model)


def ask(bench: Bench, asked: str | None = None) -> Run:
    """A request that has a limit of its own for each model."""
    run = bench.dispatcher.open()

    def make() -> Generate:
        if asked not in (None, *bench.view.models):
            raise ApiError(404, "model_not_found", "no such model", "model")
        stop = StopRules(max_tokens=len(bench.view.model))
        keys = bench.dispatcher.new_keys(1)
        return Generate(frontend="frontend0", keys=keys, seeds=[9], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=stop)

    run.generate(make(), make)
    return run


async def test_what_has_begun_finishes_and_the_rest_waits_for_the_new_model(bench: Bench) -> None:
    running, (key,) = bench.ask()
    queued = ask(bench)
    bench.taken()
    bench.dispatcher.receive(Started(key, 5))
    bench.dispatcher.receive(Texts([key], ["a"], [1], ids(7)))
    bench.dispatcher.receive(Started(next(iter(queued.live)), 5))
    old = list(queued.live)
    bench.tell(**HOLD)
    assert bench.taken() == [Cancel(old)]
    assert (bench.dispatcher.begun, bench.view.models) == (1, {"m", "new"})
    arrived = ask(bench, "new")
    bench.dispatcher.receive(Texts([key], ["b"], [1], ids(8)))
    bench.dispatcher.receive(Ended(key=key, finish="stop", completion_tokens=2))
    bench.hear()
    assert (said(running), running.done, bench.dispatcher.begun) == ([(0, "a"), (0, "b"), (0, "")], True, 0)
    new_model(bench)
    first, second = bench.taken()
    assert isinstance(first, Generate)
    assert isinstance(second, Generate)
    assert [(message.stop.max_tokens, message.seeds, message.resumed) for message in (first, second)] == [(3, [9], [Delivered(b"")]), (3, [9], [])]
    assert not set(first.keys) & set(old)
    assert (queued.model, queued.prompt_tokens, arrived.model) == ("new", 0, "new")
    bench.dispatcher.receive(Started(first.keys[0], 6))
    assert queued.prompt_tokens == 6


async def test_what_has_begun_is_sent_again_to_the_old_processes_while_it_is_waited_for(bench: Bench) -> None:
    run, (key,) = bench.ask()
    bench.dispatcher.receive(Begun([key], b"\0" * 4, b"\0" * 4))
    bench.tell(**HOLD)
    bench.taken()
    bench.hear(scheduler=(1, DEAD))
    bench.hear(scheduler=(2, READY))
    cancel, again = bench.taken()
    assert isinstance(again, Generate)
    assert (cancel, bench.dispatcher.begun) == (Cancel([key]), 1)
    new_model(bench)  # whoever swaps now takes no account of it: it must not go on there
    assert run.problem == resubmission.REPLACED
    assert not any(isinstance(message, Generate) for message in bench.taken())


async def test_what_is_not_waited_for_ends_and_the_rest_does_not(bench: Bench) -> None:
    running, (key,) = bench.ask()
    queued, _ = bench.ask()
    bench.dispatcher.receive(Texts([key], ["a"], [1], ids(7)))
    bench.tell(**HOLD, cutting=True)
    assert (running.problem, queued.problem) == (resubmission.REPLACED, None)
    assert bench.dispatcher.begun == 0


async def test_a_request_that_names_a_model_gets_no_other(bench: Bench) -> None:
    queued = ask(bench, "m")
    bench.tell(**HOLD)
    bench.tell(serving=1)  # from now on the old processes end
    arrived = [ask(bench, name) for name in ("m", "new", None)]
    with pytest.raises(ApiError):
        ask(bench, "other")
    new_model(bench)
    assert [run.problem and (run.problem.status, run.problem.code) for run in (queued, *arrived)] == [
        (404, "model_not_found"), (404, "model_not_found"), None, None,
    ]  # fmt: skip


async def test_when_it_fails_the_old_model_serves_them(bench: Bench) -> None:
    queued = ask(bench, "m")
    bench.tell(**HOLD)
    for_new, for_old = ask(bench, "new"), ask(bench)
    new_model(bench, serving=2, model="m")
    assert [run.problem and run.problem.status for run in (queued, for_new, for_old)] == [None, 404, None]
    assert [message.stop.max_tokens for message in bench.taken() if isinstance(message, Generate)] == [1, 1]


async def test_holding_is_bounded_in_number_but_not_in_time(bench: Bench) -> None:
    bench.dispatcher._most_held = 2
    bench.tell(**HOLD)
    held = [ask(bench), ask(bench)]
    with pytest.raises(ApiError) as caught:
        ask(bench)
    assert caught.value.status == 503
    for run in held:
        run.arrived -= HOLD_SECONDS + 1
    bench.hear()
    new_model(bench)
    assert [run.problem for run in held] == [None, None]


async def test_questions_about_text_wait_too(bench: Bench) -> None:
    bench.tell(**HOLD)
    run = bench.dispatcher.open()
    key = bench.dispatcher.new_keys(1)[0]
    asking = asyncio.create_task(run.ask(Tokenize(frontend="frontend0", key=key, prompt=TextPrompt("A"))))
    await asyncio.sleep(0)
    new_model(bench)
    (asked,) = bench.taken()
    assert isinstance(asked, Tokenize)
    bench.dispatcher.receive(Tokenized(asked.key, [1]))
    assert await asyncio.wait_for(asking, 60) == Tokenized(asked.key, [1])


async def test_what_is_known_of_the_model_is_that_of_the_one_served(bench: Bench) -> None:
    assert bench.view.context() == 100
    bench.tell(**HOLD)
    bench.view._context = 50  # the old one's; the new one's facts are there before it serves
    bench.hear()
    assert (bench.view.context(), bench.view.model) == (50, "m")
    new_model(bench)
    assert (bench.view.context(), bench.view.model, bench.view.holding) == (100, "new", False)
