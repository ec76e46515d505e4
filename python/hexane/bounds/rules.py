"""The rules by which an op's result is bounded from its operands' intervals. A monotone op is bounded by its record,
applied to the ends of its operands. An op without a rule may have any result.

Each rule holds for the op alone and in every form that a chip's compiler may choose: fused with its neighbours,
expanded into other ops, read from a table, or summed in another order.
"""

from collections.abc import Callable, Sequence
from math import inf, log, prod, sqrt

import numpy as np

from hexane.bounds.ends import DIPS, RANGES, apply, by_constants, corners, of_size
from hexane.bounds.interval import (
    LARGEST,
    ROUNDED,
    SMALLEST,
    TABLE,
    Interval,
    Sums,
    stored,
    unknown,
    widened,
)
from hexane.dtypes import whole_range
from hexane.graph import Array, Node, TensorType
from hexane.ops import OPS
from hexane.ops.predicates import channel_axis, has_winograd_s_shape

Operands = Sequence[Interval | None]
Rule = Callable[[Node, Operands], Interval]

UNIT = 2.0**-16  # Products are rounded to multiples of UNIT; a dropped product is below 2 * UNIT.
LIMIT = 2.0**15  # The engine's accumulator is infinite from LIMIT on.
LOG_OF_0 = -46000.0  # Below the engine's log(0), which is -45440.
SUBNORMAL = 2.0**-24  # The smallest number of fp16.
SMALLEST_DIVISOR = 2.0**-15  # The inverse fits fp16; engines divide by multiplying with the inverse.


# ---- elements ----


def exact(node: Node, operands: Operands) -> Interval:
    """Bounds ops that are monotone in x and do not round."""
    (x,) = operands
    assert x is not None
    return Interval(*corners(node, [(x.low, x.high)]), None, x.overflowed)


def monotone(relative: float = ROUNDED, absolute: float = SMALLEST) -> Rule:
    """Returns the rule of functions that are monotone everywhere, with the errors of their table or series."""

    def rule(node: Node, operands: Operands) -> Interval:
        (x,) = operands
        assert x is not None
        return stored(*widened(*corners(node, [(x.low, x.high)]), relative, absolute), x.overflowed)

    return rule


def dipping(least: float) -> Rule:
    """Returns the rule of functions such as SiLU, which fall to no less than `least` below 0 and then rise."""

    def rule(node: Node, operands: Operands) -> Interval:
        (x,) = operands
        assert x is not None
        # At -infinity the function may be NaN.
        ends = [np.where(np.isinf(x.low), np.nan, apply(node, [end])) for end in (x.low, x.high)]
        low = np.where(x.low < 0, np.minimum(np.minimum(*ends), least), np.minimum(*ends))
        high = np.where(x.low < 0, np.maximum(np.maximum(*ends), 0), np.maximum(*ends))
        return stored(*widened(low, high, TABLE, 2 * TABLE), x.overflowed)

    return rule


def size(node: Node, operands: Operands) -> Interval:
    (x,) = operands
    assert x is not None
    ends = of_size(node, x.low, x.high)
    return Interval(*ends, None, x.overflowed) if node.op == "abs" else stored(*widened(*ends), x.overflowed)


def above_zero(node: Node, operands: Operands) -> Interval:
    """Bounds square roots, logarithms and reciprocals if the operand is surely positive; else nothing is known."""
    (x,) = operands
    assert x is not None
    interval = monotone(TABLE, TABLE)(node, operands)
    known = (x.low >= 0) if node.op == "sqrt" else (x.low > 0)
    return stored(np.where(known, interval.low, np.nan), np.where(known, interval.high, np.nan), interval.overflowed)


def within(low: float, high: float) -> Rule:
    """Returns the rule of functions with a fixed range, for finite operands."""

    def rule(node: Node, operands: Operands) -> Interval:
        if all(x is None or (not x.overflowed and x.finite.all()) for x in operands):
            return _throughout(node, low, high, TABLE)
        return unknown(node.types[0])  # devices differ in their results for infinities

    return rule


