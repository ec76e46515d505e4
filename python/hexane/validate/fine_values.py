"""Values whose small numbers decide a result and are lost in fp16: products with tiny factors that are scaled up again,
and the terms and limits that keep a logarithm or a reciprocal finite.

  relu(%x)  ->  add(.., 1e-8)  ->  log          log(0 + 1e-8) is -18.4; fp16 rounds 1e-8 to 6e-8, or to 0
  engine        host              host

The host computes the ops from the constant to the reader that needs its digits. Without such a reader a small constant
is harmless: fp16 rounds it away next to larger numbers, as fp32 does later on. A small constant added to the divisor of
a normalisation is harmless too, because the numerator is 0 where the divisor is small. A small term, such as the offset
of a batch norm in one channel, is also harmless next to usual numbers, even if a constant scales the sum, such as the
next norm's scale.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hexane.bounds.interval import LARGEST
from hexane.graph import Array, Node, Value
from hexane.lowering.affine import normalisation
from hexane.ops import LEAVES, OPS
from hexane.ops.spec import moved_inputs

FEW_DIGITS = 2.0**-16  # Numbers below it have a relative error above 2^-9 in fp16.
MOST_LOST = 2.0**-9
HALF_A_STEP = 2.0**-25  # Largest error of fp16 for numbers below its normal range.
VISIBLE = 2.0**-10  # A small constant affects results if later factors raise it to this size.
MOST_READ = 1 << 16  # Larger constants are not read.
SLOPES: dict[str, tuple[str, ...]] = {  # attributes whose product is the size of the results on one side
    "leaky_relu": ("alpha",), "clamped_relu": ("alpha",), "elu": ("alpha",), "celu": ("alpha",), "selu": ("alpha", "beta"),
}  # fmt: skip
KEEP = ("relu", "relu6", "abs", "neg", "max_pool", "avg_pool", "reduce_max", "reduce_min", "reduce_mean", "reduce_sum", "cast", "clip",
        "maximum", "minimum", "select", "add", "sub", "leaky_relu", "prelu")  # fmt: skip
NORMS = {"layer_norm": (1, 2), "instance_norm": (1, 2), "group_norm": (1, 2), "rms_norm": (1,)}  # gamma and beta
PRODUCTS = ("conv", "conv_transpose", "linear", "matmul")
DIVIDED = ("log", "inverse", "rsqrt")


class Fine(NamedTuple):
    """The small numbers of a value. size: their magnitude. whole: whether all numbers of the value are this small.
    before: the operand that they come from. neighbour: the usual size of the other terms, if the small numbers are
    terms of a sum; else 0."""

    size: float
    whole: bool
    before: Value | None
    neighbour: float = 0.0

    @property
    def is_term(self) -> bool:
        """True if the error of the small numbers in fp16 is small relative to the sum, however the sum is scaled."""
        return not self.whole and MOST_LOST * self.neighbour >= HALF_A_STEP


class Makers(NamedTuple):
    """found: by `id()`, the reason why a node needs more digits than fp16 has: small numbers decide its results. large:
    reciprocals of small numbers that overflow fp16, and their sizes."""

    found: dict[int, str]
    large: dict[Value, float]


def fine_makers(nodes: Sequence[Node], counts: Mapping[Value, int], may_leave: Callable[[Node], bool]) -> Makers:
    """Finds the nodes in a graph whose small numbers decide results. nodes: operands first. counts: how often each
    value is read, by outputs too."""
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    read = Counter({value: len(users) for value, users in readers.items()})
    fine: dict[Value, Fine] = {}
    reasons: dict[int, str] = {}
    large: dict[Value, float] = {}
    gains: dict[Value, float] = {}  # the size of a value that would be near 1 without constant factors

    def decided(value: Value | None, reason: str) -> None:
        while value is not None and value in fine:
            shares = [v.node for v in value.node.inputs if v is not None and _is_share(value.node, v, gains)]
            for node in (value.node, *shares):
                if may_leave(node):
                    reasons.setdefault(id(node), reason)
            value = fine[value].before

    for node in nodes:
        if not node.types or node.types[0].dtype.kind != "float" or node.op in LEAVES:
            continue
        for value in _needs_digits(node, fine, readers):
            reason = (
                f"numbers as small as {fine[value].size:.3g}, which fp16 does not hold, decide what {node.op} gives"
            )
            decided(value, reason)
            if may_leave(node):
                reasons.setdefault(id(node), reason)
            if (size := _reciprocal(node, fine[value].size)) > LARGEST:
                large[node.values[0]] = size
        if (gain := _gain(node, gains)) is not None:
            gains[node.values[0]] = gain
        result = _made(node, fine, gains)
        if result is None:
            continue
        fine[node.values[0]] = result
        if result.whole and result.size < FEW_DIGITS and counts.get(node.values[0], 0) > read[node.values[0]]:
            decided(node.values[0], f"its results are as small as {result.size:.3g}, which fp16 does not hold")
    return Makers(reasons, large)


def _reciprocal(node: Node, size: float) -> float:
    """The size of the quotient if the node divides by a number of this size; 0 for other ops."""
    if node.op == "rsqrt":
        return float(size**-0.5)
    top = _numbers(node.inputs[0]) if node.op == "real_div" else None
    return 1 / size if node.op == "inverse" else 0.0 if top is None else _size(top) / size


def lost(numbers: Array | float) -> float:
    """The size of the smallest number that loses digits in fp16 because it is below the normal range; 0 if there is
    none."""
    size = np.abs(np.asarray(numbers, np.float64)).ravel()
    size = size[(size > 0) & (size < VISIBLE)]
    gone = size[np.abs(size.astype(np.float16).astype(np.float64) - size) > MOST_LOST * size]
    return float(gone.min(initial=np.inf)) if gone.size else 0.0


def _needs_digits(node: Node, fine: Mapping[Value, Fine], readers: Mapping[Value, list[Node]]) -> list[Value]:
    """The operands with small numbers that decide the node's results."""
    x = node.inputs[0] if node.inputs else None
    if x is None:
        return []
    if node.op in DIVIDED and x in fine and (node.op == "log" or not _scales_its_operand(node, readers)):
        return [x]
    if node.op == "real_div" and x.node.op == "const":
        return [v for v in node.inputs[1:] if v is not None and v in fine]
    if node.op in ("mul", "real_div", "batch_norm"):
        value, factor = _by_constant(node) if node.op != "batch_norm" else (x, _scale_of_norm(node))
        small = None if value is None else fine.get(value)
        if value is None or small is None or small.is_term:
            return []
        return [value] if small.size < VISIBLE <= small.size * factor else []
    return []


