"""Pagewire's one command: start, watch and stop a cluster, talk to it, look after its models. `python launch.py --help` lists it all."""

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
