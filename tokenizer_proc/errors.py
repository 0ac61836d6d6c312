"""What goes wrong with a vocabulary at the start, and with one request later."""

from messages.text import Problem


class VocabularyError(Exception):
    """The tokenizer or chat template of a model cannot be used. The message says which file and what to do about it."""


class RequestError(Exception):
    """One request cannot be served; `problem` is what its client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem
