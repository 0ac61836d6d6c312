"""The programs of rows that follow a grammar, and which of them the worker has compiled."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from messages.plan import Prepare
from messages.text import Problem
from scheduler.deadlines import Deadlines
from scheduler.grammar import Grammar
from scheduler.session import Session

MOST_PREPARED = 256
"""At one time in the worker; more wait until others are not needed any more."""
MOST_KEPT = 64
"""Of these, without a sequence that needs them."""
STRIKES = 3
DEADLY = Problem(status=500, code="poison_request", message="the form that the answer is to have ends the worker, with nothing else in flight too")


def unusable(why: str) -> Problem:
    """What the clients of a grammar's sequences are told."""
    return Problem(status=400, code="invalid_grammar", message=f"the form that the answer is to have cannot be used: {why}")


class Grammars:
    """One is compiled at a time, so that a worker that ends meanwhile says which may be to blame: of the tenant whose turn it is the one that was
    needed first.

    One that was being compiled when a worker ended is compiled with nothing else in flight from then on.
    """

    def __init__(self) -> None:
        self._of: dict[str, Grammar] = {}
        self._wanted: OrderedDict[int, Grammar] = OrderedDict()
        self._unused: OrderedDict[int, Grammar] = OrderedDict()
        self._asked: Grammar | None = None
        self._since = 0.0
        self._prepared = 0
        self._forget: list[int] = []
        self._number = 0
        self._turns: dict[str, int] = {}
        """Of tenants since there last was nothing to compile: the higher, the later was the last one."""

    @property
    def busy(self) -> bool:
        """The worker compiles one."""
        return self._asked is not None

    def orders(self, session: Session, trial: bool, now: float) -> tuple[list[Prepare], bool]:
        """What to send `now`, and whether no plan may be sent before it was answered. `trial`: rows are tried apart, the only suspects."""
        following = self._asked or self._next()
        alone = following is not None and (trial or following.strikes > 0)
        if following is None or self._asked is not None or (alone and session.inflight):
            return [], alone
        self._since = now
        return [self._ask(following, session.number)], alone

    def late(self, now: float, deadlines: Deadlines) -> str | None:
        """That the worker has not compiled what it was asked for in time, as a sentence."""
        if self._asked is None or now - self._since <= deadlines.allowance:
            return None
        return f"the form of an answer was not compiled in {deadlines.allowance:.0f} s"

    def join(self, program: str, tenant: str = "") -> Grammar:
        """A live sequence of the tenant needs it."""
        grammar = self._of.get(program)
        if grammar is None:
            self._number += 1
            grammar = self._of[program] = self._wanted[self._number] = Grammar(self._number, program, tenant)
        self._unused.pop(grammar.number, None)
        grammar.users += 1
        return grammar

    def leave(self, grammar: Grammar) -> None:
        """One that needed it is over."""
        grammar.users -= 1
        if grammar.users or grammar is not self._of.get(grammar.program):
            return
        if self._wanted.pop(grammar.number, None) is not None:
            del self._of[grammar.program]
            return
        self._unused[grammar.number] = grammar
        if len(self._unused) > MOST_KEPT:
            self._drop()

    def _drop(self) -> None:
        """Forget the one that was needed least recently, of those that the worker has."""
        grammar = next(grammar for grammar in self._unused.values() if grammar.ready)
        del self._unused[grammar.number], self._of[grammar.program]
        self._prepared -= 1
        self._forget.append(grammar.number)

    def _next(self) -> Grammar | None:
        """What the worker is to compile next; None when there is nothing, or it has as many as it may."""
        full = self._prepared >= MOST_PREPARED and not any(grammar.ready for grammar in self._unused.values())
        return None if full else min(self._wanted.values(), key=lambda grammar: self._turns.get(grammar.tenant, 0), default=None)

    def _ask(self, grammar: Grammar, session: int) -> Prepare:
        if self._prepared >= MOST_PREPARED:
            self._drop()
        del self._wanted[grammar.number]
        self._asked = grammar
        self._turns[grammar.tenant] = 1 + max(self._turns.values(), default=0)
        if not self._wanted:
            self._turns.clear()
        forget, self._forget = self._forget, []
        return Prepare(session=session, grammar=grammar.number, program=grammar.program, forget=forget)

    def answered(self, number: int, good: bool) -> Grammar | None:
        """The worker has compiled what it was asked for, or cannot; None when that is another one."""
        if self._asked is None or self._asked.number != number:
            return None
        grammar, self._asked = self._asked, None
        grammar.ready = good
        self._prepared += good
        if not good:
            self._unused.pop(number, None)
            del self._of[grammar.program]
        return grammar

    def lost(self, died: bool) -> Grammar | None:
        """There is no worker that has any, because it `died` or for another reason; returns the one that it too often compiled when it did."""
        asked, self._asked = self._asked, None
        for grammar in self._unused.values():
            del self._of[grammar.program]
        self._unused.clear()
        self._forget.clear()
        self._prepared = 0
        for grammar in self._of.values():
            grammar.ready = False
        self._wanted = OrderedDict((grammar.number, grammar) for grammar in self._of.values())
        if asked is None or not died or not asked.users:
            return None
        self._wanted.move_to_end(asked.number)
        asked.strikes += 1
        return asked if asked.strikes >= STRIKES else None

    def facts(self, needed: Iterable[Grammar]) -> dict[str, bool]:
        """What must hold. `needed`: that of each live sequence that has one."""
        known = {grammar.number: grammar for grammar in self._of.values()}
        ready = [grammar for grammar in known.values() if grammar.ready]
        places = [*self._wanted, *(grammar.number for grammar in ready), *([] if self._asked is None else [self._asked.number])]
        return {
            "users of grammars do not add up": Counter(map(id, needed)) == {id(one): one.users for one in known.values() if one.users},
            "unused grammars do not add up": set(self._unused) == {number for number, one in known.items() if not one.users},
            "prepared grammars do not add up": self._prepared == len(ready) <= MOST_PREPARED,
            "a grammar is in no place or in two": sorted(places) == sorted(known),
        }
