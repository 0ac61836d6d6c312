"""Prompts to ids: what is refused by length, and that nothing that fits is."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messages.request import TextPrompt, TokenPrompt
from tests.support.tokenizers import folder_vocabulary
from tokenizer_proc.errors import RequestError
from tokenizer_proc.prompts import MAX_TOKENIZE_CHARACTERS, PromptEncoder


@pytest.fixture(scope="module", params=["chain-byte", "chain-spm"])
def encoder(request: pytest.FixtureRequest, models: Path) -> PromptEncoder:
    return PromptEncoder(folder_vocabulary(models / request.param), None)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(words=st.lists(st.sampled_from(["Hello", " world", " the", "END", " ", "\n\n", "\u00e9", "\U0001fae0", "x"]), max_size=80))
def test_exactly_the_prompts_that_fit_are_taken(encoder: PromptEncoder, words: list[str]) -> None:
    text, context = "".join(words), 16
    count = len(encoder.vocabulary.encode(text, add_special_tokens=True))
    if count < context:
        assert len(encoder.encode(TextPrompt(text), context)) == count
    else:
        with pytest.raises(RequestError, match="maximum context length"):
            encoder.encode(TextPrompt(text), context)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
def test_token_prompts_at_the_limit(encoder: PromptEncoder, count: int) -> None:
    prompt = TokenPrompt([1] * count)
    if count < 16:
        assert encoder.encode(prompt, 16) == prompt.ids
    else:
        with pytest.raises(RequestError, match=f"resulted in {count} tokens"):
            encoder.encode(prompt, 16)


def test_texts_to_tokenize_are_bounded(encoder: PromptEncoder) -> None:
    with pytest.raises(RequestError, match="longer than"):
        encoder.encode(TextPrompt("a" * (MAX_TOKENIZE_CHARACTERS + 1)))


def test_echo_is_the_clients_text_or_the_decoded_ids(encoder: PromptEncoder) -> None:
    ids = encoder.vocabulary.encode("the cat", add_special_tokens=True)
    assert encoder.echo(TextPrompt("the cat"), ids, True) == "the cat"
    assert encoder.echo(TokenPrompt(ids), ids, True) == "the cat"


def test_words_as_tokens(models: Path) -> None:
    encoder = PromptEncoder(folder_vocabulary(models / "chain-byte"), None)
    assert encoder.forbidden(["a", "world", " cat", "a"]) == [
        encoder.vocabulary.encode(text, False) for text in ("a", " a", "world", " world", " cat", "  cat")
    ]
    for word in ("", "b" * 17):
        with pytest.raises(RequestError) as caught:
            encoder.forbidden([word])
        assert (caught.value.problem.code, caught.value.problem.param) == ("invalid_bad_words", "bad_words")


def test_the_end_of_a_prompt_is_kept(models: Path) -> None:
    encoder = PromptEncoder(folder_vocabulary(models / "chain-byte"), None)
    assert encoder.encode(TokenPrompt(list(range(50))), 20, 5) == [45, 46, 47, 48, 49]
    assert encoder.encode(TextPrompt("abc"), 20, 5) == [292, 64, 65, 66]
    assert encoder.encode(TextPrompt("a" * 5000), 20, 3) == [64] * 3
    for keep in (20, 5000):
        with pytest.raises(RequestError) as caught:
            encoder.encode(TextPrompt("a" * 5000), 20, keep)
        assert caught.value.problem.code == "context_length_exceeded"
    with pytest.raises(RequestError) as caught:
        encoder.encode(TextPrompt("a" * (MAX_TOKENIZE_CHARACTERS + 1)), 20, 3)
    assert caught.value.problem.code == "text_too_long"
