"""The real scheduler without a cluster: `launch.py simulate` on a virtual clock, `launch.py bench scheduler` for its CPU time. No torch."""
