"""Recognises GELU written out with erf."""

import math

from hexane.graph import Graph, Node, Value
from hexane.match import made_by, operands_with_scalar, scalar
from hexane.ops import OPS, apply


def fuse_gelu(graph: Graph) -> Graph:
    """0.5 * (x * (1 + erf(x / sqrt 2)))  ->  gelu(x)

    In any order of the factors. The constants have to be those of GELU to 6 digits.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = _argument(inputs) if node.op == "mul" else None
        if x is None or x.type != node.types[0] or node.attrs["epilogue"]:
            return None
        return apply(OPS["gelu"], [x], {}, node.sources)

    return graph.rewrite(change)


def _argument(inputs: tuple[Value | None, ...]) -> Value | None:
    """x, where the product of the inputs is x * 0.5 * (1 + erf(x / sqrt 2))."""
    found = factors(inputs)
    numbers = [f for f in found if isinstance(f, float)]
    values = [f for f in found if not isinstance(f, float)]
    if len(values) != 2 or not math.isclose(math.prod(numbers), 0.5, rel_tol=1e-6):
        return None
    for x, gate in (values, values[::-1]):
        node = made_by(gate, "add")
        inner = operands_with_scalar(node, 1.0) if node is not None else None
        erf = made_by(inner, "erf")
        if erf is not None and _over_sqrt2(erf.inputs[0], x):
            return x
    return None


def factors(inputs: tuple[Value | None, ...]) -> list[Value | float]:
    """The factors of a product, products that are factors taken apart (two levels deep)."""
    found: list[Value | float] = []
    for value in inputs:
        inner = made_by(value, "mul")
        for factor in inner.inputs if inner is not None and inner.types[0].size > 1 else (value,):
            number = scalar(factor)
            found.append(factor if number is None else number)  # type: ignore[arg-type]
    return found


def _over_sqrt2(value: Value | None, x: Value) -> bool:
    node = made_by(value, "real_div", "mul")
    if node is None:
        return False
    if node.op == "mul":
        return operands_with_scalar(node, math.sqrt(0.5), 1e-6) == x
    divisor = scalar(node.inputs[1])
    return node.inputs[0] == x and divisor is not None and math.isclose(divisor, math.sqrt(2), rel_tol=1e-6)
