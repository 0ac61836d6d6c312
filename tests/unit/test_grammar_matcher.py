"""The matcher's protocol, against schemas made by hypothesis: what goes by the masks is valid, what is valid goes by the masks."""

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.errors import GrammarError
from grammar.llg import LlgLibrary
from grammar.program import program_of
from grammar.trial import try_out
from grammar.vocabulary_file import TokenBytes
from messages.constraint import Constraint
from tests.support.vocabularies import END, SIZE, SPECIAL, TOKENS, accepts, library, next_tokens

NAMES = st.sampled_from(["a", "b", "name", "\u00e9"])
LEAVES = st.one_of(
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, st.integers(-50, 50), st.integers(0, 900)),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, st.integers(0, 3), st.integers(0, 4)),
    st.lists(st.sampled_from(["x", "yes", 1, None, True, [1], {"a": 2}]), min_size=1, unique_by=json.dumps).map(lambda some: {"enum": some}),
    st.just({"type": "string", "format": "ipv4"}),
    st.just({"type": "string", "pattern": "^[a-c]{2}[0-9]?$"}),
)


def _object(properties: dict[str, Any], data: Any) -> dict[str, Any]:
    required = data.draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.data())
    few = st.integers(0, 2)
    arrays = st.builds(lambda items, low, size: {"type": "array", "items": items, "minItems": low, "maxItems": low + size}, inner, few, few)
    return st.one_of(objects, arrays, st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}))


SCHEMAS = st.recursive(LEAVES, _around, max_leaves=5)


def say(schema: dict[str, Any], pick: random.Random, most: int = 400) -> str | None:
    """A text that goes by the masks, chosen at random; None when it does not come to an end."""
    matcher = library().compile(program_of(Constraint("json_schema", json.dumps(schema))))
    said = b""
    for _ in range(most):
        choices = next_tokens(matcher)
        assert choices
        assert not matcher.failed
        if END in choices and (len(choices) == 1 or pick.random() < 0.3):
            return said.decode()
        choices = [token for token in choices if token < SPECIAL]
        closing = [token for token in choices if TOKENS.of[token].startswith((b'"', b"}", b"]"))]
        token = pick.choice(closing if closing and pick.random() < 0.3 else choices)
        assert matcher.accept([token])
        said += TOKENS.of[token]
    return None


@settings(max_examples=60)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_goes_by_the_masks_is_valid(schema: dict[str, Any], seed: int) -> None:
    said = say(schema, random.Random(seed))
    if said is not None:
        jsonschema.validate(json.loads(said), schema, format_checker=jsonschema.FormatChecker())


def instance(schema: dict[str, Any], data: Any) -> Any:
    """Something valid, with its properties in the schema's order."""
    if "enum" in schema:
        return data.draw(st.sampled_from(schema["enum"]))
    if "anyOf" in schema:
        return instance(data.draw(st.sampled_from(schema["anyOf"])), data)
    match schema["type"]:
        case "integer":
            return data.draw(st.integers(schema["minimum"], schema["maximum"]))
        case "boolean":
            return data.draw(st.booleans())
        case "null":
            return None
        case "array":
            return [instance(schema["items"], data) for _ in range(data.draw(st.integers(schema["minItems"], schema["maxItems"])))]
        case "object":
            chosen = [name for name in schema["properties"] if name in schema["required"] or data.draw(st.booleans())]
            return {name: instance(schema["properties"][name], data) for name in chosen}
    if "format" in schema:
        return data.draw(st.ip_addresses(v=4).map(str))
    if "pattern" in schema:
        return data.draw(st.from_regex("[a-c]{2}[0-9]?", fullmatch=True))
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=schema["minLength"], max_size=schema["maxLength"])
    return data.draw(text)


@settings(max_examples=60)
@given(SCHEMAS, st.data())
def test_what_is_valid_goes_by_the_masks(schema: dict[str, Any], data: Any) -> None:
    value = instance(schema, data)
    program = program_of(Constraint("json_schema", json.dumps(schema)))
    text = json.dumps(value, ensure_ascii=False, indent=data.draw(st.sampled_from([None, 2])))
    assert accepts(program, text), text


def test_the_end_is_allowed_where_the_grammar_may_end_and_alone_where_it_must() -> None:
    matcher = library().compile(program_of(Constraint("regex", "ab?")))
    assert END not in next_tokens(matcher)
    matcher.accept([ord("a")])
    assert next_tokens(matcher) == [ord("b"), END]
    other = matcher.copy()
    assert other.accept([ord("b")])
    assert next_tokens(other) == [END]
    assert next_tokens(matcher) == [ord("b"), END]
    assert not matcher.failed


def test_what_is_not_allowed_is_not_accepted_and_the_matcher_says_so_ever_after() -> None:
    matcher = library().compile(program_of(Constraint("regex", "ab?")))
    assert not matcher.accept([ord("x")])
    assert matcher.failed
    assert not matcher.accept([ord("a")])
    assert matcher.failed


def test_special_tokens_are_no_text() -> None:
    matcher = library().compile(program_of(Constraint("regex", "(?s).*")))
    assert next_tokens(matcher) == [*range(128), *range(0xC2, 0xF5), *range(256, SPECIAL), END]


def test_masks_of_many_are_those_of_each() -> None:
    programs = [program_of(Constraint("choice", json.dumps([text]))) for text in ("abc", "b", "true")] * 5
    matchers = [library().compile(program) for program in programs]
    matchers[4].accept([ord("x")])
    together = library().masks(matchers)
    assert together.shape == (15, -(-SIZE // 32))
    for place, matcher in enumerate(matchers):
        if not matcher.failed:
            assert (together[place] == library().masks([matcher])[0]).all()


def test_a_vocabulary_without_an_end_is_refused() -> None:
    with pytest.raises(GrammarError, match="no end token"):
        LlgLibrary(TokenBytes([b"a"], frozenset(), []))


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (Constraint("json_schema", '{"$ref": "#"}'), "nothing can be said"),
        (Constraint("json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}})), "too complex"),
        (Constraint("json_schema", '{"not": {}}'), "Unimplemented"),
    ],
)
def test_a_trial_finds_what_is_no_use(constraint: Constraint, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        try_out(library(), program_of(constraint))


@pytest.mark.parametrize("kind", ["json_object", "regex"])
def test_a_trial_lets_good_ones_pass(kind: Any) -> None:
    try_out(library(), program_of(Constraint(kind, "a{3}|b*")))
