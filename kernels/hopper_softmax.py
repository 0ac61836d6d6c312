"""One step of the online softmax (Milakov and Gimelshein, 2018) of the Hopper kernels: the same instructions in all of them."""

# mypy: disallow-untyped-decorators=False

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def fold(s: gl.tensor, best: gl.tensor, total: gl.tensor, qk_scale: gl.tensor) -> gl.tuple:
    """Weights of the scores `s` [rows, keys], and the rows' new largest score and sum of weights, and what the old sums have shrunk by.

    `best` and scores times `qk_scale` are logarithms to the base 2. A score may be minus infinity, not all of a row's first ones.
    """
    higher = gl.maximum(best, gl.max(s, 1) * qk_scale)
    weight = gl.exp2(s * qk_scale - higher[:, None])
    shrink = gl.exp2(best - higher)
    return weight, higher, total * shrink + gl.sum(weight, 1), shrink
