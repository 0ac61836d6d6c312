"""An engine, a null worker and tokenizers that keep what they get: the scheduler's world in one object, on a virtual clock."""

import random
from itertools import count
from typing import cast

from msgspec.structs import replace

from messages.admit import Abort, Admit
from messages.plan import ToWorker
from messages.result import Attached
from messages.sampling import Constraints, Pooling, SamplingParams
from messages.text import Problem
from messages.tokens import FINISH_ERROR, RUNNING, PromptScores, Refused, Tokens
from scheduler.args import SchedulerArgs
from scheduler.engine import Engine
from scheduler.session import Session
from tests.support.null_worker import NullWorker
from transport.columns import pack_i32, view_f32, view_i32, view_i64, view_u8


def attached(
    blocks: int = 24, block_size: int = 4, slots: int = 4, width: int = 12, step_tokens: int = 16, context: int = 40, vocab: int = 29
) -> Attached:
    return Attached(
        session=0,
        worker="worker0",
        blocks=blocks,
        block_size=block_size,
        max_slots=slots,
        max_blocks_per_slot=width,
        max_step_tokens=step_tokens,
        context=context,
        vocab=vocab,
    )


def arguments(**changes: object) -> SchedulerArgs:
    values: dict[str, object] = {
        "name": "scheduler",
        "incarnation": 1,
        "run_dir": "/nowhere",
        "tokenizers": ["tokenizer0", "tokenizer1"],
        "chunk_tokens": 8,
    }
    return SchedulerArgs(**(values | changes))  # type: ignore[arg-type]


