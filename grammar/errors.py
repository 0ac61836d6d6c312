"""What is wrong with a grammar."""


class GrammarError(ValueError):
    """A sentence for whoever sent it."""
