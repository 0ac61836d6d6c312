"""The number formats a person can ask for, by name: of the arithmetic, of the weights in memory, of keys and values."""

import torch

from kernels.reference.fp8 import E4M3

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = {**DTYPES, "fp8": E4M3}
WEIGHTS = ("auto", "fp8")
FP8_CAPABILITY = (8, 9)
"""Ada and Hopper are the first that convert and multiply FP8."""


def resolve_dtype(name: str, device: torch.device = CPU) -> torch.dtype:
    """The compute type; `auto` is float32 on CPU and bfloat16 elsewhere. Raises ValueError with the choices."""
    if name == "auto":
        return torch.float32 if device == CPU else torch.bfloat16
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def resolve_kv_dtype(name: str, dtype: torch.dtype, device: torch.device = CPU) -> torch.dtype:
    """The type of keys and values in memory; `auto` is the compute type `dtype`. Raises ValueError with what to do."""
    if name == "auto":
        return dtype
    if name not in KV_DTYPES:
        raise ValueError(f"kv dtype {name!r} is not one of auto, {', '.join(KV_DTYPES)}")
    if name == "fp8":
        _require_fp8("--kv-dtype fp8", device)
    return KV_DTYPES[name]


def resolve_weights(name: str, dtype: torch.dtype, device: torch.device = CPU, deterministic: bool = False) -> bool:
    """Whether the matrices become FP8; `auto`: they stay as they are. Raises ValueError with what to do."""
    if name not in WEIGHTS:
        raise ValueError(f"weights {name!r} is not one of {', '.join(WEIGHTS)}")
    if name == "auto":
        return False
    if deterministic:
        raise ValueError("--deterministic has no products with FP8 weights: leave out --weights fp8")
    if device == CPU:
        raise ValueError("--weights fp8 needs a GPU: a CPU would expand them for every product; a quantised GGUF file is what is fast there")
    if dtype != torch.bfloat16:
        raise ValueError("--weights fp8 computes in bfloat16: leave out --dtype, or the weights as they are")
    _require_fp8("--weights fp8", device)
    return True


def check_deterministic(dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device) -> None:
    """Raises ValueError when a device has no kernels of one order for these types."""
    if device.type == "cpu" and (dtype, kv_dtype) != (torch.float32, torch.float32):
        raise ValueError("--deterministic on a CPU computes in float32 and keeps keys and values so: leave out --dtype and --kv-dtype")


def _require_fp8(flag: str, device: torch.device) -> None:
    """A CPU converts by table or arithmetic; a GPU must have the instructions."""
    if device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(device)
    if found < FP8_CAPABILITY:
        name, needed = torch.cuda.get_device_name(device), ".".join(map(str, FP8_CAPABILITY))
        raise ValueError(f"{flag} needs a GPU of compute capability {needed} or newer (Ada, Hopper); {name} has {found[0]}.{found[1]}: leave it out")
