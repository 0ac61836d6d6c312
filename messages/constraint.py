"""The form that an answer must have: travels from the frontend to the tokenizer process, which makes a program of it for `messages.admit.Admit`."""

from typing import Annotated, Literal

import msgspec

MAX_TEXT = 256 << 10
MAX_PROGRAM = 4 * MAX_TEXT
MAX_CHOICES = 1024

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


class Constraint(msgspec.Struct, frozen=True):
    """`text`: a JSON Schema (json_schema), a regular expression for the whole answer (regex), a JSON list of at most MAX_CHOICES strings (choice),
    or a grammar in llguidance's Lark syntax (lark), which may hold `%json {...}` for a part of the answer, and special tokens by name.
    Nothing for json_object.

    `param`: the field of the request that says it, and `place`: the path of `text` in the request, both for errors.
    """

    kind: ConstraintKind
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""
    param: Annotated[str, msgspec.Meta(max_length=64)] = ""
    place: Annotated[str, msgspec.Meta(max_length=64)] = ""


Program = Annotated[str, msgspec.Meta(max_length=MAX_PROGRAM)]
"""What `grammar.program` makes of a Constraint, and matchers are compiled from. Empty: no constraint."""
