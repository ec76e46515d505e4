"""Recognises GELU written out with erf."""

import math
from collections.abc import Callable

from hexane.graph import Graph, Node, Value
from hexane.match import made_by, operands_with_scalar, scalar
from hexane.ops import OPS, apply
from hexane.targets import Target


def fuse_gelu(graph: Graph, target: Target) -> Graph:
    """0.5 * (x * (1 + erf(x / sqrt 2)))  ->  gelu(x)

    In any order of the factors. The constants have to be those of GELU to 6 digits.
    """

    return fuse_gated(graph, "gelu", _is_gate)


def fuse_gated(graph: Graph, op: str, is_gate: Callable[[Node, Value], bool]) -> Graph:
    """x * 0.5 * (1 + gate)  ->  op(x)   where is_gate(gate, x)."""

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = _gated(inputs, is_gate) if node.op == "mul" else None
        if x is None or x.type != node.types[0] or node.attrs["epilogue"]:
            return None
        return apply(OPS[op], [x], {}, node.sources)

    return graph.rewrite(change)


def _gated(inputs: tuple[Value | None, ...], is_gate: Callable[[Node, Value], bool]) -> Value | None:
    """x, where the product of the inputs is x * 0.5 * (1 + gate)."""
    found = _factors(inputs)
    numbers = [f for f in found if isinstance(f, float)]
    values = [f for f in found if not isinstance(f, float)]
    if len(values) != 2 or not math.isclose(math.prod(numbers), 0.5, rel_tol=1e-6):
        return None
    for x, factor in (values, values[::-1]):
        node = made_by(factor, "add")
        gate = None if node is None else operands_with_scalar(node, 1.0)
        if gate is not None and is_gate(gate.node, x):
            return x
    return None


def _factors(inputs: tuple[Value | None, ...]) -> list[Value | float]:
    """The factors of a product, products that are factors taken apart (two levels deep)."""
    found: list[Value | float] = []
    for value in inputs:
        inner = made_by(value, "mul")
        for factor in inner.inputs if inner is not None and inner.types[0].size > 1 else (value,):
            number = scalar(factor)
            found.append(factor if number is None else number)  # type: ignore[arg-type]
    return found


def _is_gate(gate: Node, x: Value) -> bool:
    """erf(x / sqrt 2)"""
    node = made_by(gate.inputs[0], "real_div", "mul") if gate.op == "erf" else None
    if node is None:
        return False
    if node.op == "mul":
        return operands_with_scalar(node, math.sqrt(0.5), 1e-6) == x
    divisor = scalar(node.inputs[1])
    return node.inputs[0] == x and divisor is not None and math.isclose(divisor, math.sqrt(2), rel_tol=1e-6)
