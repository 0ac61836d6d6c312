"""What one step of the engine comes to for the frontends: one message to each with all texts, instead of one for each token."""

from collections.abc import Callable, Mapping

import msgspec

from messages.text import Ended, TextDelta, Texts

Send = Callable[[msgspec.Struct], bool]


class StepTexts:
    """Collects answers and sends them at the end of the step. Those that say more than text go after the texts, in their order."""

    def __init__(self) -> None:
        self._texts: dict[str, Texts] = {}
        self._others: list[tuple[str, msgspec.Struct]] = []

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
        for name, texts in self._texts.items():
            frontends[name](texts)
        for name, answer in self._others:
            frontends[name](answer)
