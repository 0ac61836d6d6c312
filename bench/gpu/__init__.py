"""Checks and times every GPU kernel and its variants on the machine it runs on: `python -m bench.gpu.kernels`."""
