"""Layers on rows of pixels, rewritten to work on images."""

from collections.abc import Sequence

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.records.engine.planar import WITH_SLOTS, WITHOUT
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.check_layers import refusal
from hexane.passes.engine.moves import RANK, Image, flattened
from hexane.targets import Chip

_EACH = frozenset((*(f"anec.{name}" for name in (*WITH_SLOTS, *WITHOUT)), "anec.neuron", "anec.cast"))


def with_images(graph: Graph, image: Image, chip: Chip) -> Graph:
    pixels = image.height * image.width

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0] if inputs else None
        if node.op == "anec.reshape" and x is not None and x.node.op == "anec.reshape":
            return (_reshaped(x, node.types[0].shape, node),)
        shape = node.types[0].shape
        if len(node.types) != 1 or len(shape) != RANK or shape[2:] != (1, pixels) or not _is_alike(node):
            return None
        count = _operands(node)
        if not any(_is_flat(v, image) for v in inputs[:count]):
            return None
        operands = [_as_image(v, image, node) for v in inputs[:count]]
        result = apply(OPS[node.op], [*operands, *inputs[count:]], node.attrs, node.sources)[0]
        if result.shape != (*shape[:2], *image) or any(
            v is not None and v.node.op not in ("const", "param") and refusal(v.node, chip) is not None
            for v in (*operands, result)
        ):
            return None
        back = _reshaped(result, shape, node)
        return None if refusal(back.node, chip) is not None else (back,)

    return graph.rewrite(change)


def _is_alike(node: Node) -> bool:
    """True if each pixel of the layer's result depends on the channels of the same pixel alone."""
    if any(s.op not in ("gain_offset", "pre_activation", "post_activation") for s in slots_of(node)):
        return False
    if any(s.op == "gain_offset" and dict(s.attributes)["axis"] not in (0, 1) for s in slots_of(node)):
        return False
    a = node.attrs
    if node.op == "anec.convolution":
        return set(a["kernel_sizes"]) == set(a["strides"]) == {1} and not any(a["explicit_padding"])
    if node.op in ("anec.concat", "anec.input_view"):
        return bool(a["axis"] == 1)
    if node.op == "anec.layer_norm":
        return bool(a["axes"] == (1,))
    if node.op == "anec.gain_offset_control":
        return a["axis"] in (0, 1)
    return node.op in _EACH


def _operands(node: Node) -> int:
    """Returns the number of leading inputs that have pixels. Later inputs are weights or one number per channel."""
    if node.op == "anec.concat":
        return len(node.inputs)
    return len(OPS[node.op].inputs) if node.op in _EACH else 1


def _is_flat(value: Value | None, image: Image) -> bool:
    """True if the value is a reshape that flattens images of this size."""
    x = None if value is None or value.node.op != "anec.reshape" else value.node.inputs[0]
    return value is not None and x is not None and flattened(x.shape, value.shape) == image


def _as_image(value: Value | None, image: Image, node: Node) -> Value | None:
    """Returns the operand with its row of pixels reshaped to an image, or the operand itself if it has no row of
    pixels."""
    if value is None:
        return None
    four = (1,) * (RANK - value.type.rank) + tuple(value.shape)
    return _reshaped(value, (*four[:2], *image), node) if four[2:] == (1, image.height * image.width) else value


def _reshaped(value: Value, shape: Sequence[int], node: Node) -> Value:
    """Returns the value reshaped, without the reshapes that made it."""
    while value.node.op == "anec.reshape" and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    if value.shape == tuple(shape):
        return value
    if value.node.op == "const" and value.node.data is not None:
        data = np.ascontiguousarray(value.node.data.reshape(shape))
        return constant(data, value.node.sources, value.dtype)
    return apply(OPS["anec.reshape"], [value], {"shape": tuple(shape)}, node.sources)[0]
