"""Logarithms of weighted sums of squares: log-mel spectra that are computed inside the network.

The square of a bin with the magnitude 256 or more is infinite in fp16. With sound as 16-bit integers, as in Kaldi, bins
reach 1e5.
"""

from math import log, prod, sqrt

import numpy as np

from hexane.graph import Node, Value
from hexane.ops import simpler
from hexane.ops.match import Found, op
from hexane.ops.predicates import uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.scales import is_scaled
from hexane.passes.repair.squares import at_least, factored, is_added_squares, squared, squares
from hexane.validate import is_constant

MOVES = (
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
    "slice_by_size",
    "slice_by_index",
    "identity",
    "stop_gradient",
)
MOST_MOVES = 8
MOST_READ = 1 << 20  # larger weights are not read
LARGEST_FLOOR = 2.0**14
LARGEST_FOLDED = 0.5
STEP = 32.0  # f / 32 and its inverse are normal numbers of fp16.
LEAST = 2.0**-23  # fp16 holds half of LEAST, too.


def log_of_spectrum(m: Found) -> Value | None:
    """log(max(matmul(%p, W), e))  ->  log(max(matmul((r * f)^2, W), e * f^2)) - 2 * log(f), with r the root of %p

    The result is equal because the sum is linear in %p. f is one number per sum and is chosen so that the squares fit
    fp16.
    """
    floored = _floors(m.node.inputs[0])
    inner, factor = factored(floored[0])
    moves_after, inner = _moved_from(inner)
    if inner is None or inner.dtype.kind != "float" or not factor > 0:
        return None
    place = _place(inner.node)
    if place is None:
        return None
    ahead, power = _moved_from(inner.node.inputs[place])
    counts = m.graph.use_counts()
    if power is None or any(counts[v] != 1 for v in (inner, *moves_after)):
        return None
    x = squared(power)
    if (x is None and squares(power) is None and not is_added_squares(power)) or (x is not None and is_scaled(x)):
        return None
    near_1 = max(floored[1:]) > LARGEST_FOLDED  # log(p + 1) is near 0: a sum of logarithms loses its digits
    times, factor = (factor, 1.0) if near_1 else (1.0, factor)
    floors = [floor / factor for floor in floored[1:]]
    if max(floors) > LARGEST_FLOOR:
        return None
    b = Rewriter(*m.node.sources)
    root = m.now(x) if x is not None else b.sqrt(m.now(power))
    for value in ahead[::-1]:
        (root,) = m.make(value.node.op, [root, *map(m.now, value.node.inputs[1:])], **value.node.attrs)
    assert root is not None
    axis, transposed, most = _added(inner.node, place)
    u, f = simpler.held(b, root, (axis,), most, brings_up=max(floors) <= simpler.MOST_EPSILON)
    inputs = [b.square(u) if i == place else m.now(v) for i, v in enumerate(inner.node.inputs)]
    (total,) = m.make(inner.node.op, inputs, **inner.node.attrs)
    if transposed:
        rank = len(root.shape)
        f = b.transpose(f, perm=(*range(rank - 2), rank - 1, rank - 2))
    total = total if times == 1 else b.mul(total, times)
    inside, least = (_scaled_twice(b, floor, f) if floor else None for floor in floors)
    total = total if inside is None else b.add(total, inside)
    total = total if least is None else b.maximum(total, least)
    y = b.sub(b.log(total), b.mul(b.log(f), 2.0))
    y = y if factor == 1 else b.add(y, log(factor))
    for value in moves_after[::-1]:
        (y,) = m.make(value.node.op, [y, *map(m.now, value.node.inputs[1:])], **value.node.attrs)
    return y


def _scaled_twice(b: Rewriter, floor: float, f: Value) -> Value:
    """Returns floor * f^2, computed by a quotient, because the constant of a product would underflow fp16."""
    return b.maximum(b.square(b.real_div(sqrt(floor) * STEP, b.inverse(b.mul(f, 1 / STEP)))), LEAST)


def _floors(value: Value | None) -> tuple[Value | None, float, float]:
    """Returns x, e and l if the value is max(x + e, l)."""
    inside = least = 0.0
    if value is not None and value.node.op != "relu" and (limited := at_least(value)) is not None:
        value, least = limited
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                return x, known, least
    return value, inside, least


def _moved_from(value: Value | None) -> tuple[list[Value], Value | None]:
    """Returns the moves that end in the value, last first, and their source."""
    moves: list[Value] = []
    while value is not None and value.node.op in MOVES and len(moves) < MOST_MOVES:
        moves.append(value)
        value = value.node.inputs[0]
    return moves, value


def _place(node: Node) -> int | None:
    """Returns the position of a product's computed operand, if the other operand is constant and nonnegative. Else
    None."""
    if node.op not in ("matmul", "linear", "conv") or any(v is not None for v in node.inputs[2:]):
        return None
    for place in (0, 1) if node.op == "matmul" else (0,):
        x, weight = node.inputs[place], node.inputs[1 - place]
        data = None if weight is None else weight.node.data
        if x is None or weight is None or is_constant(x.node) or data is None or not 0 < data.size <= MOST_READ:
            continue
        if data.min() < 0 or x.type.rank < 2 or not data.any():
            continue
        if node.op != "conv":
            return place if prod(weight.shape[:-2]) == 1 and weight.type.rank <= x.type.rank else None
        attrs, spatial = node.attrs, weight.shape[2:]
        is_plain = attrs["layout"] == "nchw" and attrs["groups"] == 1 and {*attrs["strides"], *spatial} == {1}
        return place if is_plain and not any(attrs["pad"]) else None
    return None


def _added(node: Node, place: int) -> tuple[int, bool, float]:
    """Returns the operand's contracted axis, whether the operand is read transposed, and the largest numbers for which
    fp16 holds the sums."""
    x, weight = node.inputs[place], node.inputs[1 - place]
    assert x is not None
    assert weight is not None
    assert weight.node.data is not None
    rank = x.type.rank
    if node.op == "matmul":
        transposed = bool(node.attrs["transpose_y" if place else "transpose_x"])
        axis = rank - 2 if transposed != bool(place) else rank - 1
        of_weight = bool(node.attrs["transpose_x" if place else "transpose_y"]) == (place == 1)
        along = -2 if of_weight else -1
    else:
        transposed, axis, along = False, 1 if node.op == "conv" else rank - 1, 1
    data = weight.node.data.astype(np.float64)
    largest = float(data.sum(along).max())
    most = simpler.LARGEST_SQUARED * min(1.0, 2.0 ** np.floor(-np.log2(largest) / 2))
    return axis, transposed, float(most)


SPECTRUM = Form(
    "logarithm of a spectrum",
    op("log"),
    log_of_spectrum,
    "bins are scaled by their largest number before they are squared: squares of numbers beyond 256 are infinite in"
    " fp16, and weighted sums of small ones are 0",
)
