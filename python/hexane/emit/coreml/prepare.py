"""Converts a graph to the dtypes and ports of Core ML."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hexane.dtypes import FP16, FP32, INT32, DType
from hexane.emit.coreml.control import as_while_loops, every_node
from hexane.emit.coreml.dtypes import in_coreml_dtypes
from hexane.emit.coreml.forms import MOST_AXES, in_coreml_ops
from hexane.emit.coreml.images import Image, with_images
from hexane.emit.coreml.labels import with_probabilities
from hexane.emit.mil.ports import with_port_axes
from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, Value, unique
from hexane.lowering.held_batch_norms import held_batch_norms
from hexane.lowering.mil_ops import as_constants
from hexane.lowering.round_attributes import round_attributes
from hexane.ops import OPS, apply, simpler
from hexane.ops.rewriter import Rewriter
from hexane.passes.layout.split_stalled_kernels import split_stalled_kernels
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.repair import repair
from hexane.passes.retarget.clamp_masks import clamp_masks
from hexane.targets import load_target
from hexane.targets.query import load_chip

_PORTS = (FP16, FP32, INT32)
STALLS = "M4"  # a chip on which some layers stall


def prepared(
    graph: Graph, compute: str, images: Mapping[str, Image] | None = None, labels: Sequence[str] = ()
) -> Graph:
    """Returns the graph to write: in fp16 or in the model's floats, with ports in fp32, fp16 or int32 of 1 to 5 axes.

    Integers of 64 bits become int32. images: image inputs, by name. labels: one for each number of the output that
    becomes fp32. Raises Error that lists all ops that Core ML lacks.
    """
    result = with_images(in_precision(graph, compute), images or {})
    return in_coreml_ops(with_probabilities(result, labels) if labels else result)


def in_precision(graph: Graph, compute: str) -> Graph:
    """Returns the graph before its ops are rewritten for Core ML, with the package's results bit for bit."""
    for port in graph.outputs:
        if port.length:
            raise Error(f"[emit] output {port.name!r}: got an extent known only at run time, need a fixed one")
    if random := next((n for n in every_node(graph) if n.inputs and "stream" in OPS[n.op].inputs), None):
        raise Error(
            f"[emit] {random.where}: got a random op, need its numbers as an input: Core ML would draw different ones"
        )
    graph = of_precision(graph, compute)
    graph = with_port_axes(with_plain_ports(in_coreml_dtypes(as_constants(graph))), MOST_AXES)
    for node in graph.nodes:
        if node.op == "state":
            check_state(node, compute)
    return split_stalled_kernels(in_halves(graph), load_chip(STALLS)) if compute == "fp16" else graph


def of_precision(graph: Graph, compute: str) -> Graph:
    """Returns the graph before the change to Core ML's dtypes. The bodies of loops and branches are converted
    completely."""

    def inside(body: Graph) -> Graph:
        result = in_coreml_dtypes(of_precision(body, compute))
        return in_halves(result) if compute == "fp16" else result

    graph = as_while_loops(graph, compute == "fp16", inside)
    if compute == "fp16":  # a chip's program is in fp16 already and stays unchanged
        graph = of_channels(held_batch_norms(clamp_masks(repair(graph, load_chip("M1")))))
    return graph


def in_halves(graph: Graph) -> Graph:
    host = load_target("host")
    return round_attributes(to_fp16(graph, host), host)


def of_channels(graph: Graph) -> Graph:
    """group_norm(%x)  ->  its expansion by channel statistics, for sizes at which `retarget` avoids the norm layer"""

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, gamma, beta = inputs
        if x is None or x.type.size <= simpler.SMALL_NORM:
            return None
        return (simpler.group_norm(Rewriter(*node.sources), x, gamma, beta, **node.attrs),)

    return graph.rewrite(change, only=("group_norm",))


def check_state(node: Node, compute: str) -> None:
    """Raises Error for a state that Core ML does not support."""
    kind, where = node.types[0], f"[emit] state {node.attrs['name']!r}"
    if kind.dtype.kind != "float" or (compute == "fp32" and kind.dtype is not FP16):
        raise Error(f"{where}: got {kind}, need fp16, in which Core ML keeps states: compute in fp16")
    if not kind.shape:
        raise Error(f"{where}: got {kind}, need an axis")
    if node.data is not None and node.data.any():
        raise Error(f"{where}: got initial contents other than 0, need 0: Core ML fills new states with 0")


def with_plain_ports(graph: Graph) -> Graph:
    """graph (%x: bool[2])  ->  graph (%x: int32[2]) with cast(%x) : bool"""
    ports = {
        v: unique("input", str(v.node.attrs["name"]), TensorType(INT32, v.shape), sources=v.node.sources)
        for v in graph.inputs
        if v.dtype not in _PORTS
    }
    result = graph
    if ports:
        inside = {v: _cast(port, v.dtype) for v, port in ports.items()}
        result = graph.rewrite(lambda *_: None, became=dict(inside))
        outputs = tuple(p._replace(value=inside.get(p.value, p.value)) for p in result.outputs)
        result = replace(result, inputs=tuple(ports.get(v, v) for v in graph.inputs), outputs=outputs)
    outputs = tuple(p if p.value.dtype in _PORTS else p._replace(value=_cast(p.value, INT32)) for p in result.outputs)
    return replace(result, outputs=outputs)


def _cast(value: Value, kind: DType) -> Value:
    return apply(OPS["cast"], [value], {"dtype": kind}, value.node.sources)[0]
