"""What is wrong with a grammar."""


class GrammarError(ValueError):
    """A sentence for whoever sent it. `place`: where in what was sent, as a path that begins with a dot or a bracket; or, where `grammar.place` found
    a comment that says so, as a path in the request."""

    def __init__(self, sentence: str, place: str = "") -> None:
        super().__init__(sentence)
        self.place = place