def linear_in_both(node: Node, operands: Operands) -> Interval:
    """Bounds sums, differences, products and quotients: the extremes are at the ends of the operands."""
    x, y = operands
    assert x is not None
    assert y is not None
    if node.op == "real_div":
        divides = (y.low >= SMALLEST_DIVISOR) | (y.high <= -SMALLEST_DIVISOR)
        if not divides.all():
            return unknown(node.types[0])
    ends = [apply(node, [a, b]) for a in (x.low, x.high) for b in (y.low, y.high)]
    if node.op in ("mul", "real_div"):  # infinity * 0 is NaN
        ends = [np.where(x.finite & y.finite, end, np.nan) for end in ends]
    low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
    # A product of two computed values may be fused into an activation, which is read from a table, as a quotient is.
    constants = any(_is_constant(v.node) for v in node.inputs if v is not None)
    loose = node.op == "real_div" or (node.op == "mul" and not constants)
    low, high = widened(low, high, *((TABLE, 2 * TABLE) if loose else ()))
    sums = _still_sums(node, x, y)
    if sums is not None and node.op in ("mul", "real_div"):
        low, high = low - sums.lost, high + sums.lost
    return stored(low, high, x.overflowed or y.overflowed, sums)


def _still_sums(node: Node, x: Interval, y: Interval) -> Sums | None:
    """Returns the sums of a product and a constant, which may become part of the product's weights and bias, or
    None."""
    known = [_is_constant(v.node) for v in node.inputs if v is not None]
    if x.sums is not None and known[1]:
        other, sums = y, x.sums
    elif y.sums is not None and known[0] and node.op != "real_div":
        other, sums = x, y.sums
    else:
        return None
    with np.errstate(all="ignore"):
        if node.op in ("add", "sub"):
            sizes = sums.partial + other.size
        elif node.op == "mul":
            sizes = sums.partial * other.size
        else:
            sizes = sums.partial / np.minimum(np.abs(other.low), np.abs(other.high))
    shape = node.types[0].shape
    return Sums(np.broadcast_to(sizes * (1 + ROUNDED), shape), np.broadcast_to(sums.lost, shape))


def _is_constant(node: Node) -> bool:
    return node.op in ("const", "param")


def extreme(node: Node, operands: Operands) -> Interval:
    x, y = operands
    assert x is not None
    assert y is not None
    low, high = apply(node, [x.low, y.low]), apply(node, [x.high, y.high])
    return Interval(low, high, None, x.overflowed or y.overflowed)


def batch_norm(node: Node, operands: Operands) -> Interval:
    x, mean, variance, gamma, beta = operands
    if (
        x is None
        or not all(v is None or _is_constant(v.node) for v in node.inputs[1:])
        or mean is None
        or variance is None
    ):
        return unknown(node.types[0])
    shape = [1] * node.types[0].rank
    shape[node.attrs["axis"]] = -1
    base = np.sqrt(np.maximum(variance.low, 0) + node.attrs["epsilon"])
    with np.errstate(all="ignore"):
        scale = (1.0 if gamma is None else gamma.size) / base * (1 + TABLE)
    offset = 0.0 if beta is None else beta.size
    ends = [
        apply(node, [end, *(None if v is None else (v.low + v.high) / 2 for v in operands[1:])])
        for end in (x.low, x.high)
    ]
    spread = (scale * (np.abs(mean.high) * 2 * ROUNDED + SMALLEST) + offset * ROUNDED).reshape(shape)
    spread = spread + scale.reshape(shape) * np.where(x.finite, x.size, 0) * TABLE
    sums = None
    if x.sums is not None:
        spread = spread + x.sums.lost
        partial = x.sums.partial * scale.reshape(shape) + (scale * mean.size + offset).reshape(shape)
        sums = Sums(partial, x.sums.lost)
    low, high = widened(np.minimum(*ends) - spread, np.maximum(*ends) + spread)
    return stored(low, high, x.overflowed, sums)


# ---- ops that only move or select elements ----


def moves(node: Node, operands: Operands) -> Interval:
    """Bounds ops that move elements. If the positions are constant, the record moves the bounds, else each element of
    the result may be any element of the operands."""
    op = OPS[node.op]
    moved = [i for i, v in enumerate(node.inputs) if _name(op.inputs, i) in op.moves]
    rest = [i for i in range(len(operands)) if i not in moved]
    overflowed = any(x.overflowed for i in moved if (x := operands[i]) is not None)
    if all(node.inputs[i] is None or node.inputs[i].node.op == "const" for i in rest):  # type: ignore[union-attr]
        plain = [node.inputs[i].node.data if node.inputs[i] is not None else None for i in range(len(operands))]  # type: ignore[union-attr]

        def by(end: Callable[[Interval], Array]) -> Array:
            given = [plain[i] if i in rest or operands[i] is None else end(operands[i]) for i in range(len(operands))]  # type: ignore[arg-type]
            return apply(node, given)

        operand = operands[moved[0]] if len(moved) == 1 and not op.fills else None
        of = None if operand is None else operand.sums
        sums = None if of is None else Sums(by(lambda _: of.partial), by(lambda _: of.lost))
        interval = Interval(by(lambda x: x.low), by(lambda x: x.high), sums, overflowed)
        return interval if _stays_as_it_is(node) else by_products(interval)
    if op.fills:
        return unknown(node.types[0], overflowed)
    ends = [x.whole for i in moved if (x := operands[i]) is not None]
    return _full(node.types[0], min(e[0] for e in ends), max(e[1] for e in ends), overflowed)


