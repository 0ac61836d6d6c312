"""`python -P -m scheduler`: started by launch.py."""

from scheduler.args import SchedulerArgs
from scheduler.service import Service
from transport.lifetime import Lifetime, read_arguments, set_up_logging


def main() -> None:
    args = read_arguments(SchedulerArgs)
    set_up_logging(args)
    Service(args, Lifetime(args)).run()


if __name__ == "__main__":
    main()
