"""The dispatcher and its runs: routing, endings, cancellation, and that maps and metrics end empty and add up."""

import asyncio
import json
from pathlib import Path

import pytest

from frontend.cluster import ClusterView
from frontend.dispatcher import Dispatcher
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.reading import Said
from frontend.streams import ContractError, Event, Run
from frontend.tracing import Tracing
from messages.cluster import READY, ClusterState, ProcessState
from messages.request import Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Begun, Ended, Problem, Started, TextDelta, Texts, TokenLogprob
from tests.support.outbox import FakeOutbox
from transport import trace_file
from transport.columns import pack_f32
from transport.trace import Trace

SCHEDULER = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})


class Bench:
    """A dispatcher with one tokenizer."""

    def __init__(self) -> None:
        self.view = ClusterView(["tokenizer0"], clock=lambda: 0.0)
        self.hear(1)
        self.metrics = Metrics("m", self.view)
        self.outbox = FakeOutbox()
        self.dispatcher = Dispatcher("frontend0", {"tokenizer0": self.outbox}, self.view, self.metrics)

    def hear(self, incarnation: int) -> None:
        tokenizer = ProcessState(name="tokenizer0", incarnation=incarnation, pid=1, phase=READY)
        self.view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[tokenizer, SCHEDULER]))

    def run(self, n: int = 1, prompts: int = 1) -> tuple[Run, list[int]]:
        run = self.dispatcher.open()
        for _ in range(prompts):
            keys = self.dispatcher.new_keys(n)
            run.generate(
                Generate(frontend="frontend0", keys=keys, seeds=[0] * n, prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules())
            )
        return run, list(run.live)

    def number(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"pagewire_{name}", {"model_name": "m", **labels}) or 0.0


def text_of(event: str | TextDelta | Ended | Said) -> str:
    return event if isinstance(event, str) else event.text


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_events_reach_their_run_in_order(bench: Bench) -> None:
    first, (a,) = bench.run()
    second, (b,) = bench.run()
    for key in (a, b):
        bench.dispatcher.receive(Started(key, 5))
    bench.dispatcher.receive(TextDelta(a, "x", [7]))
    bench.dispatcher.receive(TextDelta(b, "y", [7]))
    bench.dispatcher.receive(Ended(key=a, finish="stop", text="z", tokens=1, completion_tokens=2))
    assert [(index, text_of(event)) for index, event in first.taken()] == [(0, "x"), (0, "z")]
    assert [text_of(event) for _, event in second.taken()] == ["y"]
    assert first.done
    assert not second.done
    assert (first.prompt_tokens, first.completion_tokens) == (5, 2)


async def test_indexes_count_over_prompts_and_choices(bench: Bench) -> None:
    run, keys = bench.run(n=2, prompts=2)
    bench.dispatcher.receive(Started(keys[0], 3))
    bench.dispatcher.receive(Started(keys[2], 4))
    for key in reversed(keys):
        bench.dispatcher.receive(Ended(key=key, finish="length", tokens=1, completion_tokens=1))
    assert [index for index, _ in await run.everything()] == [3, 2, 1, 0]
    assert (run.prompt_tokens, run.completion_tokens) == (7, 4)
    assert len(bench.dispatcher) == 0


async def test_a_problem_fails_the_request_and_cancels_the_rest(bench: Bench) -> None:
    run, keys = bench.run(prompts=3)
    bench.dispatcher.receive(Started(keys[0], 3))
    bench.dispatcher.receive(Ended(key=keys[1], problem=Problem(status=429, code="queue_full", message="full")))
    with pytest.raises(ApiError) as caught:
        await run.opened(1.0)
    assert (caught.value.status, caught.value.headers()) == (429, {"Retry-After": "1"})
    assert set(keys) <= set(bench.outbox.cancelled())
    assert len(bench.dispatcher) == 0
    assert bench.number("request_success_total", finished_reason="error") == 1  # the one that had started


