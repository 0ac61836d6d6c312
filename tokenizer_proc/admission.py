"""From a request to what the scheduler is sent: its prompt as tokens, and the text state of each choice, at its beginning or where it was cut off."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from messages.admit import Admit
from messages.key import Key
from messages.request import Delivered, Generate, TokenPrompt
from messages.sampling import SamplingParams
from tokenizer_proc import problems
from tokenizer_proc.detokenizer import Detokenizer
from tokenizer_proc.errors import RequestError
from tokenizer_proc.extras import extras_of, is_scored
from tokenizer_proc.prompts import PromptEncoder
from tokenizer_proc.sequences import EndRules, Sequence, end_rules
from tokenizer_proc.stops import StopMatcher
from transport.columns import ColumnError, pack_i32, view_i32

MAX_PROMPT_LOGPROBS = 100_000
"""Values for all choices of one prompt: turning more into one answer would hold up everybody's streams."""
FIT = -1
"""`truncate`: as many tokens as fit."""


@dataclass(frozen=True)
class Encoded:
    """A prompt of `tokens` ready to be admitted as a `column`: the bad words as tokens, and the text state of each key.

    `program`: of the form of the answer, or empty.
    """

    tokens: int
    column: bytes
    program: str
    banned: list[list[int]]
    rules: EndRules
    sequences: dict[Key, Sequence]


def encode(encoder: PromptEncoder, request: Generate, context: int, program: str = "") -> Encoded:
    """The whole of the work on text before a request can run; for a thread. Raises RequestError."""
    keep = request.truncate
    if keep == FIT:
        keep = max(1, context - max(1, request.stop.max_tokens or 1))
    ids = encoder.encode(request.prompt, context, keep)
    wanted = request.sampling.prompt_logprobs
    choices = len(request.keys)
    if choices * len(ids) * (wanted + 1) > MAX_PROMPT_LOGPROBS:
        param = "logprobs" if request.echo and request.sampling.logprobs == wanted else "prompt_logprobs"
        raise RequestError(problems.too_many_logprobs(param, len(ids), wanted, choices, MAX_PROMPT_LOGPROBS))
    prompt = request.prompt if keep is None else TokenPrompt(ids)
    echo = encoder.echo(prompt, ids, request.skip_special_tokens) if request.echo else ""
    banned = encoder.forbidden(request.constraints.bad_words) if request.constraints else []
    vocabulary = encoder.vocabulary
    rules = end_rules(request, vocabulary.end_ids, vocabulary.special_ids)
    return Encoded(len(ids), pack_i32(ids), program, banned, rules, dict(_sequences(encoder, request, ids, echo, rules)))


def _sequences(encoder: PromptEncoder, request: Generate, ids: list[int], echo: str, rules: EndRules) -> Iterator[tuple[Key, Sequence]]:
    pieces = encoder.vocabulary.pieces
    for number, key in enumerate(request.keys):
        sequence = Sequence(
            key,
            request.frontend,
            request.incarnation,
            Detokenizer(pieces, ids, request.skip_special_tokens),
            StopMatcher(request.stop.strings, request.stop.include_stop_string),
            rules.reasons,
            prefix=echo,
            extras=extras_of(request, key, ids, pieces),
        )
        if request.resumed and not _resume(sequence, request.resumed[number], encoder.vocabulary.size):
            raise RequestError(problems.internal("What was delivered of the answer does not fit this model's tokens."))
        yield key, sequence


def _resume(sequence: Sequence, delivered: Delivered, vocabulary: int) -> bool:
    """False when no sequence can have come to what was delivered."""
    try:
        ids = view_i32(delivered.tokens).tolist()
    except ColumnError:
        return False
    return all(0 <= number < vocabulary for number in ids) and sequence.resume(ids, delivered.cached)


@dataclass(frozen=True)
class Sender:
    """The tokenizer process as the scheduler knows it."""

    name: str
    incarnation: int

    def admits(self, request: Generate, keys: list[Key], encoded: Encoded) -> list[Admit]:
        """Of those `keys` of the request that are still wanted. Without room for an answer one token is generated, and not said.

        Those that need no logprobs of the prompt, or have them, are apart from others: they may use and feed the prefix cache.
        """
        delivered = dict(zip(request.keys, (delivered.tokens for delivered in request.resumed), strict=False))
        sampling = request.sampling
        if sampling.prompt_logprobs < 0:
            return [self._admit(request, keys, encoded, delivered, sampling)]
        scored = [key for key in keys if not delivered.get(key) and is_scored(request, key)]
        others = [key for key in keys if key not in scored]
        parts = ((scored, sampling), (others, msgspec.structs.replace(sampling, prompt_logprobs=-1)))
        return [self._admit(request, part, encoded, delivered, of_part) for part, of_part in parts if part]

    def _admit(self, request: Generate, keys: list[Key], encoded: Encoded, delivered: dict[Key, bytes], sampling: SamplingParams) -> Admit:
        seed_of = dict(zip(request.keys, request.seeds, strict=True))
        return Admit(
            tokenizer=self.name,
            incarnation=self.incarnation,
            keys=keys,
            seeds=[seed_of[key] for key in keys],
            prompt=encoded.column,
            resumed=[delivered[key] for key in keys] if delivered else [],
            sampling=sampling,
            end_ids=encoded.rules.end_ids,
            max_tokens=1 if request.stop.max_tokens == 0 else request.stop.max_tokens,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            constraints=request.constraints,
            program=encoded.program,
            banned=encoded.banned,
            pooling=request.pooling,
            timeout=request.timeout,
        )
