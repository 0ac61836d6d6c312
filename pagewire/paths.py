"""Where the application's modules are: `pagewire/app` in an installed copy, the repository's root in a clone."""

from pathlib import Path


def app_root() -> Path:
    """The folder that holds launch.py and the processes' packages. Raises RuntimeError when the copy is incomplete."""
    package = Path(__file__).resolve().parent
    for folder in (package / "app", package.parent):
        if (folder / "launch.py").is_file():
            return folder
    raise RuntimeError(f"launch.py is neither in {package / 'app'} nor in {package.parent}: this copy of Pagewire is incomplete, install it again")
