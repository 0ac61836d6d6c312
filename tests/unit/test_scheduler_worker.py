"""The worker dies, fails, comes back smaller, answers nonsense or not at all: no sequence is lost that can be saved."""

from collections.abc import Callable

import msgspec
import pytest

from messages.plan import Attach, StepPlan
from messages.result import StepFailed, StepResult, WorkerReady
from messages.tokens import FINISH_ERROR, LogprobColumns
from scheduler.deadlines import FLOOR, WATCHED
from scheduler.door import CLOSING
from scheduler.errors import ContractError
from tests.support.null_worker import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import pack_f32, pack_i32, pack_u8

VOCAB, CONTEXT = 29, 40


def assert_served(bench: Bench, keys: list[int], max_tokens: int | None = 10) -> None:
    for i, key in enumerate(keys):
        assert bench.clients["tokenizer0"].tokens[key] == reference(key, prompt_of(6, i), max_tokens, [], CONTEXT, VOCAB)[0]


def load(bench: Bench, number: int = 6, max_tokens: int | None = 10) -> list[int]:
    return [bench.admit(prompt_of(6, i), max_tokens)[0] for i in range(number)]


@pytest.mark.parametrize("steps", range(14))
def test_a_restart_at_any_moment_is_not_seen_by_clients(steps: int) -> None:
    bench = Bench()
    keys = load(bench)
    for _ in range(steps):
        bench.step()
    bench.plan()
    bench.worker.restart()
    bench.settle()
    assert_served(bench, keys)
    assert bench.engine.gauges()["blocks_used"] == 0
    assert bench.engine.tally.counts["prompt_tokens"] == 36
    assert bench.engine.tally.counts["generation_tokens"] == 60


def test_rows_keep_their_place_and_their_prompt_length() -> None:
    bench = Bench()
    keys = load(bench, 4)
    for _ in range(9):
        bench.step()
    [late] = bench.admit(prompt_of(3), 2)
    bench.worker.restart()
    bench.worker.plans.clear()
    bench.settle()
    admits = [plan.admit for plan in bench.worker.plans if plan.admit is not None]
    order = b"".join(admit.seed for admit in admits)
    assert [int.from_bytes(order[i : i + 8], "little") for i in range(0, len(order), 8)] == [*keys, late]
    assert b"".join(admit.prompt_len for admit in admits) == pack_i32([6, 6, 6, 6, 3])


def test_several_restarts_and_repeated_ready_messages() -> None:
    bench = Bench()
    keys = load(bench)
    for i in range(8):
        for _ in range(9 + i):
            bench.step()
        bench.worker.restart()
        bench.worker.pending.append(WorkerReady(worker="worker0"))
        bench.deliver()
    bench.settle()
    assert_served(bench, keys)


def test_abort_while_no_worker_is_there() -> None:
    bench = Bench()
    keys = load(bench, 3)
    for _ in range(6):
        bench.step()
    bench.worker.restart()
    bench.deliver()
    bench.abort(keys[:1])
    bench.engine.tokenizer_lost("tokenizer1")
    bench.engine.check()
    bench.settle()
    assert sorted(bench.clients["tokenizer0"].finish) == keys[1:]


def test_an_unknown_worker_is_not_attached() -> None:
    bench = Bench()
    with pytest.raises(ContractError):
        bench.engine.receive(WorkerReady(worker="../worker0"), 0.0)
    assert bench.engine.take() == []


@pytest.mark.parametrize("change", [{"blocks": 0}, {"context": 1}, {"vocab": 0}, {"max_step_tokens": -1}])
def test_an_impossible_geometry_is_not_taken(change: dict[str, int]) -> None:
    bench = Bench(start=False)
    bench.deliver()
    [offer] = bench.worker.pending
    with pytest.raises(ContractError):
        bench.engine.receive(msgspec.structs.replace(offer, **change), 0.0)
    assert bench.engine.session is None


def test_an_old_attached_is_ignored() -> None:
    bench = Bench()
    session = bench.engine.session
    bench.engine.receive(msgspec.structs.replace(attached(), session=77), 0.0)
    assert bench.engine.session is session


def test_rows_that_no_longer_fit_get_503() -> None:
    bench = Bench()
    keys = [bench.admit(prompt_of(length), 9)[0] for length in (20, 4)]
    for _ in range(9):
        bench.step()
    bench.worker.restart(attached(context=16))
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.finish[keys[0]] == FINISH_ERROR
    assert (client.problems[keys[0]].status, client.problems[keys[0]].code) == (503, "worker_lost")
    assert client.tokens[keys[1]] == reference(keys[1], prompt_of(4), 9, [], 16, VOCAB)[0]


