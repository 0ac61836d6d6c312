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


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