def _scales_its_operand(node: Node, readers: Mapping[Value, list[Node]]) -> bool:
    """True if all readers of a reciprocal multiply it with computed numbers, as in a normalisation. Products with
    constants, and views, may come between, as with the channel gains of a group norm."""
    users = readers.get(node.values[0], [])
    return bool(users) and all(_scales(user, readers) for user in users)


def _scales(user: Node, readers: Mapping[Value, list[Node]]) -> bool:
    if user.op == "mul" and not _constants(user):
        return True
    is_on_the_way = user.op == "mul" or (bool(OPS[user.op].moves) and len(user.inputs) == 1)
    return is_on_the_way and _scales_its_operand(user, readers)


def _by_constant(node: Node) -> tuple[Value | None, float]:
    """For a product with a constant or a quotient by a constant: the computed operand, and the largest factor."""
    x, y = node.inputs
    if node.op == "mul" and x is not None and x.node.op == "const":
        x, y = y, x
    numbers = _numbers(y)
    if x is None or x.node.op == "const" or numbers is None:
        return None, 0.0
    size = np.abs(numbers[(numbers != 0) & np.isfinite(numbers)])
    if not size.size:
        return None, 0.0
    return x, float(1 / size.min() if node.op == "real_div" else size.max())


def _scale_of_norm(node: Node) -> float:
    affine = normalisation(node, node.inputs[1:])
    return 0.0 if affine is None else _size(affine.scale)


def _is_share(node: Node, value: Value, gains: Mapping[Value, float]) -> bool:
    """True if the node multiplies computed operands that were each scaled by a constant below 1, and `value` is such an
    operand: %x * 2^-8."""
    is_product = node.op == "square" or (node.op == "mul" and not _constants(node))
    return is_product and gains.get(value, 1.0) < 1 and value.node.op in ("mul", "real_div")


def _constants(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and v.node.op == "const"]


def _gain(node: Node, gains: Mapping[Value, float]) -> float | None:
    x = node.inputs[0] if node.inputs else None
    if node.op == "square":
        return gains[x] ** 2 if x is not None and x in gains else None
    if node.op == "mul" and not _constants(node) and any(v in gains for v in node.inputs if v is not None):
        return float(np.prod([gains.get(v, 1.0) for v in node.inputs if v is not None]))
    if node.op in ("mul", "real_div"):
        x, factor = _by_constant(node)
        return None if x is None or not factor else gains.get(x, 1.0) * factor
    if node.op == "batch_norm" and x is not None:
        return gains.get(x, 1.0) * factor if (factor := _scale_of_norm(node)) else None
    return gains.get(x) if x is not None and (node.op in KEEP or OPS[node.op].moves) else None


