"""Sums and differences that overflow fp16 before a factor or a quotient makes them small: halves are added instead.

Halving a number is exact, except for the smallest numbers of fp16. Halves therefore cancel like the numbers themselves.
"""

from math import ceil, inf, log2

import numpy as np

from hexane.bounds.any_input import bound, ends
from hexane.graph import Value, constant
from hexane.ops.match import Found, op
from hexane.ops.predicates import uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.needs import has_square_matrices
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import factored
from hexane.validate import is_constant

HALF = 0.5
LARGEST_HALF = 32752.0  # half of fp16's largest number.
LARGEST_FACTOR = 0.5  # A larger factor brings few sums back into range.
MOST_OPS = 16
MOST_TERMS = 8  # most terms of one sum
MOVES: tuple[str, ...] = ("reshape", "expand_dims", "squeeze", "transpose", "broadcast_to", "identity", "neg")
MOVES += ("slice_by_size", "slice_by_index")
LAYERS = ("linear", "matmul", "conv", "conv_transpose", "einsum")
EVEN: tuple[str, ...] = ("abs", "relu", "reduce_max", "reduce_min", "reduce_mean")
JOINS = ("add", "sub", "maximum", "minimum")


def factor_of_sum(m: Found) -> Value | None:
    """(%a - %b) * c  ->  (%a / 2 - %b / 2) * (2 * c), for c up to 1 / 2 and operands that may be large

    abs, relu and moves may come between the difference and the factor. The terms of a longer sum are multiplied by 1/4
    or 1/8 instead of 1/2, if c is small enough.
    """
    inner, factor = factored(m.node.values[0])
    if inner is None or not 0 < abs(factor) <= LARGEST_FACTOR or inner.dtype.kind != "float":
        return None
    between: list[Value] = []
    value: Value | None = inner
    while value is not None and value.node.op in (*MOVES, "abs", "relu"):
        between.append(value)
        value = value.node.inputs[0]
    if value is None or len(between) > MOST_OPS or value.node.op not in ("add", "sub"):
        return None
    if any(m.graph.use_counts()[v] != 1 for v in (*between, value)):
        return None
    if not _is_large_sum(value):
        return None
    b, terms = Rewriter(*m.node.sources), _terms(m, value)
    step = max(HALF ** ceil(log2(len(terms))), 2.0 ** ceil(log2(abs(factor))))
    y = _sum_of(m, value, terms, step)
    for v in reversed(between):
        (y,) = m.make(v.node.op, [y, *map(m.now, v.node.inputs[1:])], **v.node.attrs)
    return y if factor == step else b.mul(y, factor / step)


def _is_large_sum(value: Value) -> bool:
    """True if the value is a sum or difference of two computed tensors that may be large."""
    return value.node.op in ("add", "sub") and all(
        v is not None and not is_constant(v.node) and v.shape == value.shape and _may_be_large(v)
        for v in value.node.inputs
    )


def _terms(m: Found, value: Value) -> tuple[Value, ...]:
    """Returns the terms of a sum. Operands that are sums with no other reader are replaced by their terms, up to eight
    terms in total."""
    terms = tuple(v for v in value.node.inputs if v is not None)
    while True:
        inner = next((v for v in terms if m.graph.use_counts()[v] == 1 and _is_large_sum(v)), None)
        if inner is None or len(terms) == MOST_TERMS:
            return terms
        terms = tuple(u for v in terms for u in (inner.node.inputs if v == inner else (v,)) if u is not None)


def _sum_of(m: Found, value: Value, terms: tuple[Value, ...], step: float) -> Value:
    """Returns the sum, with each of its terms multiplied by `step`."""
    b = Rewriter(*m.node.sources)
    sides = [
        b.mul(m.now(v), step) if v is None or v in terms else _sum_of(m, v, terms, step) for v in value.node.inputs
    ]
    result: Value = getattr(b, value.node.op)(*sides)
    return result


def _may_be_large(value: Value | None) -> bool:
    """True if the value may exceed half of fp16's largest number and has no factor up to 1/2. False for layers with
    weights: the factor 1/2 would be folded into the weights, which are stored in fixed point."""
    source = value
    while source is not None and source.node.op in (*MOVES, "relu"):
        source = source.node.inputs[0]
    if value is None or source is None or source.node.op in LAYERS:
        return False
    return bound(value) > LARGEST_HALF and not 0 < abs(factored(value)[1]) <= HALF


def quotient_of_differences(m: Found) -> Value | None:
    """(%x - min(%x)) / (max(%x) - min(%x) + e)  ->  the same formula of %x / 2 and e / 2

    Numerator and denominator must be sums, extremes, means or absolute values of one tensor: halving the tensor halves
    both.
    """
    above, below = m.node.inputs
    if m.node.op == "mul":
        for above, factor in (m.node.inputs, m.node.inputs[::-1]):  # noqa: B007
            if (below := _inverted(factor)) is not None:
                break
    if above is None or below is None or m.node.types[0].dtype.kind != "float":
        return None
    search = _Halved()
    if not (search.reach(above) and search.reach(below)) or search.x is None or not search.has_difference:
        return None
    low, high = ends(search.x)
    if high - low <= 2 * LARGEST_HALF or abs(factored(search.x)[1]) <= HALF:
        return None
    b, x = Rewriter(*m.node.sources), m.now(search.x)
    halved: dict[Value, Value] = {search.x: b.mul(x, HALF)}
    return b.real_div(_halves(m, above, halved), _halves(m, below, halved))


