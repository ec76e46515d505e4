"""Asks the validators of the engine's compiler about layers that passes make or change; ops have been judged before."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, tensor_type
from hexane.ops import OPS
from hexane.passes.engine.lower import is_weight
from hexane.targets import Chip
from hexane.validate import validate
from hexane.validate.node import AXES

Call = tuple[tuple[TensorType, ...], Mapping[str, Any], TensorType | None]  # operands, attributes, result


def check_layers(graph: Graph, chip: Chip) -> Graph:
    """The graph as it is.

    Raises Error for the first layer that a validator of the chip rejects, or that has a tensor larger than the chip takes, with the
    words of the validator: what the passes before could not make legal.
    """
    for node in graph.nodes:
        op = OPS.get(node.op)
        if op is None or op.level != "engine":
            continue
        too_large(node, chip)
        made = _CALLS.get(op.layer)
        # The shape of a weight is what its reader says: no layer has to run for it.
        if made is None or (op.layer == "Reshape" and is_weight(node.inputs[0])):
            continue
        types, attrs, output = made(node)
        for verdict in validate(op.layer, types, attrs, chip, output):
            change = f", {verdict.change}" if verdict.change else ""
            raise Error(
                f"[{node.where}] {chip.label}: {verdict.reason} ({verdict.source}), need a layer that it takes{change}"
            )
    return graph


def too_large(node: Node, chip: Chip) -> None:
    """Raises Error for a tensor of a layer, other than its weights, that the chip has no room for."""
    e = chip.extents
    for t in (*(v.type for v in node.inputs if v is not None and not is_weight(v)), *node.types):
        if t.rank > e.rank:
            raise Error(f"[{node.where}] {chip.label}: got {t} with {t.rank} axes, need at most {e.rank}")
        for axis, extent in zip(AXES.get(t.rank, ("width",) * t.rank), t.shape, strict=True):
            most = max(getattr(e, axis), e.channels if t.rank < 4 else 0)
            if extent > most:
                raise Error(f"[{node.where}] {chip.label}: got {t}, its {axis} needs to be at most {most}")


def _conv(node: Node) -> Call:
    a, x = node.attrs, node.inputs[0]
    weight = node.inputs[1]
    assert x is not None
    assert weight is not None
    pads = a["explicit_padding"]
    deconvolution = node.op == "anec.deconvolution"
    attrs = {
        "kernel_sizes": weight.shape[2:],
        "strides": a["strides"],
        "dilations": a["dilation_rates"],
        "groups": a["groups"],
        "pad": pads[::2] + pads[1::2],
        "transposed": deconvolution,
    }
    channels = weight.shape[1] * a["groups"] if deconvolution else weight.shape[0]
    return (x.type,), attrs, tensor_type(x.dtype, (x.shape[0], channels, *x.shape[2:]))


def _matmul(node: Node) -> Call:
    """Rows are channels, columns the width, the axes in front the batch; a third of those would be the depth."""
    depth = 2 if node.types[0].rank >= 5 else 1
    types = []
    for value, flag in zip(node.inputs[:2], ("transpose_lhs", "transpose_rhs"), strict=True):
        assert value is not None
        *lead, rows, columns = value.shape
        if node.attrs[flag]:
            rows, columns = columns, rows
        types.append(tensor_type(value.dtype, (prod(lead), rows, depth, 1, columns)))
    return tuple(types), {}, None


def _plain(*names: str) -> Callable[[Node], Call]:
    """Its first operand, and attributes under the names of the rules."""

    def made(node: Node) -> Call:
        assert node.inputs[0] is not None
        return (node.inputs[0].type,), {name: node.attrs[name] for name in names}, node.types[0]

    return made


def _attention(node: Node) -> Call:
    def four(t: TensorType) -> TensorType:
        rows, columns = (1, 1, *t.shape)[-2:]
        return tensor_type(t.dtype, (prod(t.shape[:-2]), rows, 1, columns)) if t.rank <= 4 else t

    given = [four(v.type) for v in node.inputs if v is not None]
    return (*given[:3], tensor_type(given[0].dtype, (1, 1, 1, 1)), *given[3:]), {}, None


def _concat(node: Node) -> Call:
    return tuple(v.type for v in node.inputs if v is not None), {"axis": node.attrs["axis"] % node.types[0].rank}, None


def _softmax(node: Node) -> Call:
    assert node.inputs[0] is not None
    return (node.inputs[0].type,), {"axes": (node.attrs["axis"],)}, node.types[0]


_CALLS: Mapping[str, Callable[[Node], Call]] = {
    "Conv": _conv,
    "MatrixMult": _matmul,
    "Linear": _plain(),
    "SDPA": _attention,
    "Concat": _concat,
    "Softmax": _softmax,
    "LayerNorm": _plain(),
    "Reshape": _plain(),
    "Transpose": _plain("perm"),
}
