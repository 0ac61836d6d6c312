"""What the processes of a cluster take, now and then: memory, descriptors, threads, and the gauges of those that have some. For Linux."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.cluster import Cluster

SUPERVISOR = "supervisor"
GAUGES = ("slots_used", "blocks_used", "blocks_cached", "blocks_retiring", "running", "waiting", "sequences", "preparing", "live")
MIB = 2**20
_KIB = re.compile(r"^(VmRSS|RssAnon|Threads):\s+(\d+)", re.MULTILINE)


class Take(msgspec.Struct, frozen=True):
    """Of one process. Bytes: `resident` in all, `own` of them anonymous. Pages of files, which come and go with the machine, are not."""

    pid: int
    resident: int
    own: int
    descriptors: int
    threads: int


class Sample(msgspec.Struct, frozen=True):
    """`at`: seconds since the first. `gauges`: by process and name, those of GAUGES. `requests` that have ended until then."""

    at: float
    processes: dict[str, Take]
    gauges: dict[str, dict[str, float]]
    requests: int = 0


def take(pid: int) -> Take:
    """Raises FileNotFoundError when there is no such process."""
    folder = Path("/proc") / str(pid)
    found = {name: int(number) for name, number in _KIB.findall((folder / "status").read_text())}
    if "VmRSS" not in found:
        raise FileNotFoundError(f"process {pid} has ended and is still to be waited for")
    return Take(pid, found["VmRSS"] << 10, found["RssAnon"] << 10, len(list((folder / "fd").iterdir())), found["Threads"])


def sample(cluster: Cluster, at: float, requests: int = 0) -> Sample:
    """Raises FileNotFoundError when a process has just died."""
    state = cluster.state()
    pids = {process.name: process.pid for process in state.processes if process.pid} | {SUPERVISOR: cluster.pid}
    gauges = {process.name: {name: process.gauges[name] for name in GAUGES if name in process.gauges} for process in state.processes}
    return Sample(round(at, 2), {name: take(pid) for name, pid in pids.items()}, {name: found for name, found in gauges.items() if found}, requests)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last quarter."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[:quarter]), statistics.median(values[-quarter:])


def report(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each process that lived all the time. `grown`: from the first quarter of the samples to the last."""
    names = [name for name, first in samples[0].processes.items() if all(name in found.processes for found in samples)]
    names = [name for name in names if len({found.processes[name].pid for found in samples}) == 1]
    return [_row(name, [found.at for found in samples], [found.processes[name] for found in samples]) for name in names]


def _row(name: str, at: Sequence[float], takes: Sequence[Take]) -> dict[str, Any]:
    own = [one.own / MIB for one in takes]
    (first, last), (opened, open_now) = ends(own), ends([one.descriptors for one in takes])
    slope = statistics.linear_regression(at, own).slope
    return {
        "process": name, "resident_mib": round(statistics.median(one.resident for one in takes) / MIB, 1), "own_mib": round(first, 2),
        "grown_mib": round(last - first, 2), "grown": round((last - first) / first, 4), "mib_per_hour": round(slope * 3600, 2),
        "descriptors": round(opened), "descriptors_grown": round(open_now - opened), "threads": takes[-1].threads,
    }  # fmt: skip
