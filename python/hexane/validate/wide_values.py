"""Values that may be larger than fp16 holds, as integers and constants prove: sums of products of bytes, their casts,
dequantised integers, factors of batch norms.

    quantized_conv : int32  ->  cast : fp32  ->  mul(.., scale)  ->  add(.., bias)
          host                   host              host               engine

The host computes what makes or reads such a value, until a scale has brought it back. A value crosses to the engine as fp16: a
sum beyond 65504 would be infinite there.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from hexane.bounds.ends import by_constants, corners, of_size
from hexane.bounds.interval import LARGEST, whole_range
from hexane.graph import Node, Value
from hexane.ops import LEAVES, OPS
from hexane.passes.legalize.to_fp16 import half
from hexane.validate.masks import HIDDEN, mask_operands

# Ops that are monotone in each operand, so that their ends are at its ends.
MONOTONE = ("add", "sub", "mul", "neg", "relu", "clip", "maximum", "minimum", "round", "floor", "ceil")
SIZES = ("abs", "square")
PICKS = ("cast", "select", "reduce_max", "reduce_min", "reduce_mean")  # results are between those of the operand
BY_CONSTANTS = ("dequantize", "batch_norm")  # monotone in x, where the other operands are constants
PRODUCTS = ("quantized_conv", "quantized_matmul")
MOST_READ = 1 << 16  # numbers of a constant that are looked at
MOST_LOST = 2.0**-4  # relative: of the root of a variance in fp16
Ends = tuple[float, float]  # of the numbers of a value, the smallest and the largest
ROUNDS = "it makes whole numbers of 16 bits, of which fp16 holds those up to 2048"


def wide_readers(nodes: Sequence[Node], may_leave: Callable[[Node], bool]) -> dict[int, str]:
    """By id: the nodes that read or make a value beyond fp16, compute a scale for it, or round to more steps than fp16
    has, and why the host has to. nodes: of a graph, operands first. may_leave: whether a node is the engine's so far.
    """
    masks = mask_operands(nodes)
    known: dict[Value, Ends] = {}
    found: dict[int, str] = {}
    for node in nodes:
        wide = next((v for v in node.inputs if v is not None and _reads_wide(v, known)), None)
        if wide is not None and may_leave(node):
            found[id(node)] = _reason(wide.node.op, known[wide])
            _add_scales(node, wide, may_leave, found)
        if node.op == "cast" and node.types[0].dtype.kind in ("int", "uint") and node.types[0].dtype.bits >= 16:
            found |= {id(n): ROUNDS for n in _rounded(node) if may_leave(n)}
        ends = _ends(node, known, masks.get(id(node), ()), clamps=wide is None)
        if _is_wide(ends) and wide is None:
            ends = _ends(node, known, masks.get(id(node), ()), clamps=False)  # the host has its constants as they are
            if node.types[0].dtype.kind == "float" and may_leave(node):
                found[id(node)] = _reason("its results", ends)
        if node.op == "batch_norm" and ends is None and (factors := _factors(node)) is not None:
            factor, lost = factors
            if (factor > LARGEST or lost > MOST_LOST) and may_leave(node):
                found[id(node)] = _of_factors(factor)
            if factor > LARGEST:
                ends = -factor, factor  # as numbers near 1 become
        if ends is not None:
            known.update(dict.fromkeys(node.values, ends))
    return found


def _reads_wide(value: Value, known: Mapping[Value, Ends]) -> bool:
    """Whether a value that somebody computed may be beyond fp16. A constant is clamped on its way to the engine."""
    return value.node.op != "const" and value.dtype.kind == "float" and _is_wide(known.get(value))


def _is_wide(ends: Ends | None) -> bool:
    return ends is not None and max(-ends[0], ends[1]) > LARGEST


def _reason(what: str, ends: Ends | None) -> str:
    assert ends is not None
    return f"{what} may be as large as {max(-ends[0], ends[1]):.3g}, which fp16 does not hold"


def _rounded(cast: Node) -> list[Node]:
    """What rounds numbers for a cast to integers: clip(round(%x / scale) + zero), from the last op back; [] where
    nothing does."""
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
            break  # no scale of quantisation: a norm divides as well
        chain.append(scaled.node)
        scaled = scaled.node.inputs[0]
    return chain


def _ends(node: Node, known: Mapping[Value, Ends], hides: Sequence[int], clamps: bool) -> Ends | None:
    """The smallest and the largest number that a result may have; None where nothing is known. hides: the operands that
    are masks if they are constants; clamps: whether constants beyond fp16 are its largest number, as on the engine."""
    kind = node.types[0]
    if node.op in PRODUCTS and kind.dtype.kind == "int" and kind.dtype.bits == 32:
        most = _sum_of_products(node)
        return -most, most
    if node.op == "const":
        return None  # looked at by its readers
    if node.op in LEAVES or kind.dtype.kind in ("int", "uint"):
        of_type = whole_range(kind)
        if of_type is not None or node.op in LEAVES:
            return of_type
    if node.op in BY_CONSTANTS:
        return _beside_constants(node, known)
    if node.op not in (*MONOTONE, *SIZES, *PICKS) and not OPS[node.op].moves:
        return None
    values = [(i, v) for i, v in enumerate(node.inputs) if v is not None and not _is_condition(node, v)]
    if any(v.node.op != "const" and v not in known for _, v in values):
        return None
    operands: list[Ends] = []
    for i, value in values:
        ends = known.get(value)
        if value.node.op == "const":
            ends = _of_constant(value.node, i in hides and node.op != "mul")
            if ends is None:
                return None
            ends = (max(ends[0], -LARGEST), min(ends[1], LARGEST)) if clamps and value.dtype.kind == "float" else ends
        assert ends is not None
        operands.append(ends)
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
        return min(*lows, 0.0), max(*highs, 0.0)  # 0 is what some moves fill with
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
    """Of a mask without the numbers that hide: sums of these are no numbers that anybody reads."""
    assert node.data is not None
    if node.types[0].dtype.kind not in ("int", "uint", "float", "bool") or not 0 < node.data.size <= MOST_READ:
        return whole_range(node.types[0])
    data = node.data.astype(np.float64)
    if is_mask:
        data = data[np.abs(data) < HIDDEN]
    if not data.size:
        return 0.0, 0.0
    return (float(data.min()), float(data.max())) if np.isfinite(data).all() else None


def _of_factors(factor: float) -> str:
    if factor > LARGEST:
        return f"its factors are as large as {factor:.3g}, which fp16 does not hold"
    return "fp16 keeps few digits of its variance"


def _factors(node: Node) -> tuple[float, float] | None:
    """The largest factor of a batch norm, and what fp16 loses of the root of its variance, relative. None where that is
    not known, and behind a product, whose weights it becomes part of: these are looked at later."""
    x, mean, variance, gamma, beta = (*node.inputs, None, None)[:5]
    assert x is not None
    assert variance is not None
    if any(v is not None and v.node.op != "const" for v in (mean, variance, gamma, beta)):
        return None
    if (x.node.op not in LEAVES and OPS[x.node.op].product is not None) or not variance.type.size:
        return None
    assert variance.node.data is not None
    wide, epsilon = variance.node.data.astype(np.float64), np.array(node.attrs["epsilon"], np.float64)
    size = 1.0 if gamma is None or gamma.node.data is None else np.abs(gamma.node.data.astype(np.float64))
    with np.errstate(all="ignore"):
        root = np.sqrt(wide + epsilon)
        narrow = np.sqrt(half(wide).astype(np.float64) + half(epsilon).astype(np.float64))
        factor, lost = np.nan_to_num(size / root, nan=0.0, posinf=0.0), np.nan_to_num(np.abs(narrow - root) / root)
    return float(factor.max()), float(lost.max())


def _sum_of_products(node: Node) -> float:
    """Of so many products of two bytes, each beside its zero point."""
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    terms = prod(weight.shape[1:]) if node.op == "quantized_conv" else x.shape[-1]
    return float(terms) * 255.0 * 255.0


def _add_scales(node: Node, wide: Value, may_leave: Callable[[Node], bool], found: dict[int, str]) -> None:
    """Products of scales are small: in fp16 they would keep few digits, or vanish."""
    stack: list[Node] = [v.node for v in node.inputs if v is not None and v != wide]
    while stack:
        scale = stack.pop()
        if scale.op in LEAVES or id(scale) in found or scale.types[0].size != 1:
            continue
        if not (OPS[scale.op].elementwise or OPS[scale.op].moves):
            continue
        if may_leave(scale):
            found[id(scale)] = f"it is part of the scale of {wide.node.op}, which is larger than fp16 holds"
        stack += [v.node for v in scale.inputs if v is not None]
