"""Linear attention: the quotient of two sums over all keys. Both sums over keys overflow fp16 before they are divided.

EfficientViT, Linear Transformers and Performers use linear attention. Factors of q and k cancel in the quotient, so the
result does not change if both are scaled to bring the sums near the magnitude of v.
"""

from math import floor, log2

from hexane.bounds.any_input import bound
from hexane.graph import Node, Value
from hexane.ops import simpler
from hexane.ops.match import Found, op
from hexane.ops.predicates import uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.exponentials import quotient
from hexane.passes.repair.form import Form
from hexane.passes.repair.scales import is_scaled
from hexane.passes.repair.squares import at_least
from hexane.validate import is_constant

MOVES = ("reshape", "transpose", "slice_by_size", "slice_by_index", "identity", "neg")
JOINS = ("add", "sub", "concat")
PADDED = ("concat", "pad")
LARGEST_SUM = 64.0  # bound of the sums of scaled q and scaled k.
LARGEST_V = 8.0  # Bound of scaled v: 64 * 64 * 8 is 32768, from which on an accumulator is infinite.
LEAST_EPSILON = 2.0**-20  # Smaller epsilons have few digits in fp16.
LEAST_TOP = 2.0**-7  # 2^-7 / 128 is a normal number of fp16.
SMALLEST = 2.0**-24  # Smallest number of fp16.
MOST_OPS = 24
MOST_READ = 400  # the most values visited in one search


def linear_attention(m: Found) -> Value | None:
    """(%q (%k^T %v)) / (%q sum(%k) + e)  ->  the same formula of %q * f, %k * g, %v * h and e * f * g, divided by h

    f, g and h are one number per head. sum(%k) may be computed as a product with a column of ones appended to v.
    Quotients that share a sum also share the scaled sum. Readers of a sum outside the quotient keep the original.
    """
    above, divisor = quotient(m.node)
    below, epsilon, join = _without_epsilon(divisor)
    if above is None or below is None or above.dtype.kind != "float":
        return None
    found = _sides(above, below)
    if found is None:
        return None
    sides, roots = found
    between = _made_of(above, sides, roots) | _made_of(below, sides, roots)
    if len(between) > MOST_OPS:
        return None
    b = Rewriter(*m.node.sources)
    rebuilt: dict[Value, Value] = {}

    def scaled(side: Value, most: float, brings_up: bool) -> list[Value]:
        now = m.now(side)
        assert now is not None
        if bound(side) <= most or is_scaled(side):
            rebuilt[side] = now
            return []
        axes = (side.type.rank - 2, side.type.rank - 1)
        rebuilt[side], factor = simpler.held(b, now, axes, most, brings_up=brings_up)
        return [factor]

    of_both = [f for side in sides[:2] for f in scaled(side, _power(LARGEST_SUM / _count(side, between)), True)]
    of_v = [f for side in sides[2:] for f in scaled(side, LARGEST_V, False)]
    if not (of_both or of_v):
        return None
    y, total = _again(m, above, rebuilt, roots), _again(m, below, rebuilt, roots)
    if epsilon:
        total = getattr(b, join)(total, _scaled(b, of_both, epsilon))
    y = b.real_div(y, total)
    return b.real_div(y, of_v[0]) if of_v else y


def _power(most: float) -> float:
    """Returns the largest power of two up to `most`, limited to the range that `held` supports."""
    return min(max(2.0 ** floor(log2(most)), LEAST_TOP), simpler.LARGEST_SQUARED)


def _scaled(b: Rewriter, factors: list[Value], epsilon: float) -> Value | float:
    """Returns epsilon times these factors, but at least the smallest number of fp16."""
    if epsilon < LEAST_EPSILON or not factors:
        return max(epsilon, SMALLEST)
    scaled = b.mul(factors[0], epsilon)
    for factor in factors[1:]:
        scaled = b.mul(scaled, factor)
    return b.maximum(scaled, SMALLEST)


def _without_epsilon(value: Value | None) -> tuple[Value | None, float, str]:
    """Returns x, e and the joining op if the value is x + e or max(x, e), else the value and e = 0."""
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                return x, known, "add"
    limited = None if value is None or value.node.op == "relu" else at_least(value)
    return (value, 0.0, "add") if limited is None else (*limited, "maximum")


def _first_product(value: Value | None) -> Node | None:
    """Returns the product of two computed matrices that the value is a move of, or None."""
    while value is not None and value.node.op in MOVES:
        value = value.node.inputs[0]
    return None if value is None or not _is_product(value.node) else value.node


def _is_product(node: Node) -> bool:
    computed = [v for v in node.inputs if v is not None and not is_constant(v.node)]
    return node.op == "matmul" and len(computed) == 2 == sum(v is not None for v in node.inputs)


