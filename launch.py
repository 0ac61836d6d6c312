"""Pagewire's one command: start, watch and stop a cluster, talk to it, look after its models. `python launch.py --help` lists it all."""

import sys

from launcher.cli import main as run
from launcher.errors import APP_ROOT, program


def main() -> int:
    """Run the command line; its exit code. A dependency that is not installed is named in one sentence."""
    try:
        return run()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not module or (APP_ROOT / module).exists():
            raise
        advice = "install it again" if program() == "pagewire" else "`make serve` sets up .venv; then run: .venv/bin/python launch.py ..."
        print(f"error: the module {module} is not installed for {sys.executable}; {advice}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
