"""The prefix tree against a model that is too simple to be wrong: a dict from (salt, all tokens up to here) to who uses it and since when not.

The model finds hits by trying every length, children by looking at every key, and what to evict by comparing every leaf.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.prefix import Parent, PrefixTree
from tests.support.null_answers import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import I32, pack_i32, view_i64

BLOCKS = 24
Name = tuple[str, tuple[int, ...]]


@dataclass
class Entry:
    """One block of the model. `unused_since`: the tick at which a user last let go of it."""

    block: int
    users: int = 0
    unused_since: int = 0


class Model:
    """What a prefix cache of whole blocks is, by definition."""

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.entries: dict[Name, Entry] = {}
        self.ticks = 0

    def path(self, salt: str, tokens: tuple[int, ...]) -> list[Entry]:
        """Entries of the whole blocks that begin `tokens`, as far as there are any."""
        found: list[Entry] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            if (salt, tokens[:end]) not in self.entries:
                break
            found.append(self.entries[salt, tokens[:end]])
        return found

    def leaf(self, name: Name) -> bool:
        salt, tokens = name
        return not any(other != name and other[0] == salt and other[1][: len(tokens)] == tokens for other in self.entries)

    def evict(self, most: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < most:
            idle = [(entry.unused_since, name) for name, entry in self.entries.items() if not entry.users and self.leaf(name)]
            if not idle:
                break
            times = [since for since, _ in idle]
            assert len(set(times)) == len(times), "two leaves have been unused since the same tick"
            evicted.append(self.entries.pop(min(idle)[1]).block)
        return evicted

    def forget(self, name: Name) -> list[int]:
        """Everything that begins with the first block of `name`."""
        top = name[1][: self.size]
        gone = [other for other in self.entries if other[0] == name[0] and other[1][: self.size] == top]
        return [self.entries.pop(other).block for other in gone]


@dataclass
class User:
    """A row: the tokens it has computed, the blocks of its table, and whether what it completes is entered."""

    salt: str
    tokens: tuple[int, ...]
    blocks: list[int]
    entering: bool = True


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
SALTS = st.sampled_from(["", "", "", "other"])
PICK = st.integers(0, 1000)


class PrefixMachine(RuleBasedStateMachine):
    """Rows come, share, grow, end; the ledger of references and free blocks is kept here, as the pool does it."""

    @initialize(block_size=st.integers(1, 3))
    def start(self, block_size: int) -> None:
        self.size = block_size
        self.refs: I32 = np.zeros(BLOCKS, dtype=np.int32)
        self.tree = PrefixTree(self.refs, block_size)
        self.model = Model(block_size)
        self.free = list(range(BLOCKS))
        self.users: list[User] = []

    def _match(self, salt: str, tokens: tuple[int, ...]) -> list[int]:
        most = (len(tokens) - 1) // self.size
        found = self.tree.match(salt, pack_i32(tokens), most)
        assert found == [entry.block for entry in self.model.path(salt, tokens)][:most]
        return found

    @rule(salt=SALTS, tokens=TOKENS, computes=st.integers(0, 9))
    def arrive(self, salt: str, tokens: tuple[int, ...], computes: int) -> None:
        """A row takes the blocks it hits and computes at most so many more."""
        path = self._match(salt, tokens)
        user = User(salt, tokens[: len(path) * self.size], path)
        self.refs[path] += 1
        for entry in self.model.path(salt, user.tokens):
            entry.users += 1
        self.users.append(user)
        for start in range(len(user.tokens), len(tokens) - self.size + 1, self.size)[:computes]:
            self._complete(user, tokens[start : start + self.size])

    @rule(salt=SALTS, tokens=TOKENS)
    def think_better_of_it(self, salt: str, tokens: tuple[int, ...]) -> None:
        """Blocks are held and let go of without having been used: that is not a use."""
        path = self._match(salt, tokens)
        self.refs[path] += 1
        self.refs[path] -= 1
        if path:
            self.tree.offer(path[-1])

    @precondition(lambda self: self.users)
    @rule(pick=PICK, block=st.lists(st.integers(0, 1), min_size=3, max_size=3), blocks=st.integers(1, 3))
    def grow(self, pick: int, block: list[int], blocks: int) -> None:
        """A row completes blocks; the first of equal content stays."""
        user = self.users[pick % len(self.users)]
        for _ in range(blocks):
            self._complete(user, tuple(block[: self.size]))

    def _complete(self, user: User, content: tuple[int, ...]) -> None:
        if not self.free:
            self._give(self._evict(1))
        if not self.free:
            return
        own = self.free.pop()
        name = (user.salt, user.tokens + content)
        parent: Parent = user.blocks[-1] if user.blocks else user.salt
        self.refs[own] = 1
        node = own
        if user.entering:
            node = self.tree.enter(parent, pack_i32(content), own)
            entry = self.model.entries.setdefault(name, Entry(own))
            assert node == entry.block
            entry.users += 1
        if node != own:
            self.refs[node] += 1
            self.refs[own] = 0
            self._give([own])
        user.tokens += content
        user.blocks.append(node)

    @precondition(lambda self: self.users)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        user = self.users.pop(pick % len(self.users))
        self.refs[user.blocks] -= 1
        self.model.ticks += 1
        if user.entering:
            for entry in self.model.path(user.salt, user.tokens):
                entry.users -= 1
                entry.unused_since = self.model.ticks
        last = user.blocks[-1] if user.entering and user.blocks else None
        self.tree.release(np.asarray(user.blocks, dtype=np.int32), last)
        self._give([block for block in user.blocks if not self.refs[block] and block not in self.tree])

    @precondition(lambda self: len(self.tree) > 0)
    @rule(most=st.integers(0, 5))
    def evict(self, most: int) -> None:
        self._give(self._evict(most))

    def _evict(self, most: int) -> list[int]:
        evicted = self.tree.evict(most)
        assert evicted == self.model.evict(most)
        return evicted

    def _give(self, blocks: list[int]) -> None:
        assert not set(blocks) & set(self.free)
        assert not self.refs[blocks].any()
        self.free += blocks

    @precondition(lambda self: any(user.blocks and user.entering for user in self.users))
    @rule(pick=PICK)
    def forget(self, pick: int) -> None:
        """A branch is dropped though rows use it (rarely: three times in four this does nothing); those enter nothing more."""
        standing = [user for user in self.users if user.blocks and user.entering]
        user = standing[pick // 4 % len(standing)]
        if pick % 4:
            return
        branch = self.tree.forget(user.blocks[-1])
        assert sorted(branch) == sorted(self.model.forget((user.salt, user.tokens)))
        for other in standing:
            other.entering = other.blocks[-1] not in branch
        self._give([block for block in branch if not self.refs[block]])

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check()
        assert len(self.tree) == len(self.model.entries)
        held = {entry.block for entry in self.model.entries.values()}
        assert {block for block in range(BLOCKS) if block in self.tree} == held
        assert all(entry.users == self.refs[entry.block] for entry in self.model.entries.values())
        private = {block for user in self.users for block in user.blocks} - held
        assert len(self.free) + len(held) + len(private) == BLOCKS

    def teardown(self) -> None:
        """At last everything can be evicted, in the model's order."""
        if not hasattr(self, "tree"):
            return
        while self.users:
            self.end(0)
        self._give(self._evict(BLOCKS))
        assert len(self.tree) == 0
        assert sorted(self.free) == list(range(BLOCKS))


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=120, stateful_step_count=60, suppress_health_check=list(HealthCheck))


