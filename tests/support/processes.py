"""What has become of processes."""

import psutil


def is_gone(pid: int) -> bool:
    """It has ended, whether or not its parent has asked yet how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
