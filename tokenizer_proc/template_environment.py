"""The sandbox chat templates run in: the functions and block rules model makers rely on, and a time limit.

What templates may use is fixed by transformers' `apply_chat_template` (its documentation, "Writing a chat template").
"""

import json
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateTimeout(Exception):
    """A template ran longer than it may."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote, for training. Here its body is simply rendered."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Whatever a template does to a value passes one of the three methods below, which watch the clock of the rendering thread."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self._clock = threading.local()

    def start_clock(self, seconds: float) -> None:
        """From now on this thread may render for `seconds`; then TemplateTimeout is raised in it."""
        self._clock.deadline = time.monotonic() + seconds

    def check_clock(self) -> None:
        if time.monotonic() > getattr(self._clock, "deadline", float("inf")):
            raise TemplateTimeout

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_clock()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __self.check_clock()
        return super().call(__context, __obj, *args, **kwargs)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """Plain JSON; jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> str:
    """A template's own refusal."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
