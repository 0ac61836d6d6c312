"""Arguments of a worker process."""

from transport.lifetime import ProcessArgs


class WorkerArgs(ProcessArgs, frozen=True, kw_only=True):
    """`model`: folder or .gguf file. `threads` 0: all cores this process may use. `kv_tokens` 0: from the memory that is free.

    `dtype`: `auto`, `float32` or `bfloat16`. On CPU `auto` is float32 whatever the checkpoint holds: it is exact for float16 and bfloat16
    weights and the fast path of most CPUs; `bfloat16` halves the memory, and is what `auto` is on a GPU. `kv_dtype`: `auto` (that of the
    arithmetic), `float32`, `bfloat16` or `fp8`. `weights`: `auto`, or `fp8` on a GPU. `deterministic`: what is computed for a row
    does not depend on what else is in its steps, by a bit. `max_context` bounds the tokens of one row
    below the model's limit. `model_shape`: a name of checkpoint.shapes instead of `model`, with `dummy_weights`. `gpu_memory_utilization`: share of
    a GPU's memory that may be used, by all that runs there. `measure_bandwidth`: report the fact `copy_bandwidth`, in bytes a second.
    """

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    deterministic: bool = False
    threads: int = 0
    kv_tokens: int = 0
    block_size: int = 16
    max_slots: int = 64
    max_step_tokens: int = 512
    max_context: int | None = None
    dummy_weights: bool = False
    model_shape: str = ""
    gpu_memory_utilization: float = 0.9
    measure_bandwidth: bool = False
