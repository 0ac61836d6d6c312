"""Compute kernels: no knowledge of requests. `kernels.backend` picks the set for a device; `kernels/reference` is the plain-torch set.

Shape letters used everywhere: T tokens of a step, R rows (sequences) of a step, H query heads, K key/value heads, D head size, P positions
per block, B blocks, S key positions, V vocabulary, N and M any.
"""
