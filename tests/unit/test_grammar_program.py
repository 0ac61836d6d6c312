"""From constraints to programs: what is allowed by them is what was asked for."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.errors import GrammarError
from grammar.program import MAX_DEPTH, program_of
from messages.constraint import MAX_CHOICES, MAX_PROGRAM, Constraint, ConstraintKind
from tests.support.vocabularies import accepts, library

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def schema(value: object) -> str:
    return program_of(Constraint("json_schema", json.dumps(value)))


@settings(max_examples=40)
@given(st.lists(TEXT, min_size=1, max_size=4, unique=True), TEXT)
def test_choices_are_taken_as_they_are(choices: list[str], other: str) -> None:
    program = program_of(Constraint("choice", json.dumps(choices)))
    assert all(accepts(program, choice) for choice in choices)
    assert accepts(program, other) == (other in choices)


@settings(max_examples=40)
@given(TEXT, TEXT)
def test_an_escaped_text_is_an_expression_for_itself(text: str, other: str) -> None:
    program = program_of(Constraint("regex", re.escape(text)))
    assert accepts(program, text)
    assert accepts(program, other) == (other == text)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a/b", "a/b", "a"),
        (r"a\/b", "a/b", "ab"),
        ("a\nb", "a\nb", "anb"),
        ("[/\n]+", "/\n", "n"),
        (r"\\", "\\", "/"),
        (r"[0-9]{3}-[a-f]+|x", "123-abc", "12-abc"),
        ("(?i)yes", "YeS", "yess"),
        ("^ab$", "ab", "abc"),
    ],
)
def test_expressions_are_of_the_whole_answer(pattern: str, good: str, bad: str) -> None:
    program = program_of(Constraint("regex", pattern))
    assert (accepts(program, good), accepts(program, bad)) == (True, False)


def test_json_may_be_set_out_but_not_padded_without_end() -> None:
    program = program_of(Constraint("json_object"))
    for text in ("{}", '{"a":1}', '{ "a": [1, 2] }', json.dumps({"a": {"b": [None, True]}}, indent=4)):
        assert accepts(program, text), text
    for text in ("[]", "1", '{"a":1', '{\n\n"a":1}', '{  "a":1}', ' {"a":1}'):
        assert not accepts(program, text), text


def test_options_of_the_schema_itself_do_not_count() -> None:
    program = schema({"type": "string", "not": {}, "x-guidance": {"lenient": True}})
    with pytest.raises(GrammarError, match=r'Unimplemented keys: \["not"\]'):
        library().compile(program)


def test_a_grammar_may_hold_json_and_special_tokens() -> None:
    program = program_of(Constraint("lark", 'start: "go " %json {"type": "integer"} | <mark>'))
    assert accepts(program, "go 12")
    assert not accepts(program, "<mark>")


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", "{", "not valid JSON"),
        ("json_schema", "[]", "must be an object"),
        ("json_schema", "[" * 5000, "not valid JSON"),
        ("json_schema", f'{{"a": {"[" * MAX_DEPTH}1{"]" * MAX_DEPTH}}}', "nested more than"),
        ("choice", "[]", "at least one"),
        ("choice", '["a", 1]', "list of strings"),
        ("choice", '"a"', "list of strings"),
        ("choice", json.dumps([str(number) for number in range(MAX_CHOICES + 1)]), "the limit is"),
        ("choice", json.dumps(["\N{GRINNING FACE}" * 6] * 1000 + ["\x00" * 200_000]), "longer than"),
    ],
)
def test_what_cannot_be_a_program(kind: ConstraintKind, text: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        program_of(Constraint(kind, text))


def test_every_program_fits_its_message() -> None:
    assert len(program_of(Constraint("json_object"))) < MAX_PROGRAM


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("start: foo", 'unknown name: "foo"'),
        ("start: /(a/", "unclosed group"),
        ("start: /(?=a)b/", "look-around"),
        ('start: %json {"$ref": "#/nowhere"}', "does not exist"),
        ('start: %json {"$ref": "http://example.com/"}', "not present"),
        ('start: %json {"minLength": 5, "maxLength": 2, "type": "string"}', "Unsatisfiable"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_without_the_grammar(program: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why) as caught:
        library().compile(program)
    assert "\n" not in str(caught.value)
    assert "start:" not in str(caught.value)


def test_what_says_nothing_is_left_out() -> None:
    said = {"type": "array", "items": {"type": "array", "uniqueItems": False}, "uniqueItems": False, "default": {"uniqueItems": False}}
    program = program_of(Constraint("json_schema", json.dumps(said | {"prefixItems": [{"type": "array", "uniqueItems": True}]})))
    assert (program.count('"uniqueItems": false'), program.count('"uniqueItems": true')) == (1, 1)


def test_formats_whose_strings_could_go_on_for_ever_are_bounded() -> None:
    """Where they are schemas, and say no length themselves."""
    second = {"type": "string", "format": "time"}
    value = {"$defs": {"t": second}, "anyOf": [{"type": "array", "items": second}, {"enum": [second]}, second | {"maxLength": 30}]}
    program = schema(value)
    assert program.count('"maxLength": 24') == 2
    assert program.count('"maxLength": 30') == 1
    program = schema(second)
    assert accepts(program, '"14:37:53.424349329+05:30"')
    assert not accepts(program, '"14:37:53.4243493291+05:30"')
    program = schema({"type": "string", "format": "email"})
    for size in (64, 65):
        assert accepts(program, f'"{"a" * size}@b.org"') == (size == 64)
