"""Splits kernels that are wider or higher than the chip supports."""

import numpy as np

from hexane.graph import Array, EpilogueSlot, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.slots import apply_slots, layer, view, with_inputs, with_slots
from hexane.targets import Chip
from hexane.validate.convolution import largest_kernel


def split_kernel(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(%x, const [.., 20])  ->  anec.add(anec.convolution(%x, const [.., :13]), anec.convolution(%x, const [.., 13:]))

    Kernels are split along width and height. Each partial sum is rounded, so the result has more roundings than one
    convolution would have. The additional roundings are recorded as a hazard.
    """  # noqa: E501
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        weight = inputs[1]
        if weight is None or not is_constant(weight) or weight.type.rank != 4:
            return None
        _, height, width = largest_kernel(chip, fp16=True)
        if weight.shape[2] <= height and weight.shape[3] <= width:
            return None
        reason = (
            f"a kernel of {weight.shape[2]} x {weight.shape[3]}, the chip takes {height} x {width}: parts of the sums"
            " are rounded"
        )
        decisions.append(Decision("split_kernel", node.where, "hazard", reason, "guide ch35, fields 0x30 to 0x50"))
        node = with_inputs(node, inputs)
        scale = tuple(s for s in slots_of(node) if s.op == "kernel_scale")
        y: Value | None = None
        for top in range(0, weight.shape[2], height):
            for left in range(0, weight.shape[3], width):
                taps = weight.node.data[:, :, top : top + height, left : left + width]  # type: ignore[index]
                part = _part(node, taps, (top, left), scale)
                y = part if y is None else layer("add", [y, part], node.sources)
        assert y is not None
        return (apply_slots(y, node, slots_of(node)[len(scale) :]),)

    return graph.rewrite(change, ("anec.convolution",)).decided(*decisions)


def _part(node: Node, taps: Array, first: tuple[int, int], scale: tuple[EpilogueSlot, ...]) -> Value:
    """Returns the convolution with some of the kernel's taps. The convolution reads the part of the input, and has the
    padding, that these taps need."""
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
    """Returns height and width of the convolution's result before its slots."""
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
