"""The `histo` fixture in closed form: what a row may see decides every logit, so a stale, missing or foreign KV entry shows in the logprobs.

Embeddings are orthogonal, and the only attention that matters averages them with equal weights: the logits depend on how often each token
occurs so far and on the last token, on nothing else (`make_fixtures.weights`).
"""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.completions import Answer, Choice

VOCAB = 312
SCALE = 30.0
CARRY = 8.0
FIRST_CHARACTER = ord("!")
SYMBOLS = 94
"""Ids 0 to 93 of the byte tokenizer are the printable ASCII characters from `!` on."""
TOLERANCE = 1e-3


def ids_of(text: str) -> list[int]:
    """Token ids of printable ASCII without spaces, one per character (the tokenizer itself would merge some words)."""
    return [ord(character) - FIRST_CHARACTER for character in text]


def log_distribution(counts: "Counter[int]", last: int) -> NDArray[np.float64]:
    """Logprobs [VOCAB] of the next token after tokens with these `counts`, the last of which is `last`."""
    seen = np.zeros(VOCAB)
    seen[list(counts)] = list(counts.values())
    seen *= CARRY / seen.sum()
    seen[last] += 1
    logits = SCALE * seen / np.sqrt(np.square(seen).sum() + 1e-6)
    logits -= logits.max()
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def check(answer: Answer, prompt: list[int], *, greedy: bool = True) -> None:
    """Every logprob of `answer` is the closed form after `prompt` and the tokens before it; greedy tokens are the likeliest ones."""
    for choice in answer.choices:
        check_choice(choice, prompt, greedy=greedy)


def check_choice(choice: Choice, prompt: list[int], *, greedy: bool = True) -> None:
    counts, last = Counter(prompt), prompt[-1]
    for position, (token, logprob, top) in enumerate(zip(choice.tokens, choice.logprobs, choice.top, strict=True)):
        reference = log_distribution(counts, last)
        (last,) = ids_of(token)
        where = f"token {position} after a prompt of {len(prompt)}"
        assert logprob == pytest.approx(reference[last], abs=TOLERANCE), where
        assert not greedy or reference[last] >= reference.max() - 1e-5, where
        _check_alternatives(top, counts, reference, where)
        counts[last] += 1


def _check_alternatives(top: dict[str, float], counts: "Counter[int]", reference: NDArray[np.float64], where: str) -> None:
    """Each alternative has its own reference; tokens that never occurred all have the same, whichever of them were picked."""
    unseen = reference.min()
    for text, logprob in top.items():
        token = ord(text) - FIRST_CHARACTER if len(text) == 1 else -1
        wanted = reference[token] if token in counts else unseen
        assert logprob == pytest.approx(wanted, abs=TOLERANCE), f"{text!r} at {where}: an entry that is not this row's, or one that is missing"
