"""Matchers of llguidance (https://github.com/guidance-ai/llguidance). Nothing else imports it."""

import os
import re
import sys

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from grammar.errors import GrammarError
from grammar.matcher import Matcher
from grammar.vocabulary_file import TokenBytes
from transport.columns import I32

HEADER = '%llguidance {"no_forcing": true}\n'
"""Of every program: the model chooses how forced text is cut into tokens, as in the rest of its answer, so that nothing depends on an encoder."""
MARK = b"\xff"
"""Goes before the text of a special token: no text has this byte, so none is taken for one."""
MOST_THREADS = 8
LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=30_000,
    max_lexer_states=20_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""Of one matcher: about 10 ms of one core for a mask at the most, and 40 MB."""

_PLACE = re.compile(r"^at \d+\(\d+\): ")
_CAUSE = re.compile(r"^error: (.*)$", re.MULTILINE)


class _Vocabulary:
    """What LLTokenizer asks of a tokenizer. Nothing is encoded: see HEADER."""

    bos_token_id = None

    def __init__(self, tokens: TokenBytes) -> None:
        self.eos_token_id = tokens.ends[0]
        self.tokens = [MARK + piece if number in tokens.special else piece for number, piece in enumerate(tokens.of)]
        self.special_token_ids = sorted(tokens.special)

    def __call__(self, text: bytes) -> list[int]:
        return []


class LlgMatcher:
    """`grammar.matcher.Matcher`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.inner = matcher

    @property
    def failed(self) -> str:
        return sentence(self.inner.get_error()) if self.inner.is_error() else ""

    def copy(self) -> "LlgMatcher":
        return LlgMatcher(self.inner.deep_copy())

    def accept(self, tokens: list[int]) -> bool:
        return self.inner.consume_tokens(tokens)


class LlgLibrary:
    """`grammar.matcher.Library`. To make one takes some tenths of a second, in which no other thread of Python runs."""

    def __init__(self, tokens: TokenBytes) -> None:
        """Raises GrammarError for a vocabulary that has no end token."""
        if not tokens.ends:
            raise GrammarError("this model has no end token, so an answer in a certain form could not end")
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(tokens)), n_vocab=len(tokens.of), eos_token=tokens.ends)
        self.ends = frozenset(tokens.ends)
        self._executor = LLExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1))

    @property
    def words(self) -> int:
        return -(-self._tokenizer.vocab_size // 32)

    def compile(self, program: str) -> Matcher:
        matcher = LlgMatcher(LLMatcher(self._tokenizer, HEADER + program, log_level=0, limits=LIMITS))
        if matcher.failed:
            raise GrammarError(matcher.failed)
        return matcher

    def accept(self, steps: list[tuple[Matcher, int]]) -> list[bool]:
        return self._executor.consume_token_par([(matcher.inner, token) for matcher, token in steps if isinstance(matcher, LlgMatcher)])

    def masks(self, matchers: list[Matcher]) -> I32:
        found = np.zeros((len(matchers), self.words), np.int32)
        inner = [(matcher.inner, place) for place, matcher in enumerate(matchers) if isinstance(matcher, LlgMatcher)]
        if len(inner) == 1:
            inner[0][0].unsafe_compute_mask_ptr(found.ctypes.data, 4 * self.words)  # on this thread
        else:
            self._executor.unsafe_compute_mask_ptr(inner, found.ctypes.data, 4 * self.words, len(matchers))
        return found


def sentence(error: str) -> str:
    """The library's error, which may show the whole grammar, in one line."""
    first = _PLACE.sub("", error.partition("\n")[0]).removeprefix("failed to compile JSON schema: ").removeprefix('failed to parse "%json": ')
    if first.endswith(":") and (cause := _CAUSE.search(error)):
        first = f"{first} {cause[1]}"
    return first[:500]
