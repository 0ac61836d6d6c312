"""What trials of forms have shown, remembered as long as there is room."""

from collections import OrderedDict
from dataclasses import dataclass

from messages.constraint import Constraint, ConstraintKind

KEPT_CHARACTERS = 16 << 20
"""Of forms whose verdict is remembered, and their programs."""

Form = tuple[ConstraintKind, str]


def form_of(constraint: Constraint) -> Form:
    """What is tried of it: which field of a request says it makes no difference."""
    return constraint.kind, constraint.text


@dataclass(frozen=True)
class Verdict:
    """`program`, when nothing is `wrong`. `place`: where it is (see `grammar.errors`). `passing`: another time it might be right."""

    program: str
    wrong: str = ""
    place: str = ""
    passing: bool = False


class Verdicts:
    """The last ones, by form."""

    def __init__(self) -> None:
        self._of: OrderedDict[Form, Verdict] = OrderedDict()
        self._characters = 0

    def get(self, form: Form) -> Verdict | None:
        found = self._of.get(form)
        if found is not None:
            self._of.move_to_end(form)
        return found

    def put(self, form: Form, verdict: Verdict) -> None:
        if verdict.passing or form in self._of:
            return
        self._of[form] = verdict
        self._characters += _size(form, verdict)
        while self._characters > KEPT_CHARACTERS:
            self._characters -= _size(*self._of.popitem(last=False))


def _size(form: Form, verdict: Verdict) -> int:
    return 100 + len(form[1]) + len(verdict.program) + len(verdict.wrong)