async def test_opened_waits_for_every_prompt_and_gives_up_waiting_for_text(bench: Bench) -> None:
    run, keys = bench.run(prompts=2)
    opened = asyncio.create_task(run.opened(0.01))
    bench.dispatcher.receive(Started(keys[0], 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not opened.done()
    bench.dispatcher.receive(Started(keys[1], 3))
    await asyncio.wait_for(opened, 60)
    run.close()


async def test_events_before_a_problem_are_delivered_first(bench: Bench) -> None:
    run, (key,) = bench.run()
    bench.dispatcher.receive(Started(key, 3))
    bench.dispatcher.receive(TextDelta(key, "x", [7]))
    bench.dispatcher.receive(Ended(key=key, problem=Problem(status=500, code="non_finite", message="no")))
    assert await run.held()
    assert [text_of(event) for _, event in run.taken()] == ["x"]
    assert not run.done
    with pytest.raises(ApiError, match="no"):
        await run.held()


async def test_closing_cancels_once_and_counts_an_abort(bench: Bench) -> None:
    run, keys = bench.run(n=3)
    bench.dispatcher.receive(Started(keys[0], 3))
    bench.dispatcher.receive(Ended(key=keys[1], finish="stop", completion_tokens=0))
    run.close()
    run.close()
    assert bench.outbox.cancelled() == [keys[0], keys[2]]
    assert bench.number("request_success_total", finished_reason="abort") == 2
    assert bench.number("request_success_total", finished_reason="stop") == 1
    assert bench.number("frontend_live_sequences") == 0
    bench.dispatcher.receive(TextDelta(keys[0], "late", [7]))  # dropped
    assert bench.number("generation_tokens_total") == 0


async def test_a_request_closed_before_it_started_counts_nowhere(bench: Bench) -> None:
    run, _ = bench.run()
    run.close()
    assert bench.number("sequences_started_total") == 0
    assert bench.number("request_success_total", finished_reason="abort") == 0


async def test_a_full_queue_is_503_and_leaves_nothing(bench: Bench) -> None:
    bench.outbox.full = True
    run = bench.dispatcher.open()
    with pytest.raises(ApiError) as caught:
        run.generate(Generate(frontend="f", keys=[1], seeds=[0], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()))
    run.close()
    assert caught.value.status == 503
    assert len(bench.dispatcher) == 0


async def test_metrics_add_up(bench: Bench) -> None:
    run, keys = bench.run(n=2)
    bench.dispatcher.receive(Started(keys[0], 7))
    for key in keys:
        bench.dispatcher.receive(TextDelta(key, "x", [7]))
        bench.dispatcher.receive(TextDelta(key, "yz", [7, 7]))
    bench.dispatcher.receive(Ended(key=keys[0], finish="stop", tokens=1, completion_tokens=4))
    bench.dispatcher.receive(Ended(key=keys[1], finish="length", tokens=0, completion_tokens=3))
    assert run.completion_tokens == 7
    assert bench.number("generation_tokens_total") == 7
    assert bench.number("prompt_tokens_total") == 7
    assert bench.number("sequences_started_total") == 2
    assert bench.number("time_to_first_token_seconds_count") == 2
    assert bench.number("inter_token_latency_seconds_count") == 5
    assert bench.number("request_generation_tokens_sum") == 7
    assert bench.number("e2e_request_latency_seconds_count") == 2
    assert bench.number("request_prompt_tokens_count") == 1


async def test_a_refused_sequence_counts_nowhere_and_one_that_fails_does(bench: Bench) -> None:
    full = Problem(status=429, code="queue_full", message="full")
    run, keys = bench.run(n=2)
    bench.dispatcher.receive(Started(keys[0], 7))
    assert bench.number("sequences_started_total") == 0  # the scheduler may still refuse it
    bench.dispatcher.receive(Ended(key=keys[0], problem=full, refused=True))
    assert (run.problem, bench.number("sequences_started_total"), bench.number("prompt_tokens_total")) == (full, 0, 0)
    assert [bench.number("request_success_total", finished_reason=reason) for reason in ("abort", "error")] == [0, 0]
    run, keys = bench.run(n=2)
    bench.dispatcher.receive(Started(keys[0], 7))
    bench.dispatcher.receive(Begun(keys[:1], pack_f32([0.25]), pack_f32([0.5])))
    assert (bench.number("sequences_started_total"), bench.number("sequences_live"), bench.number("prompt_tokens_total")) == (2, 2, 7)
    bench.dispatcher.receive(Ended(key=keys[1], problem=full, refused=True))  # run again elsewhere, say: it was accepted before
    assert (bench.number("sequences_live"), bench.number("request_success_total", finished_reason="error")) == (0, 2)
    assert run.problem == full


async def test_the_parts_of_a_finished_sequences_time(bench: Bench) -> None:
    """Each is observed once, of sequences that ended well; what is told of a sequence again is not believed."""
    run, keys = bench.run(n=3)
    bench.dispatcher.receive(Started(keys[0], 7))
    bench.dispatcher.receive(Begun([*keys, 99], pack_f32([0.25] * 4), pack_f32([0.5] * 4)))
    bench.dispatcher.receive(Begun(keys, pack_f32([9.0] * 3), pack_f32([9.0] * 3)))
    bench.dispatcher.receive(Texts(keys, ["a"] * 3, [1] * 3, bytes(12)))
    bench.dispatcher.receive(Texts(keys[:1], ["b"], [2], bytes(8)))
    bench.dispatcher.receive(Ended(key=keys[0], finish="stop", completion_tokens=3, cached_tokens=4))
    bench.dispatcher.receive(Ended(key=keys[1], finish="length", completion_tokens=1, cached_tokens=4))
    run.close()
    for name, total in (("queue", 0.5), ("prefill", 1.0)):
        assert bench.number(f"request_{name}_time_seconds_count") == 2
        assert bench.number(f"request_{name}_time_seconds_sum") == total
    assert bench.number("request_decode_time_seconds_count") == bench.number("request_inference_time_seconds_count") == 2
    decode, inference = bench.number("request_decode_time_seconds_sum"), bench.number("request_inference_time_seconds_sum")
    assert inference == pytest.approx(1.0 + decode)
    assert bench.number("request_time_per_output_token_seconds_count") == 1
    assert bench.number("prompt_tokens_cached_total") == 4
    assert (bench.number("request_params_n_count"), bench.number("request_params_n_sum")) == (1, 3)
    assert bench.number("request_params_max_tokens_count") == 0
    assert bench.number("e2e_request_latency_seconds_count") == 3


@pytest.mark.parametrize(("queued", "prefilled"), [(b"", b""), (b"1234", b"12345"), (b"12345678", b"12345678")])
async def test_times_that_do_not_fit_their_keys_are_refused(bench: Bench, queued: bytes, prefilled: bytes) -> None:
    _, (key,) = bench.run()
    bench.dispatcher.receive(Started(key, 3))
    with pytest.raises(ContractError):
        bench.dispatcher.receive(Begun([key], queued, prefilled))
    assert bench.number("sequences_started_total") == 0


async def test_texts_of_a_step_reach_all_their_runs_and_count_like_deltas(bench: Bench) -> None:
    first, (a,) = bench.run()
    second, (b,) = bench.run()
    for key in (a, b):
        bench.dispatcher.receive(Started(key, 5))
    bench.dispatcher.receive(Texts([a, 99, b], ["x", "nobody's", ""], [1, 1, 2], bytes(16)))
    bench.dispatcher.receive(Texts([b, a, a], ["y", "z", "!"], [1, 3, 1], bytes(20)))
    assert first.taken() == [(0, "x"), (0, "z"), (0, "!")]
    assert second.taken() == [(0, "y")]
    assert bench.number("generation_tokens_total") == 8
    assert bench.number("time_to_first_token_seconds_count") == 2
    assert bench.number("inter_token_latency_seconds_count") == 5


async def test_a_writer_is_called_once_a_turn_and_the_task_only_when_it_must_be(bench: Bench) -> None:
    run, (key,) = bench.run()
    bench.dispatcher.receive(Started(key, 5))
    written: list[list[Event]] = []
    free = True

    def writer() -> bool:
        if free:
            written.append(run.taken())
        return free

    run.writer = writer
    waiting = asyncio.create_task(run.held())
    await turns()
    for text in "abc":
        bench.dispatcher.receive(Texts([key], [text], [1], bytes(4)))
    await turns()
    assert (written, waiting.done()) == ([[(0, "a"), (0, "b"), (0, "c")]], False)
    free = False
    bench.dispatcher.receive(Texts([key], ["d"], [1], bytes(4)))
    await turns()
    assert waiting.done()
    assert await waiting
    assert run.taken() == [(0, "d")]
    free = True
    over = asyncio.create_task(run.held())
    await turns()
    bench.dispatcher.receive(Texts([key], ["e"], [1], bytes(4)))
    bench.dispatcher.receive(Ended(key=key, finish="stop", completion_tokens=5))
    assert not await asyncio.wait_for(over, 60)
    assert [[text_of(event) for _, event in events] for events in written[1:]] == [["e", ""]]


async def test_texts_of_unequal_length_are_refused_whole(bench: Bench) -> None:
    run, (key,) = bench.run()
    bench.dispatcher.receive(Started(key, 5))
    with pytest.raises(ContractError):
        bench.dispatcher.receive(Texts([key, key], ["a", "b"], [1], bytes(4)))
    assert run.taken() == []
    assert bench.number("generation_tokens_total") == 0


async def turns() -> None:
    """A few turns of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_keys_are_never_repeated(bench: Bench) -> None:
    keys = bench.dispatcher.new_keys(3) + bench.dispatcher.new_keys(3)
    assert len(set(keys)) == 6
    assert all(0 <= key < 2**63 for key in keys)


async def test_what_was_accepted_is_traced(bench: Bench, tmp_path: Path) -> None:
    """The whole time of each choice that was accepted, however it ended; nothing of one that was refused."""
    trace_file.begin(str(tmp_path / "t"))
    tracing = bench.dispatcher._tracing = Tracing(Trace(str(tmp_path / "t"), "frontend0"))
    run, (a, b) = bench.run(n=2)
    bench.dispatcher.receive(Started(a, 5))
    bench.dispatcher.receive(TextDelta(a, "x", [7, 7]))
    bench.dispatcher.receive(Ended(key=a, finish="stop", completion_tokens=2))
    run.close()
    refused, (c,) = bench.run()
    bench.dispatcher.receive(Ended(key=c, problem=Problem(status=400, code="bad", message="No.")))
    assert refused.problem is not None
    tracing.close()
    trace_file.finish(str(tmp_path / "t"))
    events = [event for event in json.loads((tmp_path / "t").read_text()) if event["name"] == "request"]
    assert [(event["ph"], event["id"]) for event in events] == [("b", hex(a)), ("e", hex(a)), ("b", hex(b)), ("e", hex(b))]
    first, second = events[0]["args"], events[2]["args"]
    assert 0 <= first.pop("first_token_ms") <= (events[1]["ts"] - events[0]["ts"]) / 1e3
    assert (first, second) == (
        {"prompt_tokens": 5, "tokens": 2, "choice": 0, "end": "stop"},
        {"prompt_tokens": 5, "tokens": 0, "choice": 1, "end": "abort"},
    )


async def test_a_timeout_goes_along_and_the_run_ends_by_itself_when_nobody_ends_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.streams.GRACE_SECONDS", 0.02)
    run = bench.dispatcher.open(timeout=0.03)
    [key] = bench.dispatcher.new_keys(1)
    run.generate(Generate(frontend="frontend0", keys=[key], seeds=[0], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()))
    [sent] = [message for message in bench.outbox.sent if isinstance(message, Generate)]
    assert sent.timeout is not None
    assert 0.0 <= sent.timeout <= 0.03
    with pytest.raises(ApiError) as caught:
        await run.everything()
    assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
    assert bench.outbox.cancelled() == [key]
    assert not bench.dispatcher._live
    ended = bench.dispatcher.open(timeout=0.01)
    ended.close()
    await asyncio.sleep(0.05)
    assert ended.problem is None


async def test_a_run_that_is_sent_again_has_the_time_that_is_left(bench: Bench) -> None:
    run = bench.dispatcher.open(timeout=50.0)
    [key] = bench.dispatcher.new_keys(1)
    run.generate(Generate(frontend="frontend0", keys=[key], seeds=[0], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=StopRules()))
    assert run.deadline is not None
    run.deadline -= 20.0
    bench.hear(2)
    bench.dispatcher.follow()
    first, second = (message.timeout or 0.0 for message in bench.outbox.sent if isinstance(message, Generate))
    assert 50.0 >= first > 30.0 >= second > 10.0, "what went by meanwhile is not known exactly"
    run.deadline -= 40.0
    bench.hear(3)
    bench.dispatcher.follow()
    assert run.problem is not None
    assert run.problem.code == "deadline_exceeded", "there is no time left"
    run.close()


async def test_the_events_that_wait_are_weighed(bench: Bench) -> None:
    run, [key] = bench.run()
    run.writer = lambda: False
    bench.dispatcher.receive(Started(key, 3))
    weights = [run.weight()]
    for message in (Texts([key], ["x" * 1000], [1], bytes(4)), TextDelta(key, "y", [1] * 50, [TokenLogprob(1, b"y", 0.0, [(1, b"y", 0.0)] * 20)])):
        bench.dispatcher.receive(message)
        weights.append(run.weight())
    assert weights[0] == 0
    assert 1000 < weights[1] < 1300
    assert weights[2] - weights[1] > 21 * 100 + 50 * 30
    assert run.weight() == weights[2]
    run.taken()
    assert run.weight() == 0
