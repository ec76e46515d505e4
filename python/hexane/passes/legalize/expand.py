"""Writes ops that have no kernel of their own as other ops."""

from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.compose import Builder, Operand, lift
from hexane.passes.legalize.legalize_dtypes import has_kernel
from hexane.targets import Kernels, Target


class Emit(Builder):
    """Expands what it is given: ops that these kernels do not take; where none are given, those that have no kernel at all."""

    __slots__ = ("_kernels",)

    def __init__(self, *sources: str, kernels: Kernels | None = None) -> None:
        super().__init__(*sources)
        self._kernels = kernels

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        values = apply(OPS[name], lift(inputs, self.sources), attrs, self.sources)
        return self.expanded(values[0].node, values[0].node.inputs) or values

    def expanded(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        """What the node's record writes it as, unless a kernel takes it."""
        op = OPS[node.op]
        if op.expand is None:
            return None
        if has_kernel(node, self._kernels) if self._kernels is not None else op.kernel:
            return None
        result = op.expand(self, *inputs, **node.attrs)
        return (result,) if isinstance(result, Value) else tuple(result)


def expand(graph: Graph, target: Target) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Every op whose record says how and that no kernel takes in its dtypes or wider ones, until none is left. Keeps the graph's meaning.
    """

    kernels = target.kernels
    return graph.rewrite(lambda node, inputs: Emit(*node.sources, kernels=kernels).expanded(node, inputs), _EXPANDED)


_EXPANDED = {name for name, op in OPS.items() if op.expand is not None}
