"""Config and GGUF tensors against transformers, which runs in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint.config import read_config
from checkpoint.tensors import open_tensors
from tests.support.gguf_files import write_twin

CODE = """
import json, sys
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

folders, twin, out = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
found = []
for folder in folders:
    config = AutoConfig.from_pretrained(folder)
    config.standardize_rope_params()  # the models do so again before they use it
    heads = [config.num_attention_heads, config.num_key_value_heads, getattr(config, "head_dim", None)]
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    found.append({"rope": config.rope_parameters, "heads": heads, "window": window, "types": types})
model = AutoModelForCausalLM.from_pretrained(twin.rpartition("/")[0], gguf_file=twin.rpartition("/")[2], dtype=torch.float32)
np.savez(out, **{name: value.numpy() for name, value in model.state_dict().items()})
print(json.dumps(found))
"""
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
QWEN3 = {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 64, "head_dim": 64}
VARIANTS: list[dict[str, Any]] = [
    {"rope_theta": 1e6},
    {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_theta": None},
    {"rope_theta": 1e6, "rope_scaling": None},
    {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
    {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 1e6, "rope_scaling": LLAMA3},
    {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 1024},
    {"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"model_type": "mistral", "sliding_window": 64, "head_dim": None},
    {"model_type": "mistral", "num_attention_heads": 8, "num_key_value_heads": None},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
    {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0},
    QWEN3 | {"max_window_layers": 0},
    QWEN3 | {"layer_types": ["sliding_attention", "full_attention"]},
]


def write_variants(models: Path, folder: Path) -> list[Path]:
    """One folder with a config.json per variant of rand-byte's; a key with None is left out, except `rope_scaling`."""
    base = json.loads((models / "rand-byte" / "config.json").read_text())
    paths = []
    for number, changes in enumerate(VARIANTS):
        path = folder / f"variant{number}"
        path.mkdir()
        values = {key: value for key, value in (base | changes).items() if value is not None or key == "rope_scaling"}
        (path / "config.json").write_text(json.dumps({**values, "architectures": None}))
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def oracle(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[dict[str, Any]], Path, Path]:
    """(config folders, what transformers makes of each, GGUF twin, transformers' tensors of it)."""
    folder = tmp_path_factory.mktemp("oracle")
    paths = write_variants(models, folder)
    twin = write_twin(models / "rand-byte", folder / "twin.gguf", kind="Q8_0")
    arguments = [json.dumps([str(path) for path in paths]), str(twin), str(folder / "tensors.npz")]
    done = subprocess.run([sys.executable, "-P", "-c", CODE, *arguments], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return paths, json.loads(done.stdout.splitlines()[-1]), twin, folder / "tensors.npz"


@pytest.mark.timeout(300)
def test_configs(oracle: tuple[list[Path], list[dict[str, Any]], Path, Path]) -> None:
    for path, theirs, changes in zip(oracle[0], oracle[1], VARIANTS, strict=True):
        ours = read_config(path)
        rope = theirs["rope"]
        assert (ours.rope.kind, ours.rope.theta) == (rope["rope_type"], rope["rope_theta"]), changes
        assert ours.rope.factor == rope.get("factor", 1.0), changes
        if ours.rope.kind in ("llama3", "yarn"):
            assert ours.rope.original_context == rope["original_max_position_embeddings"], changes
        heads, kv_heads, head_dim = theirs["heads"]
        assert (ours.heads, ours.kv_heads) == (heads, kv_heads), changes
        assert ours.head_dim == head_dim or head_dim is None, changes
        types = theirs["types"] or ["sliding_attention" if theirs["window"] else "full_attention"] * ours.layers
        assert (ours.window_layers or [False] * ours.layers) == [kind == "sliding_attention" for kind in types], changes
        assert ours.window == (theirs["window"] if any(ours.window_layers) else None), changes


@pytest.mark.timeout(300)
def test_gguf_tensors(oracle: tuple[list[Path], list[dict[str, Any]], Path, Path]) -> None:
    source = open_tensors(oracle[2], read_config(oracle[2]))
    with np.load(oracle[3]) as theirs:
        assert set(theirs.files) == source.names().keys()
        for name in theirs.files:
            np.testing.assert_array_equal(source.read(name), theirs[name])
