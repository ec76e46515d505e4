"""Narrows the float ports of a graph to fp16."""

from dataclasses import replace

from hexane.dtypes import FP16
from hexane.graph import Graph, Node, TensorType, Value, unique
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.targets import Target


def narrow_ports(graph: Graph, target: Target) -> Graph:
    """graph (%x: fp32) .. relu(cast(%x) : fp16) .. return y=cast(%1) : fp32  ->  graph (%x: fp16) .. relu(%x) .. return y=%1

    Applies only to segments of the engine: their ports get the dtype in which the segments compute. The caller casts at
    the ports.
    """  # noqa: E501
    inputs = {v: _narrow(v) for v in graph.inputs if v.dtype.kind == "float" and v.dtype is not FP16}
    if not inputs and not any(p.value.dtype.kind == "float" for p in graph.outputs):
        return graph
    casts = {id(v.node): v for v in inputs}
    table: dict[Value, Value] = {}

    def change(node: Node, operands: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op == "cast" and node.types[0].dtype is FP16 and node.inputs[0] in inputs:
            return (inputs[node.inputs[0]],)
        if any(v is not None and id(v.node) in casts for v in operands):
            wide = [v if v is None or id(v.node) not in casts else _cast(inputs[v], v) for v in operands]
            return apply(OPS[node.op], wide, node.attrs, node.sources)
        return None

    graph = graph.rewrite(change)
    for value in inputs:
        table[value] = inputs[value]
    outputs = tuple(p._replace(value=_narrowed(table.get(p.value, p.value))) for p in graph.outputs)
    return replace(graph, inputs=tuple(table.get(v, v) for v in graph.inputs), outputs=outputs)


def _narrow(value: Value) -> Value:
    return unique("input", str(value.node.attrs["name"]), TensorType(FP16, value.shape), sources=value.node.sources)


def _cast(narrow: Value, wide: Value) -> Value:
    return apply(OPS["cast"], [narrow], {"dtype": wide.dtype}, wide.node.sources)[0]


def _narrowed(value: Value) -> Value:
    """Returns the value in fp16: the fp16 source of its cast if there is one, else a new cast."""
    if value.dtype.kind != "float" or value.dtype is FP16:
        return value
    node = made_by(value, "cast")
    if node is not None and node.inputs[0] is not None and node.inputs[0].dtype is FP16:
        return node.inputs[0]
    return apply(OPS["cast"], [value], {"dtype": FP16}, value.node.sources)[0]
