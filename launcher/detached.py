"""The supervisor of `cluster start --detach`: the same as in the foreground, told through the environment what to run."""

import os
import sys
from pathlib import Path

import msgspec

from launcher.rundir import RunDir
from launcher.start import DETACHED_VARIABLE, DetachedStart, serve


def main() -> int:
    """Take over the locked run directory and serve. Raises SystemExit when started by hand."""
    try:
        start = msgspec.json.decode(os.environ.pop(DETACHED_VARIABLE, ""), type=DetachedStart)
    except msgspec.DecodeError as error:
        raise SystemExit("this is a part of `cluster start --detach`; it is not started by hand") from error
    sys.argv[0] = start.program  # messages name the command the person typed
    for descriptor in (start.lock_fd, start.report_fd):
        os.set_inheritable(descriptor, False)
    return serve(start.options, RunDir(Path(start.folder), start.lock_fd), start.report_fd)


if __name__ == "__main__":
    sys.exit(main())
