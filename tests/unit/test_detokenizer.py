"""Ids to text one at a time: the same text as all at once, and never half a character."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.tokenizers import folder_vocabulary
from tokenizer_proc import gguf_source
from tokenizer_proc.detokenizer import Detokenizer, decode
from tokenizer_proc.pieces import Pieces, read_pieces
from tokenizer_proc.vocabulary import Vocabulary

MANY = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module", params=["chain-byte", "chain-spm"])
def vocabulary(request: pytest.FixtureRequest, models: Path) -> Vocabulary:
    return folder_vocabulary(models / request.param)


@pytest.fixture(scope="module")
def byte(models: Path) -> Vocabulary:
    return folder_vocabulary(models / "chain-byte")


@pytest.fixture(scope="module")
def spm(models: Path) -> Vocabulary:
    return folder_vocabulary(models / "chain-spm")


def stream(pieces: Pieces, ids: list[int], prompt: list[int] | None = None, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(pieces, prompt or [], skip_special)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def ids_of(vocabulary: Vocabulary) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocabulary.size - 1), max_size=30)


@MANY
@given(data=st.data(), skip=st.booleans())
def test_streamed_is_decoded_at_once(vocabulary: Vocabulary, data: st.DataObject, skip: bool) -> None:
    pieces, ids = vocabulary.pieces, data.draw(ids_of(vocabulary))
    hidden = pieces.special if skip else frozenset()
    whole = b"".join(pieces.of[token] for token in ids if token not in hidden)
    stripped = whole.removeprefix(b" ") if pieces.strip_spaces else whole
    assert "".join(stream(pieces, ids, skip_special=skip)) == stripped.decode("utf-8", "replace") == decode(pieces, ids, skip)


@MANY
@given(text=st.text(max_size=30), skip=st.booleans())
def test_agrees_with_the_library_on_valid_text(vocabulary: Vocabulary, text: str, skip: bool) -> None:
    ids = vocabulary.encode(text, add_special_tokens=True)
    library: str = vocabulary.tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(vocabulary.pieces, ids, skip_special=skip)) == library


@MANY
@given(data=st.data(), cut=st.integers(0, 30), skip=st.booleans())
def test_answer_is_the_whole_minus_the_prompt(vocabulary: Vocabulary, data: st.DataObject, cut: int, skip: bool) -> None:
    """For prompts that end with a whole character; the others are below."""
    pieces, ids = vocabulary.pieces, data.draw(ids_of(vocabulary))
    prompt, answer = ids[:cut], ids[cut:]
    before = decode(pieces, prompt, skip)
    if before.endswith("\ufffd"):
        return
    assert before + "".join(stream(pieces, answer, prompt, skip)) == decode(pieces, ids, skip)


def test_library_agrees_on_random_byte_level_ids(byte: Vocabulary) -> None:
    @MANY
    @given(st.lists(st.integers(0, byte.tokenizer.get_vocab_size() - 1), max_size=20))
    def check(ids: list[int]) -> None:
        library: str = byte.tokenizer.decode(ids, skip_special_tokens=False)
        assert decode(byte.pieces, ids, skip_special=False) == library

    check()


def test_emoji_over_four_tokens_comes_whole(byte: Vocabulary) -> None:
    ids = byte.encode("\U0001fae0ZD", add_special_tokens=False)
    assert stream(byte.pieces, ids) == ["", "", "", "\U0001fae0", "Z", "D", ""]


def test_a_real_replacement_character_is_not_held(byte: Vocabulary) -> None:
    ids = byte.encode("\ufffdA", add_special_tokens=False)
    assert stream(byte.pieces, ids) == ["", "", "\ufffd", "A", ""]


def test_broken_bytes_come_out_with_the_next_character(byte: Vocabulary) -> None:
    lead, letter = byte.encode("\U0001fae0", add_special_tokens=False)[0], byte.encode("A", add_special_tokens=False)[0]
    assert stream(byte.pieces, [lead, letter]) == ["", "\ufffdA", ""]
    assert stream(byte.pieces, [lead]) == ["", "\ufffd"]


def test_prompt_that_ends_inside_a_character(byte: Vocabulary) -> None:
    ids = byte.encode("x\U0001fae0", add_special_tokens=False)
    letter = byte.encode("A", add_special_tokens=False)
    assert "".join(stream(byte.pieces, ids[3:], ids[:3])) == "\U0001fae0"
    assert "".join(stream(byte.pieces, letter, ids[:3])) == "A"
    assert "".join(stream(byte.pieces, [], ids[:3])) == ""


def test_leading_space_continues_the_prompt(spm: Vocabulary) -> None:
    prompt = spm.encode("the", add_special_tokens=True)
    answer = spm.encode("Hello world cat", add_special_tokens=False)
    assert stream(spm.pieces, answer, prompt) == [" Hello", " world", " cat", ""]
    assert "".join(stream(spm.pieces, answer, [prompt[0]])) == "Hello world cat"


def test_special_tokens_are_hidden_or_shown(vocabulary: Vocabulary) -> None:
    eot = vocabulary.special_ids["<|eot|>"]
    assert "".join(stream(vocabulary.pieces, [eot])) == ""
    assert "".join(stream(vocabulary.pieces, [eot], skip_special=False)) == "<|eot|>"


def test_rows_that_pad_the_model_have_no_text(vocabulary: Vocabulary) -> None:
    assert stream(vocabulary.pieces, [vocabulary.size - 1]) == ["", ""]


def test_metaspace_decoder_drops_the_first_space() -> None:
    from tokenizers import Tokenizer, decoders, models

    tokenizer: Any = Tokenizer(models.BPE(vocab={"\u2581a": 0, "\u2581b": 1, "<0xC3>": 2, "<0xA9>": 3}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    pieces = read_pieces(tokenizer, 4)
    assert decode(pieces, [0, 1, 2, 3], skip_special=True) == "a b\u00e9" == tokenizer.decode([0, 1, 2, 3])


def test_smollm2_streams_what_it_decodes(smollm2: Path) -> None:
    source = gguf_source.read(smollm2)
    pieces = read_pieces(source.tokenizer, source.tokenizer.get_vocab_size())

    @settings(max_examples=300)
    @given(st.lists(st.integers(0, len(pieces.of) - 1), max_size=40), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        library: str = source.tokenizer.decode(ids, skip_special_tokens=skip)
        assert "".join(stream(pieces, ids, skip_special=skip)) == library

    check()
