"""Real-world failures of configs and weights against the whole cluster: each test names what went wrong elsewhere."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.asking import ask, complete, edited, text
from tests.support.cluster import Cluster, running_cluster
from tests.support.gguf_files import write_twin

WINDOW = 64
EOS, EOT = 293, 294
ONE = ("--threads", "1")


def symbols(characters: str) -> list[int]:
    return [ord(character) - ord("!") for character in characters]


async def last_logprobs(cluster: Cluster, ids: list[int]) -> dict[str, float]:
    """The five likeliest tokens after `ids`, from the prompt's own last position."""
    answer = await complete(cluster, prompt=ids, max_tokens=1, temperature=0, logprobs=5, ignore_eos=True)
    found: dict[str, float] = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return found


async def sees(cluster: Cluster, distance: int) -> bool:
    """Whether a `z` so far before the last of the prompt counts there."""
    return (await last_logprobs(cluster, symbols("z" + "a" * (distance - 1) + "b"))).get("z", -1e9) > (
        await last_logprobs(cluster, symbols("y" + "a" * (distance - 1) + "b"))
    ).get("z", -1e9)


async def sees_in_decode(cluster: Cluster, distance: int) -> bool:
    """The same when the last tokens are generated ones: the `a` after which `z` has moved so far."""
    greedy: dict[str, Any] = {"temperature": 0, "logprobs": 5, "ignore_eos": True, "logit_bias": {str(symbols("a")[0]): 100}}
    answer = await complete(cluster, prompt=symbols("z" + "a" * 20), max_tokens=distance - 19, **greedy)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][-1]
    return sorted(top, key=lambda token: -float(top[token]))[:2] == ["a", "z"] and top["z"] > min(top.values()) + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--block-size", "16", "--chunk-tokens", "24"), ("--block-size", "64")], ids=["block16", "block64"])
