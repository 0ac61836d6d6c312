"""The text state of every running sequence: what has come, what is held back, what was said to the frontend."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from messages.key import Key
from messages.request import Generate
from messages.text import FINISH_LENGTH, FINISH_STOP, Ended, TextDelta, TokenLogprob
from messages.tokens import FINISH_END_TOKEN, RUNNING
from tokenizer_proc.detokenizer import Detokenizer
from tokenizer_proc.extras import Extras
from tokenizer_proc.stops import StopMatcher


@dataclass(frozen=True)
class EndRules:
    """`end_ids` end a sequence in the scheduler. `reasons` says what the client is told for some of them: its own stop id, or the stop
    string that is the text of a hidden special token."""

    end_ids: list[int]
    reasons: dict[int, str | int]


def end_rules(request: Generate, model_ends: frozenset[int], special_ids: dict[str, int]) -> EndRules:
    """The model's end tokens (unless ignored), the request's stop ids, and stop strings that name a special token whose text is hidden."""
    ends = frozenset[int]() if request.stop.ignore_eos else model_ends
    reasons: dict[int, str | int] = {number: number for number in request.stop.token_ids if number not in ends}
    if request.skip_special_tokens:
        reasons |= {special_ids[text]: text for text in request.stop.strings if text in special_ids}
    return EndRules(sorted(ends | reasons.keys()), reasons)


@dataclass
class Sequence:
    """One key. `prefix` (an echoed prompt) goes out before its first text. `tokens` counts generated tokens, end token included; those in `unsaid`
    are in no message yet. `incarnation` is that of the frontend."""

    key: Key
    frontend: str
    incarnation: int
    detokenizer: Detokenizer
    stops: StopMatcher
    reasons: dict[int, str | int]
    prefix: str = ""
    extras: Extras | None = None
    tokens: int = 0
    cached: int = 0
    unsaid: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    begun: bool = False

    def take(self, token: int, finish: int, logprob: TokenLogprob | None) -> TextDelta | Ended | None:
        """The next generated token; what the frontend is to hear now, if anything. Tokens whose text is held back are told with later text."""
        extras = self.extras
        if extras is not None and extras.silent:
            return self._prompt_only(extras)
        self.tokens += 1
        self.unsaid.append(token)
        if logprob is not None:
            hidden = finish == FINISH_END_TOKEN or self.detokenizer.hides(token)
            self.logprobs.append(msgspec.structs.replace(logprob, hidden=True) if hidden else logprob)
        text = self._outside_stops("" if finish == FINISH_END_TOKEN else self.detokenizer.push(token))
        if finish != RUNNING or self.stops.matched is not None:
            return self._end(token, finish, text)
        if not text:
            return None
        scores, prompt_ids = ([], []) if extras is None else extras.told()
        cached, self.begun = 0 if self.begun else self.cached, True
        return TextDelta(self.key, self._said(text), *self._account(), scores, prompt_ids, cached)

    def resume(self, tokens: list[int], cached: int) -> bool:
        """Come to the state in which it was when its frontend had just heard all of `tokens`; False when it cannot have heard that."""
        for token in tokens:
            if isinstance(self.take(token, RUNNING, None), Ended):
                return False
        self.cached = cached
        return not self.unsaid

    def go_on(self, tokens: list[int]) -> TextDelta | Ended | None:
        """Take `tokens`, which the model has not chosen, as one step; what the frontend is to hear, if anything. Nothing follows an end."""
        heard: list[TextDelta] = []
        for token in tokens:
            answer = self.take(token, RUNNING, None)
            if isinstance(answer, Ended):
                before = "".join(delta.text for delta in heard), [number for delta in heard for number in delta.ids]
                ids = before[1] + answer.ids
                return msgspec.structs.replace(answer, text=before[0] + answer.text, ids=ids, tokens=len(ids))
            if answer is not None:
                heard.append(answer)
        if not heard:
            return None
        text, ids = "".join(delta.text for delta in heard), [number for delta in heard for number in delta.ids]
        return msgspec.structs.replace(heard[0], text=text, ids=ids)

    def _prompt_only(self, extras: Extras) -> Ended:
        scores, prompt_ids = extras.told()
        return Ended(
            key=self.key,
            finish=FINISH_LENGTH,
            text=self._said(""),
            prompt=scores,
            prompt_ids=prompt_ids,
            cached_tokens=self.cached,
            embedding=b"" if extras.embedding is None else extras.embedding.vector(),
        )

    def _end(self, token: int, finish: int, text: str) -> Ended:
        if self.stops.matched is None:
            text += self._outside_stops(self.detokenizer.flush())
            text += self.stops.flush()
        reason: str | int | None = self.stops.matched
        if reason is None and finish == FINISH_END_TOKEN:
            reason = self.reasons.get(token)
            if self.stops.include and isinstance(reason, str):
                text += reason
        stopped = finish == FINISH_END_TOKEN or self.stops.matched is not None
        ids, logprobs = self._account()
        scores, prompt_ids = ([], []) if self.extras is None else self.extras.told()
        return Ended(
            key=self.key,
            finish=FINISH_STOP if stopped else FINISH_LENGTH,
            text=self._said(text),
            tokens=len(ids),
            logprobs=logprobs,
            ids=ids,
            prompt=scores,
            prompt_ids=prompt_ids,
            stop_reason=reason,
            completion_tokens=self.tokens,
            cached_tokens=self.cached,
        )

    def _outside_stops(self, text: str) -> str:
        return self.stops.push(text, self.extras is None or self.tokens > self.extras.min_tokens)

    def _said(self, text: str) -> str:
        text, self.prefix = self.prefix + text, ""
        return text

    def _account(self) -> tuple[list[int], list[TokenLogprob]]:
        """Tokens (and their logprobs) that the message being made accounts for."""
        counted = self.unsaid, self.logprobs
        self.unsaid, self.logprobs = [], []
        return counted


class Sequences:
    """All running sequences by key."""

    def __init__(self) -> None:
        self._of: dict[Key, Sequence] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: Key) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._of.values()))

    def add(self, sequence: Sequence) -> None:
        self._of[sequence.key] = sequence

    def get(self, key: Key) -> Sequence | None:
        return self._of.get(key)

    def remove(self, keys: Iterable[Key]) -> list[Sequence]:
        """Forget these keys; gives those that were running."""
        return [sequence for key in keys if (sequence := self._of.pop(key, None)) is not None]

