"""The inputs of a model before it is compiled."""

from collections.abc import Mapping, Sequence

from hexane import sources
from hexane.feeds.ports import is_open
from hexane.graph import Array, Graph
from hexane.runtime import PortType


def ports_of(graph: Graph) -> list[PortType]:
    return [PortType(str(v.node.attrs["name"]), v.shape, v.dtype) for v in graph.inputs]


def ports_of_module(model: sources.Module, *, every: bool = False) -> tuple[list[PortType], list[PortType], set[str]]:
    """Returns the required inputs, the inputs with a default, and the names of the inputs whose values decide shapes.
    every: of all functions of an asset; inputs with the same name are merged."""
    signatures = [one.signature for one in (model.functions.values() if every else [model.function()])]
    ports, optional = dict[str, PortType](), dict[str, PortType]()
    for one in signatures:
        for side, inputs in ((ports, one.inputs), (optional, one.optional)):
            for i in inputs:
                side.setdefault(i.name, PortType(i.name, ("...",) if i.dims is None else i.dims, i.dtype))
    deciding = {i.name for one in signatures for i in (*one.inputs, *one.optional) if i.shape_input}
    return list(ports.values()), list(optional.values()), deciding


def graph_for(
    model: sources.Module, arrays: Mapping[str, Array], shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Graph, dict[str, Array]]:
    """Returns the graph of a model, and the arrays that it reads. Free dims not in `shapes` come from the arrays.
    Arrays whose values decide shapes become constants of the graph."""
    shapes = dict(shapes or {})
    if not model.function().is_open:
        return model.graph(shapes), dict(arrays)
    ports, optional, deciding = ports_of_module(model)
    free = [port.name for port in ports if is_open(port)] + [port.name for port in optional]
    values = {name: arrays[name] for name in deciding & arrays.keys()}
    shapes = {name: arrays[name].shape for name in free if name in arrays and name not in values} | shapes
    return model.graph(shapes, values), {name: array for name, array in arrays.items() if name not in values}
