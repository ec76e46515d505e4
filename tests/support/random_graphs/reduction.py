"""Norms, reductions, softmax, running sums."""

import numpy as np

import hexane as hx
from random_graphs.graph import RandomGraph, Unfit

REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")
SMOOTH_REDUCTIONS = (
    "reduce_mean", "reduce_sum_square", "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum_exp", "reduce_prod",
)  # fmt: skip


def norm(g: RandomGraph) -> None:
    if g.exact:
        raise Unfit
    which = g.pick(("batch_norm", "batch_norm", "instance_norm", "layer_norm", "rms_norm", "lrn"))
    x = g.of_rank(3, 5) if which == "instance_norm" else g.of_rank(2, 5)
    eps = float(g.pick((1e-5, 1e-3, 0.5)))
    if which == "batch_norm":
        axis = 1 if g.coin(0.7) else g.integer(0, len(x.shape))
        c = (x.shape[axis],)
        positive = g.weight(c, array=np.abs(g.values(c)) + np.array(0.5, g.values(()).dtype))
        affine = [g.weight(c) if g.coin(0.7) else None for _ in range(2)]
        g.keep(hx.batch_norm(x, g.weight(c), positive, *affine, epsilon=eps, axis=axis))
    elif which == "instance_norm":
        c = (x.shape[1],)
        g.keep(hx.instance_norm(x, *[g.weight(c) if g.coin() else None for _ in range(2)], epsilon=eps))
    elif which == "lrn":
        axis = g.integer(0, len(x.shape))
        g.keep(hx.local_response_norm(x, size=g.pick((1, 2, 3, 5)), alpha=0.3, axis=axis))
    else:
        num = g.integer(1, len(x.shape) + 1)
        axes = tuple(range(-num, 0))
        c = x.shape[-num:]
        if which == "rms_norm":
            g.keep(hx.rms_norm(x, g.weight(c) if g.coin() else None, axes=axes, epsilon=eps))
        else:
            affine = [g.weight(c) if g.coin() else None for _ in range(2)]
            g.keep(hx.layer_norm(x, *affine, axes=axes, epsilon=eps))


def reduce(g: RandomGraph) -> None:
    x = g.tensor(lambda t: len(t.shape) > 0)
    name = g.pick(REDUCTIONS if g.exact else (*REDUCTIONS, *SMOOTH_REDUCTIONS))
    axes = tuple(i for i in range(len(x.shape)) if g.coin())
    g.keep(getattr(hx, name)(x, axes=axes, keep_dims=g.coin()))
    if g.coin(0.2):
        axis = g.integer(0, len(x.shape))
        g.keep(g.pick((hx.reduce_argmax, hx.reduce_argmin))(x, axis=axis, keep_dims=g.coin()))


def softmax(g: RandomGraph) -> None:
    if g.exact:
        raise Unfit
    x = g.tensor(lambda t: len(t.shape) > 0)
    g.keep(g.pick((hx.softmax, hx.log_softmax))(x, axis=g.integer(0, len(x.shape))))


def cumsum(g: RandomGraph) -> None:
    x = g.tensor(lambda t: len(t.shape) > 0)
    axis = g.integer(0, len(x.shape))
    g.keep(hx.cumsum(x, axis=axis, exclusive=g.coin(0.3), reverse=g.coin(0.3)))


STEPS = (norm, reduce, softmax, cumsum)
