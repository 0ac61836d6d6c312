"""`cluster cancel`: end requests, by their names or all of them."""

import argparse
import sys
from urllib.parse import quote

from launcher.client import ServerError, own_cluster
from launcher.errors import LauncherError
from launcher.rundir import choose_cluster

PATIENCE_SECONDS = 15.0
NOT_FOUND = 404


def run(args: argparse.Namespace) -> int:
    """Entry point: 0 when everything that was named has ended. Raises LauncherError."""
    if args.all == bool(args.request):
        raise LauncherError("name the requests to cancel, or give --all", code=2)
    client = own_cluster(choose_cluster(args.port), PATIENCE_SECONDS)
    if args.all:
        told = client.delete("/v1/requests")
        number, silent = told["cancelled"], told["unanswered"]
        print(f"cancelled {number} request{'' if number == 1 else 's'}")
        if silent:
            print(f"no answer from {', '.join(silent)}: what runs there ends when it goes on", file=sys.stderr)
        return int(bool(silent))
    missing = 0
    for name in args.request:
        try:
            card = client.delete(f"/v1/requests/{quote(name, safe='')}")
        except ServerError as error:
            if error.status != NOT_FOUND:
                raise
            missing += 1
            print(f"{name}: no such request runs or has ended lately")
            continue
        print(f"{card['id']}: {card['state']}")
    return int(missing > 0)
