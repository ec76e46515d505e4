"""Converts the ports of a graph to dtypes that a program of the engine supports: booleans become fp16, indices
uint16."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hexane.dtypes import BOOL, FP16, UINT16
from hexane.graph import Graph, TensorType, Value, constant, unique
from hexane.mil.forms.form import finds_indices
from hexane.ops import OPS, apply
from hexane.targets import Target


def engine_ports(graph: Graph, target: Target) -> Graph:
    """graph (%m: bool) .. return i=topk(select(%m, ..)) : int64
    ->  graph (%m: fp16) .. return i=cast(topk(select(greater(%m, 0.5), ..))) : uint16

    Booleans are passed as the numbers 0 and 1. The indices that an op returns are passed as uint16 if the axis is short
    enough. The caller casts at the ports. Integers other than returned indices stay unchanged.
    """
    truths = {v: _renewed(v) for v in graph.inputs if v.dtype is BOOL}
    if not truths and all(p.value.dtype.kind == "float" for p in graph.outputs):
        return graph
    inside = {v: _truth(port) for v, port in truths.items()}
    kept = {inside[v]: port for v, port in truths.items()}
    changed = graph.rewrite(lambda node, operands: None, became=dict(inside))
    outputs = tuple(p._replace(value=_narrowed(inside.get(p.value, p.value), kept)) for p in changed.outputs)
    return replace(changed, inputs=tuple(truths.get(v, v) for v in graph.inputs), outputs=outputs)


def _renewed(value: Value) -> Value:
    port = TensorType(FP16, value.shape)
    return unique("input", str(value.node.attrs["name"]), port, sources=value.node.sources)


def _truth(port: Value) -> Value:
    half = constant(np.array(0.5, np.float16), port.node.sources)
    return apply(OPS["greater"], [port, half], {}, port.node.sources)[0]


def _narrowed(value: Value, ports: Mapping[Value, Value]) -> Value:
    """Returns a result in the dtype of its port. ports: the port of each boolean input."""
    node = value.node
    if value in ports:
        return ports[value]
    if value.dtype is BOOL:
        one, zero = (constant(np.array(x, np.float16), node.sources) for x in (1, 0))
        return apply(OPS["select"], [value, one, zero], {}, node.sources)[0]
    if value.dtype.kind == "int" and finds_indices(node) and value == node.values[-1]:
        return apply(OPS["cast"], [value], {"dtype": UINT16}, node.sources)[0]
    return value
