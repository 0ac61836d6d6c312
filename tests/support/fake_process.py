"""A small process for tests of the supervisor: reports like a real one, and misbehaves as it is told."""

import sys
import time

from messages.cluster import LOADING, READY, STOPPING
from transport.lifetime import Lifetime, ProcessArgs, read_arguments
from transport.reports import Reporter


class FakeArgs(ProcessArgs, frozen=True, kw_only=True):
    """`fail_starts`: incarnations that exit with code 3 while loading. `deaf`: SIGTERM is ignored. `slow`: seconds of loading.

    `dies_after`: exit with code 4 when it has been ready for so many seconds.
    """

    fail_starts: tuple[int, ...] = ()
    deaf: bool = False
    slow: float = 0.0
    dies_after: float | None = None


def main() -> int:
    args = read_arguments(FakeArgs)
    lifetime = Lifetime(args)
    reporter = Reporter(args)
    print(f"{args.name} begins {args.incarnation}", flush=True)
    reporter.phase(LOADING, "loading weights 43 %", 0.43)
    if args.incarnation in args.fail_starts:
        print("RuntimeError: the weights are not there", file=sys.stderr, flush=True)
        reporter.close()
        return 3
    lifetime.stopping.wait(args.slow)
    reporter.facts(context=64)
    reporter.numbers({}, {"starts": 1.0})
    reporter.phase(READY)
    if not lifetime.stopping.wait(args.dies_after):
        return 4
    if args.deaf:
        time.sleep(60)
    print(f"{args.name} ends", flush=True)
    reporter.phase(STOPPING)
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
