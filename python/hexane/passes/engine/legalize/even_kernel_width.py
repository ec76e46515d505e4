"""Pads kernels of an odd width from 9 to 15 to an even width."""

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.slots import with_inputs, with_slots
from hexane.targets import Chip
from hexane.validate.convolution import largest_kernel

NATIVE_WIDTH = 8  # M6 study: wider kernels of stride 1 are padded to an even width
WIDEST_REWRITTEN = 15


def even_kernel_width(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, const [.., 9]) {pad=(.., 4, 4)}  ->  anec.convolution(%x, const [.., 10]) {pad=(.., 4, 5)}

    The engine runs kernels of width 9 to 15 and stride 1 with an even width (M6 study). The pass appends one column of
    zeros, if the chip supports the wider kernel.
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        weight = inputs[1]
        if weight is None or not is_constant(weight) or inputs[2] is not None or weight.type.rank != 4:
            return None
        width, (_, stride), (_, rate) = weight.shape[3], node.attrs["strides"], node.attrs["dilation_rates"]
        fits = width + 1 <= largest_kernel(chip, fp16=True)[2]
        if not NATIVE_WIDTH < width <= WIDEST_REWRITTEN or width % 2 == 0 or stride != 1 or rate != 1 or not fits:
            return None
        wide = constant(np.pad(weight.node.data, ((0, 0), (0, 0), (0, 0), (0, 1))), weight.node.sources)  # type: ignore[arg-type]
        top, bottom, left, right = node.attrs["explicit_padding"]
        decisions.append(
            Decision(
                "even_kernel_width",
                node.where,
                "rewritten",
                f"a kernel {width} wide runs as one {width + 1} wide",
                "M6 study",
            )
        )
        attrs = {"kernel_sizes": wide.shape[2:], "explicit_padding": (top, bottom, left, right + 1)}
        return (with_slots(with_inputs(node, inputs), [inputs[0], wide, None], slots_of(node), **attrs),)

    return graph.rewrite(change, ("anec.convolution",)).decided(*decisions)
