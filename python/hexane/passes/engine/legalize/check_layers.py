"""Checks the layers that passes create or change with the validators of the engine's compiler."""

from hexane.errors import Error
from hexane.graph import Graph, Node
from hexane.lowering.weights import is_weight
from hexane.ops import OPS
from hexane.targets import Chip
from hexane.validate import validate
from hexane.validate.rule import AXES


def check_layers(graph: Graph, chip: Chip) -> Graph:
    """Returns the graph unchanged.

    Raises Error, with the validator's message, for the first layer that a validator of the chip rejects or that has a
    tensor larger than the chip's limits.
    """
    for node in graph.nodes:
        check_layer(node, chip)
    return graph


def check_layer(node: Node, chip: Chip) -> None:
    """Raises Error if the chip rejects the layer, or if a tensor of the layer exceeds the chip's limits."""
    op = OPS.get(node.op)
    if op is None or op.level != "engine":
        return
    too_large(node, chip)
    # The compiler lays a weight out in the shape that its reader needs: a reshape of a weight runs no layer.
    if op.call is None or (op.layer == "Reshape" and is_weight(node.inputs[0])):
        return
    layer, types, attrs, output = op.call(node)
    for verdict in validate(layer, types, attrs, chip, output):
        change = f", {verdict.change}" if verdict.change else ""
        raise Error(
            f"[{node.where}] {chip.label}: {verdict.reason} ({verdict.source}), need a layer that it takes{change}"
        )


def refusal(node: Node, chip: Chip) -> str | None:
    """Returns the message of the error that `check_layers` would raise for the layer, or None."""
    try:
        check_layer(node, chip)
    except Error as error:
        return str(error)
    return None


def too_large(node: Node, chip: Chip) -> None:
    """Raises Error if a tensor of the layer, other than its weights, has more axes or larger extents than the chip
    allows."""
    e = chip.extents
    for t in (*(v.type for v in node.inputs if v is not None and not is_weight(v)), *node.types):
        if t.rank > e.rank:
            raise Error(f"[{node.where}] {chip.label}: got {t} with {t.rank} axes, need at most {e.rank}")
        for axis, extent in zip(AXES.get(t.rank, ("width",) * t.rank), t.shape, strict=True):
            most = max(getattr(e, axis), e.channels if t.rank < 4 else 0)
            if extent > most:
                raise Error(f"[{node.where}] {chip.label}: got {t}, its {axis} needs to be at most {most}")
