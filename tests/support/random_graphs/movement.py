"""Moving elements of any dtype: views, pieces, copies."""

import hexane as hx
from random_graphs.graph import RandomGraph


def movable(g: RandomGraph, low: int = 1, high: int = 5) -> hx.Tensor:
    dtypes = (g.dtype, g.dtype, g.dtype, "int32", "bool", "int64")
    dtype = g.pick(sorted({t.dtype.name for t in g.pool}) if g.quantized else dtypes)
    return g.tensor(lambda t: low <= len(t.shape) <= high, dtype)


def transpose(g: RandomGraph) -> None:
    x = movable(g, 2, 6)
    if len(x.shape) == 4 and g.coin():
        perm = g.pick(((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)))
    else:
        perm = g.shuffled(range(len(x.shape)))
    g.keep(hx.transpose(x, perm=perm))


def reshape(g: RandomGraph) -> None:
    x = movable(g, 0, 6)
    if g.coin(0.4) and len(x.shape) > 2:  # merge neighbours
        at = g.integer(0, len(x.shape) - 1)
        shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
    else:
        rest, dims = x.type.size, []
        for _ in range(g.integer(1, 5)):
            factors = [f for f in (1, 2, 3, 4, 5, 7, 8) if rest and rest % f == 0] or [1]
            dims.append(g.pick(factors))
            rest //= dims[-1]
        dims.insert(g.integer(0, len(dims) + 1), rest)
        shape = tuple(dims)
    g.keep(hx.reshape(x, shape=shape))


def squeeze(g: RandomGraph) -> None:
    x = movable(g, 1, 5)
    which = g.integer(0, 3)
    if which == 0:
        g.keep(hx.squeeze(x))
    elif which == 1:
        g.keep(hx.expand_dims(x, axes=(g.integer(0, len(x.shape) + 1),)))
    else:
        g.keep(hx.flatten(x, axis=g.integer(0, len(x.shape) + 1)))


def crop(g: RandomGraph) -> None:
    x = movable(g)
    index = []
    for d in x.shape:
        a, b = sorted(g.integer(0, d + 1) for _ in range(2))
        if a == b and not g.coin(0.05):
            a, b = 0, d
        index.append(slice(a, b, g.pick((1, 1, 1, 2, 3))) if g.coin(0.6) else slice(None))
    g.keep(x[tuple(index)])


def split(g: RandomGraph) -> None:
    x = movable(g)
    axis = 1 if len(x.shape) > 2 and g.coin() else g.integer(0, len(x.shape))
    d = x.shape[axis]
    cut = sorted(g.integer(0, d + 1) for _ in range(g.pick((1, 2))))
    sizes = [b - a for a, b in zip([0, *cut], [*cut, d], strict=True)]
    g.keep(hx.split(x, axis=axis, split_sizes=sizes))


def concat(g: RandomGraph) -> None:
    x = movable(g)
    axis = 1 if len(x.shape) > 2 and g.coin() else g.integer(0, len(x.shape))

    def joins(t: hx.Tensor) -> bool:
        same = [a == b for i, (a, b) in enumerate(zip(t.shape, x.shape, strict=False)) if i != axis]
        return len(t.shape) == len(x.shape) and all(same)

    parts = [x]
    for _ in range(g.integer(0, 4)):
        if g.coin(0.25) and x.dtype.kind == "float":
            parts.append(g.weight(tuple(2 if i == axis else d for i, d in enumerate(x.shape))))
        else:
            parts.append(g.tensor(joins, x.dtype.name))
    if g.coin(0.3) and x.dtype.kind == "float":  # an operand that nobody else reads
        parts.append(hx.relu(g.pick(parts)))
    parts = g.shuffled(parts)
    g.keep(hx.concat(*parts, axis=axis))


def stack(g: RandomGraph) -> None:
    x = movable(g, 0, 4)
    other = g.tensor(lambda t: t.shape == x.shape, x.dtype.name)
    g.keep(hx.stack(x, other, axis=g.integer(0, len(x.shape) + 1)))


def pad(g: RandomGraph) -> None:
    x = movable(g)
    mode = g.pick(("constant", "constant", "reflect", "edge", "wrap"))
    low = -1 if mode == "constant" else 0
    begin, end = ([g.integer(low, 3) if g.coin() else 0 for _ in x.shape] for _ in range(2))
    g.keep(hx.pad(x, begin=begin, end=end, mode=mode, value=float(g.integer(0, 2))))


def tile(g: RandomGraph) -> None:
    x = movable(g, 1, 4)
    g.keep(hx.tile(x, reps=[g.pick((1, 1, 2, 3)) for _ in x.shape]))


def reverse(g: RandomGraph) -> None:
    x = movable(g)
    g.keep(hx.reverse(x, axes=[i for i in range(len(x.shape)) if g.coin()]))


def broadcast(g: RandomGraph) -> None:
    x = movable(g, 0, 4)
    shape = tuple(g.pick((1, 2, 3)) if d == 1 else d for d in x.shape)
    g.keep(hx.broadcast_to(x, shape=(2, *shape) if g.coin() else shape))


def blocks(g: RandomGraph) -> None:
    x = movable(g, 4, 4)
    which = g.integer(0, 3)
    if which == 0:
        g.keep(hx.space_to_depth(x, block_size=2))
    elif which == 1:
        g.keep(hx.depth_to_space(x, block_size=2, mode=g.pick(("DCR", "CRD"))))
    else:
        g.keep(hx.pixel_shuffle(x, upscale_factor=2))


STEPS = (concat, transpose, reshape, squeeze, crop, split, stack, pad, tile, reverse, broadcast, blocks)
