"""Checked values for command line options."""

import argparse
import re
from collections.abc import Callable
from typing import Any

from launcher.errors import LauncherError


def whole(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not from {low} to {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value:g} is not from {low:g} to {high:g}")
        return value

    return parse


def device(text: str) -> str:
    """An argparse type: cpu, cuda or cuda:N."""
    if text == "cpu" or re.fullmatch(r"cuda(:\d+)?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither cpu nor cuda nor cuda:N")


def add_formats(add: Callable[..., Any]) -> None:
    """The flags that say which number formats a worker computes in and keeps, each given to `add`."""
    add("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="number format of the arithmetic and of the weights in memory")
    add(
        "--kv-dtype", choices=["auto", "float32", "bfloat16", "fp8"], default="auto",
        help="number format of keys and values; fp8 takes half of bfloat16 (auto: that of the arithmetic)",
    )  # fmt: skip
    add(
        "--deterministic", action="store_true",
        help="the same bits for a request alone, in any batch, after a preemption or a crash, with or without a cached prefix; slower",
    )  # fmt: skip
    add("--weights", choices=["auto", "fp8"], default="auto", help="fp8: quantise the matrices of the layers at the start; on Ada, Hopper and newer")


def check_formats(args: argparse.Namespace) -> None:
    """Raises LauncherError for formats that the device cannot compute in, as far as that is known without looking at it."""
    if args.deterministic and args.device == "cpu" and (args.dtype == "bfloat16" or args.kv_dtype not in ("auto", "float32")):
        raise LauncherError("--deterministic on a CPU computes in float32 and keeps keys and values so: leave out --dtype and --kv-dtype", 2)
    if args.weights != "fp8":
        return
    if args.deterministic:
        raise LauncherError("--deterministic has no products with FP8 weights: leave out --weights fp8 (--kv-dtype fp8 is possible)", 2)
    if args.device == "cpu":
        raise LauncherError("--weights fp8 needs a GPU (--device cuda); on a CPU a quantised GGUF file is what is fast", 2)
    if args.dtype == "float32":
        raise LauncherError("--weights fp8 computes in bfloat16: leave out --dtype float32, or --weights", 2)


def printable(text: str) -> str:
    """An argparse type: a name of printable characters, not empty."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not a name: printable characters are needed, without line breaks")
    return text


ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,31}://(\[[0-9a-f:]+\]|[a-z0-9_.-]{1,253})(:[0-9]{1,5})?")


def origin(text: str) -> str:
    """An argparse type: an origin as browsers send it, or *."""
    if text != "*" and ORIGIN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an origin such as https://chat.example or http://localhost:3000 (no path), nor *")
    return text