async def test_c41_a_sliding_window(models: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": WINDOW}
    with running_cluster(edited(models, "histo-byte", tmp_path, config=mistral), *ONE, *options) as cluster:
        for _ in range(2):  # the second time the prefix is cached
            assert [await sees(cluster, distance) for distance in (62, 63, 64, 65, 130)] == [True, True, False, False, False]
        assert [await sees_in_decode(cluster, distance) for distance in (62, 63, 64, 65)] == [True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 100_000},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"sliding_window": 8},
    ],
    ids=["larger than the context", "null", "llama"],
)
async def test_c41_windows_that_are_none(models: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    with running_cluster(edited(models, "histo-byte", tmp_path, config=config), *ONE) as cluster:
        assert all([await sees(cluster, distance) for distance in (9, 64, 300)])


@pytest.mark.slow
async def test_c41_qwen2_without_use_sliding_window(models: Path, tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 8}
    folder = edited(models, "histo-byte", tmp_path, config=config)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[name.replace("weight", "bias")] = np.zeros(len(tensors[name]), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with running_cluster(folder, *ONE) as cluster:
        assert all([await sees(cluster, distance) for distance in (9, 64, 300)])


async def prompt_logprobs(cluster: Cluster, count: int = 300) -> list[float]:
    ids = [(7 * number + 3) % 290 for number in range(count)]
    answer = await complete(cluster, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    found: list[float] = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    return found


@contextlib.contextmanager
def changed(models: Path, target: Path, change: Callable[[dict[str, Any]], None], weights: Any = None) -> Iterator[Cluster]:
    """rand-byte with another config.json (and other tensors)."""
    folder = target / "rand"
    shutil.copytree(models / "rand-byte", folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        tensors = load_file(folder / "model.safetensors")
        weights(tensors)
        save_file(tensors, folder / "model.safetensors")
    with running_cluster(folder, *ONE, "--dtype", "float32") as cluster:
        yield cluster
    shutil.rmtree(folder)


THETA: list[dict[str, Any]] = [
    {"rope_theta": 1e6},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
]
TEN_THOUSAND: list[dict[str, Any]] = [{}, {"rope_theta": 1e4, "rope_scaling": None}, {"rope_theta": 1e4, "rope_scaling": {"type": "default"}}]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c42_places_of_rope_theta(models: Path, tmp_path: Path) -> None:
    found = {}
    for number, fields in enumerate([*THETA, *TEN_THOUSAND]):

        def change(config: dict[str, Any], fields: dict[str, Any] = fields) -> None:
            del config["rope_theta"]
            config |= fields

        with changed(models, tmp_path, change) as cluster:
            found[number] = await prompt_logprobs(cluster)
            assert f"theta {1e6 if number < len(THETA) else 1e4:g}" in cluster.log()
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4] == found[5]
    assert np.abs(np.subtract(found[0], found[3])).max() > 0.1


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_c44_tied_and_untied_heads(models: Path, tmp_path: Path) -> None:
    def tied(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = True

    def removed(tensors: dict[str, Any]) -> None:
        del tensors["lm_head.weight"]

    def other(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1

    with changed(models, tmp_path, lambda config: None) as cluster:
        untied = await prompt_logprobs(cluster)
    with changed(models, tmp_path, tied, removed) as cluster:
        without = await prompt_logprobs(cluster)
    with changed(models, tmp_path, tied, other) as cluster:
        ignored = await prompt_logprobs(cluster)
    assert without == ignored
    assert np.abs(np.subtract(untied, without)).max() > 0.1
    with pytest.raises(AssertionError, match="lm_head"), changed(models, tmp_path, lambda config: None, removed):
        pass


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str | None, str]] = {
    "int in config": ({"eos_token_id": EOT}, {"eos_token_id": None}, "<|eos|>", " the cat"),
    "list in config": ({"eos_token_id": [EOS, EOT]}, None, "<|eos|>", " the cat"),
    "list in generation_config": ({"eos_token_id": None}, {"eos_token_id": [EOS, EOT]}, "<|eos|>", " the cat"),
    "another in the tokenizer": ({"eos_token_id": None}, {"eos_token_id": EOT}, "<|eos|>", " the cat"),
    "no generation_config": ({"eos_token_id": EOS}, None, "<|eos|>", " the cat dog one two three"),
    "nowhere": ({"eos_token_id": None}, {"eos_token_id": None}, None, " the cat dog one two three"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", ENDS)
async def test_c46_places_of_end_tokens(models: Path, tmp_path: Path, place: str) -> None:
    config, generation, name, wanted = ENDS[place]
    folder = edited(models, "chain-byte", tmp_path, config=config, generation_config=generation, tokenizer_config={"eos_token": name})
    with running_cluster(folder, *ONE) as cluster:
        status, answer = await ask(cluster, "/v1/chat/completions", messages=[{"role": "user", "content": "A"}], temperature=0, max_tokens=20)
        assert status == 200
        content, finish = answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
        if place == "nowhere":
            assert content.startswith(wanted)
            assert (finish, answer["usage"]["completion_tokens"]) == ("length", 20)
        else:
            assert (content, finish) == (wanted, "stop")


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        pytest.param({"add_bos": True}, 2, marks=pytest.mark.slow),
        pytest.param({"add_bos": False}, 1, marks=pytest.mark.slow),
        pytest.param({"add_bos": None}, 1, marks=pytest.mark.slow),
        pytest.param({"add_bos": True, "bos": False}, 1, marks=pytest.mark.slow),
    ],
    ids=["true", "false", "absent", "no bos id"],
)
async def test_c48_bos_of_a_gguf_file(models: Path, tmp_path: Path, flags: dict[str, Any], count: int) -> None:
    file = write_twin(models / "dice-byte", tmp_path / "dice.gguf", **flags)
    with running_cluster(file, *ONE) as cluster:
        assert (await complete(cluster, prompt="A", max_tokens=1))["usage"]["prompt_tokens"] == count
        _, chat = await ask(cluster, "/tokenize", messages=[{"role": "user", "content": "A"}])
        assert chat["tokens"] == ([292] if flags.get("bos", True) else []) + [295, 32, 294, 296]
        assert await text(cluster, prompt="A", temperature=0, max_tokens=4) == "aaaa"
