"""Kernels whose result for a row is the same bits whatever else is in the step: other rows, how many, and whether a token is decoded or prefilled.

Every sum has one order. Products add up along the depth in steps of one instruction, from the first to the last, in one accumulator, whatever the
tiles in rows and columns are. Attention looks at the keys in tiles that begin at multiples of one size, from position 0 on (or from the tile of
a window's first key), with one online softmax and nothing shared out. A tile that a token sees nothing of changes nothing.
"""
