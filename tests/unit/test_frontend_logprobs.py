"""Log probabilities: both shapes, always finite, offsets of split characters."""

import math

from frontend import logprobs
from messages.text import TokenLogprob


def test_impossible_values_are_floored() -> None:
    assert [logprobs.bounded(value) for value in (-math.inf, math.nan, math.inf, 1e-9, -0.5)] == [-9999.0, -9999.0, 0.0, 0.0, -0.5]


def test_chat_shape() -> None:
    shape = logprobs.chat([TokenLogprob(1, b"\xf0\x9f", -0.5, [(1, b"\xf0\x9f", -0.5), (2, b"a", -math.inf)])])
    entry = shape.content[0]
    assert (entry.token, entry.bytes, entry.logprob) == ("�", [0xF0, 0x9F], -0.5)
    assert [(top.token, top.logprob) for top in entry.top_logprobs] == [("�", -0.5), ("a", -9999.0)]


def test_completion_shape_has_the_chosen_token_among_the_alternatives() -> None:
    shape = logprobs.completion([TokenLogprob(3, b"c", -2.0, [(1, b"a", -0.5), (2, b"b", -1.5)])], logprobs.Offsets(), 1)
    assert shape.tokens == ["c"]
    assert shape.token_logprobs == [-2.0]
    assert shape.top_logprobs == [{"a": -0.5, "c": -2.0}]


def test_the_first_token_of_a_prompt_has_no_logprob_and_hidden_tokens_no_width() -> None:
    tokens = [
        TokenLogprob(292, b"<|bos|>", math.nan, [], True),
        TokenLogprob(1, b"a", -0.5, [], rank=3),
        TokenLogprob(2, b"b", -1.0, [(1, b"a", -0.5)], rank=2),
    ]
    shape = logprobs.completion(tokens, logprobs.Offsets(), 1)
    assert shape.token_logprobs == [None, -0.5, -1.0]
    assert shape.top_logprobs == [None, {"a": -0.5}, {"a": -0.5, "b": -1.0}]
    assert shape.text_offset == [0, 0, 1]
    first, second, third = logprobs.prompt(tokens, 1)
    assert first is None
    assert second == {"1": logprobs.PromptEntry(-0.5, 3, "a")}
    assert third == {"1": logprobs.PromptEntry(-0.5, 1, "a"), "2": logprobs.PromptEntry(-1.0, 2, "b")}


def test_offsets_count_characters_not_bytes_and_go_on_over_pieces() -> None:
    offsets = logprobs.Offsets()
    pieces = [b"a", *(bytes([byte]) for byte in "🫠".encode()), b"Z", "é".encode(), b"!"]
    assert [offsets.next(piece) for piece in pieces] == [0, 1, 1, 1, 1, 2, 3, 4]
