"""Other people's programs, each in an environment of its own inside the one that runs this, and what they are pointed at."""

import contextlib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.support.cluster import ROOT, Cluster, running_cluster

LOCKS = Path(__file__).resolve().parent
ENVIRONMENTS = Path(sys.prefix) / "clients"
STAMP = "installed.lock"
INSTALL_SECONDS = 1800.0


def program(tool: str, name: str) -> Path:
    """The program `name` of the environment of `tool`, which holds what `<tool>.lock` names. It is made, with pip, when that has changed.

    Raises CalledProcessError when pip cannot.
    """
    folder, wanted = ENVIRONMENTS / tool, (LOCKS / f"{tool}.lock").read_text()
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", "-r", str(LOCKS / f"{tool}.lock")]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(wanted)
    return folder / "bin" / name


@contextlib.contextmanager
def served(fixture: str, *options: str) -> Iterator[tuple[Cluster, Path]]:
    """A cluster on one of the tiny checkpoints, and a new folder that has them all. Its log must be without a traceback at the end."""
    with tempfile.TemporaryDirectory(prefix="pw-") as name:
        folder = Path(name)
        maker = ROOT / "tests" / "fixtures" / "make_fixtures.py"
        subprocess.run([sys.executable, str(maker), name], check=True, capture_output=True)
        with running_cluster(folder / fixture, *options) as cluster:
            yield cluster, folder
            if "Traceback" in cluster.log():
                raise SystemExit(cluster.log())


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a program that is to see nothing of ours."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), **more}