def _sides(above: Value, below: Value) -> tuple[tuple[Value, ...], tuple[Value, ...]] | None:
    """Returns q, k and v, and the sources of the moves that made them, at which searches stop. Both sums over keys are
    linear in q and k. Only the upper sum is linear in v; the lower sum does not depend on v. Returns None if the sums
    are not products of q, k and v."""
    last = _first_product(above)
    if last is None:
        return None
    for place in (0, 1):
        q, other = last.inputs[place], last.inputs[1 - place]
        inner = _first_product(other)
        if inner is None:
            continue
        for at in (0, 1):
            k, v = inner.inputs[at], inner.inputs[1 - at]
            if q is None or k is None or v is None or _unmoved(k)[-1].node.op in PADDED:
                continue
            roots = tuple(_unmoved(u)[-1] for u in (q, k, v))
            first = next((u for u in _unmoved(q) if _degree(above, u, roots) == 1 == _degree(below, u, roots)), None)
            second = next((u for u in _unmoved(k) if _degree(above, u, roots) == 1 == _degree(below, u, roots)), None)
            if first is None or second is None or first == second:
                continue
            if (third := _padded(v, 1 - at, inner, last, 1 - place, above, below)) is not None:
                roots = (*roots[:2], third)
            else:
                alone = (u for u in _unmoved(v) if _degree(above, u, roots) == 1 and not _degree(below, u, roots))
                third = next(alone, None)
            return ((first, second) if third is None or third in (first, second) else (first, second, third)), roots
    return None


def _padded(v: Value, at: int, inner: Node, last: Node, place: int, above: Value, below: Value) -> Value | None:
    """Returns the part of an operand of `inner` that the upper sum uses, if the lower sum uses another part of that
    operand, such as a column of ones. at, place: the positions of the operand in `inner`, and of `inner`'s result in
    `last`."""
    node, transposed = v.node, False
    while node.op == "transpose" and _keeps_heads(node) and node.inputs[0] is not None:
        transposed ^= tuple(node.attrs["perm"][-2:]) == (v.type.rank - 1, v.type.rank - 2)
        node = node.inputs[0].node
    rank = v.type.rank
    axis = rank - 1 if at else rank - 2  # axis of the product's result that stems from the operand's own axis
    own = axis if inner.attrs["transpose_y" if at else "transpose_x"] == transposed else 2 * rank - 3 - axis
    value = last.inputs[place]
    while value is not None and value.node != inner:
        if value.node.op != "transpose" or not _keeps_heads(value.node):
            return None
        axis = tuple(value.node.attrs["perm"]).index(axis)
        value = value.node.inputs[0]
    kept = rank - 1 if place else rank - 2
    if (2 * rank - 3 - axis if last.attrs["transpose_y" if place else "transpose_x"] else axis) != kept:
        return None
    own_part, upper, lower = _own_part(node, own), _part(above, last, kept), _part(below, last, kept)
    if own_part is None or upper is None or lower is None:
        return None
    data, start, end = own_part
    is_beside = lower[1] <= start or end <= lower[0]
    return data if start <= upper[0] and upper[1] <= end and is_beside else None


def _own_part(node: Node, axis: int) -> tuple[Value, int, int] | None:
    """Returns the computed operand of a pad, or of a concat with constants, and its range along the axis."""
    if node.op == "pad" and node.attrs["mode"] == "constant" and (x := node.inputs[0]) is not None:
        begin = node.attrs["begin"]
        others = [i for i, p in enumerate(zip(begin, node.attrs["end"], strict=True)) if any(p) and i != axis]
        return None if others or begin[axis] < 0 else (x, begin[axis], begin[axis] + x.shape[axis])
    if node.op != "concat" or node.attrs["axis"] % node.types[0].rank != axis:
        return None
    start = 0
    computed: list[tuple[Value, int, int]] = []
    for value in node.inputs:
        if value is not None:
            if not is_constant(value.node):
                computed.append((value, start, start + value.shape[axis]))
            start += value.shape[axis]
    return computed[0] if len(computed) == 1 else None


def _part(value: Value, last: Node, axis: int) -> tuple[int, int] | None:
    """Returns the range of a product's axis that the value is a slice of, or None."""
    while value.node.op in MOVES and value.node != last:
        node, source = value.node, value.node.inputs[0]
        if source is None:
            return None
        if source.node == last and node.op in ("slice_by_index", "slice_by_size") and _keeps_heads(node):
            start = node.attrs["begin"][axis]
            start += source.shape[axis] if start < 0 else 0
            step = 1 if node.op == "slice_by_size" else (node.attrs["stride"] or (1,) * source.type.rank)[axis]
            return (start, start + value.shape[axis]) if step == 1 else None
        if not _keeps_heads(node):
            return None
        value = source
    return None


