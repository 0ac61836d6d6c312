"""What transformers says, from a process of its own (its imports would meet our package names)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "oracles" / "tokenizer.py"


def ask_transformers(request: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """Skips the test when transformers is not installed (it is a development dependency)."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", str(SCRIPT), *arguments]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=110, env=environment, cwd="/")
    if "No module named 'transformers'" in done.stderr:
        pytest.skip("transformers is not installed")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
