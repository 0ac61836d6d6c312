"""Fixtures shared by all tests: the tiny models, the real model, a run directory, ports."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKER = ROOT / "tests" / "fixtures" / "make_fixtures.py"


# Before numpy and torch are imported: their threads wait for each other by turning, which on shared cores takes many times longer than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny checkpoints (chain-byte, dice-byte, histo-byte, rand-byte, histo-headdim-byte, and -spm twins)."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(MAKER), str(folder)], check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's .gguf file, fetched into the model cache when it is not there."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), "model", "pull", "smollm2-135m-instruct"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A private directory with a path short enough for UNIX sockets."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        os.chmod(folder, 0o700)
        yield Path(folder)
