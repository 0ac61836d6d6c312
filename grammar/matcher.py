"""What the rest of the system knows of the library that matches grammars. `grammar.llg` is the one there is."""

from typing import Protocol

from transport.columns import I32


class Matcher(Protocol):
    """Where one sequence is in its grammar. Not to be used by two threads at once."""

    @property
    def failed(self) -> str:
        """Why nothing can be matched any more, a sentence; empty while all is well. It stays so."""

    def copy(self) -> "Matcher": ...

    def accept(self, tokens: list[int]) -> bool:
        """The sequence goes on with these; False when it must not: then it has `failed`."""


class Library(Protocol):
    """Matchers over one vocabulary. A mask has `words` int32: bit i % 32 of word i // 32 is set when token i may come next."""

    @property
    def words(self) -> int: ...
    @property
    def ends(self) -> frozenset[int]:
        """End tokens: nothing is to be accepted behind one."""

    def compile(self, program: str) -> Matcher:
        """At the beginning of the program's grammar. Other threads run meanwhile. Raises GrammarError."""

    def accept(self, steps: list[tuple[Matcher, int]]) -> list[bool]:
        """`Matcher.accept` of one token each, of different matchers. Other threads run meanwhile."""

    def masks(self, matchers: list[Matcher]) -> I32:
        """[N, words]: what may come next; of one that has failed, nothing in particular. Other threads run meanwhile.

        End tokens are allowed where the grammar may end, and only they are where it must.
        """
