"""Recognises GELU written with erf."""

import math

from hexane.graph import Graph, Node, Value
from hexane.ops.match import Found, Pattern, about, made_by, op, rewrite
from hexane.ops.predicates import scalar
from hexane.targets import Target


def fuse_gelu(graph: Graph, target: Target) -> Graph:
    """0.5 * (x * (1 + erf(x / sqrt 2)))  ->  gelu(x)

    The factors may have any order. The constants must match GELU's to 6 digits.
    """
    return fuse_gated(graph, "gelu", _OPENED)


# 1 + erf(x / sqrt 2)
_OPENED = op("add", 1.0, op("erf", op("real_div", "x", about(math.sqrt(2))) | op("mul", "x", about(math.sqrt(0.5)))))


def fuse_gated(graph: Graph, name: str, gate: Pattern) -> Graph:
    """x * 0.5 * gate  ->  name(x)   where `gate` is the pattern of a sum in which x occurs."""

    def build(m: Found) -> tuple[Value, ...] | None:
        numbers, values = _factors(m.node)
        if len(values) != 2 or not math.isclose(math.prod(numbers), 0.5, rel_tol=1e-6):
            return None
        for x, factor in (values, values[::-1]):
            if factor.node.op == "add" and gate.match(graph, factor, {"x": x}):
                return m.make(name, [m.became.get(x, x)])
        return None

    return rewrite(graph, op("mul"), build)


def _factors(product: Node) -> tuple[list[float], list[Value]]:
    """Returns the factors of a product: constants and other values. Factors that are products themselves are replaced
    by their operands (one level deep)."""
    numbers: list[float] = []
    values: list[Value] = []
    for value in product.inputs:
        inner = made_by(value, "mul")
        for factor in inner.inputs if inner is not None and inner.types[0].size > 1 else (value,):
            number = scalar(factor)
            if number is not None:
                numbers.append(number)
            elif factor is not None:
                values.append(factor)
    return numbers, values
