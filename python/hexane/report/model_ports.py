"""The inputs of a model that is not compiled yet."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hexane.feeds.ports import is_open
from hexane.graph import Array, Graph
from hexane.importers.files import asset_path, is_asset, is_written_model
from hexane.report.preflight import as_graph
from hexane.runtime import PortType


def ports_of(graph: Graph) -> list[PortType]:
    return [PortType(str(v.node.attrs["name"]), v.shape, v.dtype) for v in graph.inputs]


def ports_of_model(model: Any, *, every: bool = False) -> tuple[list[PortType], list[PortType], set[str]]:
    """The inputs, those that have a default, and the names of those whose values decide shapes, of a path in any form,
    or of ONNX as bytes or a ModelProto. every: of all functions of an asset."""
    if is_written_model(model):
        return (_ports_of_asset(model, every) if is_asset(model) else ports_of(as_graph(model))), [], set()
    from hexane.importers.onnx import signature  # late: `onnx` takes a while to load

    found = signature(model)
    ports, optional = (
        [PortType(i.name, ("...",) if i.dims is None else i.dims, i.dtype) for i in inputs]
        for inputs in (found.inputs, found.optional)
    )
    return ports, optional, {i.name for i in (*found.inputs, *found.optional) if i.shape_input}


def graph_for(
    model: Any, arrays: Mapping[str, Array], shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Graph, dict[str, Array]]:
    """The graph of a model as `preflight` takes it, and the arrays that it reads. Free dims that `shapes` leaves out
    are those of the arrays; arrays that decide shapes become constants."""
    shapes = dict(shapes or {})
    if not isinstance(model, (str, bytes, os.PathLike)) and type(model).__name__ != "ModelProto":
        return as_graph(model, shapes), dict(arrays)
    ports, optional, deciding = ports_of_model(model)
    free = [port.name for port in ports if is_open(port)] + [port.name for port in optional]
    values = {name: arrays[name] for name in deciding & arrays.keys()}
    shapes = {name: arrays[name].shape for name in free if name in arrays and name not in values} | shapes
    return as_graph(model, shapes, values), {name: array for name, array in arrays.items() if name not in values}


def _ports_of_asset(model: Any, every: bool) -> list[PortType]:
    from hexane.importers.coreai import asset_inputs

    path, function = asset_path(model)
    return [PortType(name, dims, dtype) for name, dims, dtype in asset_inputs(path, function, every=every)]
