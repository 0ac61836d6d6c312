"""A small process for tests of the supervisor: reports like a real one, and misbehaves as it is told."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import zmq

from launcher.intake import FRONTEND
from messages.cluster import BEGUN, CHANGING, DRAINING, INTAKE, LETS_IN, LOADING, OPEN, READY, STOPPING, ClusterState
from transport.lifetime import Lifetime, ProcessArgs, read_arguments
from transport.reports import CLUSTER_FEED, Reporter
from transport.sockets import Subscription


class FakeArgs(ProcessArgs, frozen=True, kw_only=True):
    """`fail_starts`: incarnations that exit with code 3 while loading, `hang_starts` those that stop then. `deaf`: SIGTERM is ignored.

    `slow`: seconds of loading. `held`: it loads until the file `go` is in the run directory. `model` is said at the start.

    One whose name begins with "frontend" follows the cluster as a real one does, and says that it has the requests that the file `requests` in the
    run directory tells: how many, and for how many of them something has been generated.
    """

    fail_starts: tuple[int, ...] = ()
    hang_starts: tuple[int, ...] = ()
    deaf: bool = False
    slow: float = 0.0
    held: bool = False
    model: str = ""


def replace(file: Path, text: str) -> None:
    """Whoever reads it meanwhile finds the old text or the new one."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(file)


def told_to_stop(lifetime: Lifetime, seconds: float) -> bool:
    """Within so many seconds."""
    limit = time.monotonic() + seconds
    while not (stopping := lifetime.stopping.is_set()) and time.monotonic() < limit:
        time.sleep(0.02)
    return stopping


def follow(args: FakeArgs, lifetime: Lifetime, reporter: Reporter) -> None:
    """A frontend's life until it is told to end. What has begun ends when the cluster says so."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    feed: Subscription[ClusterState] = Subscription(context, args.run_dir, CLUSTER_FEED, ClusterState)
    file, lets_in, told = Path(args.run_dir, "requests"), False, (-1, False)
    while not told_to_stop(lifetime, 0.02):
        state = feed.latest()
        if state is None:
            continue
        if state.cutting:
            replace(file, "0 0")
        opened, begun = map(float, file.read_text().split()) if file.exists() else (0.0, 0.0)
        lets_in = lets_in or state.phase in (READY, DRAINING, CHANGING)
        reporter.numbers({INTAKE: float(state.intake), OPEN: opened, BEGUN: begun, LETS_IN: float(lets_in)}, {"starts": 1.0})
        if (state.intake, lets_in) != told:
            told = state.intake, lets_in
            reporter.phase(READY)
    feed.close()
    context.term()


def main() -> int:
    args = read_arguments(FakeArgs)
    lifetime = Lifetime(args)
    reporter = Reporter(args)
    print(f"{args.name} begins {args.incarnation} {args.model}".rstrip(), flush=True)
    reporter.phase(LOADING, "loading weights 43 %", 0.43)
    if args.incarnation in args.fail_starts:
        print("RuntimeError: the weights are not there", file=sys.stderr, flush=True)
        reporter.close()
        return 3
    if args.incarnation in args.hang_starts:
        os.kill(os.getpid(), signal.SIGSTOP)
    told_to_stop(lifetime, args.slow)
    while args.held and not Path(args.run_dir, "go").exists() and not told_to_stop(lifetime, 0.02):
        pass
    reporter.facts(context=64)
    reporter.numbers({}, {"starts": 1.0})
    reporter.phase(READY)
    if args.name.startswith(FRONTEND):
        follow(args, lifetime, reporter)
    else:
        told_to_stop(lifetime, math.inf)
    if args.deaf:
        time.sleep(60)
    print(f"{args.name} ends", flush=True)
    reporter.phase(STOPPING)
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
