"""A stateful machine: any order of admissions, steps, late results, aborts, preemptions, deaths, over prompts that share their beginnings.

Every invariant is checked after every rule, every token against the reference as it comes, and the null worker checks every plan.

`PAGEWIRE_MACHINE_EXAMPLES` sets the number of examples for long runs, `PAGEWIRE_MACHINE_SEED` the seed they begin with. Round i of
ROUND examples has seed + i, so a failure is repeated by that seed and ROUND examples.
"""

import logging
import os
import time
from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from messages.explain import MAX_KEYS, Explain, Explained
from messages.result import Attached
from messages.sampling import Constraints, SamplingParams
from messages.text import Problem
from messages.tokens import FINISH_ERROR
from scheduler.errors import InvariantError
from tests.support.null_answers import POISON_SEED_MARK, reference
from tests.support.null_memory import SPACE_SHIFT
from tests.support.null_worker import DEADLY, LOST, REFUSED
from tests.support.scheduler_bench import Bench, attached, prompt_of
from tests.support.wanted import Wanted, changes_of, check_ends, check_output, check_standing

VOCAB, CONTEXT = 29, 40
EXAMPLES = int(os.environ.get("PAGEWIRE_MACHINE_EXAMPLES", "140"))
SEED = int(os.environ.get("PAGEWIRE_MACHINE_SEED", "1"))
ROUND, RULES, MANY = 250, 100, 20_000
MORE, ROUNDS = 40, 12
"""Examples of further rounds, and how many there are at most, while something has not happened that must."""
SPACES = [("", ""), ("", "pepper"), ("acme", ""), ("acme", "pepper")]
"""Tenants and salts: cache namespaces that must never meet."""
OPENINGS = [prompt_of(CONTEXT, opening) for opening in range(3)]
DRAINED = Problem(status=503, code="shutting_down", message="the server is shutting down")
MUST_HAPPEN = (
    "preemptions", "evicted_blocks", "copied_blocks", "prefix_hits", "swaps", "seen", "restarts", "failed_steps", "trials", "429", "idle", "scored",
    "biased", "resumed", "expired", "matched", "unmatched", "refused_grammars", "deadly_grammars",
)  # fmt: skip

TOKENIZERS = ["tokenizer0", "tokenizer1"]
DICE = st.integers(0, 2**24 - 1)
"""Decides all that is random in one rule: drawing each choice from hypothesis costs more than what the scheduler does with it."""


