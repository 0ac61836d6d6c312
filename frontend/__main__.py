"""`python -m frontend`, started by launch.py with its arguments in the environment."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from frontend.args import FrontendArgs
from frontend.responses.journal_file import JournalError
from frontend.server import Server
from transport.lifetime import Lifetime, read_arguments, set_up_logging
from transport.tls import TlsError


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, else asyncio's own."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def main() -> None:
    args = read_arguments(FrontendArgs)
    set_up_logging(args)
    lifetime = Lifetime(args)

    async def run() -> None:
        await Server(args, lifetime).serve()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(run())
        except TlsError as error:
            logging.getLogger("frontend").error("%s", error)
            raise SystemExit(1) from error
        except JournalError as error:
            logging.getLogger("frontend").error("--journal: %s", error)
            raise SystemExit(1) from error
        except OSError as error:
            logging.getLogger("frontend").error("cannot listen on %s port %d: %s", args.host, args.port, error.strerror or error)
            raise SystemExit(1) from error


if __name__ == "__main__":
    main()
