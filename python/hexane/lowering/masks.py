"""Finds the constants of a network that hide keys from a softmax because they are far below any score.

softmax(add(%scores, mul(sub(1, cast(%counts)), -3.4e38)))        -3.4e38 hides a key: its exponential is 0
"""

from collections.abc import Sequence

import numpy as np

from hexane.bounds.interval import LARGEST
from hexane.graph import Array, Node, Value
from hexane.ops import LEAVES, OPS
from hexane.ops.spec import moved_inputs

# Three quarters of fp16's range. In [32768, 65536) fp16 has steps of 32, so a score below 16, added to -HIDDEN,
# vanishes, as it does in fp32 added to -3.4e38. Adding a score or a bias of 16000 does not overflow.
HIDDEN = 49152.0
FLOOR = -32768.0  # the lower limit of a score plus one mask: all hidden scores become this number, as in fp32
# Ops that turn scores into weights, and the positions of operands that are scores or masks.
WEIGHS = {"softmax": (0,), "log_softmax": (0,), "exp": (0,), "exp2": (0,), "scaled_dot_product_attention": (3,)}
ADDS = ("add", "sub", "maximum", "minimum", "reduce_max", "reduce_min", "clip")
COMPARES = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


def mask_operands(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """Returns, by the id of each node, the positions of operands that hide keys if the operand is a constant far below
    any score. nodes: of a graph, in topological order.

    The path from a mask to its softmax has only sums, selects, moves, and multiplications by 0 or 1. The result also
    has the operands of comparisons that read a masked score, because they compare with the mask's constant.
    """
    result: dict[int, tuple[int, ...]] = {}
    scores: set[Value] = set()
    for node in reversed(nodes):
        if node.op in WEIGHS:
            places = tuple(i for i in WEIGHS[node.op] if i < len(node.inputs))
        elif any(v in scores for v in node.values):
            places = _places(node)
        else:
            continue
        result[id(node)] = places
        scores.update(v for i in places if (v := node.inputs[i]) is not None and v.dtype.kind == "float")
    for node in nodes:
        if node.op in COMPARES and any(v in scores and v.node.op != "const" for v in node.inputs if v is not None):
            result[id(node)] = tuple(range(len(node.inputs)))
    return result


def levels(nodes: Sequence[Node], masks: dict[int, tuple[int, ...]]) -> dict[Value, tuple[int, bool]]:
    """Returns, for values that lead to a softmax through sums and selects of masks, how many masks may have been added
    to one element, and whether the value is a sum of a mask and a score."""
    known: dict[Value, tuple[int, bool]] = {}
    for node in nodes:
        counts = [(0, False)]
        for i in masks.get(id(node), ()):
            value = node.inputs[i]
            if value is None or node.op in COMPARES:
                continue
            if value.node.op == "const" and value.node.data is not None:
                counts.append((int(hiding(value.node.data) is not value.node.data), False))
            else:
                counts.append(known.get(value, (0, False)))
        if node.op in ("add", "sub"):
            count = sum(n for n, _ in counts)
            known[node.values[0]] = count, count > 0
        elif node.op in ("maximum", "minimum") and any(v.node.op == "const" for v in node.inputs if v is not None):
            count, summed = max(counts)
            known[node.values[0]] = min(count, 1), summed or any(known.get(v, (0, False))[1] for v in node.inputs if v)
        elif max(counts)[0]:
            known.update(dict.fromkeys(node.values, (max(n for n, _ in counts), any(s for _, s in counts))))
    return known


def hiding(data: Array) -> Array:
    """Returns a mask with all finite numbers of at least 65504 in magnitude replaced by HIDDEN or -HIDDEN. Returns the
    same array if there are none. Infinities are kept."""
    if data.dtype.kind != "f" and data.dtype.name != "bfloat16":
        return data
    beyond = np.isfinite(data) & (np.abs(data) >= LARGEST)
    return np.where(beyond, np.copysign(HIDDEN, data), data).astype(data.dtype) if beyond.any() else data


def _places(node: Node) -> tuple[int, ...]:
    count = len(node.inputs)
    if node.op in ADDS:
        return tuple(range(count))
    if node.op == "cast":
        return (0,) if node.inputs[0] is not None and node.inputs[0].dtype.kind == "float" else ()
    if node.op == "mul":
        return tuple(i for i in range(count) if _is_truth(node.inputs[1 - i]) or _is_scale(node.inputs[1 - i]))
    if node.op == "real_div":
        return (0,) if _is_scale(node.inputs[1]) else ()
    return _moved(node)


def _moved(node: Node) -> tuple[int, ...]:
    """Returns the positions of the operands whose elements the op moves to its result."""
    return () if node.op in LEAVES else tuple(moved_inputs(OPS[node.op], len(node.inputs)))


def _is_scale(value: Value | None) -> bool:
    """True if the value is one number of at least 1/64, such as the root of a width: a hidden score that is scaled by
    it stays hidden."""
    return (
        value is not None
        and value.node.data is not None
        and value.type.size == 1
        and bool((np.abs(value.node.data) >= 1 / 64).all())
    )


def _is_truth(value: Value | None) -> bool:
    """True if the value is provably 0 or 1: integers or booleans cast to float, products of such values, or 1 minus
    such a value."""
    while value is not None:
        node = value.node
        if node.op == "cast":
            return node.inputs[0] is not None and node.inputs[0].dtype.kind in ("int", "uint", "bool")
        if node.op == "sub":
            one = node.inputs[0]
            return one is not None and one.node.data is not None and bool((one.node.data == 1).all())
        if node.op == "mul":
            return all(_is_truth(v) for v in node.inputs)
        places = _moved(node)
        if len(places) != 1:
            return False
        value = node.inputs[places[0]]
    return False
