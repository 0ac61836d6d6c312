"""Checked values for command line options."""

import argparse
from collections.abc import Callable


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
    """An argparse type: cpu, cuda or cuda:<index>."""
    kind, colon, index = text.partition(":")
    if kind == "cpu" and not colon:
        return text
    if kind == "cuda" and (not colon or index.isdigit()):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a device: use cpu, cuda or cuda:0")
