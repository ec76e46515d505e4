"""Looking elements up by index, writing them, sorting."""

import numpy as np

import hexane as hx
from random_graphs.graph import RandomGraph, Unfit
from random_graphs.movement import movable


def indices(g: RandomGraph, shape: tuple[int, ...], extent: int) -> hx.Tensor:
    if not extent:
        raise Unfit
    dtype = g.pick((np.int32, np.int64))
    return g.weight(shape, array=g.rng.integers(-extent, extent, shape).astype(dtype))


def gather(g: RandomGraph) -> None:
    x = movable(g, 1, 4)
    axis = g.integer(0, len(x.shape))
    if g.coin():
        g.keep(hx.gather(x, indices(g, g.pick(((), (3,), (2, 2))), x.shape[axis]), axis=axis))
    elif g.coin():
        shape = tuple(3 if i == axis else d for i, d in enumerate(x.shape))
        g.keep(hx.gather_along_axis(x, indices(g, shape, x.shape[axis]), axis=axis))
    else:
        g.keep(hx.gather_nd(x, indices(g, (3, 1), x.shape[0])))


def scatter(g: RandomGraph) -> None:
    x = movable(g, 1, 4)
    if x.dtype.kind == "bool" or 0 in x.shape:
        raise Unfit
    mode = g.pick(("update", "add", "max", "min"))
    at = np.array(g.shuffled(range(x.shape[0]))[: max(1, x.shape[0] // 2)], np.int64)
    updates = g.weight((len(at), *x.shape[1:]), x.dtype.name)
    g.keep(hx.scatter_nd(x, g.weight((len(at), 1), array=at[:, None]), updates, mode=mode))


def sort(g: RandomGraph) -> None:
    x = g.tensor(lambda t: 1 <= len(t.shape) <= 4)
    axis = g.integer(0, len(x.shape))
    if g.coin():
        k = g.integer(0, x.shape[axis] + 1)
        g.keep(hx.topk(x, k=k, axis=axis, largest=g.coin()))
    else:
        g.keep(hx.argsort(x, axis=axis, descending=g.coin()))


STEPS = (gather, scatter, sort)
