"""Fixtures shared by all tests: the tiny models, the real model, a run directory, ports."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

ROOT = Path(__file__).resolve().parent.parent
MAKER = ROOT / "tests" / "fixtures" / "make_fixtures.py"


# Before numpy and torch are imported: their threads wait for each other by turning, which on shared cores takes many times longer than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# What somebody may have set for himself would change what is tested. Of proxies the model's download may need one, and nothing of this machine does.
for name in [name for name in os.environ if name.startswith("OTEL_") or name == "PAGEWIRE_API_KEY"]:
    del os.environ[name]
os.environ |= {"COLUMNS": "80", "LINES": "24"}
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

# Each run tries the same examples, however busy the machine is. `--hypothesis-profile=fresh` has new ones, with `--hypothesis-seed=N` those of N.
settings.register_profile("fresh", derandomize=False, deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("same")

# Hypothesis also tries what constants it finds in those of our modules that are imported: what is tried would hang on which tests run beside it.
_constants_of_ours = providers._get_local_constants
providers._get_local_constants = lambda: Constants() if settings().derandomize else _constants_of_ours()


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
