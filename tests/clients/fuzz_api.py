"""schemathesis against a whole cluster: no 5xx, no answer that /openapi.json does not describe.

usage, from the root of the repository: python -m tests.clients.fuzz_api [SECONDS]
"""

import subprocess
import sys

from tests.clients.tools import program, served

SECONDS = 30
# What a schema cannot say (fields that exclude one another, prompts that are too long), and DELETE of a request, which cancels and does not forget.
EXCLUDED = "positive_data_acceptance,use_after_free"


def fuzz(seconds: int) -> int:
    """The exit code of schemathesis: 0 when it found nothing. Raises SystemExit when the cluster logged a traceback."""
    schemathesis = program("schemathesis", "schemathesis")
    with served("dice-byte", "--max-context", "256") as (cluster, folder):
        options = ["--max-time", str(seconds), "--exclude-checks", EXCLUDED, "--request-timeout", "60"]
        command = [str(schemathesis), "run", f"{cluster.url}/openapi.json", *options]
        return subprocess.run(command, cwd=folder, timeout=seconds + 300, check=False).returncode


if __name__ == "__main__":
    sys.exit(fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
