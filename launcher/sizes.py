"""Sizes of a step that fit the device, for those that are not given."""

import argparse
from dataclasses import dataclass

from launcher.errors import LauncherError


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sequences computed at once, tokens of one step, how many of them may be of prompts, and plans in flight.

    A GPU needs thousands of tokens to be busy with a prompt, and its steps are so short that a result may take two of them to become a plan.
    """

    max_slots: int
    max_step_tokens: int
    chunk_tokens: int
    run_ahead: int


SIZES = ("max_slots", "max_step_tokens", "chunk_tokens", "run_ahead")
CPU = Sizes(max_slots=64, max_step_tokens=512, chunk_tokens=128, run_ahead=2)
GPU = Sizes(max_slots=256, max_step_tokens=8448, chunk_tokens=8192, run_ahead=3)


def sizes_from(args: argparse.Namespace) -> Sizes:
    """The sizes of `args`, None meaning the device's default. Raises LauncherError where they do not fit one another."""
    default = CPU if args.device == "cpu" else GPU
    slots = args.max_slots or default.max_slots
    step = args.max_step_tokens or max(default.max_step_tokens, slots)
    chunk = args.chunk_tokens or min(default.chunk_tokens, step)
    if chunk > step:
        raise LauncherError(f"--chunk-tokens {chunk} is over --max-step-tokens {step}: a chunk must fit in one step", 2)
    if slots > step:
        raise LauncherError(f"--max-slots {slots} is over --max-step-tokens {step}: every slot needs a token per step", 2)
    return Sizes(max_slots=slots, max_step_tokens=step, chunk_tokens=chunk, run_ahead=args.run_ahead or default.run_ahead)
