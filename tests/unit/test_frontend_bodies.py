"""Request bodies: what is accepted, what is refused and how the refusal names the field."""

from typing import Any

import msgspec
import pytest

from frontend import bodies, refusals
from frontend.errors import ApiError
from frontend.schema import ChatRequest, CompletionRequest, TokenizeRequest
from messages.request import TextPrompt, TokenPrompt

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}


def chat(**fields: Any) -> ChatRequest:
    return bodies.decode(msgspec.json.encode({**CHAT, **fields}), ChatRequest, refusals.CHAT)


def completion(**fields: Any) -> CompletionRequest:
    return bodies.decode(msgspec.json.encode({"prompt": "A", **fields}), CompletionRequest, refusals.COMPLETION)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{:",
        b"[]",
        b"5",
        b"null",
        b'{"prompt": "A"',
        '{"prompt": "你好"}'.encode("gbk"),
        b'\xef\xbb\xbf{"prompt": "A"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\ud800 and more text"}',
        b'{"prompt": "\\udc00"}',
        b'{"prompt": "A", "temperature": NaN}',
        b'{"prompt": "A", "temperature": 1e999}',
        b'{"prompt": "A", "user": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"messages": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_bad_json_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.decode(body, CompletionRequest, refusals.COMPLETION)
    assert caught.value.status == 400


def test_a_proper_pair_of_surrogates_and_nul_are_text() -> None:
    request = bodies.decode(b'{"prompt": "\\ud83e\\udee0\\u0000"}', CompletionRequest, refusals.COMPLETION)
    assert request.prompt == "🫠\0"


def test_the_last_duplicate_wins() -> None:
    assert bodies.decode(b'{"prompt": "A", "n": 2, "n": 3}', CompletionRequest, refusals.COMPLETION).n == 3


def test_null_means_absent_for_every_field() -> None:
    names = set(ChatRequest.__struct_fields__) | set(refusals.CHAT)
    request = chat(**dict.fromkeys(names - {"messages"}))
    assert request == chat()


def test_whole_floats_are_integers() -> None:
    request = chat(max_tokens=16.0, n=2.0, seed=7.0, top_k=-1.0, priority=0.0)
    assert (request.max_tokens, request.n, request.seed, request.top_k) == (16, 2, 7, -1)


def test_huge_limits_are_cut_to_what_the_wire_carries() -> None:
    request = chat(max_tokens=10**30, top_k=10**12)
    assert (request.max_tokens, request.top_k) == (2**31 - 1, 2**31 - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("n", -1),
        ("n", 65),
        ("n", 10**30),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -5),
        ("min_p", 2),
        ("seed", "x"),
        ("seed", 1.5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 17),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**31]),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("stream", 1),
        ("stream_options", {"include_usage": 1}),
        ("stream_options", {"extra": 1}),
        ("ignore_eos", "yes"),
        ("priority", 101),
        ("messages", []),
        ("messages", "A"),
        ("messages", ["A"]),
        ("messages", None),
        ("logprobs", 5),
        ("top_logprobs", 21),
        ("model", 5),
    ],
)
def test_wrong_values_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {}),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("parallel_tool_calls", True),
        ("user", "somebody"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("service_tier", "auto"),
        ("min_tokens", 0),
        ("length_penalty", 1.0),
    ],
)
def test_neutral_values_are_accepted(field: str, value: Any) -> None:
    assert chat(**{field: value}) == chat()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"5": -100}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("store", True),
        ("store", 0),
        ("min_tokens", False),
        ("min_tokens", 4),
        ("reasoning_effort", "high"),
        ("user", 5),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{field: value})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, field, "unsupported_parameter")


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ApiError) as caught:
        completion(surprise=1)
    assert (caught.value.param, caught.value.code) == ("surprise", "unknown_parameter")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        bodies.decode(b"{}", CompletionRequest, refusals.COMPLETION)
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_parameter")


def test_prompts_in_all_their_forms() -> None:
    assert bodies.prompts("A", True) == [TextPrompt("A", True)]
    assert bodies.prompts(["A", ""], False) == [TextPrompt("A", False), TextPrompt("", False)]
    assert bodies.prompts([1, 2], True) == [TokenPrompt([1, 2])]
    assert bodies.prompts([[1], [2, 3]], True) == [TokenPrompt([1]), TokenPrompt([2, 3])]


@pytest.mark.parametrize("value", [[], [[]], [[1], []], 5, {}, [1, "a"], ["a", 1], [[1], "a"], [-1], [2**31], [True], [1.5], [None], ["a"] * 1025])
def test_bad_prompts_are_400(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.prompts(value, True)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_messages_travel_as_they_came() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "A"}], "name": "x", "extra": {"deep": [1, None, 2.5]}}
    prompt = bodies.chat_prompt([message], True)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(prompt))
    assert wire["messages"] == [message]


@pytest.mark.parametrize("content", [5, {}, [{"type": "image_url", "image_url": {}}], ["A"], [{"type": "text"}]])
def test_content_that_is_not_text_is_refused(content: Any) -> None:
    with pytest.raises(ApiError, match="content"):
        bodies.chat_prompt([{"role": "user", "content": content}], True)


def test_numbers_beyond_the_wire_are_refused() -> None:
    with pytest.raises(ApiError):
        bodies.chat_prompt([{"role": "user", "content": "A", "x": 10**30}], True)


@pytest.mark.parametrize(
    "body", [b'{"prompt": [' + b"[1]," * 400_000 + b"[1]]}", b'{"user": {' + b'"a":1,' * 400_000 + b'"a":1}}'], ids=["lists", "keys"]
)
def test_bodies_of_countless_values_are_refused_before_they_are_decoded(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.decode(body, CompletionRequest, refusals.COMPLETION)
    assert caught.value.code == "too_many_values"


def test_a_long_text_is_no_such_body() -> None:
    text = "word " * 400_000
    assert completion(prompt=text).prompt == text


def test_seeds() -> None:
    assert bodies.seeds(42, 1) == [42]
    four = bodies.seeds(42, 4)
    assert len(set(four)) == 4
    assert four == bodies.seeds(42, 4)
    assert bodies.seeds(-1, 1) == [2**63 - 1]
    assert bodies.seeds(2**63, 1) == [0]
    assert all(0 <= seed < 2**63 for seed in [*four, *bodies.seeds(-(10**30), 3), *bodies.seeds(None, 3)])
    assert bodies.seeds(None, 2) != bodies.seeds(None, 2)


def test_tokenize_takes_vllms_fields() -> None:
    request = bodies.decode(b'{"prompt": "A", "add_special_tokens": false, "model": null}', TokenizeRequest, refusals.TOKENIZE)
    assert (request.prompt, request.add_special_tokens) == ("A", False)