def test_a_failed_step_is_tried_again() -> None:
    bench = Bench()
    keys = load(bench)
    for _ in range(5):
        bench.step()
    bench.worker.fail_step_with = {keys[1]}
    bench.step()
    bench.worker.fail_step_with = set()
    bench.settle()
    assert_served(bench, keys)


def test_a_row_that_always_fails_is_failed_and_the_rest_goes_on() -> None:
    bench = Bench()
    keys = load(bench)
    for _ in range(5):
        bench.step()
    bench.worker.fail_step_with = {keys[0]}
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.finish[keys[0]] == FINISH_ERROR
    assert (client.problems[keys[0]].status, client.problems[keys[0]].code) == (500, "step_failed")
    assert bench.engine.tally.counts["failed_steps"] <= 6
    saved = [key for key in keys if client.finish[key] != FINISH_ERROR]
    assert len(saved) >= 3
    for key in saved:
        assert client.tokens[key] == reference(key, prompt_of(6, keys.index(key)), 10, [], CONTEXT, VOCAB)[0]


def test_a_failure_of_another_session_or_step() -> None:
    bench = Bench()
    keys = load(bench, 1)
    bench.plan()
    bench.engine.receive(StepFailed(session=99, step=1, message="old"), bench.now)
    assert bench.engine.take() == []
    bench.engine.receive(StepFailed(session=1, step=50, message="never sent"), bench.now)
    [(name, message)] = bench.engine.take()
    assert name == "worker0"
    assert isinstance(message, Attach)
    bench.worker.receive(message)
    bench.worker.pending.popleft()
    bench.worker.pending.popleft()
    bench.settle()
    assert_served(bench, keys)


def with_bad_logprobs(row: list[int], count: list[int]) -> Callable[[StepResult], StepResult]:
    columns = LogprobColumns(
        row=pack_i32(row),
        chosen=pack_f32([0.0] * len(row)),
        count=pack_i32(count),
        top_ids=pack_i32([0] * sum(count)),
        top=pack_f32([0.0] * sum(count)),
    )
    return lambda result: msgspec.structs.replace(result, logprobs=columns)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda result: msgspec.structs.replace(result, step=result.step + 1),
        lambda result: msgspec.structs.replace(result, slot=pack_i32([3])),
        lambda result: msgspec.structs.replace(result, token=b"123"),
        lambda result: msgspec.structs.replace(result, status=b""),
        lambda result: msgspec.structs.replace(result, status=pack_u8([9])),
        lambda result: msgspec.structs.replace(result, token=pack_i32([VOCAB])),
        lambda result: msgspec.structs.replace(result, token=pack_i32([-1])),
        with_bad_logprobs([1], [0]),
        with_bad_logprobs([-1], [0]),
        with_bad_logprobs([0, 0], [1, 1]),
    ],
    ids=["step", "slot", "token column", "status column", "status", "token", "no token", "row", "negative row", "row twice"],
)
def test_a_result_that_breaks_the_contract_costs_the_session_not_the_request(spoil: Callable[[StepResult], StepResult]) -> None:
    bench = Bench()
    keys = load(bench, 1)
    bench.plan()
    result = bench.worker.deliver()
    assert isinstance(result, StepResult)
    with pytest.raises(ContractError):
        bench.engine.receive(spoil(result), bench.now)
    bench.engine.check()
    bench.flush()
    bench.settle()
    assert_served(bench, keys)


def test_results_nobody_waits_for_are_ignored() -> None:
    bench = Bench()
    keys = load(bench, 1)
    bench.plan()
    result = bench.worker.deliver()
    assert isinstance(result, StepResult)
    bench.engine.receive(msgspec.structs.replace(result, session=999), bench.now)
    bench.engine.receive(result, bench.now)
    bench.engine.receive(result, bench.now)
    bench.flush()
    bench.settle()
    bench.engine.receive(result, bench.now)
    assert_served(bench, keys)
    assert bench.engine.tally.counts["failed_steps"] == 0


def test_a_worker_that_says_nothing_is_reported_until_it_speaks() -> None:
    bench = Bench(step_deadline=60.0)
    load(bench, 2)
    assert bench.engine.overdue(bench.now + 1000) is None, "there is no plan that could be late"
    bench.plan()
    assert bench.engine.overdue(bench.now + 59) is None
    assert bench.engine.overdue(bench.now + 61) == "no result for 60 s of a step with 8 prompt tokens and 0 decode rows"
    bench.now += 70
    bench.deliver()
    assert bench.engine.overdue(bench.now) is None
    bench.settle()
    assert bench.engine.overdue(bench.now + 1000) is None