class Client:
    """What one tokenizer has been told, checked as it comes: order of `index`, nothing after the end or for keys in `gone`.

    `expected` has the tokens due to a key, where somebody knows them beforehand.
    """

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.expected: dict[int, list[int]] = {}
        self.gone: set[int] = set()
        self.cached: dict[int, int] = {}
        self.began: dict[int, tuple[float, float]] = {}
        self.finish: dict[int, int] = {}
        self.problems: dict[int, Problem] = {}
        self.refused: dict[int, Problem] = {}
        self.chosen: dict[int, list[float]] = {}
        self.top_ids: dict[int, list[list[int]]] = {}
        self.scores: dict[int, list[float]] = {}
        self.states: dict[int, list[tuple[int, int, list[float]]]] = {}
        self.score_tops: dict[int, list[int]] = {}
        self.messages = 0

    def receive(self, message: Tokens | PromptScores | Refused) -> None:
        self.messages += 1
        if isinstance(message, PromptScores):
            self._read_scores(message)
            return
        if isinstance(message, Refused):
            self.refused[message.key] = message.problem
            return
        keys = view_i64(message.key).tolist()
        rows = len(keys)
        columns = (view_i32(message.token, rows).tolist(), view_u8(message.finish, rows).tolist(), view_i32(message.index, rows).tolist())
        for key, token, finish, index in zip(keys, *columns, strict=True):
            assert key not in self.finish, f"key {key} goes on after its end"
            assert key not in self.gone, f"key {key} goes on after its abort"
            assert index == 0 or key not in message.cached
            known = self.tokens.setdefault(key, [])
            assert index == len(known), f"key {key}: index {index} after {len(known)} tokens"
            assert (finish == FINISH_ERROR) == (token == -1) == (key in message.problems)
            if token != -1:
                assert key not in self.expected or token == self.expected[key][index], f"key {key}: token {token} at {index}"
                known.append(token)
            if finish != RUNNING:
                self.finish[key] = finish
        self.problems |= message.problems
        self.cached |= message.cached
        computed = bool(message.queued) or message.problems.keys() != set(keys)
        first = [key for key, index in zip(keys, columns[2], strict=True) if index == 0 and computed]
        times = zip(view_f32(message.queued, len(first)).tolist(), view_f32(message.prefilled, len(first)).tolist(), strict=True)
        self.began |= dict(zip(first, times, strict=True))
        self._read_logprobs(message, keys)

    def _read_scores(self, message: PromptScores) -> None:
        if message.states:
            self.states.setdefault(message.key, []).append((message.start, message.count, view_f32(message.states).tolist()))
            assert (message.chosen, message.ranks, message.top) == (b"", b"", 0)
            return
        known = self.scores.setdefault(message.key, [])
        assert message.key not in self.tokens, f"key {message.key}: scores after its first token"
        assert message.key not in self.gone
        assert message.start == len(known)
        known += view_f32(message.chosen).tolist()
        assert view_i32(message.ranks).tolist() == [1 - 8 * value for value in view_f32(message.chosen).tolist()]
        self.score_tops.setdefault(message.key, []).extend(view_i32(message.top_ids, message.top * len(message.chosen) // 4).tolist())

    def _read_logprobs(self, message: Tokens, keys: list[int]) -> None:
        if message.logprobs is None:
            return
        columns = message.logprobs
        row, count_, tops = view_i32(columns.row).tolist(), view_i32(columns.count).tolist(), view_i32(columns.top_ids).tolist()
        assert sum(count_) == len(tops) == len(columns.top) // 4
        for place, chosen, number in zip(row, view_f32(columns.chosen, len(row)).tolist(), count_, strict=True):
            self.chosen.setdefault(keys[place], []).append(chosen)
            self.top_ids.setdefault(keys[place], []).append(tops[:number])
            tops = tops[number:]


class Bench:
    """Call `settle()` to run everything to the end; `step()` delivers one message of the worker at a time."""

    def __init__(self, geometry: Attached | None = None, start: bool = True, **changes: object) -> None:
        self.args = arguments(**changes)
        self._sessions = count(1)
        self.admits: list[Admit] = []
        self.deadlines: dict[int, float] = {}
        self.engine = Engine(self.args, lambda: next(self._sessions))
        self.worker = NullWorker(geometry or attached(), self.args.run_ahead)
        self.clients = {name: Client() for name in self.args.tokenizers}
        self.now = 100.0
        self._keys = count(1)
        if start:
            self.settle()

    def admit(
        self,
        prompt: list[int],
        max_tokens: int | None = 8,
        *,
        n: int = 1,
        end_ids: list[int] | None = None,
        tokenizer: str = "tokenizer0",
        priority: int = 0,
        sampling: SamplingParams | None = None,
        seeds: list[int] | None = None,
        tenant: str = "",
        cache_salt: str = "",
        constraints: Constraints | None = None,
        banned: list[list[int]] | None = None,
        pooling: Pooling = "",
        program: str = "",
        timeout: float | None = None,
    ) -> list[int]:
        """Send an Admit; returns its keys. Seeds default to the keys."""
        keys = [next(self._keys) for _ in range(n)]
        admit = Admit(
            tokenizer=tokenizer,
            keys=keys,
            seeds=seeds or keys,
            prompt=pack_i32(prompt),
            sampling=sampling or SamplingParams(),
            end_ids=end_ids or [],
            max_tokens=max_tokens,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            constraints=constraints,
            banned=banned or [],
            pooling=pooling,
            program=program,
            timeout=timeout,
        )
        self.admits.append(admit)
        self.deadlines |= {} if timeout is None else dict.fromkeys(keys, self.now + timeout)
        self.engine.receive(admit, self.now)
        self.flush()
        return keys

    def scheduler_dies(self) -> None:
        """Another one takes its place. Everything accepted that lives is sent again, under the same keys, with what was delivered of it."""
        live = set(self.engine._live)
        self.engine = Engine(self.args, lambda: next(self._sessions))
        self.engine.open()
        self.flush()
        for admit in self.admits:
            self._resume(admit, live)

    def _resume(self, admit: Admit, live: set[int]) -> None:
        client = self.clients[admit.tokenizer]
        seeds = {key: seed for key, seed in zip(admit.keys, admit.seeds, strict=True) if key in live}
        begun = [key for key in seeds if client.tokens.get(key)]
        unscored = replace(admit.sampling, prompt_logprobs=-1)
        for keys, sampling in ((begun, unscored), ([key for key in seeds if key not in begun], admit.sampling)):
            for key in keys if sampling is admit.sampling else ():
                client.scores.pop(key, None)
                client.states.pop(key, None)
            if keys:
                resumed = [pack_i32(client.tokens.get(key, [])) for key in keys]
                left = max(0.0, self.deadlines[keys[0]] - self.now) if keys[0] in self.deadlines else None
                again = replace(admit, keys=keys, seeds=[seeds[key] for key in keys], sampling=sampling, resumed=resumed, timeout=left)
                self.engine.receive(again, self.now)
                self.flush()

    def abort(self, keys: list[int], finished: bool = False) -> None:
        self.engine.receive(Abort(keys, finished), self.now)

    def plan(self) -> None:
        """Let the engine send what it can."""
        self.engine.advance(self.now)
        self.flush()

    def flush(self) -> None:
        for name, message in self.engine.take():
            if name == self.args.worker:
                self.worker.receive(cast(ToWorker, message))
            else:
                assert isinstance(message, Tokens | PromptScores | Refused)
                self.clients[name].receive(message)

    def deliver(self) -> bool:
        """Hand the engine the oldest message of the worker; False when there is none."""
        if not self.worker.pending:
            return False
        self.now += 0.01
        self.engine.receive(self.worker.deliver(), self.now)
        self.flush()
        return True

    def step(self) -> bool:
        """Plan as far as possible, then deliver one message."""
        self.plan()
        return self.deliver()

    def settle(self) -> None:
        """Run until nothing more happens, checking every invariant on the way."""
        for _ in range(20_000):
            self.engine.check()
            if not self.step():
                return
        raise AssertionError("the scheduler does not come to rest")

    def run_until(self, when: float) -> None:
        """Step until it is `when`, which comes at once when nothing happens."""
        while self.now < when:
            if not self.step():
                self.now = when
        self.plan()


def session_of(bench: Bench) -> Session:
    assert bench.engine.session is not None
    return bench.engine.session


def prompt_of(length: int, seed: int = 0, vocab: int = 29) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(vocab) for _ in range(length)]