class SchedulerMachine(RuleBasedStateMachine):
    """`wanted`: every key that was accepted; `over`: how many of them ended with an abort, by its counter; `before`: counts of dead schedulers."""

    happened: ClassVar[Counter[str]] = Counter()

    @initialize(
        blocks=st.one_of(st.integers(3, 24), st.integers(3, 24), st.integers(25, 80)),
        block_size=st.sampled_from([1, 2, 4, 4, 16]),
        slots=st.sampled_from([1, 2, 3, 4, 5, 6, 9, 20]),
        step_tokens=st.integers(1, 24),
        chunk=st.integers(1, 24),
        run_ahead=st.integers(1, 4),
        prefix_cache=st.sampled_from([True, True, True, False]),
        target_itl=st.sampled_from([None, None, 0.004, 0.05]),
        max_queue=st.sampled_from([1, 8, 32, 64]),
        max_queue_tokens=st.sampled_from([40, 2000, 2000]),
        max_live_tokens=st.sampled_from([0, 0, 0, 300]),
        max_queue_seconds=st.sampled_from([0.0, 0.0, 2.0]),
    )
    def start(
        self,
        blocks: int,
        block_size: int,
        slots: int,
        step_tokens: int,
        chunk: int,
        run_ahead: int,
        prefix_cache: bool,
        target_itl: float | None,
        max_queue: int,
        max_queue_tokens: int,
        max_live_tokens: int,
        max_queue_seconds: float,
    ) -> None:
        geometry = attached(blocks, block_size, slots, width=24, step_tokens=step_tokens, context=CONTEXT, vocab=VOCAB)
        self.bench = Bench(
            geometry,
            chunk_tokens=chunk,
            run_ahead=run_ahead,
            prefix_cache=prefix_cache,
            target_itl=target_itl,
            max_queue=max_queue,
            max_queue_tokens=max_queue_tokens,
            max_live_tokens=max_live_tokens,
            max_queue_seconds=max_queue_seconds,
        )
        assert self.bench.engine.geometry is not None
        self.context = self.bench.engine.geometry.context
        self.wanted: dict[int, Wanted] = {}
        self.over: Counter[str] = Counter()
        self.refused = 0
        self.closing = False
        self.broken = 0
        self.before: Counter[str] = Counter()
        self._numbers = 0

    # What is asked for

    @rule(dice=DICE)
    def admit(self, dice: int) -> None:
        chance = Random(dice)
        opening, length = chance.choice(OPENINGS), int(self.context * chance.random() ** 2)
        prompt = opening[:length] + [chance.randrange(VOCAB) for _ in range(chance.randrange(4))] or [0]
        penalty = chance.choice([1.0, 1.0, 1.2])
        self._send(
            CONTEXT * prompt if chance.random() < 0.02 else prompt,
            max_tokens=chance.choice([None, None, 30, *range(1, 13)]),
            n=chance.choice([1, 1, 1, 2, 3, 4]),
            ends=chance.choice([[], [], [3], [1, 2, 5, 8, 13, 21]]),
            tokenizer=chance.choice(TOKENIZERS),
            priority=chance.randint(-2, 2),
            space=chance.choice([0, 0, 0, 0, 1, 2, 2, 3]),
            poison=chance.choice([None] * 9 + [5, 20, 33]),
            sampling=SamplingParams(
                logprobs=chance.randint(-1, 2), repetition_penalty=penalty, presence_penalty=0.5 if penalty != 1.0 else 0.0,
                prompt_logprobs=chance.choice([-1, -1, -1, 0, 2]),
            ),
            constraints=chance.choice([None, None, None, Constraints(bias={3: 1.5}, min_tokens=4), Constraints(allowed=[5, 6])]),
            banned=chance.choice([[], [], [], [[7]], [[3, 5], [5, 6, 7]]]),
            program=self._program(chance),
            timeout=chance.choice([None] * 8 + [0.0, 0.3, 20.0]),
        )  # fmt: skip

    def _program(self, chance: Random) -> str:
        if chance.random() < 0.6:
            return ""
        kind = chance.choice([*["good"] * 9, *[LOST, REFUSED, DEADLY] * 2])
        return f"{kind} {chance.randrange(3) if kind == 'good' else self._numbers}"

    @precondition(lambda self: self.wanted)
    @rule(dice=DICE)
    def next_turn(self, dice: int) -> None:
        """A chat goes on: an earlier prompt with what is known of its answer."""
        chance = Random(dice)
        key = self._key(chance)
        want = self.wanted[key]
        own = [chance.randrange(VOCAB) for _ in range(chance.randrange(3))]
        prompt = want.prompt + self.bench.clients[want.tokenizer].tokens.get(key, []) + own
        self._send(prompt, chance.randint(1, 6), chance.randint(1, 2), [], want.tokenizer, 0, want.space, None, SamplingParams())

    @precondition(lambda self: self.wanted)
    @rule(dice=DICE)
    def the_same_again(self, dice: int) -> None:
        """Several rows that share all of a prompt, each an Admit of its own."""
        chance = Random(dice)
        want = self.wanted[self._key(chance)]
        for _ in range(chance.randint(1, 4)):
            self._send(want.prompt, 4, 1, [], want.tokenizer, 0, want.space, None, want.sampling)

    def _send(
        self,
        prompt: list[int],
        max_tokens: int | None,
        n: int,
        ends: list[int],
        tokenizer: str,
        priority: int,
        space: int,
        poison: int | None,
        sampling: SamplingParams,
        constraints: Constraints | None = None,
        banned: list[list[int]] | None = None,
        program: str = "",
        timeout: float | None = None,
    ) -> None:
        banned = banned if constraints and banned else []
        self._numbers += 1
        common = space << SPACE_SHIFT | (0 if poison is None else POISON_SEED_MARK | poison)
        seeds = [common | (self._numbers * 4 + choice) << 10 for choice in range(n)]
        tenant, salt = SPACES[space]
        keys = self.bench.admit(
            prompt, max_tokens, n=n, end_ids=ends, tokenizer=tokenizer, priority=priority, seeds=seeds, sampling=sampling, constraints=constraints,
            banned=banned, tenant=tenant, cache_salt=salt, program=program, timeout=timeout,
        )  # fmt: skip
        client = self.bench.clients[tokenizer]
        for key, number in zip(keys, seeds, strict=True):
            if key in client.refused:
                self._refused(client.refused[key], prompt)
                continue
            tokens, finish = reference(number, prompt, max_tokens, ends, self.context, VOCAB) if len(prompt) < self.context else ([], FINISH_ERROR)
            if program.startswith(LOST) and len(tokens) > 3:
                tokens, finish = tokens[:3], FINISH_ERROR
            bias = changes_of(prompt, ends, constraints, banned)
            self.wanted[key] = Wanted(prompt, space, tokenizer, sampling, number, tokens, finish, bias, program)
            client.expected[key] = tokens

    def _refused(self, problem: Problem, prompt: list[int]) -> None:
        self.refused += 1
        self.happened[str(problem.status)] += 1
        if self.closing:
            assert problem.status == 503
        elif len(prompt) >= self.context and self.bench.engine.geometry is not None:
            assert problem.status == 400
        else:
            assert problem.status == 429
            assert problem.retry_after is not None

    def _key(self, chance: Random) -> int:
        """Any key; two times in three one that is live, if any is."""
        live = [key for key in self.wanted if self._live(key)] if chance.randrange(3) else []
        return chance.choice(live or list(self.wanted))

    def _live(self, key: int) -> bool:
        client = self.bench.clients[self.wanted[key].tokenizer]
        return key not in client.finish and key not in client.gone

    # What goes on

    @rule()
    def plan(self) -> None:
        self.bench.plan()
        assert self.bench.worker.pending or self.bench.engine.idle, "sequences wait for ever"
        assert all(request.deadline is None or request.deadline > self.bench.now for request in self.bench.engine._live.values())

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.plan()
            self.bench.deliver()

    @rule(times=st.integers(1, 25))
    def run(self, times: int) -> None:
        for _ in range(times):
            self.plan()
            if not self.bench.deliver():
                self.happened["idle"] += 1
                return

    @rule()
    def late_result(self) -> None:
        self.bench.deliver()

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.bench.now += seconds

    @precondition(lambda self: self.wanted)
    @rule()
    def explain(self) -> None:
        """Of every live key, and of no other, it is said where it is."""
        keys = list(self.wanted)[-MAX_KEYS:]
        self.bench.engine.receive(Explain(key=1, frontend="frontend0", keys=keys, tokenizer="tokenizer0"), self.bench.now)
        ((name, answer),) = self.bench.engine.take()
        assert isinstance(answer, Explained)
        assert (name, answer.key, answer.frontend) == ("tokenizer0", 1, "frontend0")
        assert [standing.key for standing in answer.standings] == [key for key in keys if self._live(key)]
        for standing in answer.standings:
            check_standing(self.bench, standing, self.wanted[standing.key])

    # What goes wrong

    @precondition(lambda self: self.wanted)
    @rule(dice=DICE)
    def abort(self, dice: int) -> None:
        chance = Random(dice)
        keys, finished = [self._key(chance) for _ in range(chance.randint(1, 3))], chance.random() < 0.5
        self.bench.abort(keys, finished)
        self._gone(keys, "finished_stop" if finished else "cancelled")

    @precondition(lambda self: self.wanted)
    @rule(dice=DICE)
    def something_breaks(self, dice: int) -> None:
        """One rule for all of it, or little else would ever happen."""
        chance = Random(dice)
        match chance.choice("ttewwwsessddr"):
            case "e" if not self.closing:
                self._scheduler_dies(chance)
            case "t":
                self._lose_tokenizer(chance.choice(TOKENIZERS))
            case "w":
                self.bench.worker.restart(self._other_geometry(chance) if chance.random() < 0.5 else None)
                self.happened["restarts"] += 1
            case "s":
                self.bench.worker.fail_step_with = {self.wanted[self._key(chance)].seed}
                self.bench.plan()
                self.bench.worker.fail_step_with = set()
            case "d":
                self.bench.worker.die_with = {self.wanted[self._key(chance)].seed}
                self.run(chance.randint(1, 6))
                self.bench.worker.die_with = set()
            case _:
                self._repair()

    def _other_geometry(self, chance: Random) -> Attached:
        """A worker may come back with any memory that holds one sequence of the same length."""
        size = chance.choice([1, 2, 3, 4, 16])
        blocks = chance.randint(-(-self.context // size), 50)
        return attached(blocks, size, chance.randint(1, 12), width=50, step_tokens=chance.randint(1, 24), context=self.context, vocab=VOCAB)

    def _lose_tokenizer(self, name: str) -> None:
        self.bench.engine.tokenizer_lost(name)
        self._gone([key for key, want in self.wanted.items() if want.tokenizer == name], "cancelled")

    def _gone(self, keys: list[int], counter: str) -> None:
        for key in keys:
            if self._live(key):
                self.bench.clients[self.wanted[key].tokenizer].gone.add(key)
                self.over[counter] += 1

    def _scheduler_dies(self, chance: Random) -> None:
        """The worker may have died with it."""
        if chance.random() < 0.3:
            self.bench.worker.restart(self._other_geometry(chance) if chance.random() < 0.5 else None)
        counts = self.bench.engine.tally.counts
        live = [key for key in self.wanted if self._live(key)]
        self.before.update(counts)
        self.before["accepted"] -= len(live)
        self.bench.scheduler_dies()
        assert self.bench.engine.tally.counts["accepted"] == len(live)
        self.happened["resumed"] += any(self.bench.clients[self.wanted[key].tokenizer].tokens.get(key) for key in live)

    def _repair(self) -> None:
        """Whatever state it is in, it can begin anew from its tokens."""
        self.bench.engine.repair(InvariantError(["none, this is a drill"]))
        self.bench.flush()
        self.broken += 1

    @precondition(lambda self: len(self.wanted) > 60)
    @rule()
    def close(self) -> None:
        self.bench.engine.close()
        self.closing = True

    @precondition(lambda self: self.closing)
    @rule()
    def drain_ends(self) -> None:
        live = [key for key in self.wanted if self._live(key)]
        self.bench.engine.fail_all(DRAINED)
        self.bench.flush()
        assert all(self.bench.clients[self.wanted[key].tokenizer].problems[key] is DRAINED for key in live)

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "bench"):
            return
        SchedulerMachine.happened["rules"] += 1
        self.bench.engine.check()
        self.happened["trials"] += self.bench.engine._suspects.lone
        gauges = self.bench.engine.gauges()
        assert gauges["blocks"] == sum(gauges[f"blocks_{place}"] for place in ("free", "cached", "retiring", "used"))

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.run(MANY)
        assert self.bench.engine.idle
        self.bench.engine.check()
        for key, want in self.wanted.items():
            self.happened.update(check_output(self.bench, self.context, key, want))
        counts = self.before + Counter(self.bench.engine.tally.counts)
        assert (counts["accepted"], counts["refused"], counts["invariant_violations"]) == (len(self.wanted), self.refused, self.broken)
        check_ends(self.bench, counts, self.over)
        worker = self.bench.worker
        names = ("accepted", "preemptions", "evicted_blocks", "copied_blocks", "prefix_hits", "failed_steps", "steps", "generation_tokens", "expired")
        self.happened.update({name: counts[name] for name in names})
        self.happened.update(swaps=worker.swaps, seen=worker.seen, examples=1)


def play(number: int, examples: int) -> list[str]:
    """A round with this seed; what has not happened yet."""
    machine = seed(number)(type("SchedulerMachine", (SchedulerMachine,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=RULES,
            phases=[Phase.generate],  # shrinking one of these takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    return [name for name in MUST_HAPPEN if not SchedulerMachine.happened[name]]


@pytest.mark.timeout(0 if EXAMPLES > ROUND else 600)
def test_scheduler_machine(caplog: pytest.LogCaptureFixture) -> None:
    """A seed's rounds may miss something after any change of what is drawn: a few short ones more follow then."""
    caplog.set_level(logging.CRITICAL + 1, "scheduler")
    happened = SchedulerMachine.happened
    happened.clear()
    started = time.monotonic()
    rounds = [min(ROUND, EXAMPLES - first) for first in range(0, EXAMPLES, ROUND)]
    for number, examples in enumerate([*rounds, *[MORE] * ROUNDS]):
        missing = play(SEED + number, examples)
        print(f"seed {SEED + number}, {time.monotonic() - started:.0f} s:", dict(sorted(happened.items())), flush=True)
        if number == len(rounds) - 1:
            assert happened["rules"] >= min(10_000, 40 * EXAMPLES)
        if number >= len(rounds) - 1 and not missing:
            break
    assert missing == []