def _made(node: Node, fine: Mapping[Value, Fine], gains: Mapping[Value, float]) -> Fine | None:
    operands = [v for v in node.inputs if v is not None]
    if node.op in ("mul", "real_div"):
        top = _numbers(node.inputs[0]) if node.op == "real_div" else None
        if top is not None:  # a constant divided by numbers near 1
            size = _size(top)
            return Fine(size, True, None) if 0 < size < FEW_DIGITS else None
        if (share := _shared(node, gains)) is not None:
            return share
        value, factor = _by_constant(node)
        if value is None or not factor:
            return None
        before = fine.get(value)
        if before is not None:
            size = before.size * factor
            neighbour = before.neighbour * min(factor, 1.0)
            return Fine(size, before.whole, value, neighbour) if size < VISIBLE else None
        size = gains.get(node.values[0], factor)
        return Fine(size, True, None) if size < FEW_DIGITS else None
    if node.op == "batch_norm":
        return _of_batch_norm(node, fine, gains)
    if node.op in PRODUCTS and operands[0] in fine:
        before = fine[operands[0]]
        return before._replace(before=operands[0])
    if node.op == "square" and operands[0] in fine:
        before = fine[operands[0]]
        return Fine(before.size**2, before.whole, operands[0], before.neighbour**2)
    if node.op == "square":
        return _shared(node, gains)
    if (own := _own(node)) is not None:
        return own._replace(neighbour=_beside(node, fine, gains)) if node.op in ("add", "sub") else own
    if node.op not in KEEP and not OPS[node.op].moves:
        return None
    moved = operands
    if OPS[node.op].moves:
        moved = [v for i in moved_inputs(OPS[node.op], len(node.inputs)) if (v := node.inputs[i]) is not None]
    known = [(fine[v], v) for v in moved if v in fine]
    if not known:
        return None
    first, value = min(known, key=lambda pair: (pair[0].is_term, pair[0].size))
    return Fine(first.size, all(v in fine and fine[v].whole for v in moved), value, first.neighbour)


def _of_batch_norm(node: Node, fine: Mapping[Value, Fine], gains: Mapping[Value, float]) -> Fine | None:
    """The small numbers of a batch norm, treated as a product and a sum."""
    x, affine = node.inputs[0], normalisation(node, node.inputs[1:])
    if affine is None or x is None:
        return None
    factor, before, small = _size(affine.scale), fine.get(x), lost(affine.shift)
    if small:
        usual = before.size if before is not None and before.whole else gains.get(x, 1.0)
        return Fine(small, False, None, usual * factor)
    if before is None or before.size * factor >= VISIBLE:
        return None
    return Fine(before.size * factor, before.whole and not affine.shift.any(), x, before.neighbour * min(factor, 1.0))


def _beside(node: Node, fine: Mapping[Value, Fine], gains: Mapping[Value, float]) -> float:
    """The usual size of the computed terms of a sum."""
    computed = [v for v in node.inputs if v is not None and v.node.op != "const"]
    sizes = [fine[v].size if v in fine and fine[v].whole else gains.get(v, 1.0) for v in computed]
    return max(sizes, default=0.0)


def _shared(node: Node, gains: Mapping[Value, float]) -> Fine | None:
    """The result of a product if all its operands have a small factor: (%x * 2^-8) * (%y * 2^-9)."""
    shares = [gains.get(v, 1.0) for v in node.inputs if v is not None and _is_share(node, v, gains)]
    size = float(np.prod(shares)) ** (2 if node.op == "square" else 1)
    return Fine(size, True, None) if len(shares) == len(node.inputs) and size < FEW_DIGITS else None


