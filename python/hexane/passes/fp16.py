"""Stores everything between the ports in fp16."""

from hexane.dtypes import FP16, FP32
from hexane.graph import Graph, Node, Port, Value, constant, unique
from hexane.ops import OPS, apply


def to_fp16(graph: Graph) -> Graph:
    """add(%x, const fp32) : fp32  ->  cast(add(cast(%x) : fp16, const fp16) : fp16) : fp32

    Inputs and outputs keep the model's dtypes; constants, params, states and all fp32 values between become fp16, each
    rounded once. Casts to fp32 that the model has become casts to fp16.
    """
    table: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = [None if v is None else table[v] for v in node.inputs]
        table.update(zip(node.values, _halved(node, inputs), strict=True))
    outputs = tuple(Port(p.name, _cast(table[p.value], p.value)) for p in graph.outputs)
    return Graph(graph.inputs, outputs, tuple(table[v] for v in graph.updates), graph.name)


def _halved(node: Node, inputs: list[Value | None]) -> tuple[Value, ...]:
    single = node.types[0].dtype is FP32
    if node.op == "input":
        return apply(OPS["cast"], node.values, {"dtype": FP16}, node.sources) if single else node.values
    if node.op == "const":
        assert node.data is not None
        return (constant(node.data.astype(FP16.numpy), node.sources),) if single else node.values
    if node.op in ("param", "state"):
        data = None if node.data is None else node.data.astype(FP16.numpy)
        kind = type(node.types[0])(FP16, node.types[0].shape)
        return (unique(node.op, str(node.attrs["name"]), kind, data, node.sources),) if single else node.values
    attrs = {k: FP16 if v is FP32 else v for k, v in node.attrs.items()}
    return apply(OPS[node.op], inputs, attrs, node.sources)


def _cast(value: Value, like: Value) -> Value:
    return (
        value
        if value.dtype is like.dtype
        else apply(OPS["cast"], [value], {"dtype": like.dtype}, value.node.sources)[0]
    )
