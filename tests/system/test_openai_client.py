"""The `openai` Python client, unmodified, against a real cluster on fixtures whose answers are known."""

import math

import openai
import pytest

from tests.support.cluster import Cluster

DICE = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


def client(cluster: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_models(chain: Cluster) -> None:
    assert [model.id for model in client(chain).models.list()] == [chain.model]


def test_chat(chain: Cluster) -> None:
    answer = client(chain).chat.completions.create(model=chain.model, messages=[{"role": "user", "content": "A"}], temperature=0, max_tokens=8)
    assert answer.choices[0].message.content == " the cat"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 3)


def test_chat_stream(chain: Cluster) -> None:
    chunks = list(
        client(chain).chat.completions.create(
            model=chain.model, messages=[{"role": "user", "content": "A"}], temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == " the cat"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_c01_completion_split_character(chain: Cluster) -> None:
    whole = client(chain).completions.create(model=chain.model, prompt="B", temperature=0, max_tokens=6)
    deltas = [
        chunk.choices[0].text for chunk in client(chain).completions.create(model=chain.model, prompt="B", temperature=0, max_tokens=6, stream=True)
    ]
    assert whole.choices[0].text == "".join(deltas) == "🫠ZD"
    assert not any("\ufffd" in delta for delta in deltas)
    assert "🫠" in deltas or any(delta.startswith("🫠") for delta in deltas)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("stop", "include", "text"),
    [(["ldEN"], False, "Hello wor"), (["ldEN"], True, "Hello worldEN"), ([" wor"], False, "Hello"), (["D", "ldEN"], False, "Hello wor")],
)
def test_c06_stop_strings_across_tokens(chain: Cluster, stop: list[str], include: bool, text: str) -> None:
    extra = {"include_stop_str_in_output": include}
    whole = client(chain).completions.create(model=chain.model, prompt="A", temperature=0, max_tokens=10, stop=stop, extra_body=extra)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "stop")
    stream = list(
        client(chain).completions.create(model=chain.model, prompt="A", temperature=0, max_tokens=10, stop=stop, stream=True, extra_body=extra)
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == text


def test_n_choices_and_seeds(dice: Cluster) -> None:
    def draw(seed: int, n: int = 2) -> list[str]:
        answer = client(dice).completions.create(
            model=dice.model, prompt="A", temperature=1, seed=seed, n=n, max_tokens=40, extra_body={"ignore_eos": True}
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 40 * n
        return [choice.text for choice in answer.choices]

    first, again, other = draw(1), draw(1), draw(2)
    assert first == again
    assert first != other
    assert first[0] != first[1]
    assert draw(1, n=1)[0] == first[0]


def test_sampling_follows_the_distribution(dice: Cluster) -> None:
    answer = client(dice).completions.create(
        model=dice.model, prompt="A", temperature=1, seed=3, n=8, max_tokens=400, extra_body={"ignore_eos": True}
    )
    text = "".join(choice.text for choice in answer.choices)
    assert len(text) == 3200
    for letter, probability in DICE.items():
        spread = 4 * math.sqrt(probability * (1 - probability) / len(text))
        assert abs(text.count(letter) / len(text) - probability) < spread


@pytest.mark.parametrize(
    ("options", "letters"),
    [({"top_k": 2}, "ab"), ({"top_p": 0.65}, "ab"), ({"min_p": 0.6}, "ab"), ({"top_k": 1}, "a"), ({"top_p": 1e-6}, "a"), ({"min_p": 1.0}, "a")],
)
def test_filters(dice: Cluster, options: dict[str, float], letters: str) -> None:
    extra = {"ignore_eos": True} | options
    answer = client(dice).completions.create(model=dice.model, prompt="A", temperature=1, seed=1, max_tokens=200, extra_body=extra)
    assert set(answer.choices[0].text) == set(letters)


def test_chat_logprobs(dice: Cluster) -> None:
    answer = client(dice).chat.completions.create(
        model=dice.model, messages=[{"role": "user", "content": "A"}], temperature=0, max_tokens=2, logprobs=True, top_logprobs=4
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert [entry.token for entry in content] == ["a", "a"]
    for top in content[0].top_logprobs:
        assert math.exp(top.logprob) == pytest.approx(DICE[top.token], abs=1e-3)
    assert content[0].bytes == [97]


def test_completion_logprobs(dice: Cluster) -> None:
    answer = client(dice).completions.create(model=dice.model, prompt="A", temperature=1, seed=5, max_tokens=5, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    for token, logprob in zip(logprobs.tokens, logprobs.token_logprobs, strict=True):
        assert math.exp(logprob or 0) == pytest.approx(DICE[token], abs=1e-3)


def test_penalties(dice: Cluster) -> None:
    def greedy(**options: float) -> str:
        answer = client(dice).completions.create(model=dice.model, prompt="A", temperature=0, max_tokens=4, extra_body={"ignore_eos": True} | options)
        return answer.choices[0].text

    assert greedy() == "aaaa"
    assert greedy(presence_penalty=2.0) == "abcd"
    assert greedy(frequency_penalty=0.5) == "abac"
    assert greedy(repetition_penalty=100.0) == "abcd"


@pytest.mark.parametrize(
    "extra",
    [
        {"nonsense": 1},
        {"best_of": 2},
        {"suffix": "x"},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"temperature": -1},
        {"top_p": 0},
        {"n": 0},
        {"stop": [""]},
    ],
)
def test_what_is_not_honoured_is_refused(dice: Cluster, extra: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client(dice).completions.create(model=dice.model, prompt="A", extra_body=extra)
    assert error.value.param == next(iter(extra))


def test_unknown_model(dice: Cluster) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client(dice).completions.create(model="nope", prompt="A")
    assert error.value.code == "model_not_found"