STAY = (
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
    "flatten",
    "flatten2d",
    "identity",
    "broadcast_to",
    "concat",
    "stack",
    "split",
    "slice_by_size",
    "crop",
    "select",
)


def _stays_as_it_is(node: Node) -> bool:
    return node.op in STAY or (node.op == "slice_by_index" and set(node.attrs["stride"]) <= {1})


def by_products(x: Interval) -> Interval:
    """Returns the interval of elements that a chip may move by multiplying with 1. Products with 1 are rounded to a
    multiple of 2^-16 and may overflow like all products."""
    fits = x.size < LIMIT
    low, high = np.where(fits, x.low - UNIT, -inf), np.where(fits, x.high + UNIT, inf)
    return Interval(low, high, x.sums, x.overflowed or not fits.all(), x.nan)


def _name(names: tuple[str, ...], place: int) -> str:
    return names[min(place, len(names) - 1)].rstrip("?*")


def _full(kind: TensorType, low: float, high: float, overflowed: bool) -> Interval:
    return Interval(np.full(kind.shape, low), np.full(kind.shape, high), None, overflowed)


def cast(node: Node, operands: Operands) -> Interval:
    (x,) = operands
    assert x is not None
    kind = node.types[0].dtype.kind
    if kind == "float":
        return Interval(*widened(x.low, x.high), x.sums, x.overflowed) if x.finite.all() else x
    if not x.finite.all() or kind == "bool":
        return _full(node.types[0], 0, 1, False) if kind == "bool" else unknown(node.types[0], x.overflowed)
    fits = max(map(abs, x.whole)) < 128 and (x.low >= 0).all()  # an integer that may wrap around is unknown
    return Interval(np.trunc(x.low), np.trunc(x.high)) if fits else unknown(node.types[0], False)


# ---- sums ----


def pooled(node: Node, operands: Operands) -> Interval:
    """Bounds weighted means and maxima, which are monotone in every element."""
    (x,) = operands
    assert x is not None
    low, high = apply(node, [x.low]), apply(node, [x.high])
    if node.op in ("max_pool", "reduce_max", "reduce_min"):
        return by_products(Interval(low, high, None, x.overflowed))
    count = prod(node.attrs["kernel_sizes"]) if "kernel_sizes" in node.attrs else _reduced(node)
    total = apply(node, [x.size]) * (1 if node.op == "reduce_sum" else count)
    spread = apply(node, [x.size]) * TABLE + SMALLEST * count
    low, high = widened(low - spread, high + spread)
    fits = total * (1 + TABLE) < LIMIT  # from LIMIT on, a partial sum may overflow, whatever the mean is
    return stored(np.where(fits, low, -inf), np.where(fits, high, inf), x.overflowed or not fits.all())


def _reduced(node: Node) -> int:
    value = node.inputs[0]
    assert value is not None
    return prod(value.shape[a] for a in node.attrs["axes"])


def products(node: Node, operands: Operands, winograd: bool) -> Interval:
    """Bounds products by center and radius: the center is the product of the centers, the radius the product of
    absolute weights and x's radius. Sums of absolute products bound the rounding error."""
    x, weight, bias = (*operands, None)[:3]
    assert x is not None
    assert weight is not None
    if not x.finite.all() or not weight.finite.all() or not (bias is None or bias.finite.all()):
        return unknown(node.types[0])
    middle, radius, sizes = _halves(x)
    factor, off, weights = _halves(weight)
    ones = [np.ones_like(x.low), np.ones_like(weight.low)]
    total = apply(node, [sizes, weights, None])
    count = float(apply(node, [*ones, None]).max(initial=0))
    center = apply(node, [middle, factor, None])
    spread = apply(node, [radius, weights, None]) if radius.any() else np.zeros_like(center)
    if off.any():
        spread = spread + apply(node, [np.abs(middle), off, None])
    lost = total * ROUNDED + count * 4 * UNIT
    peak = total
    if winograd and has_winograd_s_shape(node):
        peak, fits = _by_winograd(node, x, weight)
        lost = np.where(fits, lost + peak * ROUNDED, inf)  # a clamped pixel may have any error
    if bias is not None:
        shape = [1] * node.types[0].rank
        shape[channel_axis(node)] = -1
        center = center + ((bias.low + bias.high) / 2).reshape(shape)
        spread = spread + ((bias.high - bias.low) / 2).reshape(shape)
        peak = peak + bias.size.reshape(shape)
    partial = np.maximum(peak, total) * (1 + ROUNDED) + lost
    low, high = widened(center - spread - lost, center + spread + lost)
    always = count * 4 * UNIT + apply(node, [sizes, ones[1], None]) * SMALLEST
    return Interval(low, high, Sums(partial, always), x.overflowed or weight.overflowed)


