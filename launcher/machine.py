"""What a figure was measured on: this machine, its software and the commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from launcher.errors import APP_ROOT


def machine() -> dict[str, Any]:
    """CPU, cores this process may use, memory in GiB, system, Python and torch."""
    import psutil

    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
    }


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The CPU's name as the kernel tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The clone's commit, with `+` when files differ from it; None outside a clone."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=APP_ROOT, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