def _unmoved(value: Value | None) -> list[Value]:
    """Returns the value and all values that it is made from by moves within heads."""
    result: list[Value] = []
    while value is not None and not is_constant(value.node):
        result.append(value)
        if value.node.op not in MOVES or not _keeps_heads(value.node):
            break
        value = value.node.inputs[0]
    return result


def _keeps_heads(node: Node) -> bool:
    """True if the op moves numbers within the last two axes only."""
    source, y = node.inputs[0], node.values[0]
    if source is None or source.type.rank != y.type.rank or y.type.rank < 2 or source.shape[:-2] != y.shape[:-2]:
        return False
    rank = y.type.rank
    if node.op == "transpose":
        return tuple(node.attrs["perm"][: rank - 2]) == tuple(range(rank - 2))
    return node.op != "slice_by_index" or all(s > 0 for s in node.attrs.get("stride", None) or (1,))


def _degree(value: Value, t: Value, roots: tuple[Value, ...]) -> int | None:
    """Returns 0 if the value does not depend on t, 1 if it is linear in t for each head, None otherwise. roots: values
    that count as independent."""
    known: dict[Value, int | None] = {**dict.fromkeys(roots, 0), t: 1}

    def of(value: Value) -> int | None:
        if value not in known:
            if len(known) > MOST_READ:
                return None
            inputs = [v for v in value.node.inputs if v is not None]
            degrees = [of(v) for v in inputs]
            known[value] = _of_op(value.node, inputs, degrees, t) if any(d != 0 for d in degrees) else 0
        return known[value]

    return of(value)


def _of_op(node: Node, inputs: list[Value], degrees: list[int | None], t: Value) -> int | None:
    heads = t.shape[:-2]
    if None in degrees:
        return None
    if _is_flat_sum(node, heads):
        return 1
    if any(v.shape[:-2] != heads or v.type.rank != t.type.rank for v in node.values):
        return None
    if node.op in MOVES:
        return 1 if _keeps_heads(node) else None
    if node.op in ("reduce_sum", "reduce_mean"):
        rank = t.type.rank
        return 1 if all(a % rank >= rank - 2 for a in node.attrs["axes"]) and node.attrs["axes"] else None
    if node.op in ("matmul", "mul"):
        return 1 if sum(d or 0 for d in degrees) == 1 and len(inputs) == 2 else None
    if node.op in JOINS:
        within = node.op != "concat" or node.attrs["axis"] % t.type.rank >= t.type.rank - 2
        return 1 if within and all(d == 1 for d in degrees) else None
    return None


def _is_flat_sum(node: Node, heads: tuple[int, ...]) -> bool:
    """True for a sum of a head's rows or columns without the axis, and for the op that makes it a row or a column."""
    x, y = node.inputs[0], node.values[0]
    if x is None:
        return False
    if node.op in ("reduce_sum", "reduce_mean"):
        rank, axes = x.type.rank, node.attrs["axes"]
        return x.shape[:-2] == heads == y.shape[:-1] and len(axes) == 1 and axes[0] % rank >= rank - 2
    if node.op not in ("expand_dims", "reshape") or x.shape[:-1] != heads:
        return False
    return y.shape[:-2] == heads and sorted(y.shape[-2:]) == sorted((1, x.shape[-1]))


def _made_of(value: Value, sides: tuple[Value, ...], roots: tuple[Value, ...]) -> set[Value]:
    """Returns the values computed between these operands and the value."""
    if value in sides or all(_degree(value, t, roots) == 0 for t in sides):
        return set()
    return {value}.union(*(_made_of(v, sides, roots) for v in value.node.inputs if v is not None))


def _count(side: Value, between: set[Value]) -> int:
    """Returns how many numbers of q, k or v one sum adds; the longer of the last two axes if no product reads it."""
    for value in between:
        if value.node.op == "matmul" and side in [u for v in value.node.inputs for u in _unmoved(v)]:
            x = value.node.inputs[0]
            assert x is not None
            return int(x.shape[-2 if value.node.attrs["transpose_x"] else -1])
    return int(max(side.shape[-2:]))


def _again(m: Found, value: Value, rebuilt: dict[Value, Value], roots: tuple[Value, ...]) -> Value:
    """Returns the value rebuilt from scaled operands."""
    if value not in rebuilt:
        node = value.node
        if all(_degree(value, t, roots) == 0 for t in tuple(rebuilt)):
            now = m.now(value)
            assert now is not None
            return now
        inputs = [None if v is None else _again(m, v, rebuilt, roots) for v in node.inputs]
        (rebuilt[value],) = m.make(node.op, inputs, **node.attrs)
    return rebuilt[value]


QUOTIENT = Form(
    "linear attention",
    op("real_div") | op("mul"),
    linear_attention,
    "queries, keys and values are scaled first: sums over all keys are infinite in fp16 before the quotient",
    "efficientvit (its authors compute it in fp32)",
)
