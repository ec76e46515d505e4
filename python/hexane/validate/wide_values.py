"""Values that may be larger than fp16 holds, as what is known of integers proves: sums of products of bytes, and their
casts.

    quantized_conv : int32  ->  cast : fp32  ->  mul(.., scale)  ->  add(.., bias)
          host                   host              host               engine

The host computes what reads such a value, until a scale has brought it back. A value crosses to the engine as fp16: a
sum beyond 65504 would be infinite there.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from hexane.bounds.interval import LARGEST
from hexane.graph import Node, TensorType, Value
from hexane.ops import LEAVES, OPS
from hexane.validate.masks import HIDDEN, mask_operands

# Ops whose result is no larger than the largest operand, or than the sum of all operands.
KEEPS = {
    "abs",
    "neg",
    "relu",
    "clip",
    "maximum",
    "minimum",
    "round",
    "floor",
    "ceil",
    "cast",
    "reduce_max",
    "reduce_min",
    "reduce_mean",
}
KEEPS |= {"select"}
SUMS = ("add", "sub")
PRODUCTS = ("quantized_conv", "quantized_matmul")
MOST_READ = 1 << 16  # numbers of a constant that are looked at
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
        if _is_wide(ends) and wide is None and node.op != "const":
            ends = _ends(node, known, masks.get(id(node), ()), clamps=False)  # the host has its constants as they are
            if node.types[0].dtype.kind == "float" and may_leave(node):
                found[id(node)] = _reason("it", ends)
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
    if node.op == "const":
        return _of_constant(node, False)
    if node.op in PRODUCTS and kind.dtype.kind == "int" and kind.dtype.bits == 32:
        most = _sum_of_products(node)
        return -most, most
    if node.op in LEAVES or kind.dtype.kind in ("int", "uint"):
        of_type = _of_type(kind)
        if of_type is not None or node.op in LEAVES:
            return of_type
    if node.op not in (*KEEPS, *SUMS, "mul") and not OPS[node.op].moves:
        return None
    operands: list[Ends] = []
    for i, value in enumerate(node.inputs):
        if value is None or (value.dtype.kind == "bool" and node.op == "select"):
            continue
        ends = known.get(value) if value.dtype.kind != "bool" else (0.0, 1.0)
        if ends is not None and value.node.op == "const":
            if i in hides and node.op != "mul":
                ends = _of_constant(value.node, True)
            if ends is not None and clamps:
                ends = max(ends[0], -LARGEST), min(ends[1], LARGEST)
        if ends is None:
            return None
        operands.append(ends)
    return _combined(node, operands) if operands else None


def _combined(node: Node, operands: Sequence[Ends]) -> Ends:
    lows, highs = zip(*operands, strict=True)
    if node.op == "add":
        return sum(lows), sum(highs)
    if node.op == "sub":
        return lows[0] - highs[1], highs[0] - lows[1]
    if node.op == "mul":
        corners = [x * y for x in operands[0] for y in operands[1]]
        return min(corners), max(corners)
    if node.op in ("abs", "neg"):
        return -highs[0], max(-lows[0], highs[0])
    if node.op in ("round", "floor", "ceil"):
        return lows[0] - 1, highs[0] + 1
    return min(*lows, 0.0), max(*highs, 0.0)


def _of_type(kind: TensorType) -> Ends | None:
    if kind.dtype.kind == "bool":
        return 0.0, 1.0
    if kind.dtype.kind in ("int", "uint") and kind.dtype.bits <= 16:
        half = float(1 << (kind.dtype.bits - 1))
        return (-half, half - 1) if kind.dtype.kind == "int" else (0.0, 2 * half - 1)
    return None


def _of_constant(node: Node, is_mask: bool) -> Ends | None:
    """Of a mask without the numbers that hide: sums of these are no numbers that anybody reads."""
    assert node.data is not None
    if node.types[0].dtype.kind not in ("int", "uint", "float", "bool") or not 0 < node.data.size <= MOST_READ:
        return None
    data = node.data.astype(np.float64)
    if is_mask:
        data = data[np.abs(data) < HIDDEN]
    if not data.size:
        return 0.0, 0.0
    return (float(data.min()), float(data.max())) if np.isfinite(data).all() else None


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
