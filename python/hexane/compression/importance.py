"""The cost of a weight's error in each input channel: the sum of squares of the product's other operand over
calibration inputs. The squared error of a sum of x * w is about the sum of x^2 * error^2, if the signs of x are
random."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hexane.compression.weights import Weight, axes_of, operand_of
from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Port, Value
from hexane.ops import OPS, apply

# The prior: this many additional rows, in which each channel has the median of all nonzero channels. Sums of squares
# over few rows vary by chance, and a channel that is 0 in the calibration must not make its weights arbitrary. A mean
# in place of the median would depend on a few large channels.
ROWS_BEFORE = 8


def input_squares(graph: Graph, weights: Sequence[Weight]) -> Graph:
    """conv(%x, const)  ->  reduce_sum_square(cast(%x, fp32), axes=(0, 2, 3)), an output for each weight

    If several layers read a weight with the same input channels, the sums for these layers are added."""
    ports = [Port(f"%squares{i}", _squares(graph, weight)) for i, weight in enumerate(weights)]
    return replace(graph, outputs=tuple(ports), taps=())


def importance_of(graph: Graph, weight: Weight, squares: Sequence[Array]) -> Array | None:
    """Returns the importance of each input channel, concatenated over the groups of a convolution. squares: the results
    of `input_squares`, one for each calibration input. Returns None if all channels are 0.

    Raises Error for numbers that are not finite."""
    total = np.sum([one.astype(np.float64) for one in squares], axis=0)
    if not np.isfinite(total).all():
        raise Error(
            f"[compress] calibration: got {total[~np.isfinite(total)][0]} as the sum of squares of an input channel of"
            f" {weight.node.where}, need finite numbers"
        )
    if not total.any():
        return None
    read = sum(x.type.size for x in map(activation_of, readers_of(graph, weight)))
    rows = len(squares) * read // total.size
    return np.asarray(total + ROWS_BEFORE / rows * np.median(total[total > 0]))


def readers_of(graph: Graph, weight: Weight) -> list[Node]:
    """Returns the layers that read the weight with the same input channels."""
    first, axes = weight.node, (weight.axis, weight.input_axis)

    def reads(node: Node) -> bool:
        place = operand_of(node)
        if node.op != first.op or place is None or node.inputs[place] != weight.value:
            return False
        return node.attrs.get("groups") == first.attrs.get("groups") and axes_of(node) == axes

    return [node for node in graph.nodes if reads(node)]


def activation_of(node: Node) -> Value:
    """Returns the other operand of a product's weight."""
    x = node.inputs[0]
    assert x is not None
    return x


def channel_axis(node: Node) -> int:
    """Returns the channel axis of a product's result, which is also the channel axis of an untransposed input."""
    return 1 if node.op in ("conv", "conv_transpose") and node.attrs["layout"] != "nhwc" else -1


def sum_of_squares(x: Value, axis: int) -> Value:
    """Returns the sums of squares for each index of the axis, in fp32."""
    kept = axis % x.type.rank
    (wide,) = apply(OPS["cast"], [x], {"dtype": FP32})
    axes = tuple(i for i in range(x.type.rank) if i != kept)
    (sums,) = apply(OPS["reduce_sum_square"], [wide], {"axes": axes, "keep_dims": False})
    return sums


def added(values: Sequence[Value]) -> Value:
    total, *others = values
    for other in others:
        (total,) = apply(OPS["add"], [total, other], {})
    return total


def _squares(graph: Graph, weight: Weight) -> Value:
    return added([sum_of_squares(activation_of(node), _input_axis(node)) for node in readers_of(graph, weight)])


def _input_axis(node: Node) -> int:
    return -2 if node.attrs.get("transpose_x") else channel_axis(node)
