"""Finds values that, judging by integers and constants, may be beyond fp16's range: sums of products of bytes, their
casts, dequantised integers, and results of ops that scale numbers near 1 by constants (products, norms, activations).

  quantized_conv : int32  ->  cast : fp32  ->  mul(.., scale)  ->  add(.., bias)
     host                   host              host               engine

The host computes the ops that compute or read such a value, up to a scale that makes the value small again. A value
gets to the engine as fp16, in which a sum beyond 65504 would be infinite.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from math import prod
from typing import NamedTuple

import numpy as np

from hexane.bounds.ends import by_constants, corners, of_size
from hexane.bounds.interval import LARGEST
from hexane.dtypes import whole_range
from hexane.graph import Array, Node, Value
from hexane.lowering.affine import normalisation
from hexane.lowering.channel_scales import folds_in_halves
from hexane.lowering.masks import HIDDEN, mask_operands
from hexane.ops import LEAVES, OPS
from hexane.ops.spec import moved_inputs
from hexane.validate.fine_values import Makers, fine_makers, unheld
from hexane.validate.kept_sizes import NORMS, keeps_size, numbers_of
from hexane.validate.small_constants import INVERTED

# Ops that are monotone in each operand, so the ends of their results come from the ends of their operands.
MONOTONE = ("add", "sub", "mul", "neg", "relu", "clip", "maximum", "minimum", "round", "floor", "ceil")
SIZES = ("abs", "square")
# Each result of these ops lies within the range of the operand.
PICKS = ("cast", "select", "reduce_max", "reduce_min", "reduce_mean")
BY_CONSTANTS = ("dequantize", "batch_norm")  # ops that are monotone in x if all other operands are constants
PRODUCTS = ("quantized_conv", "quantized_matmul")
NEAR_1 = 16.0  # Computed numbers from 1/16 to 16 are treated as near 1.
MOST_FACTOR = 4096.0  # With a larger factor, numbers near 1 may leave fp16: 16 * 4096 is 65536.
MOST_READ = 1 << 16  # Larger constants are not read.
# Op -> (factors, terms): attributes or operands by which the result is larger than x, and which are added to it. The
# slope of an activation is a factor for one sign of x only.
FACTORS: dict[str, tuple[tuple[int | str, ...], tuple[int | str, ...]]] = {
    "linear_activation": (("alpha",), ("beta",)),
    "leaky_relu": (("alpha",), ()),
    "prelu": ((1,), ()),
    "layer_norm": ((1,), (2,)),
    "instance_norm": ((1,), (2,)),
    "group_norm": ((1,), (2,)),
    "rms_norm": ((1,), ()),
}
SCALES = ("mul", "real_div", "batch_norm")
BIASED = ("conv", "conv_transpose", "linear", "matmul")
ONE_SIDED = ("leaky_relu", "prelu")
HEIGHTS = ("elu", "scaled_tanh", "selu")  # Activations with a bound: alpha, or alpha * beta.
Ends = tuple[float, float]  # the smallest and the largest number of a value
ROUNDS = "it makes integers of 16 bits, and fp16 holds all integers only up to 2048"


def wide_readers(
    nodes: Sequence[Node], may_leave: Callable[[Node], bool], counts: Mapping[Value, int] | None = None
) -> dict[int, str]:
    """For each node that the host must compute, by id, the reason: the node reads or computes a value beyond fp16,
    computes a scale for such a value, or rounds to more steps than fp16 has. nodes: of a graph, operands first.
    may_leave: whether the node is on the engine so far. counts: how often each value is read; None if outputs read no
    values."""
    return _walk(nodes, may_leave, counts).found


def wide_factors(nodes: Sequence[Node], counts: Mapping[Value, int]) -> dict[int, str]:
    """By id, with the reason: nodes whose own constants do not fit fp16 or cause results beyond it, and nodes that
    scale numbers beyond fp16."""
    return _walk(nodes, lambda node: True, counts).factors


class _Wide(NamedTuple):
    """The reasons why the host computes nodes, by `id()`. factors: the reasons that come from constants alone."""

    found: dict[int, str]
    factors: dict[int, str]


def _walk(nodes: Sequence[Node], may_leave: Callable[[Node], bool], counts: Mapping[Value, int] | None) -> _Wide:
    masks = mask_operands(nodes)
    known: dict[Value, Ends] = {}
    gains: dict[Value, float] = {}  # The size of a value that would be near 1 without constant factors.
    scaled: set[Value] = set()  # Values that constant factors make larger than fp16 holds.
    fine = Makers({}, {}) if counts is None else fine_makers(nodes, counts, may_leave)
    counts = counts or Counter(v for node in nodes for v in node.inputs if v is not None)
    reasons: dict[int, str] = {}
    factors: dict[int, str] = {}
    limited = {node.inputs[0] for node in nodes if node.op == "quantize"}  # quantize saturates
    for node in nodes:
        wide = next((v for v in node.inputs if v is not None and _reads_wide(v, known)), None)
        if wide is not None and may_leave(node):
            reasons[id(node)] = _reason(wide.node.op, known[wide])
            if node.op in SCALES:
                factors[id(node)] = reasons[id(node)]
            _add_scales(node, wide, may_leave, reasons)
        if node.op == "cast" and node.types[0].dtype.kind in ("int", "uint") and node.types[0].dtype.bits >= 16:
            reasons |= {id(n): ROUNDS for n in _rounded(node) if may_leave(n)}
        ends = _ends(node, known, masks.get(id(node), ()), clamps=wide is None and may_leave(node))
        if _is_wide(ends) and wide is None:
            ends = _ends(node, known, masks.get(id(node), ()), clamps=False)  # the host does not clamp constants
            if node.types[0].dtype.kind == "float" and may_leave(node):
                reasons[id(node)] = _reason("its results", ends)
        if ends is None and (gain := _gain(node, gains, masks.get(id(node), ()))) is not None:
            size, largest = gain
            if node.op in ("mul", "real_div") and size > MOST_FACTOR and node.values[0] not in limited:
                size *= NEAR_1
            lossy = not max(size, largest) > LARGEST and unheld(node, masks.get(id(node), ())) is not None
            if (size > LARGEST or largest > LARGEST or lossy) and not folds_in_halves(node, counts):
                if size > LARGEST:
                    ends = -size, size
                    scaled.add(node.values[0])
                if may_leave(node):
                    reasons[id(node)] = factors[id(node)] = _of_factors(size, largest)
            gains[node.values[0]] = size
        elif ends is None and wide is not None and (keeps_size(node) or _scales(node, wide, scaled)):
            ends = known[wide]
            if wide in scaled or node.op in BIASED:
                scaled.add(node.values[0])
        if wide is not None and wide in scaled and OPS[node.op].moves:
            scaled.add(node.values[0])
        if node.values and node.values[0] in fine.large:
            ends = -fine.large[node.values[0]], fine.large[node.values[0]]
            scaled.add(node.values[0])
        if ends is not None:
            known.update(dict.fromkeys(node.values, ends))
    return _Wide({**fine.found, **reasons}, {**fine.found, **factors})


def _scales(node: Node, wide: Value, scaled: Set[Value]) -> bool:
    """True if a product has weights beyond fp16, or an x that a factor has taken beyond fp16."""
    return node.op in BIASED and (wide in scaled or wide == node.inputs[1])


def _reads_wide(value: Value, known: Mapping[Value, Ends]) -> bool:
    """True if a computed value may be beyond fp16. Constants do not count: they are clamped on their way to the
    engine."""
    return value.node.op != "const" and value.dtype.kind == "float" and _is_wide(known.get(value))


def _is_wide(ends: Ends | None) -> bool:
    return ends is not None and max(-ends[0], ends[1]) > LARGEST


def _reason(what: str, ends: Ends | None) -> str:
    assert ends is not None
    return f"{what} may be as large as {max(-ends[0], ends[1]):.3g}, which fp16 does not hold"


def _rounded(cast: Node) -> list[Node]:
    """The ops that round numbers for a cast to integers, as in clip(round(%x / scale) + zero), the last op first; [] if
    there is no rounding."""
    chain: list[Node] = []
    value = cast.inputs[0]
    while value is not None and value.node.op in ("clip", "add", "sub", "maximum", "minimum"):
        chain.append(value.node)
        value = value.node.inputs[0]
    if value is None or value.node.op not in ("round", "floor", "ceil"):
        return []
    chain.append(value.node)
    scaled = value.node.inputs[0]
    while scaled is not None and scaled.node.op in ("real_div", "mul"):
        by = scaled.node.inputs[1]
        if by is None or not (by.node.op == "const" or by.type.size == 1):
            break  # a norm's divisor, not a scale of quantisation
        chain.append(scaled.node)
        scaled = scaled.node.inputs[0]
    return chain


def _ends(node: Node, known: Mapping[Value, Ends], hides: Sequence[int], clamps: bool) -> Ends | None:
    """The smallest and the largest number that a result may have; None if nothing is known. hides: the operands that
    are masks if they are constants. clamps: whether constants far beyond fp16, which stand for infinity, become fp16's
    largest number, as on the engine."""
    kind = node.types[0]
    if node.op in PRODUCTS and kind.dtype.kind == "int" and kind.dtype.bits == 32:
        most = _sum_of_products(node)
        return -most, most
    if node.op == "const":
        return None  # the readers of the constant examine it
    if node.op in LEAVES or kind.dtype.kind in ("int", "uint"):
        of_type = whole_range(kind.dtype)
        if of_type is not None or node.op in LEAVES:
            return of_type
    if node.op in BY_CONSTANTS:
        return _beside_constants(node, known)
    if node.op not in (*MONOTONE, *SIZES, *PICKS) and not OPS[node.op].moves:
        return None
    moved = moved_inputs(OPS[node.op], len(node.inputs)) if OPS[node.op].moves else range(len(node.inputs))
    values = [(i, v) for i in moved if (v := node.inputs[i]) is not None and not _is_condition(node, v)]
    if any(v.node.op != "const" and v not in known for _, v in values):
        return None
    operands: list[Ends] = []
    for i, value in values:
        ends = known.get(value)
        if value.node.op == "const":
            ends = _of_constant(value.node, i in hides and node.op != "mul")
            if ends is None:
                return None
            if clamps and value.dtype.kind == "float" and max(-ends[0], ends[1]) > INVERTED:
                ends = max(ends[0], -LARGEST), min(ends[1], LARGEST)
        assert ends is not None
        operands.append(ends)
    if operands and kind.dtype.kind == "bool":  # even for a cast of large numbers
        return 0.0, 1.0
    return _combined(node, operands) if operands else None


def _is_condition(node: Node, value: Value) -> bool:
    return node.op == "select" and value.dtype.kind == "bool" and node.types[0].dtype.kind != "bool"


def _combined(node: Node, operands: Sequence[Ends]) -> Ends:
    pairs = [(np.array(low), np.array(high)) for low, high in operands]
    if node.op in MONOTONE:
        low, high = corners(node, pairs)
    elif node.op in SIZES:
        low, high = of_size(node, *pairs[0])
    else:
        lows, highs = zip(*operands, strict=True)
        return min(*lows, 0.0), max(*highs, 0.0)  # some moves fill with 0
    return float(low), float(high)


def _beside_constants(node: Node, known: Mapping[Value, Ends]) -> Ends | None:
    x, *rest = node.inputs
    if x is None:
        return None
    ends = _of_constant(x.node, False) if x.node.op == "const" else known.get(x)
    if ends is None or any(v is not None and v.node.op != "const" for v in rest):
        return None
    axis, channels = node.attrs["axis"], max(v.type.size for v in rest if v is not None)
    shape = [channels if i == axis else 1 for i in range(x.type.rank)]
    low, high = by_constants(node, *(np.full(shape, end) for end in ends))
    return (float(low.min()), float(high.max())) if low.size and np.isfinite(low + high).all() else None


def _of_constant(node: Node, is_mask: bool) -> Ends | None:
    """The smallest and the largest number of a constant. For a mask, without the numbers that hide keys, because no op
    reads sums with these numbers."""
    assert node.data is not None
    if node.types[0].dtype.kind not in ("int", "uint", "float", "bool") or not 0 < node.data.size <= MOST_READ:
        return whole_range(node.types[0].dtype)
    data = node.data.astype(np.float64)
    if is_mask:
        data = data[np.abs(data) < HIDDEN]
    if not data.size:
        return 0.0, 0.0
    return (float(data.min()), float(data.max())) if np.isfinite(data).all() else None


def _of_factors(size: float, largest: float) -> str:
    if size > LARGEST:
        return f"its constants scale usual numbers to {size:.3g}, which fp16 does not hold"
    if largest < 1:
        return f"it has a constant of {largest:.3g}, which fp16 does not hold"
    return f"its constants are as large as {largest:.3g}, which fp16 does not hold"


def _gain(node: Node, gains: Mapping[Value, float], hides: Sequence[int]) -> tuple[float, float] | None:
    """The size of an op's result for an input near 1, with all constant factors so far, and the size of the op's
    largest constant. None if the constants do not determine it."""
    if node.types[0].dtype.kind != "float" or not node.inputs or node.inputs[0] is None:
        return None
    before = gains.get(node.inputs[0], 1.0)
    if node.op == "batch_norm":
        affine = normalisation(node, node.inputs[1:])
        return None if affine is None else (max(before * _size(affine.scale), _size(affine.shift)), 0.0)
    if (large := unheld(node, hides)) is not None:
        return large
    if node.op in ("mul", "real_div", "add", "sub"):
        return _beside_a_constant(node, gains, hides)
    if node.op in BIASED:  # the size of a sum does not follow from its weights, but from a bias
        bias = _constant_size(node, 2)
        return (bias, bias) if LARGEST < bias <= INVERTED else None
    if node.op in HEIGHTS:
        alpha, beta = abs(node.attrs["alpha"]), abs(node.attrs.get("beta", 1.0))
        size = {"scaled_tanh": alpha, "elu": max(before, alpha), "selu": beta * max(before, alpha)}[node.op]
        return size, max(alpha, beta)
    if node.op not in FACTORS:
        return None
    factors, terms = ([_constant_size(node, place) for place in places] for places in FACTORS[node.op])
    factor, largest = max(1.0, *factors) if node.op in ONE_SIDED else factors[0], max(*factors, *terms, 0.0)
    before = 1.0 if node.op in NORMS or largest > LARGEST else before
    return max([factor * before, *terms]), largest


def _beside_a_constant(node: Node, gains: Mapping[Value, float], hides: Sequence[int]) -> tuple[float, float] | None:
    """The result of `_gain` for products, quotients and sums. Numbers that hide keys from a softmax are ignored. A
    factor of at most 2^28 may be written as two factors."""
    x, other = node.inputs
    if x is None or other is None:
        return None
    if node.op != "real_div" and numbers_of(x) is not None:
        x, other = other, x
    before, numbers = gains.get(x, 1.0), numbers_of(other)
    if numbers_of(x) is not None or any(node.inputs[i] == other for i in hides):
        return None
    if numbers is None or not 0 < numbers.size <= MOST_READ:
        return None
    size = _size(numbers)
    if node.op == "real_div":
        sizes = np.abs(numbers.astype(np.float64))
        inverse = float(1 / sizes[sizes > 0].min(initial=np.inf))
        return before * inverse, 0.0
    if node.op == "mul":
        return before * size, size if size > INVERTED else 0.0
    return (max(before, size), size) if size <= INVERTED else None  # the constant stands for infinity, clamped or not


def _constant_size(node: Node, place: int | str) -> float:
    """The size of an attribute, or of a constant operand; else 1 for operand 1 and 0 for others."""
    if isinstance(place, str):
        return abs(float(node.attrs[place]))
    value = node.inputs[place] if place < len(node.inputs) else None
    numbers = None if value is None else numbers_of(value)
    return float(isinstance(place, int) and place == 1) if numbers is None else _size(numbers)


def _size(numbers: Array | None) -> float:
    if numbers is None or not numbers.size:
        return 0.0
    size = np.abs(numbers.astype(np.float64))
    return float(size[np.isfinite(size)].max(initial=0.0))


def _sum_of_products(node: Node) -> float:
    """The largest sum of products of two bytes, with the zero points subtracted."""
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    terms = prod(weight.shape[1:]) if node.op == "quantized_conv" else x.shape[-1]
    return float(terms) * 255.0 * 255.0


def _add_scales(node: Node, wide: Value, may_leave: Callable[[Node], bool], reasons: dict[int, str]) -> None:
    """Adds the nodes that compute a scale for a wide value. Products of scales are small: in fp16 they would keep few
    digits, or vanish."""
    stack: list[Node] = [v.node for v in node.inputs if v is not None and v != wide]
    while stack:
        scale = stack.pop()
        if scale.op in LEAVES or id(scale) in reasons or scale.types[0].size != 1:
            continue
        if not (OPS[scale.op].elementwise or OPS[scale.op].moves):
            continue
        if may_leave(scale):
            reasons[id(scale)] = f"it is part of the scale of {wide.node.op}, which is larger than fp16 holds"
        stack += [v.node for v in scale.inputs if v is not None]