def _own(node: Node) -> Fine | None:
    x = node.inputs[0] if node.inputs else None
    if x is None:
        return None
    if node.op in ("add", "sub", "maximum", "minimum", "select") or (OPS[node.op].moves and len(node.inputs) > 1):
        parts = [v for v in node.inputs if v is not None and v.dtype.kind == "float"]
        constants = [numbers for v in parts if (numbers := _numbers(v)) is not None]
        sizes = [size for numbers in constants if (size := lost(numbers))]
        if not sizes:
            return None
        whole = node.op == "select" or OPS[node.op].moves
        bound = max((float(np.abs(numbers).max(initial=0)) for numbers in constants), default=0.0)
        # A small number below 0 is no lower limit in a maximum, but it may be the upper end of a clamp.
        return Fine(min(sizes), bool(whole and len(constants) == len(parts) and bound < FEW_DIGITS), None)
    attrs = node.attrs
    if node.op == "clip":
        low, high = attrs["alpha"], attrs["beta"]
        sizes = [size for end in (low, high) if (size := lost(end))]
        return Fine(min(sizes), max(abs(low), abs(high)) < FEW_DIGITS, None) if sizes else None
    if node.op == "threshold":
        return Fine(size, False, None) if (size := lost(attrs["alpha"])) else None
    if node.op in SLOPES:
        slope = float(np.prod([abs(attrs[name]) for name in SLOPES[node.op]]))
        return Fine(slope, False, None) if lost(slope) else None
    if node.op == "prelu":
        numbers = _numbers(node.inputs[1])
        return Fine(size, False, None) if numbers is not None and (size := lost(numbers)) else None
    if node.op in ("linear_activation", "scaled_tanh"):
        alpha, beta = abs(attrs["alpha"]), abs(attrs["beta"])
        size = max(alpha, beta) if node.op == "linear_activation" else alpha * min(beta, 1.0)
        return Fine(size, True, None) if 0 < size < FEW_DIGITS else None
    if node.op in NORMS:
        operands = [node.inputs[i] if i < len(node.inputs) else None for i in NORMS[node.op]]
        if operands[0] is None or any(v is not None and _numbers(v) is None for v in operands):
            return None
        size = max(float(np.abs(n).max(initial=0)) for v in operands if (n := _numbers(v)) is not None)
        return Fine(size, True, None) if 0 < size < FEW_DIGITS else None
    if node.op in PRODUCTS:
        numbers, bias = _numbers(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else None
        if numbers is None or bias is not None:
            return None
        size = float(np.abs(numbers).max(initial=0))
        # `whole` is False, because compiling warns of such weights if no factor follows.
        return Fine(size, False, None) if 0 < size < FEW_DIGITS else None
    return None


def _numbers(value: Value | None) -> Array | None:
    """A float constant as fp64; None for other values, and for constants too large to read."""
    if value is None or value.node.op != "const" or value.dtype.kind != "float" or not 0 < value.type.size <= MOST_READ:
        return None
    assert value.node.data is not None
    return value.node.data.astype(np.float64)


def unheld(node: Node, hides: Sequence[int]) -> tuple[float, float] | None:
    """The sizes of the results and of the largest constant, if fp16 holds a constant neither directly nor as a product
    of two factors, and no clip makes the error harmless; else None."""
    constants = [(i, _numbers(v)) for i, v in enumerate(node.inputs) if i not in hides]
    sizes = {i: _size(numbers) for i, numbers in constants if numbers is not None}
    attrs = {k: float(v) for k, v in node.attrs.items() if isinstance(v, float) and np.isfinite(v)}
    if node.op == "real_div" and 0 in sizes:
        numbers = _numbers(node.inputs[0])
        assert numbers is not None
        return (sizes[0], sizes[0]) if _large(sizes[0]) or lost(numbers) else None
    if node.op == "pow":
        base = _numbers(node.inputs[0])
        small = base is not None and lost(base) > 0
        large = max((size for size in sizes.values() if _large(size)), default=0.0)
        return (_size(base) if base is not None and large else 1.0, max(sizes.values())) if small or large else None
    if node.op in ("mod", "fmod", "floor_div"):
        divisor = _numbers(node.inputs[1])
        small = divisor is not None and lost(divisor) > 0
        return (1.0, max(sizes.values())) if small or any(map(_large, sizes.values())) else None
    if node.op == "select":
        size = max((size for i, size in sizes.items() if _large(size)), default=0.0)
        return (size, size) if size else None
    if node.op in ("maximum", "minimum"):
        sign = 1 if node.op == "maximum" else -1
        end = max((float((sign * n).max()) for i in sizes if (n := _numbers(node.inputs[i])) is not None), default=0.0)
        return (end, end) if _large(end) else None
    if node.op in ("clip", "threshold"):
        end = max(attrs.get("alpha", 0.0), -attrs.get("beta", 0.0))
        return (end, end) if _large(end) else None
    if node.op in ("celu", "clamped_relu", "shrink", "sigmoid_hard"):
        names = {"celu": ("alpha",), "clamped_relu": ("alpha",), "shrink": ("bias",), "sigmoid_hard": ("alpha", "beta")}
        size = max(abs(attrs[name]) for name in names[node.op])
        return (1.0 if node.op == "sigmoid_hard" else size, size) if _large(size) else None
    return None


def _size(numbers: Array) -> float:
    size = np.abs(numbers)
    return float(size[np.isfinite(size)].max(initial=0.0))


def _large(size: float) -> bool:
    """True for a number beyond fp16 that is not so large that it stands for infinity."""
    return LARGEST < size <= 2.0**28
