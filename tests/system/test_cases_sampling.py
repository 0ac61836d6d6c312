"""Real-world failures of sampling and logprobs against the whole cluster: each test names what went wrong elsewhere."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking import ask, by_index, complete, edited, preemptions, stream, text, texts
from tests.support.cluster import Cluster, running_cluster

LOGPROBS = {"a": -0.916, "b": -1.204, "c": -1.609, "d": -2.303}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
BOS, A = 292, 64
ROUNDS = 6
EXTREMES: list[dict[str, Any]] = [{"top_k": 1}, {"logit_bias": {str(A): -100}}, {"top_p": 0.01}]


def bounded(values: list[float | None]) -> None:
    assert all(value is None or -9999 <= value <= 0 for value in values)


@pytest.mark.parametrize("options", EXTREMES, ids=["top_k", "bias", "top_p"])
async def test_c15_impossible_tokens_in_logprobs(dice: Cluster, options: dict[str, Any]) -> None:
    """Values are of the raw distribution, before bias and filters, and always numbers."""
    message = {"role": "user", "content": "A"}
    status, chat = await ask(
        dice, "/v1/chat/completions", messages=[message], max_tokens=8, ignore_eos=True, logprobs=True, top_logprobs=10, **options
    )
    assert status == 200
    for entry in chat["choices"][0]["logprobs"]["content"]:
        top = {one["token"]: one["logprob"] for one in entry["top_logprobs"]}
        assert len(entry["top_logprobs"]) == 10
        bounded([entry["logprob"], *top.values()])
        assert {token: top[token] for token in "abcd"} == pytest.approx(LOGPROBS, abs=0.02)
        assert entry["token"] == ("a" if "logit_bias" not in options else entry["token"]) != ("a" if "logit_bias" in options else "")
    for echo in (False, True):
        answer = await complete(dice, prompt="ab", max_tokens=8, ignore_eos=True, logprobs=5, echo=echo, **options)
        logprobs = answer["choices"][0]["logprobs"]
        bounded(logprobs["token_logprobs"])
        bounded([value for top in logprobs["top_logprobs"] if top for value in top.values()])
        assert {token: logprobs["top_logprobs"][-1][token] for token in "abcd"} == pytest.approx(LOGPROBS, abs=0.02)


@pytest.mark.parametrize("prompt", ["ab", [BOS, A, A + 1]], ids=["text", "ids"])
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_c17_scoring_a_prompt(dice: Cluster, prompt: Any, max_tokens: int) -> None:
    options: dict[str, Any] = {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0, "max_tokens": max_tokens}
    wanted = [None, LOGPROBS["a"], LOGPROBS["b"], *[LOGPROBS["a"]] * max_tokens]
    answer = await complete(dice, **options)
    choice, usage = answer["choices"][0], answer["usage"]
    assert (choice["text"], usage["prompt_tokens"], usage["completion_tokens"]) == ("ab" + "a" * max_tokens, 3, max_tokens)
    scored(choice["logprobs"], wanted)
    events = await stream(dice, "/v1/completions", **options)
    parts = [part for event in events for one in event["choices"] if (part := one["logprobs"])]
    assert by_index(events)[0] == choice["text"]
    joined = {name: [value for part in parts for value in part[name]] for name in choice["logprobs"]}
    assert joined == choice["logprobs"]


def scored(logprobs: dict[str, Any], wanted: list[float | None]) -> None:
    """`wanted`: the logprob of each token, None for the first."""
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(wanted[1:], abs=0.01)
    assert all(top["a"] == pytest.approx(LOGPROBS["a"], abs=0.01) for top in logprobs["top_logprobs"][1:])
    assert {len(values) for values in logprobs.values()} == {len(wanted)}
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


async def test_c17_scoring_long_prompts(dice: Cluster) -> None:
    """Longer than a chunk; again when its prefix is cached; eight of different lengths at once."""
    letters = [number * number % 3 + number % 2 for number in range(1500)]
    ids = [BOS, *(A + letter for letter in letters)]
    wanted = [None, *(list(LOGPROBS.values())[letter] for letter in letters)]
    await complete(dice, prompt=ids, max_tokens=1, cache_salt="c17")
    options: dict[str, Any] = {"echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 0, "cache_salt": "c17"}
    for _ in range(2):
        scored((await complete(dice, prompt=ids, **options))["choices"][0]["logprobs"], wanted)
    lengths = [1, 2, 255, 256, 257, 700, 1000, 1400]
    answer = await complete(dice, prompt=[ids[:length] for length in lengths], **options)
    for choice, length in zip(answer["choices"], lengths, strict=True):
        scored(choice["logprobs"], wanted[:length])


async def test_c17_scoring_survives_preemption(tiny: Cluster) -> None:
    """Rows that are preempted in the middle of their prompt or behind it miss no position and have none twice."""
    prompts = [[BOS, *(A + (number * turn + turn) % 4 for number in range(40))] for turn in range(6)]
    before = await preemptions(tiny)
    options: dict[str, Any] = {"echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    for _ in range(ROUNDS):  # none is preempted where they come too far apart
        answers = await asyncio.gather(*(complete(tiny, prompt=ids, **options) for ids in prompts))
        for ids, answer in zip(prompts, answers, strict=True):
            wanted = [None, *(list(LOGPROBS.values())[token - A] for token in ids[1:]), *[LOGPROBS["a"]] * 40]
            scored(answer["choices"][0]["logprobs"], wanted)
        if await preemptions(tiny) > before:
            return
    pytest.fail("nothing was preempted")


async def test_c18_a_seed_in_any_company(dice: Cluster) -> None:
    draw: dict[str, Any] = {"prompt": "A", "max_tokens": 64, "ignore_eos": True}
    alone = await text(dice, seed=42, **draw)
    others = [draw | {"seed": seed} for seed in (42, 0, 1, 43, 44, None, None)]
    others += [draw | {"temperature": 0}, draw | {"temperature": 0.5, "seed": 42}, *[draw | {"max_tokens": 5 * number + 1} for number in range(6)]]
    found = await texts(dice, draw | {"seed": 42}, *others)
    assert found[0] == found[1] == alone == await text(dice, seed=42, **draw)
    assert len({alone, *found[3:8]}) == 6
    assert found[8] == "a" * 64
    for seed in (-1, 2**63, 2**64, 1.5, "1"):
        status, answer = await ask(dice, "/v1/completions", seed=seed, **draw)
        assert (status, answer["error"]["param"]) == (400, "seed")


SPELLINGS: list[tuple[int | None, dict[str, float]]] = [
    *((top_k, {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}) for top_k in (-1, 0, None, 10**6)),
    (1, {"a": 1.0}),
    (2, {"a": 4 / 7, "b": 3 / 7}),
]


async def test_c20_spellings_of_top_k(dice: Cluster) -> None:
    found = await texts(dice, *({"prompt": "A", "max_tokens": 400, "ignore_eos": True, "seed": 20, "top_k": top_k} for top_k, _ in SPELLINGS))
    for (top_k, shares), said in zip(SPELLINGS, found, strict=True):
        assert set(said) == set(shares), top_k
        assert {token: count / 400 for token, count in Counter(said).items()} == pytest.approx(shares, abs=0.1), top_k


async def test_c20_top_k_below_its_range(dice: Cluster) -> None:
    status, answer = await ask(dice, "/v1/completions", prompt="A", top_k=-5)
    assert (status, answer["error"]["param"]) == (400, "top_k")


@pytest.mark.slow
async def test_c20_defaults_from_generation_config(models: Path, tmp_path: Path) -> None:
    """They count where a request says nothing, and the log says so at the start."""
    folder = edited(models, "dice-byte", tmp_path, generation_config={"do_sample": True, "temperature": 0.7, "top_k": 0, "repetition_penalty": 1.0})
    with running_cluster(folder, "--threads", "1") as cluster:
        assert "temperature 0.7, top_k 0" in cluster.log()
        draw: dict[str, Any] = {"prompt": "A", "max_tokens": 40, "ignore_eos": True, "seed": 20}
        default, named = await texts(cluster, draw | {"n": 1}, draw | {"temperature": 0.7})
        assert default == named
        answer = await complete(cluster, **draw | {"n": 10})
        counts = Counter("".join(choice["text"] for choice in answer["choices"]))
        assert {token: count / 400 for token, count in counts.items()} == pytest.approx({"a": 0.46, "b": 0.31, "c": 0.17, "d": 0.06}, abs=0.08)
        assert await text(cluster, **draw, temperature=1) != default
        assert await text(cluster, **draw, temperature=0) == "a" * 40


PENALISED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": "aaaa", "presence_penalty": 2}, "abcd", "a"),
    ({"prompt": "aaaa", "frequency_penalty": 2}, "", "abcd"),
    ({"prompt": "a", "repetition_penalty": 2}, "bc", "a"),
    ({"prompt": "x", "repetition_penalty": 2}, "abc", "a"),
]
"""What is said: some letters, then others again and again."""


async def penalised(cluster: Cluster, tokens: int) -> None:
    """All at once, unpenalised requests first and last."""
    plain = ({"prompt": "aaaa"}, "", "a")
    rows = [plain, *PENALISED, plain]
    found = await texts(cluster, *(GREEDY | body | {"max_tokens": tokens} for body, _, _ in rows))
    assert found == [(head + tail * tokens)[:tokens] for _, head, tail in rows]


async def test_c22_what_penalties_count(dice: Cluster) -> None:
    for body, head, tail in PENALISED:
        assert await text(dice, **GREEDY, **body, max_tokens=8) == (head + tail * 8)[:8]
    await penalised(dice, 8)


async def test_c22_penalties_of_preempted_rows(tiny: Cluster) -> None:
    before = await preemptions(tiny)
    for _ in range(ROUNDS):  # none is preempted where they come too far apart, or admission has learned from those before
        await asyncio.gather(*(penalised(tiny, 30) for _ in range(2)))
        if await preemptions(tiny) > before:
            return
    pytest.fail("nothing was preempted")


async def test_c24_lists_of_prompts(chain: Cluster) -> None:
    wanted = ["🫠ZD", "Hello worldEND"]
    for n in (1, 2):
        body: dict[str, Any] = {"prompt": ["B", "A"], "temperature": 0, "max_tokens": 6, "n": n}
        answer = await complete(chain, **body)
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * n))
        expected = [text_ for text_ in wanted for _ in range(n)]
        assert [choice["text"] for choice in answer["choices"]] == expected
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * n + ["stop"] * n
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, n * (6 + 4))
        events = await stream(chain, "/v1/completions", **body)
        assert by_index(events) == dict(enumerate(expected))
        ends = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
        assert sorted(ends) == list(range(2 * n))


async def test_c24_samples_of_one_seed(dice: Cluster) -> None:
    body: dict[str, Any] = {"prompt": "A", "n": 4, "seed": 7, "max_tokens": 40, "ignore_eos": True}
    first, again = [by_index(await stream(dice, "/v1/completions", **body)) for _ in range(2)]
    assert first == again
    assert len(set(first.values())) == 4
    greedy = await complete(dice, **body | {"temperature": 0})
    assert [choice["text"] for choice in greedy["choices"]] == ["a" * 40] * 4


@pytest.mark.parametrize(
    ("body", "param"),
    [({"n": 0}, "n"), ({"n": -1}, "n"), ({"best_of": 3}, "best_of"), ({"prompt": ["A", [A] * 3000]}, "prompt"), ({"prompt": []}, "prompt")],
)
async def test_c24_one_bad_part_refuses_the_whole(dice: Cluster, body: dict[str, Any], param: str) -> None:
    status, answer = await ask(dice, "/v1/completions", **{"prompt": "A"} | body)
    assert (status, answer["error"]["param"]) == (400, param)
    await idle(dice)


async def idle(cluster: Cluster) -> None:
    """Nothing runs or waits, soon."""
    async with asyncio.timeout(30):
        while True:
            state = await asyncio.to_thread(cluster.state)
            gauges = next(process.gauges for process in state.processes if process.name == "scheduler")
            if not (gauges["running"] or gauges["waiting"] or gauges["blocks_used"]):
                return
            await asyncio.sleep(0.05)