def test_a_worker_that_hangs_is_given_up_once_and_the_step_gets_more_time() -> None:
    bench = Bench(step_deadline=60.0)
    keys = load(bench, 2)
    bench.plan()
    why = "no result for 60 s of a step with 8 prompt tokens and 0 decode rows"
    assert [bench.engine.give_up(bench.now + later) for later in (59, 61, 61)] == [None, why, None]
    assert bench.engine.overdue(bench.now) == why
    bench.worker.restart()
    bench.deliver()
    assert bench.engine.give_up(bench.now + 61) is None
    bench.deliver()
    bench.plan()
    assert bench.engine.overdue(bench.now + 119) is None
    assert bench.engine.overdue(bench.now + 121) is not None
    bench.settle()
    assert_served(bench, keys)


def test_a_stopped_worker_is_given_up_sooner_and_so_is_one_that_failed_before() -> None:
    bench = Bench(step_deadline=60.0)
    load(bench, 2)
    bench.settle()
    keys = load(bench, 2)
    bench.plan()
    limits = []
    for bench.engine.deadlines.stopped in (False, True):
        limits.append(bench.engine.awaited(bench.now)["deadline_seconds"])
    assert limits == [60.0, FLOOR], "a first step of its kind"
    assert bench.engine.give_up(bench.now + 61) is not None
    bench.engine.deadlines.stopped = False
    bench.worker.restart()
    bench.deliver()
    bench.deliver()
    bench.plan()
    assert bench.engine.awaited(bench.now)["deadline_seconds"] == WATCHED
    bench.settle()
    assert_served(bench, keys)


def test_how_long_a_step_is_awaited_and_may_be() -> None:
    bench = Bench(step_deadline=60.0)
    idle = {"awaited_seconds": 0.0, "deadline_seconds": 0.0}
    assert bench.engine.awaited(bench.now + 1) == idle
    load(bench, 2)
    bench.plan()
    assert bench.engine.awaited(bench.now + 7) == {"awaited_seconds": 7.0, "deadline_seconds": 60.0}
    bench.worker.restart()
    bench.deliver()
    assert bench.engine.awaited(bench.now) == idle
    patient = Bench(step_deadline=0.0)
    load(patient, 2)
    patient.plan()
    assert patient.engine.awaited(patient.now + 7e9) == {"awaited_seconds": 7e9, "deadline_seconds": 0.0}
    assert patient.engine.overdue(patient.now + 7e9) is None


def test_a_scheduler_that_was_kept_from_running_begins_to_wait_anew() -> None:
    bench = Bench(step_deadline=60.0)
    load(bench, 2)
    bench.plan()
    bench.engine.excuse(bench.now + 100)
    assert bench.engine.overdue(bench.now + 159) is None
    assert bench.engine.overdue(bench.now + 161) is not None


def test_a_lost_tokenizer_takes_its_sequences_with_it() -> None:
    bench = Bench()
    mine = [bench.admit(prompt_of(6, i), 10)[0] for i in range(3)]
    bench.admit(prompt_of(5), 10, n=4, tokenizer="tokenizer1")
    for _ in range(6):
        bench.step()
    known = bench.clients["tokenizer1"].messages
    bench.engine.tokenizer_lost("tokenizer1")
    bench.settle()
    assert bench.clients["tokenizer1"].messages == known
    assert_served(bench, mine)
    assert bench.engine.tally.counts["cancelled"] == 4


def test_fail_all_ends_everything() -> None:
    bench = Bench()
    keys = load(bench, 9)
    for _ in range(6):
        bench.step()
    bench.engine.close()
    bench.engine.fail_all(CLOSING)
    bench.flush()
    assert bench.engine.idle
    assert set(bench.clients["tokenizer0"].finish) == set(keys)
    bench.settle()
    assert bench.engine.gauges()["slots_used"] == 0


def test_the_slots_of_ended_rows_are_released_before_they_are_used_again() -> None:
    """The null worker checks this at every plan; here it is made to happen in the same plan."""
    bench = Bench(attached(slots=1))
    for i in range(3):
        bench.admit(prompt_of(2, i), 3)
    bench.settle()
    assert any(isinstance(plan, StepPlan) and plan.release and plan.admit is not None for plan in bench.worker.plans)
