"""What a chat template may make at once: sizes are worked out before anything of that size is made, for nothing can interrupt it afterwards."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

MAX_CHARACTERS = 64 << 20
MAX_ITEMS = 1 << 20
MAX_BITS = 4096
ITEM_CHARACTERS = 64
"""What a number, or a list without its items, counts as text."""
MAX_COUNT = 10_000
"""Of columns to pad to, digits to round to, parts to cut into."""
_PERCENT = re.compile(r"%[^a-zA-Z%]*([0-9]{5}|\*)")
_BRACES = re.compile(r"[:!][^}]*([0-9]{5}|\{)")


class TemplateTooLarge(Exception):
    """A template was about to make something larger than it may."""


class Watched:
    """An iterable whose items are counted out by `check`, which raises when time is up."""

    def __init__(self, items: Any, check: Callable[[], None]) -> None:
        self._items = items
        self._check = check

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._check()
            yield item

    def __len__(self) -> int:
        """Raises TypeError, as `len` does, where the items have no length."""
        return len(self._items)


def allow(size: int, limit: int = MAX_CHARACTERS) -> None:
    """Raises TemplateTooLarge."""
    if size > limit:
        raise TemplateTooLarge


def weigh(value: Any, limit: int = MAX_CHARACTERS) -> int:
    """About how long `value` is as a text; what is in it several times counts several times. Raises TemplateTooLarge."""
    total, level = 0, [value]
    while level:
        below: list[Any] = []
        for item in level:
            total += len(item) if isinstance(item, str) else ITEM_CHARACTERS
            if isinstance(item, Mapping):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                below += item
            allow(total + ITEM_CHARACTERS * len(below), limit)
        level = below
    return total


def concat(parts: Iterable[str]) -> str:
    """The texts as one."""
    texts = list(parts)
    allow(sum(map(len, texts)))
    return "".join(texts)


def join_texts(values: list[Any]) -> str:
    """`a ~ b ~ c`."""
    for value in values:
        weigh(value)
    return concat(map(str, values))


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right` is worked out."""
    if operator == "**":
        allow(_bits(left) * (right if isinstance(right, int) else 0), MAX_BITS)
    elif operator == "*" and isinstance(left, int) and isinstance(right, int):
        allow(_bits(left) + _bits(right), MAX_BITS)
    elif operator == "*":
        for items, times in ((left, right), (right, left)):
            if isinstance(items, Sized) and isinstance(times, int):
                allow(len(items) * times, _limit(items))
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        allow(len(left) + len(right), _limit(left))
    elif operator == "%" and isinstance(left, str):
        check_format(left, right)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _limit(value: Any) -> int:
    return MAX_CHARACTERS if isinstance(value, str) else MAX_ITEMS


def check_format(form: str, *values: Any) -> None:
    """Widths of at most four digits, and none that the values give."""
    if _PERCENT.search(form) or ("{" in form and _BRACES.search(form)):
        raise TemplateTooLarge
    allow((form.count("{") + form.count("%")) * weigh(values) + len(form))


def check_method(text: str, name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Before a method of a text is called."""
    if name == "join" and values:
        _check_join(text, values[0])
    elif name == "replace" and len(values) > 1 and isinstance(values[1], str):
        allow((len(text) + 1) * (len(values[1]) + 1))
    elif name == "translate":
        allow(len(text) * weigh(values))
    else:  # center, ljust, rjust, zfill, expandtabs: a number is a width
        for value in (*values, *named.values()):
            if isinstance(value, int):
                allow(value, MAX_COUNT)


def _check_join(text: str, items: Any) -> None:
    if isinstance(items, Sized):
        allow(len(text) * len(items) + (weigh(items) if not isinstance(items, str) else len(items)))


def _width(value: Any) -> int:
    return len(value) if isinstance(value, str) else value if isinstance(value, int) else 0


def check_filter(name: str, value: Any, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Before a filter is used: numbers are widths and counts, texts are multiplied at most by the items they go between."""
    given = (*values, *named.values())
    if name in ("center", "indent", "batch", "slice", "round", "tojson", "wordwrap", "truncate"):
        for number in given:
            if isinstance(number, int):
                allow(abs(number), MAX_COUNT)
    if name in ("indent", "tojson", "string", "pprint", "urlencode", "xmlattr", "e", "escape", "forceescape", "wordwrap"):
        allow(weigh(value) * (1 + sum(map(_width, given)) if name in ("indent", "tojson") else 1))
    if name == "format":
        check_format(str(value), *given)
    if name == "replace" and given:
        allow((weigh(value) + 1) * (weigh(given[1] if len(given) > 1 else "") + 1))
    if name == "join":
        _check_join(str(given[0]) if given else "", value)
    if name == "sum":
        weigh(value, ITEM_CHARACTERS * MAX_COUNT * 10)
