"""`bench kernels`: every GPU kernel checked and timed, in a process of its own, beside the bandwidth measured in the same run."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys

from launcher.errors import APP_ROOT, LauncherError
from launcher.options import number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench kernels`."""
    parser.add_argument("--only", metavar="REGEX", help="cases in whose part/name this is found; parts: small, attention, products")
    parser.add_argument("--seconds", type=number(1, 86400), default=200.0, metavar="S", help="try no further variants after so long (200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the table goes to standard error")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 done, 1 a kernel is wrong with the settings in use, 2 without a GPU or a case. Raises LauncherError for a bad expression."""
    from launcher.machine import commit, machine

    if args.only is not None:
        try:
            re.compile(args.only)
        except re.error as error:
            raise LauncherError(f"--only {args.only!r} is no regular expression: {error}", 2) from error
    given = [*(["--only", args.only] if args.only is not None else []), *(["--json"] if args.json else [])]
    command = [sys.executable, "-P", "-m", "bench.gpu.kernels", "--seconds", str(args.seconds), *given]
    environment = os.environ | {"PYTHONPATH": str(APP_ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE if args.json else None, text=True, check=False)
    if args.json and done.stdout:
        report = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv)} | json.loads(done.stdout)
        print(json.dumps(report))
    return done.returncode
