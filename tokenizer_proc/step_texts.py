"""What one step of the engine comes to for the frontends: one message to each with all texts, instead of one for each token."""

from collections.abc import Callable, Mapping

import msgspec

from messages.key import Key
from messages.text import Begun, Ended, TextDelta, Texts
from tokenizer_proc.token_rows import Times
from transport.columns import pack_f32

Send = Callable[[msgspec.Struct], bool]


class StepTexts:
    """Collects answers and sends them at the end of the step. Those that say more than text go after the texts, in their order."""

    def __init__(self) -> None:
        self._first: dict[str, dict[Key, Times]] = {}
        self._texts: dict[str, Texts] = {}
        self._others: list[tuple[str, msgspec.Struct]] = []

    def begin(self, frontend: str, key: Key, times: Times) -> None:
        """The first token of `key` is among what follows."""
        self._first.setdefault(frontend, {})[key] = times

    def add(self, frontend: str, answer: TextDelta | Ended) -> None:
        if isinstance(answer, Ended) or answer.logprobs or answer.ids or answer.prompt:
            self._others.append((frontend, answer))
            return
        texts = self._texts.get(frontend)
        if texts is None:
            texts = self._texts[frontend] = Texts([], [], [])
        texts.keys.append(answer.key)
        texts.texts.append(answer.text)
        texts.tokens.append(answer.tokens)

    def send(self, frontends: Mapping[str, Send]) -> None:
        for name, times in self._first.items():
            queued, prefilled = zip(*times.values(), strict=True)
            frontends[name](Begun(list(times), pack_f32(queued), pack_f32(prefilled)))
        for name, texts in self._texts.items():
            frontends[name](texts)
        for name, answer in self._others:
            frontends[name](answer)
