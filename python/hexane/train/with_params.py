"""Weights of imported models as params, which can be trained and replaced."""

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
    """A graph and its tensors by name. params: what can be trained; statistics: the params that are running means and
    variances of batch norms, which `net.update` replaces, and no gradient should change."""

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
    """An ONNX model (a path, the file's bytes, or a ModelProto) whose initializers that fit the pattern are `hx.param`s
    of their names: `net.update` replaces them, `hx.grad` and `hx.train.step` take them.

    pattern: names, `*` for any characters, `?` for one, `|` between several: "layer4.*|fc.*". Initializers fit that are
    floats with at least one axis, and that decide no shape. shapes: of inputs with free dims; values: of inputs that
    decide shapes. model may also be a Graph with params, such as `hx.from_torch(module, x, params="fc.*")` gives; then
    its params are chosen from, and all others are params of the graph still.

    Raises Error for a pattern that nothing fits, with names that are near, and for what cannot be imported.
    """
    if isinstance(model, Graph):
        if shapes or values:
            raise Error("[train.with_params] shapes, values: got them for a graph, need a model to import")
        return _trainable(model, pattern)
    opened = sources.open_onnx(model, where="train.with_params")
    # Loaded where it is used: onnx takes longer to import than all of hexane.
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
    """The nodes of its mean and variance, before any cast."""
    nodes = []
    for value in batch_norm.inputs[1:3]:
        assert value is not None
        while value.node.op == "cast" and value.node.inputs[0] is not None:
            value = value.node.inputs[0]
        nodes.append(value.node)
    return nodes
