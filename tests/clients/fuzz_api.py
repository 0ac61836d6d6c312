"""schemathesis against a whole cluster: no 5xx, no answer that /openapi.json does not describe.

usage, from the root of the repository: python -m tests.clients.fuzz_api [SECONDS]
"""

import subprocess
import sys
import tempfile

from tests.clients.tools import program, served

SECONDS = 30
# What a schema cannot say (fields that exclude one another, prompts that are too long), and DELETE of a request, which cancels and does not forget.
EXCLUDED = "positive_data_acceptance,use_after_free"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
"""For any role, so that conversations made at random are answered."""
CONTEXT = 128
"""Short, since most requests made at random name no `max_tokens`."""
EXPECTED = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", 504]\n'
"""504 is the answer to a request with a `timeout` of a millisecond."""
PARTS = ("fuzzing,stateful", "coverage")
"""Phases of schemathesis, which share the time equally: in order, the last would have none of a short one."""


def fuzz(seconds: int, seed: int | None = None) -> int:
    """How many of its parts found something. Raises SystemExit when the cluster logged a traceback.

    With a `seed` the requests are the same each time, as far as the time goes.

    With one worker: in several threads of Python 3.11 its own syntax trees fail now and then.
    """
    schemathesis = program("schemathesis", "schemathesis")
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        with served("dice-byte", "--max-context", str(CONTEXT), "--chat-template", template.name) as (cluster, folder):
            (folder / "schemathesis.toml").write_text(EXPECTED)
            options = ["--max-time", str(max(1, seconds // len(PARTS))), "--exclude-checks", EXCLUDED, "--request-timeout", "60", "--workers", "1"]
            options += [] if seed is None else ["--seed", str(seed)]
            command = [str(schemathesis), "run", f"{cluster.url}/openapi.json", *options]
            runs = [[*command, "--phases", phases, "--max-examples", str(1 + seconds // 4)] for phases in PARTS]
            return sum(subprocess.run(run, cwd=folder, timeout=seconds + 300, check=False).returncode != 0 for run in runs)


if __name__ == "__main__":
    sys.exit(fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
