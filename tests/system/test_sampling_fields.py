"""Fields of the sampling APIs through the whole cluster: what each of them does, with others, in streams, and after a preemption."""

import asyncio
from typing import Any

import pytest

from tests.support.asking import ask, by_index, complete, preemptions, stream, text, texts
from tests.support.cluster import Cluster

A, B, C, D = 64, 65, 66, 67
BOS, EOS, EOT = 292, 293, 294
GREEDY: dict[str, Any] = {"prompt": "A", "temperature": 0, "max_tokens": 6, "ignore_eos": True}

SAID: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {str(A): -100}}, "bbbbbb"),
    ({"logit_bias": {str(D): 3, str(C): 100}}, "cccccc"),
    ({"logit_bias": {str(A): -1}, "presence_penalty": 2}, "bcadbb"),
    ({"allowed_token_ids": [C, D]}, "cccccc"),
    ({"allowed_token_ids": [C, D], "logit_bias": {str(D): 1, str(A): 100}}, "dddddd"),
    ({"bad_words": ["a"]}, "bbbbbb"),
    ({"bad_words": ["aa"]}, "ababab"),
    ({"bad_words": ["aa", "ba", "bb"]}, "abcabc"),
    ({"bad_words": ["A"]}, "aaaaaa"),
    ({"allowed_token_ids": [A], "bad_words": ["aa"]}, "aaaaaa"),
    ({"min_tokens": 3, "stop": ["aa"]}, "aa"),
    ({"min_tokens": 3, "stop": ["a"]}, "aaa"),
]


@pytest.mark.parametrize(("fields", "wanted"), SAID, ids=str)
async def test_what_may_be_said(dice: Cluster, fields: dict[str, Any], wanted: str) -> None:
    assert await text(dice, **GREEDY | fields) == wanted
    assert by_index(await stream(dice, "/v1/completions", **GREEDY | fields))[0] == wanted


async def test_all_at_once_and_seeded(dice: Cluster) -> None:
    """Each as if it were alone, in one batch with rows that want nothing."""
    bodies = [GREEDY | fields for fields, _ in SAID] + [GREEDY, {"prompt": "A", "seed": 5, "max_tokens": 60, "ignore_eos": True}]
    alone = [await text(dice, **body) for body in bodies]
    assert await texts(dice, *bodies) == alone


async def test_a_random_row_with_few_tokens_allowed(dice: Cluster) -> None:
    for filters in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.2}):
        found = await text(dice, prompt="A", max_tokens=80, ignore_eos=True, seed=1, allowed_token_ids=[A, D], **filters)
        assert set(found) == {"a", "d"} or filters.get("min_p")
        assert 0.6 < found.count("a") / 80 <= 1


