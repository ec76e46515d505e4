"""Runs graphs of the engine's layers, and makes graphs of one layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph, Port, Value, constant, tensor_type, unique
from hexane.ops import OPS, apply
from hexane.passes.engine.as_kernels import as_kernels
from hexane.stages.allocate import allocate
from hexane.stages.place import place
from hexane.targets import load_target
from hexane.verify import verify

HOST = load_target("host")
CHIPS = ("h13", "h14", "h15", "h16", "h17s")


def run_layers(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What the executor computes for a graph of layers, by output."""
    lowered = as_kernels(graph, HOST)
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
