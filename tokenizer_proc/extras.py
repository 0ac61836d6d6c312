"""What few requests ask for beyond their text: kept apart, so that a token of the others pays for none of it."""

from dataclasses import dataclass, field

from messages.key import Key
from messages.request import Generate
from messages.text import TokenLogprob
from messages.tokens import PromptScores
from tokenizer_proc.pieces import Pieces
from tokenizer_proc.scores import Embedding, Scoring, hidden_positions

Told = tuple[list[TokenLogprob], list[int]]
"""Logprobs of the prompt, token ids of the prompt."""


@dataclass
class Extras:
    """Of one sequence. Stop strings do not match where they end in the text of its first `min_tokens` tokens.

    `silent`: only the prompt was asked for, what is generated is not said. `scoring`: the prompt's logprobs, which go out with the first message,
    as `prompt_ids` do. `embedding`: of the prompt, for a silent one. `with_ids`: the client wants the ids of its tokens.
    """

    min_tokens: int = 0
    silent: bool = False
    with_ids: bool = False
    scoring: Scoring | None = None
    embedding: Embedding | None = None
    prompt_ids: list[int] = field(default_factory=list)

    @property
    def lacks_parts(self) -> bool:
        """Something of the prompt has not come that must be there before the first token."""
        return any(part is not None and not part.complete for part in (self.scoring, self.embedding))

    def add(self, message: PromptScores) -> None:
        """A part of what the prompt was worth. Raises ColumnError."""
        part = self.embedding or self.scoring
        if part is not None:
            part.add(message)

    def told(self) -> Told:
        """What the message being made says of all this."""
        found = [] if self.scoring is None else self.scoring.take(), self.prompt_ids
        self.scoring, self.prompt_ids = None, []
        return found


def is_scored(request: Generate, key: Key) -> bool:
    """Logprobs of the prompt go out with this choice."""
    return request.sampling.prompt_logprobs >= 0 and (not request.score_first or key == request.keys[0])


def extras_of(request: Generate, key: Key, prompt: list[int], pieces: Pieces) -> Extras | None:
    """Of one choice; None when nothing of it was asked for."""
    least, silent = request.constraints.min_tokens if request.constraints else 0, request.stop.max_tokens == 0
    scored = is_scored(request, key)
    if not (least or silent or scored or request.with_ids or request.pooling):
        return None
    return Extras(
        min_tokens=least,
        silent=silent,
        with_ids=request.with_ids,
        scoring=Scoring(prompt, pieces, hidden_positions(request, prompt, pieces)) if scored else None,
        embedding=Embedding(len(prompt) if request.pooling == "mean" else 1) if request.pooling else None,
        prompt_ids=prompt if request.with_ids else [],
    )
