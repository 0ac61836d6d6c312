"""schemathesis against a whole cluster: no 5xx, no answer that /openapi.json does not describe. Install it in an environment of its own.

usage, from the root of the repository: python -m tests.clients.fuzz_api PATH/TO/schemathesis [SECONDS]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import ROOT, running_cluster

SECONDS = 30
# What a schema cannot say (fields that exclude one another, prompts that are too long), and DELETE of a request, which cancels and does not forget.
EXCLUDED = "positive_data_acceptance,use_after_free"


def main() -> int:
    program, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        maker = ROOT / "tests" / "fixtures" / "make_fixtures.py"
        subprocess.run([sys.executable, str(maker), folder], check=True, capture_output=True)
        with running_cluster(Path(folder) / "dice-byte", "--max-context", "256") as cluster:
            options = ["--max-time", str(seconds), "--exclude-checks", EXCLUDED, "--request-timeout", "60"]
            done = subprocess.run([program, "run", f"{cluster.url}/openapi.json", *options], cwd=folder, check=False)
            if "Traceback" in cluster.log():
                print(cluster.log())
                return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