async def test_min_tokens_holds_end_tokens_and_stop_ids_back(chain: Cluster) -> None:
    """After ` the cat` the model ends its turn; it must go on instead, with whatever is next in likelihood."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}], "temperature": 0, "max_tokens": 12}
    _, answer = await ask(chain, "/v1/chat/completions", **chat)
    assert answer["usage"]["completion_tokens"] == 3
    for least in (3, 4, 8, 12):
        _, answer = await ask(chain, "/v1/chat/completions", **chat, min_tokens=least)
        assert max(3, least) <= answer["usage"]["completion_tokens"] <= 12
        assert answer["choices"][0]["message"]["content"].startswith(" the cat")
    _, answer = await ask(chain, "/v1/chat/completions", **chat, min_tokens=2, stop_token_ids=[EOT], ignore_eos=True)
    assert answer["choices"][0]["stop_reason"] == EOT
    status, answer = await ask(chain, "/v1/chat/completions", **chat, min_tokens=13)
    assert (status, answer["error"]["param"]) == (400, "min_tokens")


async def test_preempted_rows_keep_what_they_may_say(tiny: Cluster) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"bad_words": ["aa", "ba"], "prompt": "A" * 6}, "a" + "b" * 29),
        ({"bad_words": ["aaa"], "prompt": "B" * 5}, "aab" * 10),
        ({"min_tokens": 20, "logit_bias": {str(EOS): 100}, "ignore_eos": False, "prompt": "C" * 7}, "a" * 20),
        ({"allowed_token_ids": [C, D], "bad_words": ["cc"], "prompt": "D" * 4}, "cd" * 15),
        ({"logit_bias": {str(A): -100}, "prompt": "E" * 6}, "b" * 30),
    ]
    before = await preemptions(tiny)
    for more in range(2, 8):  # admission learns how long answers get, and then preempts less often
        found = await texts(tiny, *(GREEDY | {"max_tokens": 30} | fields for fields, _ in rows * more))
        assert found == [wanted for _, wanted in rows * more]
        if await preemptions(tiny) > before:
            return
    pytest.fail("nothing was preempted")


async def test_truncated_prompts(dice: Cluster) -> None:
    ids = [BOS, *range(A, A + 10)]
    for keep, count in ((3, 3), (1, 1), (11, 11), (500, 11), (-1, 11)):
        answer = await complete(dice, prompt=ids, max_tokens=1, truncate_prompt_tokens=keep, return_token_ids=True, echo=True, temperature=0)
        assert answer["usage"]["prompt_tokens"] == count
        assert answer["choices"][0]["prompt_token_ids"] == ids[-count:]
        assert answer["choices"][0]["text"] == "abcdefghij"[-count:] + "a"
    long: dict[str, Any] = {"prompt": "a" * 5000, "max_tokens": 20, "ignore_eos": True}
    assert (await complete(dice, **long, truncate_prompt_tokens=-1))["usage"]["prompt_tokens"] == 2048 - 20
    assert (await complete(dice, **long, truncate_prompt_tokens=7))["usage"]["prompt_tokens"] == 7
    assert (await complete(dice, prompt=[A] * 3000, max_tokens=1, truncate_prompt_tokens=9))["usage"]["prompt_tokens"] == 9
    status, answer = await ask(dice, "/v1/completions", **long, truncate_prompt_tokens=4000)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_token_ids(chain: Cluster) -> None:
    body: dict[str, Any] = {"prompt": "A", "temperature": 0, "max_tokens": 10, "return_token_ids": True}
    choice = (await complete(chain, **body))["choices"][0]
    assert choice["prompt_token_ids"] == [BOS, 32]
    ids = choice["token_ids"]
    assert (len(ids), ids[-1]) == (4, EOS)
    events = await stream(chain, "/v1/completions", **body, stop=["nothing"])
    choices = [event["choices"][0] for event in events]
    assert [number for one in choices for number in one["token_ids"]] == ids
    assert [one["prompt_token_ids"] for one in choices if "prompt_token_ids" in one] == [[BOS, 32]]
    message = {"role": "user", "content": "A"}
    _, chat = await ask(chain, "/v1/chat/completions", messages=[message], temperature=0, return_token_ids=True)
    assert chat["choices"][0]["prompt_token_ids"] == [BOS, 295, 32, EOT, 296]
    assert chat["choices"][0]["token_ids"][-1] == EOT
    assert "token_ids" not in (await complete(chain, prompt="A", max_tokens=1))["choices"][0]


async def test_prompt_logprobs(dice: Cluster) -> None:
    """They are computed once and stand in every choice; `max_tokens` 0 and `echo` ask for them too."""
    answer = await complete(dice, prompt=[BOS, A, 200, D], max_tokens=1, temperature=0, prompt_logprobs=2, n=3)
    assert len(answer["choices"]) == 3
    scored = await complete(dice, prompt=[[BOS, A, 200, D], [BOS, B]], max_tokens=0, echo=True, logprobs=2, n=2)
    tokens = [choice["logprobs"]["tokens"] for choice in scored["choices"]]
    assert tokens == [tokens[0]] * 2 + [tokens[2]] * 2
    assert (tokens[0][1], len(tokens[0]), len(tokens[2])) == ("a", 4, 2)
    assert scored["usage"]["completion_tokens"] == 0
    for choice in answer["choices"]:
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert [set(entry) for entry in rest] == [{str(A), str(B)}, {str(A), str(B), "200"}, {str(A), str(B), str(D)}]
        assert rest[0][str(A)] == {"logprob": pytest.approx(-0.916, abs=0.01), "rank": 1, "decoded_token": "a"}
        assert rest[2][str(D)]["rank"] == 4
        assert rest[1]["200"]["rank"] > 4
        assert rest[1]["200"]["logprob"] == pytest.approx(-20, abs=0.1)
    message = {"role": "user", "content": "ab"}
    status, chat = await ask(dice, "/v1/chat/completions", messages=[message], max_tokens=1, prompt_logprobs=0)
    assert status == 200
    assert len(chat["choices"][0]["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    status, answer = await ask(dice, "/v1/completions", prompt="A", prompt_logprobs=1, stream=True)
    assert (status, answer["error"]["param"]) == (400, "prompt_logprobs")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"312": 1}}, "logit_bias"),
        ({"allowed_token_ids": [5000]}, "allowed_token_ids"),
        ({"stop_token_ids": [312]}, "stop_token_ids"),
        ({"bad_words": ["abcdefghijklmnopq"]}, "bad_words"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"bad_words": ["a" * 257]}, "bad_words"),
        ({"allowed_token_ids": [*range(300)] * 4}, "allowed_token_ids"),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
    ],
    ids=str,
)
async def test_values_that_cannot_be(dice: Cluster, fields: dict[str, Any], param: str) -> None:
    status, answer = await ask(dice, "/v1/completions", **{"prompt": "A"} | fields)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_many_constraints_at_once(dice: Cluster) -> None:
    wide = {"allowed_token_ids": [*range(300)], "logit_bias": {str(number): -1 for number in range(200)}}
    answers = await asyncio.gather(*(text(dice, **GREEDY | wide | {"bad_words": [f"{number}a" for number in range(100)]}) for _ in range(8)))
    assert answers == ["aaaaaa"] * 8
