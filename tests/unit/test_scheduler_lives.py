"""What the engine tells of the lives of sequences: slots, chunks, preemptions, and how little of it is kept."""

from messages.explain import COMPUTED, GOT_SLOT, INTERRUPTED, MOST_LIVES, MOST_MOMENTS, OMITTED, PREEMPTED, Explain, Explained, Life, Moment
from messages.result import WorkerReady
from scheduler.lives import MOST_ENDED, Ended, Moments
from tests.support.scheduler_bench import Bench, attached, prompt_of


def lives(bench: Bench, *keys: int) -> list[Life]:
    bench.engine.receive(Explain(key=77, frontend="frontend0", keys=list(keys), tokenizer="tokenizer0", lives=True), bench.now)
    ((_, answer),) = bench.engine.take()
    assert isinstance(answer, Explained)
    return answer.lives


def moments(bench: Bench, key: int) -> list[Moment]:
    (life,) = lives(bench, key)
    assert life.key == key
    return life.moments


def test_nobody_is_told_who_did_not_ask() -> None:
    bench = Bench()
    (key,) = bench.admit(prompt_of(4))
    bench.engine.receive(Explain(key=77, frontend="frontend0", keys=[key], tokenizer="tokenizer0"), bench.now)
    ((_, answer),) = bench.engine.take()
    assert isinstance(answer, Explained)
    assert answer.lives == []
    assert lives(bench, 4711) == []


def test_chunks_after_what_was_cached_and_for_a_while_after_the_end() -> None:
    bench = Bench(chunk_tokens=8, run_ahead=1)
    bench.admit(prompt_of(20), max_tokens=1)
    bench.settle()
    (key,) = bench.admit([*prompt_of(20)[:8], *prompt_of(12, 1)], max_tokens=3)
    began = bench.now
    assert moments(bench, key) == []
    bench.settle()
    told = moments(bench, key)
    assert [(moment.what, moment.tokens, moment.steps, moment.slot) for moment in told] == [
        (GOT_SLOT, 8, 1, told[0].slot), (COMPUTED, 8, 1, None), (COMPUTED, 4, 1, None),
    ]  # fmt: skip
    assert told[0].slot is not None
    assert [round(moment.at, 3) for moment in told] == [0.0, 0.0, 0.01]
    assert bench.now > began


def test_a_preempted_one_is_computed_again() -> None:
    bench = Bench(attached(blocks=7, width=7, context=28), chunk_tokens=16)
    rows = [*bench.admit(prompt_of(9), max_tokens=18), *bench.admit(prompt_of(9, 1), max_tokens=18)]
    bench.settle()
    lost = [(key, told) for key, told in ((key, moments(bench, key)) for key in rows) if PREEMPTED in {moment.what for moment in told}]
    assert lost
    for key, told in lost:
        at = next(place for place, moment in enumerate(told) if moment.what == PREEMPTED)
        before, gone, again, chunk = told[at - 1 : at + 3]
        assert (before.what, again.what, chunk.what) == (COMPUTED, GOT_SLOT, COMPUTED)
        assert before.at < gone.at <= again.at <= chunk.at
        assert 0 < gone.tokens < len(bench.clients["tokenizer0"].tokens[key])
        assert again.tokens + sum(moment.tokens for moment in told[at + 2 :] if moment.what == COMPUTED) >= 9 + gone.tokens


def test_the_death_of_a_worker_is_in_it() -> None:
    bench = Bench()
    (key,) = bench.admit(prompt_of(4), max_tokens=12)
    for _ in range(4):
        bench.step()
    bench.engine.receive(WorkerReady(worker="worker0", incarnation=2), bench.now)
    bench.flush()
    assert [moment.what for moment in moments(bench, key)] == [GOT_SLOT, COMPUTED, INTERRUPTED]


def test_many_chunks_are_told_as_fewer_and_none_is_lost() -> None:
    kept = Moments()
    kept.got_slot(0.0, 3, 5)
    for number in range(1000):
        kept.computed(float(number), 2)
    told = kept.life(9).moments
    assert len(told) <= MOST_MOMENTS
    assert told[0] == Moment(what=GOT_SLOT, at=0.0, tokens=5, slot=3)
    assert (sum(moment.tokens for moment in told[1:]), sum(moment.steps for moment in told[1:])) == (2000, 1000)
    ends = [moment.at if moment.until is None else moment.until for moment in told[1:]]
    assert [moment.at for moment in told[2:]] == [end + 1 for end in ends[:-1]]
    assert ends[-1] == 999


def test_the_oldest_of_a_life_full_of_preemptions_are_left_out() -> None:
    kept = Moments()
    for number in range(500):
        kept.got_slot(float(number), 0, 0)
        kept.computed(number + 0.1, 4)
        kept.preempted(number + 0.2, number)
    told = kept.life(9).moments
    assert len(told) <= MOST_MOMENTS
    assert told[0].what == OMITTED
    assert told[0].steps + len(told) - 1 == 1500
    assert told[-1] == Moment(what=PREEMPTED, at=499.2, tokens=499)


def test_only_the_last_that_have_ended_are_remembered() -> None:
    ended = Ended()
    for key in [*range(MOST_ENDED), 0, MOST_ENDED]:
        ended.keep(key, Moments())
    assert [ended.find(key) is not None for key in (0, 1, 2, MOST_ENDED)] == [True, False, True, True]


def test_an_answer_is_bounded() -> None:
    bench = Bench()
    keys = [key for number in range(MOST_LIVES + 4) for key in bench.admit(prompt_of(4, number))]
    assert [life.key for life in lives(bench, *keys)] == keys[:MOST_LIVES]
