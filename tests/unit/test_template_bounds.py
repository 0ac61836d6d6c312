"""Chat templates that mean harm: they get no further than their time, their sizes and their sandbox allow."""

import contextlib
import itertools
import time
from types import SimpleNamespace

import pytest

from tests.support.lean import lean
from tokenizer_proc import template_environment
from tokenizer_proc.errors import RequestError, VocabularyError
from tokenizer_proc.templates import ChatTemplate

TALK = [{"role": "user", "content": "Hi"}]
SECONDS = 0.3
TOO_LARGE, TOO_SLOW = "something too large", "longer than 0.3 s"
LAUGHS = "{% set a = ['ha'] %}" + "{% set a = [a, a, a, a, a, a, a, a, a, a] %}" * 9

ENDLESS = {
    "plain loops": "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}",
    "filtered loops": "{% set r = range(99999) %}{% for i in r if i < 0 %}{% endfor %}" * 200,
    "recursive loop": "{% for i in [0] recursive %}{% for j in range(99999) %}{% for k in range(999) %}{% endfor %}{% endfor %}"
    "{{ loop([0]) }}{% endfor %}",
    "macros": "{% macro m(n) %}{% for i in range(9999) %}{{ m2(i) }}{% endfor %}{% endmacro %}"
    "{% macro m2(n) %}{% for i in range(9999) %}{% endfor %}{% endmacro %}{{ m(1) }}",
    "map of maps": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
}
HUGE = {
    "times": "{{ 'x' * 3000000000 }}",
    "times in turn": "{{ 3000000000 * 'x' }}",
    "list times": "{{ ([1] * 3000000000) | length }}",
    "list plus": "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "tilde": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "plus": "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "center": "{{ 'x' | center(2000000000) }}",
    "mapped center": "{{ ['x'] | map('center', 2000000000) | list | length }}",
    "indent": "{{ 'x\n' | indent(2000000000) }}",
    "batch": "{{ [1] | batch(2000000000, 0) | list | length }}",
    "slice": "{{ [1] | slice(2000000000) | list | length }}",
    "round": "{{ 5 | round(-2000000000) }}",
    "percent": "{{ '%2000000000d' % 1 }}",
    "percent from values": "{{ '%*d' % (2000000000, 1) }}",
    "format filter": "{{ '%2000000000d' | format(1) }}",
    "format method": "{{ '{:2000000000}'.format(1) }}",
    "format from values": "{{ '{:{}}'.format(1, 2000000000) }}",
    "format map": "{{ '{a:2000000000}'.format_map({'a': 1}) }}",
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(2000000000) }}",
    "replace": "{% set x = 'x' * 60000 %}{{ x.replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 60000 %}{{ x | replace('x', x) }}",
    "join": "{% set x = 'x' * 60000 %}{{ x.join(x) }}",
    "join filter": "{% set x = 'x' * 60000 %}{{ range(60000) | join(x) }}",
    "laughs": LAUGHS + "{{ a }}",
    "laughs as JSON": LAUGHS + "{{ a | tojson }}",
    "laughs as text": LAUGHS + "{{ (a ~ '') | length }}",
    "laughs printed": LAUGHS + "{{ a | pprint | length }}",
    "set block": "{% set x %}{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}{% endset %}{{ x | length }}",
    "time": "{{ strftime_now('%2000000000Y') }}",
    "output": "{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}",
}
ESCAPES = [
    "{{ ''.__class__.__mro__ }}", "{{ ''['__class__']['__mro__'] }}", "{{ ('' | attr('__class__')).__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}", "{{ raise_exception.__globals__['json'] }}", "{{ strftime_now.__code__.co_code }}",
    "{{ cycler.__init__.__globals__['os'].system }}", "{{ namespace.__init__.__globals__['x'] }}", "{{ self.__init__.__globals__['x'] }}",
    "{{ messages | map(attribute='__class__.__mro__') | first | first }}", "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% extends '/etc/passwd' %}",
    "{{ lipsum(n=1) }}", "{{ open('/etc/passwd') }}",
    "{{ loop.__class__.__init__ }}", "{{ [1] | loop | list }}", "{% set messages[0].role = 'system' %}",
    "{{ get_flashed_messages.__globals__.x }}", "{{ (1).__class__.__base__.__subclasses__() }}",
]  # fmt: skip


def refusal(template: str) -> str:
    """What a client is told."""
    with pytest.raises(RequestError) as error:
        ChatTemplate(template, {}, seconds=SECONDS).render(TALK, True)
    assert error.value.problem.status == 400
    return error.value.problem.message


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_templates_end(name: str) -> None:
    began = time.thread_time()
    assert TOO_SLOW in refusal(ENDLESS[name])
    assert time.thread_time() - began < 5


def test_time_in_which_the_process_did_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 100.0).__next__, thread_time=time.thread_time)
    monkeypatch.setattr(template_environment, "time", clock)
    assert ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {}, seconds=SECONDS).render(TALK, True) == "Hi"


@pytest.mark.parametrize("name", HUGE)
def test_huge_things_are_not_made(name: str) -> None:
    with lean(700_000):
        told = refusal(HUGE[name])
    assert TOO_LARGE in told or TOO_SLOW in told or "is longer than" in told


@pytest.mark.parametrize("template", ESCAPES)
def test_nothing_leaves_the_sandbox(template: str) -> None:
    text = ""
    with contextlib.suppress(RequestError, VocabularyError):
        text = ChatTemplate(template, {}, seconds=SECONDS).render(TALK, True)
    assert text == ""


def test_ordinary_templates_are_not_disturbed() -> None:
    template = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ m.role ~ ':' ~ m.content ~ 1 }}\n{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for x in [1, 2, 3] if x > 1 %}{{ loop.length }}{% else %}none{% endfor %}"
        "{% for x in missing %}{% else %}none{% endfor %}{{ '%s-%d' % ('a', 3) }}{{ 'a,b'.split(',') | join('+') }}{{ 2 ** 10 }}{{ [1] + [2] }}"
        "{{ '20240101{}'.format(1) }}{{ 'x' | center(5) }}{{ ('a' * 3) | indent(2, true) }}{{ [1, 2, 3] | sum }}{{ 'ab' | map('upper') | list }}"
        "{{ messages | map(attribute='role') | join }}{{ 2.567 | round(1) }}"
    )
    shown = ChatTemplate(template, {}).render(TALK, True)
    assert shown == "1/1 True True user:Hi1\na122none" + "a-3a+b1024[1, 2]202401011  x    aaa6['A', 'B']user2.6"
