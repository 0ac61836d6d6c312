"""`cluster drain` and `cluster resume`: no new requests, and all others finish; and the same before a stop."""

import argparse
import sys
import time
from collections.abc import Callable

from launcher.control import ask
from launcher.errors import LauncherError, program
from launcher.intake import unfinished
from launcher.progress import StatusLine
from launcher.rundir import Cluster, choose_cluster, is_live
from messages.change import Declined, DrainCommand, FinishCommand, ResumeCommand
from messages.cluster import ClusterState, Command, StatusQuery
from transport.clock import Clock

POLL_SECONDS = 0.1
NOT_YET = 3
"""The exit code when time ran out."""


def run_drain(args: argparse.Namespace) -> int:
    """Entry point of `cluster drain`: 0 when nothing runs any more, 3 when something still did after `--wait`, 1 when it could not be done."""
    cluster = choose_cluster(args.port)
    if not drain(cluster, args.wait):
        return NOT_YET
    print(f"drained: the cluster on port {cluster.info.port} takes no requests until: {program()} cluster resume")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Entry point of `cluster resume`: 0 when requests are taken (again)."""
    cluster = choose_cluster(args.port)
    state = commanded(cluster, ResumeCommand())
    if state.draining and state.change is not None:
        raise LauncherError(f"requests are refused until the {state.change.kind} is over")
    print(f"the cluster on port {cluster.info.port} takes requests" + ("" if state.ready else f", but is not ready: {state.reason}"))
    return 0


def drain(cluster: Cluster, wait: float | None) -> bool:
    """Refuse new requests and wait for all others, at most `wait` seconds; whether they have finished. Raises LauncherError."""
    commanded(cluster, DrainCommand())

    def finished(state: ClusterState) -> str | None:
        if state.stop_seconds is not None:
            raise LauncherError("the cluster was stopped meanwhile")
        if not state.draining:
            raise LauncherError("the cluster takes requests again: somebody has resumed it")
        left = unfinished(state.processes, state.intake)
        return None if left is not None and not left else f"draining: {left or 'asking the frontends'}"

    try:
        return waited(cluster, wait, finished)
    except KeyboardInterrupt:
        print(f"the cluster on port {cluster.info.port} goes on draining; it takes requests again with: {program()} cluster resume", file=sys.stderr)
        raise


def finish(cluster: Cluster, wait: float | None) -> bool:
    """Have it refuse new requests and stop once all others have finished or had `wait` seconds. Comes back when it stops; whether they had finished.

    Nothing takes that back. Raises LauncherError.
    """
    line, clock = StatusLine(), Clock()
    began, state = clock.now, commanded(cluster, FinishCommand(wait=wait))
    try:
        while state.stop_seconds is None:
            line.show(state.reason)
            time.sleep(POLL_SECONDS)
            clock.look()
            state = commanded(cluster, StatusQuery())
        return state.drained
    except LauncherError:
        if is_live(cluster.folder):
            raise
        left = unfinished(state.processes, state.intake)  # it was not seen how it stopped, only when, and what there was shortly before
        return (wait is None or clock.now - began < wait) and left is not None and not left
    except KeyboardInterrupt:
        what = f"the cluster on port {cluster.info.port} still finishes its requests and stops then"
        print(f"{what}; it stops sooner with: {program()} cluster stop", file=sys.stderr)
        raise
    finally:
        line.clear()


def commanded(cluster: Cluster, command: Command) -> ClusterState:
    """The state after a command. Raises LauncherError when it is declined."""
    answer = ask(cluster.folder, command)
    if isinstance(answer, Declined):
        raise LauncherError(answer.reason)
    if not isinstance(answer, ClusterState):
        raise LauncherError("the supervisor answered with something that is no state")
    return answer


def waited(cluster: Cluster, wait: float | None, missing: Callable[[ClusterState], str | None]) -> bool:
    """Whether nothing is `missing` any more, which is shown meanwhile. Raises LauncherError, also when the cluster goes away."""
    line, clock = StatusLine(), Clock()
    ends = None if wait is None else clock.now + wait
    try:
        while (text := missing(commanded(cluster, StatusQuery()))) is not None:
            line.show(text)
            if ends is not None and clock.look() >= ends:
                return False
            time.sleep(POLL_SECONDS)
    finally:
        line.clear()
    return True
