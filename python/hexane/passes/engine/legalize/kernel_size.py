"""Brings the width and height of kernels into a form that the chip has."""

import numpy as np

from hexane.decisions import Decision
from hexane.graph import Array, EpilogueSlot, Graph, Node, Value, constant, make_node
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.slots import behind, layer, view, with_slots
from hexane.passes.engine.lower import is_constant
from hexane.targets import Chip
from hexane.validate.compute import largest_kernel

NATIVE_WIDTH = 8  # M6 study: wider kernels of stride 1 are rewritten, with an even width
WIDEST_REWRITTEN = 15


def even_kernel_width(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, const [.., 9]) {pad=(.., 4, 4)}  ->  anec.convolution(%x, const [.., 10]) {pad=(.., 4, 5)}

    Kernels 9 to 15 wide of stride 1 are run with an even width (M6 study): one column of zeros more, where the chip takes that width.
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        weight = inputs[1] if node.op == "anec.convolution" else None
        if weight is None or not is_constant(weight) or inputs[2] is not None or weight.type.rank != 4:
            return None
        width, (_, stride), (_, rate) = weight.shape[3], node.attrs["strides"], node.attrs["dilation_rates"]
        fits = width + 1 <= largest_kernel(chip, fp16=weight.dtype.bits > 8)[2]
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
        return (with_slots(_with(node, inputs), [inputs[0], wide, None], slots_of(node), **attrs),)

    return graph.rewrite(change).decided(*decisions)


def split_kernel(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, const [.., 20])  ->  anec.add(anec.convolution(%x, const [.., :13]), anec.convolution(%x, const [.., 13:]))

    Kernels that are wider or higher than the chip takes, along width and height. Sums of parts are rounded once more than the whole
    would be, which is recorded as a hazard.
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        weight = inputs[1] if node.op == "anec.convolution" else None
        if weight is None or not is_constant(weight) or weight.type.rank != 4:
            return None
        _, height, width = largest_kernel(chip, fp16=weight.dtype.bits > 8)
        if weight.shape[2] <= height and weight.shape[3] <= width:
            return None
        reason = f"a kernel of {weight.shape[2]} x {weight.shape[3]}, the chip takes {height} x {width}: parts of the sums are rounded"
        decisions.append(Decision("split_kernel", node.where, "hazard", reason, "guide ch35, fields 0x30 to 0x50"))
        node = _with(node, inputs)
        scale = tuple(s for s in slots_of(node) if s.op == "kernel_scale")
        y: Value | None = None
        for top in range(0, weight.shape[2], height):
            for left in range(0, weight.shape[3], width):
                taps = weight.node.data[:, :, top : top + height, left : left + width]  # type: ignore[index]
                part = _part(node, taps, (top, left), scale)
                y = part if y is None else layer("add", [y, part], node.sources)
        assert y is not None
        return (behind(y, node, slots_of(node)[len(scale) :]),)

    return graph.rewrite(change).decided(*decisions)


def _with(node: Node, inputs: tuple[Value | None, ...]) -> Node:
    """The node with new inputs."""
    return make_node(node.op, inputs, node.attrs, node.types, node.sources)


def _part(node: Node, taps: Array, first: tuple[int, int], scale: tuple[EpilogueSlot, ...]) -> Value:
    """The convolution with some taps of the kernel, which reads that much of the input and its margins as they need."""
    x = node.inputs[0]
    assert x is not None
    pads, (out_h, out_w) = list(node.attrs["explicit_padding"]), _convolved(node)
    for axis, out in ((0, out_h), (1, out_w)):
        stride, rate = node.attrs["strides"][axis], node.attrs["dilation_rates"][axis]
        extent, begin = x.shape[2 + axis], pads[2 * axis] - first[axis] * rate
        end = (out - 1) * stride + (taps.shape[2 + axis] - 1) * rate + 1 - begin - extent
        x = view(x, 2 + axis, max(-begin, 0), extent - max(-end, 0), node.sources)
        pads[2 * axis : 2 * axis + 2] = [max(begin, 0), max(end, 0)]
    weight = constant(np.ascontiguousarray(taps), node.sources)
    attrs = {"kernel_sizes": weight.shape[2:], "explicit_padding": tuple(pads)}
    return with_slots(node, [x, weight, node.inputs[2]], scale, **attrs)


def _convolved(node: Node) -> tuple[int, int]:
    """Height and width of the convolution's own result, before its slots."""
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    a = node.attrs
    height, width = (
        (
            x.shape[2 + i]
            + sum(a["explicit_padding"][2 * i : 2 * i + 2])
            - a["dilation_rates"][i] * (weight.shape[2 + i] - 1)
            - 1
        )
        // a["strides"][i]
        + 1
        for i in (0, 1)
    )
    return height, width
