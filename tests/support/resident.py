"""The resident engine in this process, and its results as they come; on a GPU, or on the reference kernels' device with those given."""

import queue
from collections.abc import Sequence

import torch

from checkpoint.structs import ModelConfig
from checkpoint.tensors import expected_tensors
from kernels.backend import Kernels, kernels_for
from messages.plan import StepPlan
from messages.result import StepResult
from worker.decoder import Decoder
from worker.resident.engine import ResidentEngine
from worker.weights import build_decoder, dummy_reader

STEP_SECONDS = 300.0
"""Most a step takes: the interpreter is slow, and the more so on a busy machine."""


class Playing:
    """A resident engine and its results as they come."""

    def __init__(self, engine: ResidentEngine) -> None:
        self.engine = engine
        self._results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
        engine.start(self._results.put)
        engine.reset()

    def play(self, plans: Sequence[StepPlan]) -> list[StepResult]:
        """Launch all, then read all."""
        for plan in plans:
            self.engine.submit(plan)
        found = [self._results.get(timeout=STEP_SECONDS) for _ in plans]
        self.engine.check()
        return found


def random_decoder(
    config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32, positions: int = 512, kernels: Kernels | None = None
) -> Decoder:
    """The same random weights on every device, biases too."""
    shapes = {name: tuple(shape) for name, shape in expected_tensors(config).items()}
    read = dummy_reader(shapes)
    tensors = {name: read(name) * (1.0 if name.endswith("norm.weight") else 3.0) for name in shapes}
    return build_decoder(config, tensors.__getitem__, kernels or kernels_for(device), dtype, positions, lambda share: None, None, device)
