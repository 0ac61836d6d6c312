"""`cluster status` and `cluster stop`: talk to a running supervisor over its control socket."""

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import Any

import msgspec
import psutil

from launcher.control import ask
from launcher.drain import NOT_YET, finish
from launcher.errors import LauncherError
from launcher.live import live_requests, requests_table
from launcher.progress import StatusLine
from launcher.rundir import Cluster, choose_cluster, is_live, running_clusters
from messages.cluster import SAMPLE, SCHEDULER_NAME, ClusterState, ProcessState, StatusQuery, StopCommand, Stopping
from transport.clock import Clock

STOP_SECONDS = 10.0
CUT_SECONDS = 2.0
"""For frontends to end what has not finished when it was waited for."""
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05


def run_status(args: argparse.Namespace) -> int:
    """Entry point of `cluster status`: 0 when the cluster is ready, 3 when it runs but is not ready, 1 when none runs."""
    if args.json and not any(args.port in {None, cluster.info.port} for cluster in running_clusters()):
        print('{"running": false}')
    cluster = choose_cluster(args.port)
    state = query(cluster)
    requests = live_requests(cluster, state)
    if args.json:
        document = {**status_document(cluster, state), "requests": requests and requests["data"]}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        parts = [status_table(cluster, state), requests_table(requests) if requests else ""]
        print("\n\n".join(part for part in parts if part))
    return 0 if state.ready else 3


def query(cluster: Cluster) -> ClusterState:
    """The supervisor's view now. Raises LauncherError when it does not answer."""
    answer = ask(cluster.folder, StatusQuery())
    if not isinstance(answer, ClusterState):
        raise LauncherError("the supervisor answered with something that is no status")
    return answer


def status_document(cluster: Cluster, state: ClusterState) -> dict[str, Any]:
    """What `cluster status --json` prints. A process that is dead has the pid null."""
    told = msgspec.to_builtins(state)
    for process in told["processes"]:
        process["pid"] = process["pid"] or None
        for numbers in ("gauges", "counters", "past"):
            process[numbers] = {name: value for name, value in process[numbers].items() if not name.startswith(SAMPLE)}
    return {
        "running": True,
        "url": cluster.info.url,
        "port": cluster.info.port,
        "pid": cluster.info.pid,
        "run_dir": str(cluster.folder),
        "uptime": round(time.time() - state.started, 3),
        **{key: value for key, value in told.items() if key != "type"},
    }


def status_table(cluster: Cluster, state: ClusterState) -> str:
    """What `cluster status` prints: a line about the cluster, a table of processes, two lines about work."""
    phase = "ready" if state.ready else f"{state.phase} ({state.reason})"
    rows = [("PROCESS", "PID", "PHASE", "HEARD", "RESTARTS", "DETAIL")]
    rows += [(p.name, str(p.pid or "-"), p.phase, f"{p.age:.1f} s", str(p.restarts), p.detail) for p in state.processes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    head = f"{state.model} at {cluster.info.url}: {phase}, up {duration(time.time() - state.started)}, supervisor pid {cluster.info.pid}"
    if state.change is not None and state.change.error:
        head += f"\nthe last {state.change.kind}, to {state.change.model}, failed: {state.change.error}"
    work = work_lines(state.processes)
    return f"{head}\n\n{table}" + (f"\n\n{work}" if work else "")


def work_lines(processes: list[ProcessState]) -> str:
    """Slots, queue, blocks and context on one line, cache and preemptions on another; empty until the scheduler has its worker."""
    scheduler = next((process for process in processes if process.name == SCHEDULER_NAME), None)
    if scheduler is None or "blocks" not in scheduler.facts:
        return ""
    facts, gauges = scheduler.facts, scheduler.gauges

    def count(name: str) -> str:
        return f"{gauges.get(name, 0):.0f}"

    slots = f"slots {count('slots_used')} of {facts.get('slots', 0)} in use"
    queue = f"queue {count('waiting')} ({count('waiting_tokens')} tokens)"
    blocks = f"blocks {count('blocks_used')} of {facts['blocks']} in use ({facts.get('block_size', 0)} tokens each), {count('blocks_cached')} cached"
    return f"{slots}, {queue}, {blocks}, context {facts.get('context', 0)} tokens\n{_cache_line(scheduler.lifetime())}"


def _cache_line(counters: dict[str, float]) -> str:
    looked_up, found = counters.get("prefix_queries", 0.0), counters.get("prefix_hits", 0.0)
    share = f"{found / looked_up:.0%} of {looked_up:,.0f} prompt tokens found" if looked_up else "nothing looked up"
    preempted, evicted = counters.get("preemptions", 0.0), counters.get("evicted_blocks", 0.0)
    return f"prefix cache: {share}, {evicted:,.0f} blocks evicted; preemptions {preempted:,.0f}"


def duration(seconds: float) -> str:
    """'42 s', '3 min 5 s', '2 h 10 min'."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_stop(args: argparse.Namespace) -> int:
    """Entry point of `cluster stop`: 0 when every process of the cluster has ended; 3 when requests were cut off that it was to wait for."""
    cluster = choose_cluster(args.port)
    if not args.drain:
        _stop(cluster, STOP_SECONDS if args.timeout is None else args.timeout)
        return 0
    finished = finish(cluster, args.timeout)
    _await_end(cluster, cluster.info.pid, CUT_SECONDS)
    return 0 if finished else NOT_YET


def _stop(cluster: Cluster, timeout: float) -> None:
    try:
        answer = ask(cluster.folder, StopCommand(deadline=timeout))
        pid = answer.pid if isinstance(answer, Stopping) else cluster.info.pid
    except LauncherError:
        pid = cluster.info.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    _await_end(cluster, pid, timeout)


def _await_end(cluster: Cluster, pid: int, timeout: float) -> None:
    """Until it and its supervisor are gone. Raises LauncherError when that takes GRACE_SECONDS longer than `timeout`."""
    line, clock = StatusLine(), Clock()
    started = clock.now
    while is_live(cluster.folder) or _is_running(pid):
        waited = clock.look() - started
        if waited > timeout + GRACE_SECONDS:
            line.clear()
            raise LauncherError(f"the cluster on port {cluster.info.port} has not ended after {waited:.0f} s; end it by force with: kill -9 {pid}")
        if waited > 1.0:
            line.show(f"waiting for running requests and processes to end: {waited:.0f} s", "waiting for running requests and processes to end")
        time.sleep(POLL_SECONDS)
    line.clear()
    print(f"stopped the cluster on port {cluster.info.port} ({cluster.info.model})")
