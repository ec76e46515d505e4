"""Propagates the ranges of a graph's inputs to the bounds of every result, and decides which results can overflow."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hexane.bounds.interval import LARGEST, Interval, constant, unknown, widened
from hexane.bounds.rules import LIMIT, PRODUCTS, RULES, moves, products
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value
from hexane.ops import LEAVES, OPS, evaluate
from hexane.ops.rewriter import Rewriter

Overflow = Literal["cannot", "may", "will"]
MOST_EXPANDED = 64  # ops of an expansion whose bounds are followed


@dataclass(frozen=True, slots=True)
class Bound:
    """The interval of a node's results. overflow: whether a result exceeds `limit` for inputs in the given ranges: for
    no inputs, perhaps for some, or for all inputs. peak: for a product, a bound of the magnitude of all partial sums;
    else None."""

    number: int
    node: Node
    low: float
    high: float
    overflow: Overflow
    limit: float
    peak: float | None = None

    def __str__(self) -> str:
        """Returns a text such as "may overflow: beyond 32768" or "cannot overflow: -3 to 8, partial sums below 20"."""
        if self.overflow != "cannot":
            given = ", for all inputs in these ranges" if self.overflow == "will" else ""
            return f"{self.overflow} overflow{given}: beyond {self.limit:g}"
        sums = "" if self.peak is None else f", partial sums below {self.peak:.3g}"
        return f"cannot overflow: {self.low:.3g} to {self.high:.3g}{sums}"


def analyse(graph: Graph, ranges: Mapping[str, Any] | None = None, winograd: bool = True) -> list[Bound]:
    """Returns the bound of every float node that is not constant, in the order of the graph.

    ranges: for the name of an input, (smallest, largest) or an array. An array with the input's shape is the input
    itself. An array with one more leading axis holds samples, whose extremes bound each element. An input without a
    range may be any finite fp16. winograd: the bounds also hold for chips that compute 3x3 convolutions by Winograd's
    algorithm. Raises Error if the graph has no input of a name, or if a range does not have the input's shape.
    """
    return [bound for bound, _ in walk(graph, ranges, winograd)]


def walk(graph: Graph, ranges: Mapping[str, Any] | None, winograd: bool) -> Iterator[tuple[Bound, Interval]]:
    """Yields each bound of `analyse`, with the interval of each element."""
    given = dict(ranges or {})
    if extra := given.keys() - set(graph.input_names()):
        raise Error(
            f"[bounds] ranges: got {min(extra)!r}, need inputs of the model: {', '.join(graph.input_names()) or 'none'}"
        )
    uses = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
    known: dict[Value, Interval] = {}
    exact: dict[Value, Array] = {}  # Constants, and constants folded with one rounding.
    constants: set[Value] = set()  # Values that depend on constants only.
    for number, node in enumerate(graph.nodes):
        operands = [None if v is None else known[v] for v in node.inputs]
        results = _results(node, operands, given, exact, winograd)
        if node.op == "const" or (node.inputs and all(v is None or v in constants for v in node.inputs)):
            constants.update(node.values)
        elif node.op not in LEAVES and _float(node.types[0]):
            bound, results[0] = _judged(number, node, operands, results[0])
            yield bound, results[0]
        known.update(zip(node.values, results, strict=True))
        for value in node.inputs:
            if value is not None:
                uses[value] -= 1
                if not uses[value]:
                    known.pop(value, None)


def _results(
    node: Node, operands: list[Interval | None], given: Mapping[str, Any], exact: dict[Value, Array], winograd: bool
) -> list[Interval]:
    if node.op in LEAVES:
        return [_leaf(node, given, exact)]
    if node.inputs and all(v is None or v in exact for v in node.inputs) and not _written_out(node):
        arrays = evaluate(node, [None if v is None else exact[v] for v in node.inputs])
        if node.op != "dequantize":  # later ops on an encoded weight round at each step
            exact.update(zip(node.values, arrays, strict=True))
        return [constant(a) for a in arrays]
    if len(node.types) > 1:
        return [unknown(kind) for kind in node.types]
    if 0 in node.types[0].shape:
        return [unknown(node.types[0], False)]
    if node.op in PRODUCTS:
        return [products(node, operands, winograd)]
    if OPS[node.op].moves and node.op != "bit_cast":
        return [_with_nan(node, operands, moves(node, operands))]
    if node.op in RULES and (_float(node.types[0]) or node.op == "cast"):
        return [_with_nan(node, operands, RULES[node.op](node, operands))]
    return [_expanded(node, operands, winograd) or unknown(node.types[0])]


def _expanded(node: Node, operands: list[Interval | None], winograd: bool) -> Interval | None:
    """Returns the bounds of an op without a rule, from its expansion, or None if the op has no expansion, or one with
    too many ops."""
    expand = OPS[node.op].expand
    if expand is None or not _float(node.types[0]):
        return None
    result = expand(Rewriter(*node.sources), *node.inputs, **node.attrs)
    (value,) = (result,) if isinstance(result, Value) else tuple(result)
    known = {v: x for v, x in zip(node.inputs, operands, strict=True) if v is not None and x is not None}
    order = _behind(value, set(known))
    if len(order) > MOST_EXPANDED:
        return None
    exact: dict[Value, Array] = {}
    for part in order:
        given = [None if v is None else known[v] for v in part.inputs]
        results = _results(part, given, {}, exact, winograd)
        if part.op != "const" and _float(part.types[0]):
            results[0] = _judged(0, part, given, results[0])[1]
        known.update(zip(part.values, results, strict=True))
    interval = known[value]
    return replace(interval, sums=None)


def _behind(value: Value, ends: set[Value]) -> list[Node]:
    """Returns the nodes that compute the value from `ends`, in topological order."""
    nodes: dict[Node, None] = {}
    stack = [(value, False)]
    while stack:
        v, is_done = stack.pop()
        if v in ends or v.node in nodes:
            continue
        if is_done:
            nodes[v.node] = None
            continue
        stack += [(v, True), *((u, False) for u in v.node.inputs if u is not None)]
    return list(nodes)


def _with_nan(node: Node, operands: list[Interval | None], interval: Interval) -> Interval:
    """Returns the interval widened for operands that may be NaN: elements that depend on a NaN may be any number."""
    doubtful = [x for x in operands if x is not None and x.nan and not x.finite.all()]
    shape = node.types[0].shape
    low, high = np.broadcast_to(interval.low, shape), np.broadcast_to(interval.high, shape)
    if not doubtful:
        return replace(interval, low=low, high=high)
    if OPS[node.op].moves:
        return replace(interval, low=low, high=high, nan=True)
    if not OPS[node.op].elementwise:
        return unknown(node.types[0])
    anything = np.logical_or.reduce([np.broadcast_to(np.isinf(x.low) & np.isinf(x.high), shape) for x in doubtful])
    return Interval(np.where(anything, -np.inf, low), np.where(anything, np.inf, high), interval.sums, True, True)


def _written_out(node: Node) -> bool:
    """True if the op is folded by its expansion, in which every op rounds."""
    op = OPS[node.op]
    return op.expand is not None and not op.kernel and _float(node.types[0])


def _float(kind: Any) -> bool:
    return bool(kind.dtype.kind == "float")


def _leaf(node: Node, given: Mapping[str, Any], exact: dict[Value, Array]) -> Interval:
    kind = node.types[0]
    if node.op == "const":
        assert node.data is not None
        exact[node.values[0]] = node.data
        return constant(node.data)
    if node.op == "param" and node.data is not None:
        return constant(node.data)
    name = str(node.attrs["name"])
    if node.op == "input" and name in given:
        return _range(name, node, given[name])
    if node.op == "input" and kind.dtype.kind == "float":
        return Interval(np.full(kind.shape, -LARGEST), np.full(kind.shape, LARGEST))
    return unknown(kind)


def _range(name: str, node: Node, given: Any) -> Interval:
    kind = node.types[0]
    array = np.asarray(given)
    if isinstance(given, tuple) and array.shape == (2,) and array.dtype.kind in "fiu":
        low, high = (np.full(kind.shape, float(end)) for end in array)
    elif array.shape == kind.shape:
        low = high = array.astype(np.float64)
    elif array.shape[1:] == kind.shape and len(array):
        low, high = array.astype(np.float64).min(0), array.astype(np.float64).max(0)
    else:
        raise Error(
            f"[bounds] range of {name!r}: got the shape {array.shape}, need (smallest, largest), {kind}, or samples"
            " of it"
        )
    wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low <= high)))
    if wrong.size:
        got = f"{low.flat[wrong[0]]:g} to {high.flat[wrong[0]]:g}"
        raise Error(f"[bounds] range of {name!r}: got numbers from {got}, need finite ones that rise")
    if kind.dtype.kind != "float":
        return Interval(low, high)
    below, above = widened(low, high)
    # If the exact bounds lie within fp16, rounding errors do not widen them beyond fp16.
    below, above = (
        np.where(low >= -LARGEST, np.maximum(below, -LARGEST), below),
        np.where(high <= LARGEST, np.minimum(above, LARGEST), above),
    )
    return Interval(below, above)


def _judged(number: int, node: Node, operands: list[Interval | None], interval: Interval) -> tuple[Bound, Interval]:
    """Returns the bound with the verdict on overflow, and the interval, made infinite for elements that may
    overflow."""
    if OPS[node.op].moves and node.op != "bit_cast":
        return Bound(number, node, *interval.whole, "cannot", LARGEST), interval
    before = any(x.overflowed for x in operands if x is not None)
    sizes = interval.size
    partial = None if interval.sums is None else interval.sums.partial
    limit = LARGEST if partial is None else LIMIT
    surely = np.where(interval.low > 0, interval.low, np.where(interval.high < 0, -interval.high, 0.0))
    if partial is not None:
        over = (partial >= LIMIT) | (sizes > LARGEST)
        will = bool(((surely >= LIMIT) & np.isfinite(surely)).any()) and node.op in PRODUCTS
    else:
        given = np.zeros(node.types[0].shape, np.bool_)  # infinities that the model has as constants
        if OPS[node.op].elementwise:
            for x in operands:
                if x is not None and not x.overflowed:
                    given |= ~x.finite
        over = (sizes > LARGEST) & ~given
        will = bool(((surely > LARGEST * (1 + 2.0**-9)) & np.isfinite(surely)).any())
    overflow: Overflow = (
        "will" if will and not before else "may" if (before and not interval.finite.all()) or over.any() else "cannot"
    )
    low, high = np.where(over, -np.inf, interval.low), np.where(over, np.inf, interval.high)
    overflowed = overflow != "cannot" or (interval.overflowed and not interval.finite.all())
    result = Interval(low, high, interval.sums, overflowed, interval.nan)
    peak = None if partial is None or node.op not in PRODUCTS else float(partial.max(initial=0))
    return Bound(number, node, *result.whole, overflow, limit, peak), result
