"""On a GPU: the resident engine in float32 gives the greedy tokens of the CPU engine, for a small random model of each family."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from checkpoint.structs import ModelConfig, RopeConfig
from kernels.backend import kernels_for
from messages.plan import StepPlan
from tests.support.devices import GPU
from tests.support.engines import tokens_of
from tests.support.plans import Chunk, Planner, Row
from tests.support.resident import Playing, random_decoder
from worker.memory import allocate
from worker.resident.engine import ResidentEngine
from worker.step import Engine

pytestmark = pytest.mark.skipif(not GPU, reason="takes long in the interpreter")
LLAMA = ModelConfig(
    family="llama", hidden=256, layers=3, heads=8, kv_heads=2, head_dim=64, mlp=512, vocab=1000, context=1024, norm_eps=1e-5, rope=RopeConfig(),
    tied_head=True,
)  # fmt: skip
FAMILIES = {
    "llama": LLAMA,
    "qwen2": replace(LLAMA, family="qwen2", tied_head=False, qkv_bias=True),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, head_dim=128),
    "mistral": replace(LLAMA, family="mistral", tied_head=False, window=50, window_layers=[True] * 3),
}
BLOCKS, STEPS = 128, 60
IDS = [(37 * i + 11) % 1000 for i in range(400)]


def plans() -> list[StepPlan]:
    """Four rows of several lengths that come one after the other, one of them in chunks, then decode together."""
    rows = [
        Row(slot=slot, prompt=IDS[slot * 7 : slot * 7 + length], blocks=range(slot * 30, slot * 30 + 26))
        for slot, length in enumerate((150, 17, 300, 64))
    ]
    planner = Planner()
    found, running = [planner.start(rows[0])], [0]
    for row in rows[1:]:
        cut = len(row.prompt) // 3
        found.append(planner.plan(admit=[row], chunks=[Chunk(row.slot, 0, row.prompt[:cut], False)], decode=running))
        found.append(planner.plan(chunks=[Chunk(row.slot, cut, row.prompt[cut:], True)], decode=running))
        running = [*running, row.slot]
    return [*found, *(planner.plan(decode=running if not step else None) for step in range(STEPS))]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_the_cpu(family: str) -> None:
    config = FAMILIES[family]
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    reference = Engine(random_decoder(config, cpu), allocate(config, torch.float32, BLOCKS, 16), kernels_for(cpu), 8, 32, 512)
    reference.reset()
    expected = [tokens_of(reference.run(plan)) for plan in plans()]
    torch.cuda.set_stream(torch.cuda.Stream())
    decoder = random_decoder(config, gpu)
    torch.cuda.synchronize()
    playing = Playing(ResidentEngine(decoder, allocate(config, torch.float32, BLOCKS, 16, gpu), kernels_for(gpu), 8, 32, 512))
    try:
        found = [tokens_of(result) for result in playing.play(plans())]
    finally:
        playing.engine.close()
    assert found == expected
    assert len(np.unique(np.concatenate([np.array(step) for step in found]))) > STEPS // 2  # not stuck in a loop
