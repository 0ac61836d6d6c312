"""What Triton's interpreter accepts its compiler may not: every kernel compiles for an H200, which needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.devices import GPU

ROOT = Path(__file__).resolve().parents[2]


def compiled(script: str, cache: Path) -> list[str]:
    """First words of the lines that the script prints."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        "TRITON_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", str(ROOT / "tests" / "support" / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split()[0] for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_kernel_compiles(tmp_path: Path) -> None:
    names = set(compiled("compile_kernels.py", tmp_path))
    wanted = "_norm _silu_mul _quantise _narrow _gemv _few _skinny _ring _rope_kv _prefill _decode _merge _row _scan _scan_groups gather settle _draw"
    assert names >= {*wanted.split(), "_share_out", "_mask"}


@pytest.mark.slow
def test_every_hopper_kernel_compiles(tmp_path: Path) -> None:
    """The Gluon kernels, for which there is no interpreter."""
    assert set(compiled("compile_hopper.py", tmp_path)) == {"_hopper_prefill", "_hopper_decode", "_hopper_rows", "_in_order"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rehearsal_knows_what_a_worker_needs(tmp_path: Path) -> None:
    """Before there are weights, and in the order in which steps need them: first what a short prompt takes. Other steps need no others."""
    names = compiled("rehearse_kernels.py", tmp_path)
    assert "late" not in names
    wanted = "_norm _silu_mul _gemv _skinny _rope_kv _hopper_prefill _hopper_decode _merge _scan gather settle _draw _mask"
    assert set(names) >= set(wanted.split())
    assert names.index("_hopper_prefill") < names.index("_gemv") < names.index("settle")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.timeout(300)
def test_nothing_is_compiled_after_the_rehearsal(tmp_path: Path) -> None:
    assert compiled("late_kernels.py", tmp_path) == []
