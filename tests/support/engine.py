"""Runs graphs of the engine's layers, and makes graphs of one layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph, Node, Port, Value, constant, make_node, tensor_type, unique
from hexane.ops import LEAVES, OPS, apply
from hexane.ops.verify import verify
from hexane.passes.order import run_passes
from hexane.passes.retarget import takes
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.targets import Chip, load_target

HOST = load_target("host")
CHIPS = ("h13", "h14", "h15", "h16", "h17s")


def run_layers(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What the executor computes for a graph of layers, by output."""
    lowered = run_passes("layers", graph, HOST)
    verify(lowered, "kernel", HOST)
    program = _core.Program(emit_plan(allocate(place(lowered, HOST))), 1, None)
    return dict(zip([p.name for p in graph.outputs], program.run(dict(feeds)), strict=True))


def of_layer(name: str, inputs: list[Any], constants: tuple[int, ...] = (), **attrs: Any) -> Graph:
    """A graph of one layer: inputs x0, x1, ... like these arrays, those of `constants` as constants."""
    values: list[Value | None] = []
    for i, array in enumerate(inputs):
        kind = None if array is None else tensor_type(hx.const(array).dtype, array.shape)
        values.append(None if kind is None else constant(array) if i in constants else unique("input", f"x{i}", kind))
    made = apply(OPS[name], values, attrs)
    ports = tuple(Port(f"y{i}", v) for i, v in enumerate(made))
    return Graph(tuple(v for v in values if v is not None and v.node.op == "input"), ports)


def feeds_of(graph: Graph, inputs: list[Any]) -> dict[str, Array]:
    return {str(v.node.attrs["name"]): np.asarray(inputs[int(str(v.node.attrs["name"])[1:])]) for v in graph.inputs}


def native_part(graph: Graph, chip: Chip) -> Graph | None:
    """What the engine gets of a graph that was retargeted, as a segment: from the inputs as far as that goes; None for
    nothing."""
    good: set[Node] = set()
    for node in graph.nodes:
        fits = not node.op.startswith("quantized_") and takes(node, chip)
        if node.op in LEAVES or (fits and all(v is None or v.node in good for v in node.inputs)):
            good.add(node)
    made = [node for node in graph.nodes if node in good and node.op not in LEAVES]
    read = {v.node for node in made for v in node.inputs if v is not None}
    ends = [v for node in made if node not in read for v in node.values]
    ports = tuple(Port(f"y{i}", v) for i, v in enumerate(ends))
    if not ports:
        return None
    used = {node for node in Graph((), ports).nodes if node.op == "input"}
    return Graph(tuple(v for v in graph.inputs if v.node in used), ports)


def alone(node: Node, arrays: list[Array | None]) -> tuple[Graph, dict[str, Array]]:
    """A graph of the node alone, its operands but constants as inputs, and what to feed."""
    values: list[Value | None] = []
    feeds = {}
    for i, (value, array) in enumerate(zip(node.inputs, arrays, strict=True)):
        if value is None or value.node.op == "const":
            values.append(value)
        else:
            values.append(unique("input", f"x{i}", value.type))
            feeds[f"x{i}"] = array
    made = make_node(node.op, values, node.attrs, node.types, node.sources)
    inputs = tuple(v for v in values if v is not None and v.node.op == "input")
    return Graph(inputs, tuple(Port(f"y{i}", v) for i, v in enumerate(made.values))), feeds
