"""Request bodies: what is accepted, what is refused and how the refusal names the field."""

from typing import Any

import msgspec
import pytest

from frontend import bodies, conversation, refusals
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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "The request body is empty; it must be a JSON object."),
        (b" \n", "The request body is empty; it must be a JSON object."),
        (
            rb'{"prompt": "\ud83d"}',
            "The request body is not valid JSON: the escape before byte 18 is half of a surrogate pair, which is no character.",
        ),
        (
            rb'{"prompt": "\\\uDC00"}',
            "The request body is not valid JSON: the escape before byte 20 is half of a surrogate pair, which is no character.",
        ),
        (
            rb'{"a": "\ud83e\udee0\udee0"}',
            "The request body is not valid JSON: the escape before byte 25 is half of a surrogate pair, which is no character.",
        ),
        (rb'{"prompt": "\\ud83d', "The request body is not valid JSON: Input data was truncated."),
        (rb'{"prompt": "\ud83e\udee0', "The request body is not valid JSON: Input data was truncated."),
    ],
    ids=repr,
)
def test_what_is_wrong_with_bad_json_is_said(body: bytes, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        bodies.decode(body, CompletionRequest, refusals.COMPLETION)
    assert (caught.value.status, caught.value.code, caught.value.message) == (400, "invalid_json", said)


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
        ("seed", -1),
        ("seed", 2**63),
        ("seed", -(2**63)),
        ("seed", 10**30),
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
        ("cache_salt", ""),
        ("cache_salt", "s" * 257),
        ("cache_salt", 5),
        ("messages", []),
        ("messages", "A"),
        ("messages", ["A"]),
        ("messages", None),
        ("response_format", {"type": "x" * 5000}),
        ("logprobs", 5),
        ("top_logprobs", 21),
        ("model", 5),
    ],
)
def test_wrong_values_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {}),
        ("bad_words", []),
        ("allowed_token_ids", None),
        ("parallel_tool_calls", True),
        ("user", "somebody"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("prompt_cache_retention", "in_memory"),
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
        ("store", True),
        ("store", 0),
        ("prompt_cache_retention", "24h"),
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


def test_a_missing_field_within_another_is_named_with_it() -> None:
    with pytest.raises(ApiError) as caught:
        chat(response_format={})
    assert (caught.value.param, caught.value.code) == ("response_format.type", "missing_parameter")
    assert caught.value.message == "response_format.type is required."


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


def on_the_wire(*messages: dict[str, Any]) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(conversation.chat_prompt(list(messages), True)))["messages"]


def test_messages_travel_as_they_came() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "A"}]}, {"content": "", "role": "assistant"}]
    assert on_the_wire(*messages) == messages


@pytest.mark.parametrize("name", sorted(refusals.MESSAGE))
def test_fields_of_a_message_that_say_nothing_are_left_out(name: str) -> None:
    message = {"role": "user", "content": "A"}
    empty: list[Any] = [None, "", [], {}]
    for nothing in empty:
        for role in ("user", "assistant", "tool"):
            assert on_the_wire({**message, "role": role, name: nothing}) == [{**message, "role": role}]
    for something in ("x", [1], {"a": 1}, 0, False):
        with pytest.raises(ApiError, match=rf"messages\[1\]\.{name}") as caught:
            on_the_wire(message, {**message, name: something})
        assert (caught.value.status, caught.value.param, caught.value.code) == (400, f"messages[1].{name}", "unsupported_parameter")


@pytest.mark.parametrize("value", [None, 10**30, {"deep": [1]}])
def test_an_unknown_field_of_a_message_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        on_the_wire({"role": "user", "content": "A", "extra": value})
    assert (caught.value.param, caught.value.code) == ("messages[0].extra", "unknown_parameter")


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("content", [None, 5, {}, [{"type": "image_url", "image_url": {}}], ["A"], [{"type": "text"}]])
def test_content_that_is_not_text_is_refused(role: str, content: Any) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]\.content.* must be ") as caught:
        on_the_wire({"role": role, "content": content})
    assert (caught.value.status, caught.value.param) == (400, "messages[0].content")


def test_a_text_part_has_no_other_fields() -> None:
    with pytest.raises(ApiError) as caught:
        on_the_wire({"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]})
    assert caught.value.param == "messages[0].content[0].cache_control"


@pytest.mark.parametrize("message", [{}, {"role": "user"}, {"content": "A"}, {"role": None, "content": "A"}, {"role": 5, "content": "A"}])
def test_role_and_content_must_be_there(message: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\]\.(role|content) must be text") as caught:
        on_the_wire(message)
    assert caught.value.status == 400


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": True}])
def test_stream_options_need_a_stream(options: dict[str, Any]) -> None:
    chat(stream=True, stream_options=options).check_stream_options()
    with pytest.raises(ApiError) as caught:
        chat(stream_options=options).check_stream_options()
    assert (caught.value.status, caught.value.param) == (400, "stream_options")
    chat(stream_options=None).check_stream_options()


@pytest.mark.parametrize(
    "options", [{"include_obfuscation": True}, {"continuous_usage_stats": True}, {"include_usage": True, "include_obfuscation": True}], ids=str
)
def test_stream_options_that_are_not_honoured(options: dict[str, bool]) -> None:
    for taken in (dict.fromkeys(options, False), dict.fromkeys(options), {"include_usage": True, "continuous_usage_stats": True}):
        chat(stream=True, stream_options=taken).check_stream_options()
    with pytest.raises(ApiError, match=list(options)[-1]):
        chat(stream=True, stream_options=options).check_stream_options()


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
    assert bodies.seeds(2**63 - 1, 1) == [2**63 - 1]
    assert all(0 <= seed < 2**63 for seed in [*four, *bodies.seeds(2**63 - 1, 3), *bodies.seeds(None, 3)])
    assert bodies.seeds(None, 2) != bodies.seeds(None, 2)


def test_tokenize_takes_vllms_fields() -> None:
    request = bodies.decode(b'{"prompt": "A", "add_special_tokens": false, "model": null}', TokenizeRequest, refusals.TOKENIZE)
    assert (request.prompt, request.add_special_tokens) == ("A", False)
