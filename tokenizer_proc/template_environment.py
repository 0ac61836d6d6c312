"""The sandbox chat templates run in: the functions and block rules model makers rely on, and a time limit.

What templates may use is fixed by transformers' `apply_chat_template` (its documentation, "Writing a chat template").
"""

import functools
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
import jinja2.visitor
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenizer_proc import template_bounds
from tokenizer_proc.template_bounds import Watched, check_filter, check_format, check_method, check_operator, join_texts, weigh

LOOP, CONCAT = "loop over", "~"
"""Filters that no template can name: what a loop goes over, and what stands between tildes, passes them."""


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


class _Guard(jinja2.visitor.NodeTransformer):
    """Leads the items of every loop and the parts of every `~` through a filter of ours."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, LOOP)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), CONCAT)


def _filtered(node: jinja2.nodes.Node, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Whatever a template does to a value passes one of the methods or filters below: they watch the clock of the rendering thread and the sizes of
    what is about to be made (`tokenizer_proc.template_bounds`)."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(template_bounds.concat)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols], finalize=_weighed)
        self.filters["tojson"] = to_json
        self.filters = {name: self._checked(name, function) for name, function in self.filters.items()}
        self.filters[LOOP] = lambda items: Watched(items, self.check_clock)
        self.filters[CONCAT] = join_texts
        del self.globals["lipsum"]
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self._clock = threading.local()

    def start_clock(self, seconds: float) -> None:
        """From now on this thread may render for `seconds` of a processor's time; then TemplateTimeout is raised in it."""
        self._clock.soonest, self._clock.ends = time.monotonic() + seconds, time.thread_time() + seconds

    def check_clock(self) -> None:
        if time.monotonic() > getattr(self._clock, "soonest", float("inf")) and time.thread_time() > self._clock.ends:
            raise TemplateTimeout

    def compile(self, source: Any, name: str | None = None, filename: str | None = None, raw: bool = False, defer_init: bool = False) -> Any:
        tree = self.parse(source, name, filename) if isinstance(source, str) else source
        guarded = _Guard().visit(tree).set_environment(self)
        return super().compile(guarded, name, filename, raw, defer_init)  # type: ignore[call-overload]

    def _checked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.check_clock()
            check_filter(name, args[first], args[first + 1 :], kwargs)
            return function(*args, **kwargs)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.check_clock()
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, *args, *kwargs.values())
            return inner(*args, **kwargs)

        return checked

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_clock()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_clock()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __self.check_clock()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            check_method(owner, __obj.__name__, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _weighed(value: Any) -> Any:
    """What is about to become text and go out."""
    if not isinstance(value, str):
        weigh(value)
    return value


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """Plain JSON; jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> str:
    """A template's own refusal."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    check_format(form)
    return datetime.now().strftime(form)
