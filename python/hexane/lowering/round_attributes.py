"""Rounds attributes and scales to the numbers that a chip's programs can hold: MIL stores them in the dtype of x, which
is fp16."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import FP16
from hexane.graph import Graph, Node, Value, constant, make_node
from hexane.lowering.halves import half, keeps_scale, weights_of_products
from hexane.mil.forms import WRITE
from hexane.ops import OPS
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.targets import Chip, Target
from hexane.targets.floors import route_of

# Ops whose float attributes MIL does not have.
_UNSAID = ("scaled_dot_product_attention", "resize_bilinear", "resize_nearest_neighbor")


def round_attributes(graph: Graph, target: Target) -> Graph:
    """leaky_relu(%x) {alpha=0.01}  ->  leaky_relu(%x) {alpha=0.01000213623046875}

    Rounds float attributes of ops that are fp16 and in MIL, and constant scales of quantize and dequantize. Scales of
    encoded weights of products are rounded only if programs reach the chip as MIL and no digit is lost.
    """
    weights = set[Node]() if isinstance(target, Chip) and route_of(target) != "mil" else weights_of_products(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        stays = is_encoded(node) and encoding_of(node.values[0]).kind == "integers" and node not in weights
        attrs, operands = rounded(node), inputs if stays else _with_narrow_scale(node, inputs)
        if attrs is node.attrs and operands is inputs:
            return None
        return make_node(node.op, operands, attrs, node.types, node.sources).values

    return graph.rewrite(change)


def rounded(node: Node) -> Mapping[str, Any]:
    """Returns the node's attributes with floats rounded to fp16, if its result is fp16."""
    declared = OPS[node.op].attrs or {}
    floats = [name for name, spec in declared.items() if spec.kind == "float"]
    if not floats or node.types[0].dtype is not FP16 or node.op not in WRITE or node.op in _UNSAID:
        return node.attrs
    return {k: float(half(np.array(v))) if k in floats else v for k, v in node.attrs.items()}


def _with_narrow_scale(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    if node.op not in ("quantize", "dequantize"):
        return inputs
    x, scale, zero = inputs
    floats = x.dtype if node.op == "quantize" and x is not None else node.types[0].dtype
    if floats is not FP16 or scale is None or scale.node.op != "const" or scale.node.data is None:
        return inputs
    narrow = half(scale.node.data).astype(np.float32)
    if is_encoded(node) and not keeps_scale(scale.node.data):
        return inputs
    return inputs if np.array_equal(narrow, scale.node.data) else (x, constant(narrow, scale.node.sources), zero)
