"""The form that an answer must have, as clients say it."""

import json
from typing import Any

import pytest

from frontend import bodies, refusals
from frontend.errors import ApiError
from frontend.schema import ChatRequest, CompletionRequest
from messages.constraint import MAX_TEXT, Constraint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))


def constraint(form: str = "", **fields: Any) -> Constraint | None:
    body = json.dumps({"messages": [{"role": "user", "content": "A"}]} | fields).encode()
    return bodies.decode(body, ChatRequest, refusals.CHAT).constraint(form)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", "", "response_format")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            Constraint("json_schema", TEXT, "response_format", "response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, Constraint("json_schema", TEXT, "guided_json", "guided_json")),
        ({"guided_json": "{}"}, Constraint("json_schema", "{}", "guided_json", "guided_json")),
        ({"guided_regex": "a+"}, Constraint("regex", "a+", "guided_regex", "guided_regex")),
        ({"guided_choice": ["a", "b"]}, Constraint("choice", '["a","b"]', "guided_choice", "guided_choice")),
        ({"guided_grammar": 'start: "a"'}, Constraint("lark", 'start: "a"', "guided_grammar", "guided_grammar")),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", TEXT, "structured_outputs", "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a"}}, Constraint("regex", "a", "structured_outputs", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, Constraint("choice", '["a"]', "structured_outputs", "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "x"}}, Constraint("lark", "x", "structured_outputs", "structured_outputs.grammar")),
        ({"structured_outputs": {"json_object": True}}, Constraint("json_object", "", "structured_outputs")),
    ],
    ids=str,
)
def test_each_way_to_say_it(fields: dict[str, Any], expected: Constraint | None) -> None:
    assert constraint(**fields) == expected
    body = json.dumps({"prompt": "A"} | fields).encode()
    assert bodies.decode(body, CompletionRequest, refusals.COMPLETION).constraint() == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "response_format"),
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": {"type": "json_object", "more": 1}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"guided_json": {"enum": ["x" * MAX_TEXT]}}, "guided_json"),
        ({"guided_grammar": "x" * (MAX_TEXT + 1)}, "guided_grammar"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        constraint(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_another_apis_field_is_named() -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * MAX_TEXT]}}}
    with pytest.raises(ApiError) as caught:
        constraint("text.format", response_format=wanted)
    assert caught.value.param == "text.format"
    assert caught.value.message.startswith("text.format has ")


def test_an_answer_with_a_form_must_be_able_to_end() -> None:
    body = json.dumps({"prompt": "A", "ignore_eos": True, "guided_regex": "a"}).encode()
    request = bodies.decode(body, CompletionRequest, refusals.COMPLETION)
    with pytest.raises(ApiError) as caught:
        request.check(None)
    assert caught.value.param == "ignore_eos"
