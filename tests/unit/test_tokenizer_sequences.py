"""The text state of one sequence: what is said adds up, whatever is held back."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messages.request import Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import FINISH_STOP, Ended, TextDelta, TokenLogprob
from messages.tokens import FINISH_END_TOKEN, FINISH_LENGTH, RUNNING
from tests.support.tokenizers import folder_vocabulary
from tokenizer_proc.detokenizer import Detokenizer, decode
from tokenizer_proc.extras import Extras
from tokenizer_proc.scores import Scoring
from tokenizer_proc.sequences import Sequence, end_rules
from tokenizer_proc.stops import StopMatcher
from tokenizer_proc.vocabulary import Vocabulary

EOS, EOT, USER = 293, 294, 295


@pytest.fixture(scope="module")
def vocabulary(models: Path) -> Vocabulary:
    return folder_vocabulary(models / "chain-byte")


@pytest.fixture(scope="module", params=["chain-byte", "chain-spm"])
def either(request: pytest.FixtureRequest, models: Path) -> Vocabulary:
    return folder_vocabulary(models / request.param)


def sequence(
    vocabulary: Vocabulary, strings: list[str], reasons: dict[int, str | int] | None = None, include: bool = False, prefix: str = ""
) -> Sequence:
    return Sequence(1, "frontend0", 1, Detokenizer(vocabulary.pieces), StopMatcher(strings, include), reasons or {}, prefix=prefix)


def play(state: Sequence, ids: list[int], finish: int) -> tuple[list[TextDelta], Ended]:
    """Feed tokens until the sequence ends."""
    deltas: list[TextDelta] = []
    for number, token in enumerate(ids):
        answer = state.take(token, finish if number == len(ids) - 1 else RUNNING, TokenLogprob(token, b"", 0.0, []))
        if isinstance(answer, Ended):
            return deltas, answer
        if answer is not None:
            deltas.append(answer)
    raise AssertionError("the sequence did not end")


def test_stop_strings_wait_for_min_tokens(vocabulary: Vocabulary) -> None:
    """A match that ends with one of them is none; one that ends behind them is, wherever it begins."""
    for stop, least, said in (("a", 0, ""), ("a", 1, "a"), ("a", 2, "aa"), ("a", 4, "aaaa"), ("aa", 2, "a"), ("aaa", 2, ""), ("aaa", 5, "aaa")):
        state = sequence(vocabulary, [stop])
        state.extras = Extras(min_tokens=least)
        deltas, ended = play(state, [64] * 6, FINISH_LENGTH)
        assert "".join(delta.text for delta in deltas) + ended.text == said
        assert (ended.finish, ended.completion_tokens) == (FINISH_STOP, max(least + 1, len(stop)))


def test_logprobs_say_which_tokens_leave_no_text(vocabulary: Vocabulary) -> None:
    deltas, ended = play(sequence(vocabulary, []), [64, USER, 65, EOT, 66, EOS], FINISH_END_TOKEN)
    told = [*(entry for delta in deltas for entry in delta.logprobs), *ended.logprobs]
    assert [entry.hidden for entry in told] == [False, True, False, True, False, True]


def test_ids_and_the_prompts_own_go_out_once(vocabulary: Vocabulary) -> None:
    state = sequence(vocabulary, ["ab"])
    state.extras = Extras(with_ids=True, prompt_ids=[7, 8], scoring=Scoring([7], vocabulary.pieces))
    deltas, ended = play(state, [64, 66, 64, 65], FINISH_LENGTH)
    assert [delta.ids for delta in deltas] == [[64, 66]]
    assert (deltas[0].prompt_ids, len(deltas[0].prompt)) == ([7, 8], 1)
    assert (ended.ids, ended.prompt, ended.prompt_ids, ended.text) == ([64, 65], [], [], "")


def test_a_silent_sequence_says_its_prompt_only(vocabulary: Vocabulary) -> None:
    for finish in (FINISH_LENGTH, FINISH_END_TOKEN):
        state = sequence(vocabulary, [], prefix="prompt")
        state.extras = Extras(silent=True, with_ids=True, prompt_ids=[7], scoring=Scoring([7], vocabulary.pieces))
        ended = state.take(64, finish, None)
        assert isinstance(ended, Ended)
        assert (ended.text, ended.finish, ended.tokens, ended.completion_tokens, ended.ids) == ("prompt", "length", 0, 0, [])
        assert (len(ended.prompt), ended.prompt_ids) == (1, [7])


def generate(strings: list[str], token_ids: list[int], ignore_eos: bool = False, skip_special_tokens: bool = True) -> Generate:
    stop = StopRules(strings=strings, token_ids=token_ids, ignore_eos=ignore_eos)
    request = Generate(frontend="frontend0", keys=[1], seeds=[1], prompt=TextPrompt("A"), sampling=SamplingParams(), stop=stop)
    return msgspec.structs.replace(request, skip_special_tokens=skip_special_tokens)


def stops_of(data: st.DataObject, whole: str) -> list[str]:
    """Up to three: parts of this text, wherever tokens end in it, and others."""
    places = st.tuples(st.integers(0, max(len(whole) - 1, 0)), st.integers(1, 6)).map(lambda place: whole[place[0] : sum(place)])
    other = st.sampled_from(["a", " the cat", "\ufffd", "\ufffd\ufffd", "END", " st", "<|eos|>"])
    return [stop for stop in data.draw(st.lists(places | other, max_size=3)) if stop]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    ids=st.lists(st.integers(0, 311), min_size=1, max_size=30),
    stop=st.sampled_from([[], ["a"], [" the cat"], ["\ufffd\ufffd"], ["END", " st"]]),
    least=st.sampled_from([0, 0, 3]),
    heard=st.integers(0, 30),
)
def test_it_goes_on_from_any_message(vocabulary: Vocabulary, ids: list[int], stop: list[str], least: int, heard: int) -> None:
    """Cut off behind any message and resumed with the tokens of those before, a sequence says the rest word for word."""

    def fresh() -> Sequence:
        state = sequence(vocabulary, stop, prefix="Prompt: ")
        state.extras = Extras(min_tokens=least, prompt_ids=[7]) if least else None
        return state

    deltas, ended = play(fresh(), ids, FINISH_LENGTH)
    told = deltas[:heard]
    delivered = [token for delta in told for token in delta.ids]
    again = fresh()
    assert again.resume(delivered, 5 if told else 0)
    rest, end = play(again, ids[len(delivered) :], FINISH_LENGTH)
    assert (rest, end) == (deltas[heard:], msgspec.structs.replace(ended, cached_tokens=5 if told else 0))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    data=st.data(),
    start=st.sampled_from(["", "A", "the \U0001fae0"]),
    include=st.booleans(),
    skip=st.booleans(),
    finish=st.sampled_from([FINISH_LENGTH, FINISH_END_TOKEN]),
)
def test_what_is_said_adds_up(either: Vocabulary, data: st.DataObject, start: str, include: bool, skip: bool, finish: int) -> None:
    """The streamed text is the decoded one, cut at the stop string that begins first (of several there: the shortest)."""
    pieces, prompt = either.pieces, either.encode(start, add_special_tokens=True)
    ids = data.draw(st.lists(st.integers(0, either.size - 1), min_size=1, max_size=30))
    shown = ids[:-1] if finish == FINISH_END_TOKEN else ids
    whole = decode(pieces, prompt + shown, skip).removeprefix(decode(pieces, prompt, skip))
    stops = stops_of(data, whole)
    deltas, ended = play(Sequence(1, "frontend0", 1, Detokenizer(pieces, prompt, skip), StopMatcher(stops, include), {}), ids, finish)
    at, length, stop = min(((at, len(text), text) for text in stops if (at := whole.find(text)) >= 0), default=(len(whole), 0, None))
    assert "".join(delta.text for delta in deltas) + ended.text == whole[: at + length * include]
    assert (ended.finish, ended.stop_reason) == ("stop" if stop is not None or finish == FINISH_END_TOKEN else "length", stop)
    assert sum(len(delta.ids) for delta in deltas) + ended.tokens == ended.completion_tokens
    logprobs = [*(entry for delta in deltas for entry in delta.logprobs), *ended.logprobs]
    assert [entry.token for entry in logprobs] == ids[: ended.completion_tokens]
    assert all(delta.text for delta in deltas)


def test_prefix_goes_out_once_and_first(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("ab", add_special_tokens=False)
    deltas, ended = play(sequence(vocabulary, [], prefix="prompt "), [*ids, EOS], FINISH_END_TOKEN)
    assert [delta.text for delta in deltas] == ["prompt a", "b"]
    assert ended.text == ""
    assert play(sequence(vocabulary, [], prefix="prompt "), [EOS], FINISH_END_TOKEN)[1].text == "prompt "


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, "<|user|>")])
def test_reason_of_an_end_token(vocabulary: Vocabulary, include: bool, text: str) -> None:
    _, ended = play(sequence(vocabulary, ["<|user|>"], {USER: "<|user|>"}, include), [USER], FINISH_END_TOKEN)
    assert (ended.text, ended.stop_reason, ended.finish) == (text, "<|user|>", "stop")


def test_end_rules(vocabulary: Vocabulary) -> None:
    ends, special = frozenset({EOS, EOT}), vocabulary.special_ids
    assert end_rules(generate([], []), ends, special).end_ids == [EOS, EOT]
    assert end_rules(generate([], [64, EOS]), ends, special).reasons == {64: 64}
    assert end_rules(generate([], [64], ignore_eos=True), ends, special).end_ids == [64]
    assert end_rules(generate(["<|user|>", "x"], []), ends, special).reasons == {USER: "<|user|>"}
    assert end_rules(generate(["<|eot|>"], [], ignore_eos=True), ends, special).end_ids == [EOT]
    assert end_rules(generate(["<|user|>"], [], skip_special_tokens=False), ends, special).end_ids == [EOS, EOT]