def _inverted(value: Value | None) -> Value | None:
    """Returns x if the value is 1 / x, else None."""
    if value is not None and value.node.op == "inverse":
        return value.node.inputs[0]
    return value.node.inputs[1] if value is not None and value.node.op == "real_div" and _is_1(value) else None


def _is_1(value: Value) -> bool:
    return uniform(value.node.inputs[0]) == 1


class _Halved:
    """Finds the one tensor that a value is computed from, by ops whose result doubles if the tensor doubles."""

    def __init__(self) -> None:
        self.x: Value | None = None
        self.seen: set[Value] = set()
        self.has_difference = False
        self.has_reduction = False

    def reach(self, value: Value | None) -> bool:
        if value is None or value in self.seen or is_constant(value.node):
            return value is not None
        if len(self.seen) == MOST_OPS:
            return False
        node = value.node
        if node.op in JOINS and any(v is not None and uniform(v) is None for v in node.inputs):
            computed = [v for v in node.inputs if v is not None and not is_constant(v.node)]
            if len(computed) == 2 and not _shares(*computed):
                return self._ends_at(value)
            self.seen.add(value)
            self.has_difference |= node.op == "sub" and len(computed) == 2
            return all(self.reach(v) for v in node.inputs)
        if node.op in (*MOVES, *EVEN) or (node.op == "clip" and node.attrs["beta"] > LARGEST_HALF * 4):
            self.seen.add(value)
            return self.reach(node.inputs[0])
        return self._ends_at(value)

    def _ends_at(self, value: Value) -> bool:
        if self.x is not None and value != self.x:
            return False
        self.x = value
        return True


def _shares(first: Value, second: Value) -> bool:
    """True if both values are computed from a common tensor by moves, absolute values, extremes and means."""
    return not _sources(first).isdisjoint(_sources(second))


def _sources(value: Value) -> set[Value]:
    values, waiting = set[Value](), [value]
    while waiting and len(values) <= MOST_OPS:
        v = waiting.pop()
        if v not in values:
            values.add(v)
            if v.node.op in (*MOVES, *EVEN, *JOINS):
                waiting += [u for u in v.node.inputs if u is not None and not is_constant(u.node)]
    return values


def _halves(m: Found, value: Value, halved: dict[Value, Value]) -> Value:
    if (known := halved.get(value)) is not None:
        return known
    node = value.node
    if is_constant(node):
        assert node.data is not None
        return constant((node.data * HALF).astype(value.dtype.numpy), node.sources)
    attrs = dict(node.attrs)
    if node.op == "clip":
        attrs = {name: float(limit) * HALF if abs(limit) < inf else limit for name, limit in attrs.items()}
    inputs = [_halves(m, v, halved) if v is not None else None for v in node.inputs]
    if node.op not in JOINS:
        inputs = [inputs[0], *map(m.now, node.inputs[1:])]
    (halved[value],) = m.make(node.op, inputs, **attrs)
    return halved[value]


AVERAGES = ("matmul", "linear")
MOST_READ = 1 << 20


def average_by_matrix(m: Found) -> Value | None:
    """matmul(%x, T)  ->  y + y, with y = matmul(%x, T / 2), for a triangular T whose weights are >= 0 and add up to 1

    An engine's accumulator is infinite from 32768 on, so an average of larger numbers is infinite too.
    """
    node = m.node
    if any(v is not None for v in node.inputs[2:]) or node.types[0].dtype.kind != "float":
        return None
    for place in (0, 1):
        weight, x = node.inputs[place], node.inputs[1 - place]
        if weight is None or x is None or weight.node.op != "const" or is_constant(x.node) or weight.type.rank != 2:
            continue
        data = weight.node.data
        if data is None or not 1 < data.size <= MOST_READ or bound(x) <= LARGEST_HALF or data.min() < 0:
            continue
        if data.shape[0] != data.shape[1] or not (
            np.array_equal(data, np.triu(data)) or np.array_equal(data, np.tril(data))
        ):
            continue  # the engine's products are in fixed point: halves of many small weights would lose a digit
        added = 1 if node.op == "linear" else (place + node.attrs["transpose_y" if place else "transpose_x"] + 1) % 2
        sums = np.asarray(data, np.float64).sum(added)
        if not (np.abs(sums[sums > 0] - 1) <= OF_AVERAGES).all() or not sums.any() or data.shape[added] == 1:
            continue
        inputs = [m.now(x), m.now(x)]
        inputs[place] = constant((data * HALF).astype(weight.dtype.numpy), node.sources)
        (y,) = m.make(node.op, [*inputs, *node.inputs[2:]], **node.attrs)
        return Rewriter(*node.sources).add(y, y)  # a factor of 2 would be folded into the weights again
    return None


OF_AVERAGES = 0.01

SPAN = Form(
    "quotient of differences",
    op("real_div") | op("mul"),
    quotient_of_differences,
    "computed from halves: the difference of two numbers beyond 32752 with opposite signs is infinite in fp16",
)
SUM = Form(
    "factor of a sum",
    op("mul") | op("real_div"),
    factor_of_sum,
    "halves are added: a sum beyond 65504 is infinite in fp16 before its factor",
)
AVERAGE = Form(
    "average by a matrix",
    op("matmul") | op("linear"),
    average_by_matrix,
    "half of the average is doubled: an average of 32768 and more is infinite in the engine's accumulator",
    needs=has_square_matrices,
)
