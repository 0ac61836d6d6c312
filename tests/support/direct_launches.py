"""Launches that go around Triton's binder against those through it. Run as a script, without TRITON_INTERPRET; needs no GPU.

Prints `keys N` for N pairs of argument lists of one key, and `calls NAME` for every kernel whose calls were compared.
"""

import random
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.jit import compute_cache_key

from kernels import attention, direct, hopper_prefill, mlp, norm, resident
from kernels.hopper import cells_of
from kernels.launch import launch
from tests.support.no_gpu import Started, launches_noted

PAIRS = 3000
BYTES = torch.zeros(1 << 12, dtype=torch.uint8)
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
INTEGERS = (0, 1, 2, 15, 16, 17, 32, -1, -16, 2**31 - 1, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1, 2**40, 2**63 - 1, 2**63, 2**63 + 1)
CACHES = [torch.zeros(9, 8, 16, size, dtype=dtype) for size in (64, 128) for dtype in (torch.bfloat16, torch.float16)]


@triton.jit(do_not_specialize=["b", "e"], do_not_specialize_on_alignment=["c", "f"])
def _sample(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, X: triton.language.constexpr, Y: triton.language.constexpr) -> None:
    pass


def some_argument(random: random.Random) -> Any:
    kind = random.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return random.random()
    if kind == 2:
        return random.random() < 0.5
    if kind == 3:
        return cells_of(random.choice(CACHES))
    if kind < 6:
        dtype = random.choice(DTYPES)
        return BYTES[random.choice((0, 8, 16, 24)) :][: 16 * dtype.itemsize].view(dtype)
    return random.choice(INTEGERS)


def keys_of(arguments: list[Any], settings: dict[str, Any]) -> tuple[Any, Any]:
    """Ours, and Triton's."""
    *_, binder = _sample.device_caches[0]
    _, specialization, options = binder(*arguments, **settings)
    described = direct.describe(tuple(arguments))
    assert described is not None
    return (described[0], *direct.settings_key(settings)), compute_cache_key({}, specialization, options)


def compare_keys() -> None:
    """Two lists that differ in a few arguments: with one key for us they are one kernel for Triton."""
    chosen, same = random.Random(5), 0
    for _ in range(PAIRS):
        first = [some_argument(chosen) for _ in range(6)]
        second = [value if chosen.random() < 0.8 else some_argument(chosen) for value in first]
        options = [{"X": chosen.choice((1, 2, True, 1.0)), "Y": False, "num_warps": chosen.choice((1, 4))} for _ in range(2)]
        if chosen.random() < 0.8:
            options[1] = options[0]
        ours, theirs = zip(keys_of(first, options[0]), keys_of(second, options[1]), strict=True)
        assert ours[0] != ours[1] or theirs[0] == theirs[1], (first, second, options)
        same += ours[0] == ours[1]
    assert PAIRS > same > PAIRS // 50
    print("keys", same)


def plain(value: Any) -> Any:
    """An argument as the function in C sees it: addresses, and nothing for hooks that do nothing."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, (list, tuple)):
        return tuple(plain(part) for part in value)
    return None if isinstance(value, (triton.knobs.HookChain, triton.compiler.compiler.LazyDict)) else value


def compare_calls(started: Started, name: str, run: Any) -> None:
    """What the first launch does, through Triton, the second does too. Constants may be missing from the second: nobody reads them."""
    started.calls.clear()
    run()
    run()
    first, second = (flat(plain(call)) for call in started.calls)
    differing = [(ours, theirs) for theirs, ours in zip(first, second, strict=True) if ours != theirs]
    assert all(ours is None for ours, _ in differing), differing
    assert len(differing) <= 8, differing
    print("calls", name)


def flat(value: Any) -> list[Any]:
    return [part for each in value for part in flat(each)] if isinstance(value, tuple) else [value]


def main() -> None:
    assert not triton.knobs.runtime.interpret
    assert direct.STYLE is not None, triton.__version__
    started = launches_noted(setattr)
    compare_keys()
    x, out = torch.zeros(5, 64, dtype=torch.bfloat16), torch.zeros(5, 64, dtype=torch.bfloat16)
    weight = x[0]
    settings: dict[str, Any] = {"N": 64, "BLOCK": 64, "ADD": False, "num_warps": 1}
    compare_calls(started, "_norm", lambda: launch(norm._norm, (5,), 5, x, None, weight, out, 1e-6, **settings))
    compare_calls(started, "_norm late", lambda: launch(norm._norm, (1,), 1, x, None, weight, out, 1e-6, **settings))
    compare_calls(started, "_silu_mul", lambda: launch(mlp._silu_mul, (5, 1), 5, x, out, N=32, BLOCK=32, num_warps=4))
    pairs = torch.zeros(2, 21, dtype=torch.int32)
    compare_calls(started, "_write", lambda: resident.write_words(pairs[0], pairs))
    assert started.calls[0][0] == started.calls[1][0] == 1
    cache, q = CACHES[2], torch.zeros(7, 16, 128, dtype=torch.bfloat16)
    plan = attention.plan_attention(torch.zeros(1, 9, dtype=torch.int32), [9], [7], 0, 16, 8, 16)
    where = plan.table, plan.slot, plan.position, plan.tiles
    compare_calls(started, "_hopper_prefill", lambda: hopper_prefill.prefill(q, cache, cache, *where, 0.1, q))
    triton.knobs.runtime.launch_enter_hook.add(lambda metadata: print("hook", metadata.get()["name"]))
    started.calls.clear()
    resident.write_words(pairs[0], pairs)
    assert isinstance(started.calls[0][-1], tuple) or started.calls[0][11] is triton.knobs.runtime.launch_enter_hook


if __name__ == "__main__":
    main()
