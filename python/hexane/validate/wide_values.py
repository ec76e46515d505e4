"""Values that may be larger than fp16 holds, as what is known of integers proves: sums of products of bytes, and their
casts.

    quantized_conv : int32  ->  cast : fp32  ->  mul(.., scale)  ->  add(.., bias)
          host                   host              host               engine

The host computes what reads such a value, until a scale has brought it back. A value crosses to the engine as fp16: a
sum beyond 65504 would be infinite there.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from hexane.graph import Node, TensorType, Value
from hexane.ops import LEAVES, OPS

LARGEST = 65504.0  # of fp16
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
ROUNDS = "it makes whole numbers of 16 bits, of which fp16 holds those up to 2048"


def wide_readers(nodes: Sequence[Node], may_leave: Callable[[Node], bool]) -> dict[int, str]:
    """By id: the nodes that read a value beyond fp16, compute a scale for it, or round to more steps than fp16 has, and
    why the host has to. nodes: of a graph, operands first. may_leave: whether a node is the engine's so far."""
    if not any(node.op in PRODUCTS or node.op == "cast" for node in nodes):
        return {}
    sizes: dict[Value, float] = {}
    found: dict[int, str] = {}
    for node in nodes:
        wide = next(
            (v for v in node.inputs if v is not None and v.dtype.kind == "float" and sizes.get(v, 0) > LARGEST), None
        )
        if wide is not None and may_leave(node):
            found[id(node)] = f"{wide.node.op} may be as large as {sizes[wide]:.3g}, which fp16 does not hold"
            _add_scales(node, wide, may_leave, found)
        if node.op == "cast" and node.types[0].dtype.kind in ("int", "uint") and node.types[0].dtype.bits >= 16:
            found |= {id(n): ROUNDS for n in _rounded(node) if may_leave(n)}
        size = _size(node, sizes)
        if size is not None:
            sizes.update(dict.fromkeys(node.values, size))
    return found


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


def _size(node: Node, sizes: dict[Value, float]) -> float | None:
    """The largest absolute value that a result may have; None where nothing is known."""
    kind = node.types[0]
    if node.op == "const":
        assert node.data is not None
        return _largest(node) if kind.size <= 1 << 16 else None
    if node.op in PRODUCTS and kind.dtype.kind == "int" and kind.dtype.bits == 32:
        return _sum_of_products(node)
    if node.op in LEAVES or kind.dtype.kind in ("int", "uint"):
        known = _of_type(kind)
        if known is not None or node.op in LEAVES:
            return known
    operands = [sizes.get(v) for v in node.inputs if v is not None and v.dtype.kind != "bool"]
    if not operands or any(size is None for size in operands):
        return None
    known_sizes = [size for size in operands if size is not None]
    if node.op in KEEPS or OPS[node.op].moves:
        return max(known_sizes)
    if node.op in SUMS:
        return sum(known_sizes)
    return prod(known_sizes) if node.op == "mul" else None


def _of_type(kind: TensorType) -> float | None:
    if kind.dtype.kind == "bool":
        return 1.0
    if kind.dtype.kind in ("int", "uint") and kind.dtype.bits <= 16:
        return float(1 << kind.dtype.bits)
    return None


def _largest(node: Node) -> float | None:
    assert node.data is not None
    if node.types[0].dtype.kind not in ("int", "uint", "float", "bool") or not node.data.size:
        return None
    largest = float(np.abs(node.data.astype(np.float64)).max())
    return largest if np.isfinite(largest) else None


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
