"""`--deterministic` on a GPU: a request gets the same tokens and the same bits of logprobs alone, in any company, in any pieces."""

from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from checkpoint.structs import ModelConfig
from kernels.backend import kernels_for
from messages.plan import StepPlan
from messages.result import StepResult
from tests.kernels.test_resident_families import FAMILIES
from tests.support.devices import GPU
from tests.support.invariance import Size, differing, subject
from tests.support.resident import Playing, random_decoder
from worker.memory import allocate
from worker.resident.engine import ResidentEngine

pytestmark = [pytest.mark.skipif(not GPU, reason="there are no such kernels elsewhere, and the interpreter is slow"), pytest.mark.timeout(300)]
DEVICE = torch.device("cuda")
SIZE = Size(rows=64, blocks=12, prompt=75, tokens=60)
CONFIGS: dict[str, tuple[ModelConfig, torch.dtype, torch.dtype]] = {
    "qwen3": (FAMILIES["qwen3"], torch.bfloat16, torch.bfloat16),
    "qwen2-bias": (FAMILIES["qwen2"], torch.bfloat16, torch.bfloat16),
    "mistral-window": (FAMILIES["mistral"], torch.bfloat16, torch.bfloat16),
    "head-of-80": (replace(FAMILIES["llama"], head_dim=80), torch.bfloat16, torch.bfloat16),
    "head-of-96": (replace(FAMILIES["llama"], head_dim=96), torch.bfloat16, torch.bfloat16),
    "float32": (FAMILIES["llama"], torch.float32, torch.float32),
    "fp8-keys": (FAMILIES["qwen3"], torch.bfloat16, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("sampling", [{}, {"top_k": 20, "top_p": 0.9}], ids=["drawn", "filtered"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_bits(name: str, sampling: dict[str, float]) -> None:
    config, dtype, kv_dtype = CONFIGS[name]
    torch.cuda.set_stream(torch.cuda.Stream())
    kernels = kernels_for(DEVICE, deterministic=True)
    decoder = random_decoder(config, DEVICE, dtype, kernels=kernels)
    cache = allocate(config, kv_dtype, SIZE.rows * SIZE.blocks, 16, DEVICE)
    torch.cuda.synchronize()
    playing = Playing(ResidentEngine(decoder, cache, kernels, SIZE.rows, 32, 8192))

    def play(plans: Sequence[StepPlan]) -> list[StepResult]:
        playing.engine.reset()
        cache.k.view(torch.uint8).fill_(0xFF)
        cache.v.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        return playing.play(plans)

    try:
        assert differing(play, SIZE, config.vocab, subject(SIZE, config.vocab, **sampling)) == []
    finally:
        playing.engine.close()