def _by_winograd(node: Node, x: Interval, weight: Interval) -> tuple[Array, bool]:
    """Returns a bound of the sums of magnitudes in F(2, 3), which are larger than in the convolution. The second result
    tells if all transformed pixels fit fp16; larger pixels are clamped.

    For the outputs 2j and 2j + 1 and their pixels d0 .. d3, and for three taps g0 .. g2:

        d0 - d2  d1 + d2  d2 - d1  d1 - d3      2j reads the first three, 2j + 1 the last three
           g0    (g0 + g1 + g2) / 2   (g0 - g1 + g2) / 2   g2

    Transformed pixels and taps are rounded to fp16. The bound of a tap is increased slightly, because a tap may be
    subnormal in fp16.
    """
    width, pad = 3 if node.attrs["layout"] == "nchw" else 2, node.attrs["pad"]
    margins = [(pad[2], pad[3]) if axis == width else (0, 0) for axis in range(4)]
    middle, radius = (np.pad(v, margins) for v in _halves(x)[:2])
    factor, off = _halves(weight)[:2]

    def taps(*signs: int) -> Array:
        sums = np.abs(factor @ np.array(signs)) + off @ np.abs(signs)
        return (sums / max(1, sum(map(abs, signs)) - 1))[..., None] + 2.0**-14  # type: ignore[no-any-return]

    def pixels(first: int, second: int, sign: int, count: int) -> Array:
        def at(v: Array, shift: int) -> Array:
            return v[(slice(None),) * width + (slice(shift, shift + count),)]

        bound = np.abs(at(middle, first) + sign * at(middle, second)) + at(radius, first) + at(radius, second)
        return np.asarray(bound)

    count = middle.shape[width] - 2
    even = [
        (pixels(0, 2, -1, count), taps(1, 0, 0)),
        (pixels(1, 2, 1, count), taps(1, 1, 1)),
        (pixels(2, 1, -1, count), taps(1, -1, 1)),
    ]
    odd = [
        (pixels(0, 1, 1, count), taps(1, 1, 1)),
        (pixels(1, 0, -1, count), taps(1, -1, 1)),
        (pixels(0, 2, -1, count), taps(0, 0, 1)),
    ]
    fits = max(float(v.max(initial=0)) for v, _ in (*even, *odd)) <= LARGEST
    attrs = {**node.attrs, "pad": (*pad[:2], 0, 0)}
    of_even, of_odd = (
        sum(np.asarray(OPS[node.op].ref(v, w, None, **attrs), np.float64) for v, w in terms) for terms in (even, odd)
    )
    place = np.arange(count).reshape([-1 if axis == width else 1 for axis in range(4)])
    return np.where(place % 2 == 0, of_even, of_odd), fits


def _halves(x: Interval) -> tuple[Array, Array, Array]:
    return (x.low + x.high) / 2, (x.high - x.low) / 2, x.size


# ---- norms ----


def normed(node: Node, operands: Operands) -> Interval:
    """Bounds a norm by the square root of the number of elements, times gamma, if no square in it can overflow."""
    x, gamma, beta = (*operands, None, None)[:3]
    assert x is not None
    value = node.inputs[0]
    assert value is not None
    count = value.type.size if node.op in ("group_norm", "instance_norm") else _reduced(node)
    most = max(map(abs, x.whole))
    # An overflow of the variance makes the result zero, an overflow of the mean makes the result unknown.
    sums = 0.0 if node.op == "rms_norm" else count * most * (1 + TABLE)
    vanishes = node.attrs["epsilon"] < SUBNORMAL
    if not most < inf or sums >= LIMIT or vanishes or not all(_known(v) for v in (gamma, beta)):
        return unknown(node.types[0])
    scale = 1.0 if gamma is None else float(gamma.size.max(initial=0))
    reach = sqrt(count) * scale * (1 + 4 * TABLE) + (0.0 if beta is None else float(beta.size.max(initial=0)))
    return _throughout(node, -reach, reach, TABLE)


