"""`.ci/audit` with a pip-audit that says what the test wants: weaknesses fail it, and nobody to ask is no weakness."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOUND: dict[str, Any] = {"name": "sound", "version": "1.0", "vulns": []}
WEAK = {"name": "weak", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (json.dumps({"dependencies": [SOUND, UNKNOWN]}), 0, "2 packages, 0 known weaknesses, nothing known about unknown"),
        (json.dumps({"dependencies": [SOUND, WEAK]}), 1, "weak 1.0: PYSEC-1, fixed in 1.1"),
        (json.dumps({"dependencies": [UNKNOWN]}), 0, "audit skipped: the index answers, but knows nothing"),
        ("", 0, "audit skipped: nobody to ask about known weaknesses: connection refused"),
    ],
)
def test_audit(tmp_path: Path, said: str, code: int, words: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "audit", tmp_path / ".ci")
    for folder in (".venv/bin", ".venv/audit/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "said").write_text(said)
    tool = tmp_path / ".venv/audit/bin/pip-audit"
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/said\necho connection refused >&2\n")
    tool.chmod(0o755)
    done = subprocess.run([tmp_path / ".ci" / "audit"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert words in done.stdout
