"""`bench grammars`: what rows that follow a grammar cost a step, in a process of its own."""

import argparse
import json
import os
import shlex
import subprocess
import sys

from launcher.errors import APP_ROOT, LauncherError
from launcher.options import device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench grammars`."""
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="M", help="whose vocabulary: folder, .gguf file or name (%(default)s)")
    parser.add_argument("--device", type=device, default="cpu", metavar="D", help="where logits are: cpu (the default), cuda or cuda:N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit code of the measurement. Raises LauncherError for a model that is not there."""
    from launcher.machine import commit, machine
    from launcher.models import resolve

    path = resolve(args.model).path
    if path is None:
        raise LauncherError(f"{args.model} is not here: fetch it with `model pull {args.model}`")
    command = [sys.executable, "-P", "-m", "bench.grammars", str(path), args.device]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(APP_ROOT)}, stdout=subprocess.PIPE, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if args.json:
        print(json.dumps({"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv), "measured": lines}))
        return done.returncode
    for line in lines:
        if "rows" in line:
            print(
                f"{line['rows']:>3} rows: masks {line['masks_ms']:.3f} ms a step (p99 {line['masks_p99_ms']:.3f}), beside the device's step, "
                f"and {line['masks_core_ms']:.3f} ms of a core (p99 {line['masks_core_p99_ms']:.3f}); applied in {line['apply_ms']:.3f} ms"
            )
        else:
            print(f"vocabulary of {line['vocabulary']}: opened in {line['open_ms']:.0f} ms, a schema compiled in {line['compile_ms']:.2f} ms")
    return done.returncode
