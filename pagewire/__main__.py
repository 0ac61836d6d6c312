"""The `pagewire` command: launch.py of an installed copy or of a clone."""

import importlib
import sys

from pagewire.paths import app_root


def main() -> int:
    """Run launch.py's command line on sys.argv; its exit status."""
    sys.path.insert(0, str(app_root()))
    status: int | None = importlib.import_module("launch").main()
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
