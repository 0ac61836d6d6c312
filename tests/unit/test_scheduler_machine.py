"""A stateful machine: any order of admissions, steps, late results, aborts, deaths.

Every invariant is checked after every rule, every output against the reference.

`PAGEWIRE_MACHINE_EXAMPLES` sets the number of examples for long runs.
"""

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from messages.sampling import SamplingParams
from messages.tokens import FINISH_ERROR
from tests.support.null_worker import POISON_SEED_MARK, reference
from tests.support.scheduler_bench import Bench, attached, prompt_of

VOCAB = 29
EXAMPLES = int(os.environ.get("PAGEWIRE_MACHINE_EXAMPLES", "150"))


class SchedulerMachine(RuleBasedStateMachine):
    """`wanted`: what each key was asked for; `aborted`: keys of which only a prefix is due."""

    @initialize(
        blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4, 16]),
        slots=st.integers(1, 5),
        step_tokens=st.integers(1, 12),
        chunk=st.integers(1, 12),
        run_ahead=st.integers(0, 3),
    )
    def start(self, blocks: int, block_size: int, slots: int, step_tokens: int, chunk: int, run_ahead: int) -> None:
        geometry = attached(blocks, block_size, slots, width=24, step_tokens=step_tokens, context=40)
        self.bench = Bench(geometry, chunk_tokens=chunk, run_ahead=run_ahead, max_queue=12)
        assert self.bench.engine.geometry is not None
        self.context = self.bench.engine.geometry.context
        self.wanted: dict[int, tuple[int, list[int], int | None, list[int], str]] = {}
        self.aborted: dict[int, list[int]] = {}

    @rule(
        length=st.integers(1, 41),
        seed=st.integers(0, 99),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        n=st.integers(1, 3),
        ends=st.lists(st.integers(0, VOCAB - 1), max_size=6),
        tokenizer=st.sampled_from(["tokenizer0", "tokenizer1"]),
        priority=st.integers(-2, 2),
        poison=st.one_of(st.none(), st.integers(1, 40)),
        logprobs=st.integers(-1, 2),
    )
    def admit(
        self,
        length: int,
        seed: int,
        max_tokens: int | None,
        n: int,
        ends: list[int],
        tokenizer: str,
        priority: int,
        poison: int | None,
        logprobs: int,
    ) -> None:
        prompt = prompt_of(length, seed)
        seeds = [seed * 7 + i if poison is None else POISON_SEED_MARK | poison for i in range(n)]
        sampling = SamplingParams(logprobs=logprobs)
        keys = self.bench.admit(prompt, max_tokens, n=n, end_ids=ends, tokenizer=tokenizer, priority=priority, seeds=seeds, sampling=sampling)
        refused = self.bench.clients[tokenizer].refused
        for key, key_seed in zip(keys, seeds, strict=True):
            if key in refused:
                assert refused[key].status == (400 if length >= self.context and self.bench.engine.geometry is not None else 429)
            else:
                self.wanted[key] = (key_seed, prompt, max_tokens, ends, tokenizer)

    @rule()
    def plan(self) -> None:
        self.bench.plan()

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.bench.step()

    @rule()
    def late_result(self) -> None:
        self.bench.deliver()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), finished=st.booleans())
    def abort(self, data: st.DataObject, finished: bool) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.wanted)), max_size=3))
        self.bench.abort(keys, finished)
        self._gone(keys)

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.bench.now += seconds

    @rule()
    def worker_restarts(self) -> None:
        self.bench.worker.restart()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def step_fails_once(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.wanted)))
        self.bench.worker.fail_step_with = {self.wanted[key][0]}
        self.bench.plan()
        self.bench.worker.fail_step_with = set()

    @rule(name=st.sampled_from(["tokenizer0", "tokenizer1"]))
    def tokenizer_dies(self, name: str) -> None:
        self.bench.engine.tokenizer_lost(name)
        self._gone([key for key, want in self.wanted.items() if want[4] == name])

    def _gone(self, keys: list[int]) -> None:
        for key in keys:
            client = self.bench.clients[self.wanted[key][4]]
            if key not in client.finish:
                self.aborted.setdefault(key, list(client.tokens.get(key, [])))

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.engine.check()
        for key, got in self.aborted.items():
            assert self.bench.clients[self.wanted[key][4]].tokens.get(key, []) == got, f"key {key} got more after its abort"

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.settle()
        for key, (seed, prompt, max_tokens, ends, tokenizer) in self.wanted.items():
            client = self.bench.clients[tokenizer]
            tokens, finish = reference(seed, prompt, max_tokens, ends, self.context, VOCAB)
            got = client.tokens.get(key, [])
            assert got == tokens[: len(got)]
            if key in self.aborted:
                assert key not in client.finish
            elif key in client.problems and client.problems[key].code == "step_failed":
                assert client.finish[key] == FINISH_ERROR
            elif len(prompt) >= self.context:  # it came while no worker was attached
                assert (got, client.problems[key].code) == ([], "context_length_exceeded")
            else:
                assert (got, client.finish[key]) == (tokens, finish), f"key {key}: {self.wanted[key]} {client.problems.get(key)}"
        gauges = self.bench.engine.gauges()
        assert [gauges[name] for name in ("running", "waiting", "waiting_tokens", "slots_used", "blocks_used")] == [0] * 5
        assert self.bench.engine.tally.ended == len(self.wanted) == self.bench.engine.tally.counts["accepted"]


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # shrinking one of these takes minutes
    suppress_health_check=list(HealthCheck),
)