def _throughout(node: Node, low: float, high: float, absolute: float) -> Interval:
    """Returns one interval for all elements, widened by the errors of tables."""
    shape = node.types[0].shape
    return stored(*widened(np.full(shape, low), np.full(shape, high), TABLE, absolute))


def _known(x: Interval | None) -> bool:
    return x is None or bool(x.finite.all())


def softmax(node: Node, operands: Operands) -> Interval:
    """Bounds a softmax by 0 and 1, also for hidden elements (-infinity). Bounds a log_softmax by the range of x and the
    logarithm of the number of elements."""
    (x,) = operands
    assert x is not None
    low, high = x.whole
    seen = np.isfinite(x.low).any(node.attrs["axis"]).all()  # a row with only hidden elements is NaN
    if x.overflowed or not high < inf or not seen:
        return unknown(node.types[0])
    if node.op == "softmax":
        return _throughout(node, 0.0, 1.0, TABLE)
    least = low - high - log(max(node.types[0].shape[node.attrs["axis"]], 1))
    if least < log(SUBNORMAL) / 2:  # the softmax underflows fp16, so the logarithm of 0 is possible
        least = min(least, LOG_OF_0)
    return _throughout(node, least, 0.0, 4 * TABLE)


def attention(node: Node, operands: Operands) -> Interval:
    """Bounds attention as a weighted mean of the values, if no score overflows and each row has a visible key."""
    query, key, value, mask = (*operands, None)[:4]
    assert query is not None
    assert key is not None
    assert value is not None
    kind = node.types[0]
    depth = node.inputs[0].shape[-1]  # type: ignore[union-attr]
    most = [max(map(abs, x.whole)) for x in (query, key, value)]
    score = (depth * most[0] * most[1] * (1 + ROUNDED) + depth * 4 * UNIT) * max(1.0, abs(node.attrs["scale"]))
    reach = most[2] * (1 + 4 * TABLE) + node.inputs[1].shape[-2] * 4 * UNIT  # type: ignore[union-attr]
    shown = node.attrs["zero_hidden"] or mask is None or _shows(mask, node.inputs[3].dtype.kind == "bool")  # type: ignore[union-attr]
    if not score < LIMIT or not reach < LIMIT or not shown:
        return unknown(kind)
    return _throughout(node, -reach, reach, TABLE)


def _shows(mask: Interval, truth: bool) -> bool:
    """True if the mask surely leaves at least one key of each row visible."""
    if truth:
        return bool((mask.low >= 1).any(-1).all())
    return not mask.overflowed and bool((np.abs(mask.low) < LIMIT).any(-1).all() and mask.whole[1] < LIMIT)


def dequantize(node: Node, operands: Operands) -> Interval:
    """Bounds the dequantised range of integers with at most 16 bits, by the record."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None
    ends = whole_range(x.dtype)
    if ends is None or any(v is not None and v.node.op != "const" for v in (scale, zero)):
        return unknown(node.types[0])
    low, high = (np.full(x.shape, end) for end in ends)
    return stored(*widened(*by_constants(node, low, high)))


TABLED = (
    "exp",
    "exp2",
    "erf",
    "atan",
    "asinh",
    "softplus",
    "softsign",
    "elu",
    "celu",
    "selu",
    "scaled_tanh",
    "sigmoid",
    "tanh",
)
PLAIN = ("leaky_relu", "sigmoid_hard", "linear_activation")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("relu", "neg", "ceil", "floor", "round", "sign"), exact),
    **dict.fromkeys(("clip", "relu6", "clamped_relu"), monotone()),
    **dict.fromkeys(TABLED, monotone(TABLE, TABLE)),
    **dict.fromkeys(PLAIN, monotone(ROUNDED, TABLE)),
    **{op: dipping(least) for op, least in DIPS.items()},
    **dict.fromkeys(("abs", "square"), size),
    **dict.fromkeys(("sqrt", "rsqrt", "log", "inverse"), above_zero),
    **{op: within(*RANGES[op]) for op in ("sin", "cos")},
    **dict.fromkeys(("add", "sub", "mul", "real_div"), linear_in_both),
    **dict.fromkeys(("maximum", "minimum"), extreme),
    **dict.fromkeys(("max_pool", "avg_pool", "reduce_max", "reduce_min", "reduce_sum", "reduce_mean"), pooled),
    **dict.fromkeys(("layer_norm", "rms_norm", "instance_norm", "group_norm"), normed),
    **dict.fromkeys(("softmax", "log_softmax"), softmax),
    "scaled_dot_product_attention": attention,
    "batch_norm": batch_norm,
    "dequantize": dequantize,
    "cast": cast,
}
PRODUCTS = ("conv", "conv_transpose", "matmul", "linear")
