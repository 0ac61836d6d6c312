"""aiperf, unmodified, against a whole cluster: chat and text completions, streamed, four at a time; no request may fail.

usage, from the root of the repository: python -m tests.clients.aiperf_run
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.tools import environment, program, served

REQUESTS = 40
TOKENS = 16
KINDS = ("chat", "completions")


def run(aiperf: Path, url: str, model: Path, kind: str, folder: Path) -> dict[str, Any]:
    """What it says of one run."""
    out = folder / kind
    command = [
        str(aiperf), "profile", "--model", model.name, "--url", url, "--endpoint-type", kind, "--streaming",
        "--tokenizer", str(model), "--request-count", str(REQUESTS), "--concurrency", "4", "--synthetic-input-tokens-mean", "50",
        "--output-tokens-mean", str(TOKENS), "--extra-inputs", "ignore_eos:true", "--artifact-dir", str(out), "--ui", "none",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"aiperf failed:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads((out / "profile_export_aiperf.json").read_text())
    return report


def main() -> int:
    wrong, aiperf = 0, program("aiperf", "aiperf")
    with served("rand-byte") as (cluster, folder):
        for kind in KINDS:
            found = run(aiperf, cluster.url, folder / cluster.model, kind, folder)
            count, errors, tokens = found["request_count"]["avg"], found["error_summary"], found["usage_completion_tokens"]
            print(f"{kind}: {count:.0f} of {REQUESTS} answered, {len(errors)} kinds of error, tokens {tokens['min']:.0f} to {tokens['max']:.0f}")
            for error in errors[:1]:
                print(json.dumps(error))
            wrong += count != REQUESTS or bool(errors) or not tokens["min"] == tokens["max"] == TOKENS
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
