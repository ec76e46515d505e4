"""Helpers for splitting a layer: its slots stay on the pieces, or become layers after the concatenation."""

from collections.abc import Sequence
from typing import Any

from hexane.dtypes import DTYPES
from hexane.graph import EpilogueSlot, Node, Value, make_node
from hexane.ops import OPS, apply
from hexane.ops.slots import moved, operands_of


def layer(name: str, inputs: Sequence[Value | None], sources: tuple[str, ...], **attrs: Any) -> Value:
    return apply(OPS[f"anec.{name}"], inputs, attrs, sources)[0]


def with_inputs(node: Node, inputs: Sequence[Value | None]) -> Node:
    """Returns the node with other inputs of the same types."""
    return make_node(node.op, inputs, node.attrs, node.types, node.sources)


def with_slots(node: Node, inputs: Sequence[Value | None], slots: Sequence[EpilogueSlot], **attrs: Any) -> Value:
    """Returns the layer with these inputs and slots. The operands of the slots are taken from the node's inputs."""
    place: dict[int, int] = {}
    operands = list(inputs)
    for s in slots:
        for i in operands_of(s):
            place[i] = len(operands)
            operands.append(node.inputs[i])
    given = {**node.attrs, **attrs, "epilogue": tuple(moved(s, place) for s in slots)}
    return apply(OPS[node.op], operands, given, node.sources)[0]


def apply_slots(y: Value, node: Node, slots: Sequence[EpilogueSlot]) -> Value:
    """Applies slots of the node to y, each as a layer of its own."""
    for s in slots:
        v = dict(s.attributes)

        def operand(name: str, v: dict[str, Any] = v) -> Value | None:
            return None if v[name] < 0 else node.inputs[v[name]]

        match s.op:
            case "pre_activation" | "post_activation":
                y = layer("neuron", [y], node.sources, mode=v["mode"], alpha=v["alpha"], beta=v["beta"])
            case "gain_offset":
                y = layer("gain_offset_control", [y, operand("gain"), operand("offset")], node.sources, axis=v["axis"])
            case "kernel_scale":
                y = layer("gain_offset_control", [y, operand("scale"), None], node.sources, axis=v["axis"])
            case "transpose":
                y = layer("transpose", [y], node.sources, perm=v["perm"])
            case "broadcast":
                y = layer("broadcast", [y], node.sources, shape=v["shape"])
            case "texture":
                n, c, h, w = y.shape
                wide = layer("broadcast", [layer("reshape", [y], node.sources, shape=(n * c, h, 1, w, 1))], node.sources,  # noqa: E501
                             shape=(n * c, h, v["height"], w, v["width"]))  # fmt: skip
                y = layer("reshape", [wide], node.sources, shape=(n, c, h * v["height"], w * v["width"]))
            case _:
                to = DTYPES[v["dtype"]]
                y = layer("quant", [y, operand("scale"), operand("zero")], node.sources, axis=v["axis"], dtype=to)
    return y


def view(x: Value, axis: int, begin: int, end: int, sources: tuple[str, ...]) -> Value:
    """Returns x[begin:end] along an axis."""
    if (begin, end) == (0, x.shape[axis]):
        return x
    return layer("input_view", [x], sources, axis=axis, offset=begin, size=end - begin)
