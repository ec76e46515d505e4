"""Splits layers whose weights have a size that the engine's DMA reads at a third of its speed."""

from itertools import pairwise

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.targets import Chip, Target
from hexane.targets.mil import mil_limits
from hexane.validate.convolution import kernel_memory
from hexane.validate.node import judge

STAGE = "split_stalled_kernels"
PRODUCTS = ("conv", "linear", "matmul")
MOST_PARTS = 16
NEAR = 64  # the most output channels per core by which parts may differ from equal parts


def split_stalled_kernels(graph: Graph, target: Target) -> Graph:
    """conv(%x, const [2048, 4096, 1, 1])  ->  concat(conv(%x, const [1024, ..]), conv(%x, const [1024, ..]))

    The DMA that streams weights counts how far it is ahead of the core, modulo 1 MiB. If a core's share of a layer's
    weights is within 16 KiB of a multiple of 1 MiB, the DMA seems to be not ahead at all. Weights of such a size arrive
    at 17 to 19 GB/s instead of 45 to 60 (measured on M4). The pass splits the output channels, which changes the share.
    No sum of products is split, so no result changes. Weights must be constants in fp16, and a bias must be constant.
    Chips without memory for streamed kernels are skipped: a later pass splits their kernels into small pieces anyway.
    """
    if not isinstance(target, Chip) or not target.gates.shared_kernel_data or graph.ops.isdisjoint(PRODUCTS):
        return graph
    decisions = list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        (x, weight, bias) = (*inputs, None)[:3]
        data = _constant(weight)
        numbers = _constant(bias)
        if x is None or data is None or data.dtype != np.float16 or (bias is not None and numbers is None):
            return None
        axis = _output_axis(node, data)
        count = 0 if axis is None else data.shape[axis]
        each = 0 if axis is None or not count else data.nbytes // count
        if axis is None or not stalls(-(-count // target.cores) * each):
            return None
        ends = _ends(count, each, target)
        if not ends:
            return None
        parts = [_part(node, x, weight, data, numbers, axis, *span) for span in pairwise([0, *ends])]
        result = apply(OPS["concat"], parts, {"axis": _result_axis(node)}, node.sources)[0]
        if any(judge(v.node, target).verdict != "native" for v in (*parts, result)):
            return None
        lap = mil_limits().kernel_lap
        share = -(-count // target.cores) * each
        reason = (
            f"{share} bytes of weights in a core, near a multiple of {lap.fact.value} (constraint {lap.constraint})"
        )
        decisions.append(Decision(STAGE, node.where, "split", reason, f"{lap.fact.source}, {lap.fact.status}"))
        return (result,)

    return graph.rewrite(change, PRODUCTS).decided(*decisions)


def stalls(share: int) -> bool:
    """True if the DMA stalls when a core's share of a layer's weights has this size in bytes."""
    lap, window = mil_limits().kernel_lap.fact.value, mil_limits().kernel_lap_window.fact.value
    return bool(share > lap - window and min(share % lap, -share % lap) < window)


def _constant(value: Value | None) -> Array | None:
    return value.node.data if value is not None and value.node.op == "const" else None


def _output_axis(node: Node, data: Array) -> int | None:
    """Returns the axis of the weights' output channels, or None if the channels cannot be split."""
    if node.op == "conv":
        return 0 if node.attrs["groups"] == 1 else None
    if data.ndim != 2:
        return None
    return 0 if node.op == "linear" or node.attrs["transpose_y"] else 1


def _result_axis(node: Node) -> int:
    return 1 if node.op == "conv" and node.attrs["layout"] == "nchw" else node.types[0].rank - 1


def _ends(count: int, each: int, chip: Chip) -> list[int]:
    """Returns the end of each part's output channels. No part of the weights stalls, and each fits the memory of
    streamed kernels. The list is empty if every split stalls or does not fit. each: bytes of an output channel."""
    units, limit = -(-count // chip.cores), kernel_memory(chip, shared=True)
    for parts in range(2, MOST_PARTS + 1):
        equal = -(-units // parts)
        for of_part in sorted(range(max(equal - NEAR, 1), equal + NEAR), key=lambda n: abs(n - equal)):
            ends = [*range(of_part * chip.cores, count, of_part * chip.cores), count]
            sizes = [end - begin for begin, end in pairwise([0, *ends])]
            if all(size * each <= limit and not stalls(-(-size // chip.cores) * each) for size in sizes):
                return ends
    return []


def _part(
    node: Node, x: Value, weight: Value | None, data: Array, bias: Array | None, axis: int, begin: int, end: int
) -> Value:
    """Returns the layer with these output channels only."""
    assert weight is not None
    some = np.ascontiguousarray(data[begin:end] if axis == 0 else data[:, begin:end])
    operands: list[Value | None] = [x, constant(some, weight.node.sources)]
    if len(node.inputs) > 2:
        operands.append(None if bias is None else constant(np.ascontiguousarray(bias[begin:end]), node.sources))
    return apply(OPS[node.op], operands, node.attrs, node.sources)[0]
