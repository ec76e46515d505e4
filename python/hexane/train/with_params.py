"""Imports a model with weights as params, which can be trained and replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexane import sources
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Graph, Node
from hexane.importers.patterns import matching


@dataclass(frozen=True, slots=True)
class Trainable:
    """A graph and its tensors by name. params: can be trained; statistics: params that are running means and variances
    of batch norms. `net.update` replaces the statistics, and gradients must not change them."""

    graph: Graph
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    params: dict[str, Tensor]
    statistics: dict[str, Tensor]


def with_params(
    model: Any,
    pattern: str = "*",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Trainable:
    """Imports an ONNX model (a path, the file's bytes, or a ModelProto). Initializers whose names match the pattern
    become `hx.param`s of these names, for `net.update`, `hx.grad` and `hx.train.step`.

    pattern: names, `*` for any characters, `?` for one, `|` between alternatives: "layer4.*|fc.*". Only float
    initializers with axes that compute no shapes become params. shapes: of inputs with free dims; values: of inputs
    that decide shapes. model may also be a Graph with params, as from `hx.from_torch(module, x, params="fc.*")`; then
    the pattern selects among these, and the others stay params of the graph too.

    Raises Error if nothing matches the pattern, naming similar names, and if the model cannot be imported.
    """
    if isinstance(model, Graph):
        if shapes or values:
            raise Error("[train.with_params] shapes, values: got them for a graph, need a model to import")
        return _trainable(model, pattern)
    opened = sources.open_onnx(model, where="train.with_params")
    # Imported here and not at the top: onnx takes longer to import than all of hexane.
    from hexane.importers.onnx import import_onnx

    return _trainable(import_onnx(opened.source, shapes=shapes, values=values, params=pattern), "*")


def _trainable(graph: Graph, pattern: str) -> Trainable:
    params = {str(node.attrs["name"]): node for node in graph.nodes if node.op == "param"}
    if not params:
        raise Error(
            "[train.with_params] got a graph without params, need the ONNX model that it was imported from, or"
            " hx.from_torch(.., params=..): weights of an imported graph are constants, some of them folded"
        )
    running = {id(node) for reader in graph.nodes if reader.op == "batch_norm" for node in _statistics(reader)}
    chosen = {name: Tensor(params[name].values[0]) for name in matching("train.with_params", pattern, list(params))}
    return Trainable(
        graph,
        {str(value.node.attrs["name"]): Tensor(value) for value in graph.inputs},
        {port.name: Tensor(port.value) for port in graph.outputs},
        {name: t for name, t in chosen.items() if id(t.value.node) not in running},
        {name: t for name, t in chosen.items() if id(t.value.node) in running},
    )


def _statistics(batch_norm: Node) -> list[Node]:
    """Returns the nodes of a batch norm's mean and variance, before any cast."""

    nodes = []
    for value in batch_norm.inputs[1:3]:
        assert value is not None
        while value.node.op == "cast" and value.node.inputs[0] is not None:
            value = value.node.inputs[0]
        nodes.append(value.node)
    return nodes
