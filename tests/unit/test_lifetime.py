"""How a process learns that it is to end."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASKED_AT_EVERY_LINE = """
import signal, sys
from transport.lifetime import Lifetime, ProcessArgs

lifetime = Lifetime(ProcessArgs(name="worker0", incarnation=1, run_dir="/nowhere"))

def ask(frame, event, argument):
    signal.raise_signal(signal.SIGTERM)
    return ask

sys.settrace(ask)
lifetime.stopping.set()
sys.settrace(None)
sys.exit(7 if lifetime.stopping.is_set() else 1)
"""


def test_who_is_asked_to_end_while_it_is_being_asked_does_not_wait_for_itself() -> None:
    """SIGTERM from two sides, or while a Shutdown is taken in."""
    command = [sys.executable, "-P", "-c", ASKED_AT_EVERY_LINE]
    assert subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=False).returncode == 7