def steps(prompt: int, total: int, chunk: int) -> list[int]:
    """Tokens computed after each step of a row that runs alone."""
    return [*range(chunk, prompt, chunk), *range(prompt, total + 1)]


class OneByOne:
    """What becomes of a pool of `blocks` when requests run one after the other, a plan at a time."""

    def __init__(self, blocks: int, block_size: int, chunk: int) -> None:
        self.model = Model(block_size)
        self.blocks, self.chunk = blocks, chunk
        self.evicted: list[int] = []

    def run(self, salt: str, prompt: list[int], computed: tuple[int, ...]) -> int:
        """A request whose row comes to hold `computed`; returns its hit in tokens."""
        model, size = self.model, self.model.size
        path = model.path(salt, tuple(prompt[:-1]))
        used = {(salt, computed[: (depth + 1) * size]) for depth in range(len(path))}
        for name in used:
            model.entries[name].users = 1
        hit, private, table = len(path) * size, 0, len(path)
        for end in (hit + step for step in steps(len(prompt) - hit, len(computed) - hit, self.chunk)):
            lacking = -(-end // size) - table
            self.evicted += model.evict(lacking - (self.blocks - len(model.entries) - private))
            table, private = table + lacking, private + lacking
            for complete in range((len(used) + 1) * size, end + 1, size):
                name = (salt, computed[:complete])
                model.entries.setdefault(name, Entry(0)).users = 1
                used.add(name)
                private -= 1  # it is in the tree now, or was there before and this copy is given up
        model.ticks += 1
        for name in used:
            model.entries[name].users, model.entries[name].unused_since = 0, model.ticks
        return hit


REQUESTS = st.lists(st.tuples(SALTS, st.lists(st.integers(0, 1), min_size=1, max_size=14), st.integers(1, 8)), min_size=1, max_size=25)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(block_size=st.sampled_from([1, 2, 4]), blocks=st.integers(6, 16), chunk=st.integers(1, 16), requests=REQUESTS)
def test_requests_one_by_one_hit_and_evict_as_the_model_says(
    block_size: int, blocks: int, chunk: int, requests: list[tuple[str, list[int], int]]
) -> None:
    """Through the whole scheduler, with one slot: cached tokens of every answer, blocks evicted, blocks kept."""
    bench = Bench(attached(blocks, block_size, slots=1, width=24, vocab=2), run_ahead=1, chunk_tokens=chunk)
    context = min(40, blocks * block_size)
    model = OneByOne(blocks, block_size, chunk)
    hits = 0
    for salt, prompt, max_tokens in requests:
        prompt = prompt[: context - 1]
        [key] = bench.admit(prompt, max_tokens, cache_salt=salt)
        bench.settle()
        answer = reference(key, prompt, max_tokens, [], context, 2)[0]
        hit = model.run(salt, prompt, (*prompt, *answer[:-1]))  # the last token is never fed
        hits += hit
        counts = bench.engine.tally.counts
        assert bench.clients["tokenizer0"].cached.get(key, 0) == hit
        assert (counts["prefix_hits"], counts["evicted_blocks"]) == (hits, len(model.evicted))
        assert bench.engine.gauges()["blocks_cached"] == len(model.model.entries)


ARRIVALS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 32), st.integers(0, 2)), min_size=2, max_size=12)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(block_size=st.sampled_from([1, 2, 4, 16]), chunk=st.integers(1, 40), ahead=st.integers(1, 3), slots=st.integers(1, 6), arrivals=ARRIVALS)
def test_no_block_of_a_prompt_is_computed_twice(
    block_size: int, chunk: int, ahead: int, slots: int, arrivals: list[tuple[int, int, int]]
) -> None:
    """In a pool that is large enough, whenever requests come: not in the same step, not by rows that run, not after them.

    Only the block of a prompt's last token is, as something must be left to compute.
    """
    bench = Bench(attached(1000, block_size, slots, width=40, step_tokens=40), run_ahead=ahead, chunk_tokens=chunk)
    openings = [prompt_of(40, opening) for opening in range(2)]
    prompts: dict[int, list[int]] = {}
    for opening, length, steps_later in arrivals:
        [key] = bench.admit(openings[opening][:length], 1)
        prompts[key] = openings[opening][:length]
        for _ in range(steps_later):
            bench.step()
    bench.settle()
    admitted = [key for plan in bench.worker.plans if plan.admit is not None for key in view_i64(plan.admit.seed).tolist()]
    assert bench.worker.computed == tokens_to_compute([prompts[key] for key in admitted], block_size)


def tokens_to_compute(prompts: list[list[int]], block_size: int) -> int:
    """By rows that begin in this order, when a block that an earlier one computes is never computed again."""
    known: set[tuple[int, ...]] = set()
    tokens = 0
    for prompt in prompts:
        blocks = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
        whole = (len(prompt) - 1) // block_size
        tokens += block_size * sum(block not in known for block in blocks[:whole]) + len(prompt) - whole * block_size
        known.update(blocks)
    return tokens


@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 9, 12, 13])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "alone"])
def test_choices_compute_their_prompt_once_and_its_last_token_each(length: int, cache: bool) -> None:
    """Of prompts longer than a block; a shorter one is computed at once by all choices, which is sooner than to wait for the first."""
    bench = Bench(attached(blocks=40, block_size=4, slots=4, step_tokens=40), chunk_tokens=40, prefix_cache=cache)
    keys = bench.admit(prompt_of(length), 8, n=4)
    bench.settle()
    assert bench.worker.computed == length + 3
    assert bench.worker.copies == (3 if (length - 1) % 4 else 0)
    assert bench.clients["tokenizer0"].cached == {}, "nothing was there before the request came"
    assert sorted(bench.clients["tokenizer0"].finish) == keys
