"""Rearranges a plan's weights to the order in which the C99 runtime reads them."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hexane import _core
from hexane.emit.blocks import packed_weights, unpacked_weights
from hexane.emit.plan_view import extent, text_at
from hexane.program.attrs import string_offsets


def prepared(data: bytes) -> bytes:
    """Returns the plan with weights in the runtime's order, and without the names of layers, which the runtime does not
    show. Weights of convolutions have the input channels innermost, weights of integer matrix products have the summed
    axis innermost.

    Only the layout of the plan's weights changes, which their strides describe. Packed weights are packed again. Raises
    Error for an invalid plan.
    """
    sections = dict(_core.plan_read(np.frombuffer(data, np.uint8)))
    strings, spaces = bytes(sections["strings"]), sections["spaces"]
    tensors, weights = sections["tensors"].copy(), unpacked_weights(sections)
    text = partial(text_at, strings)
    sizes = {name: bits // 8 for name, bits in _core.dtypes().items()}
    orders: dict[int, list[int]] = {}  # the order of a weight's axes in memory, outermost first
    others = set()
    all_attrs = bytes(sections["attrs"])
    for step in sections["steps"]:
        operands = sections["operands"][step["operands"] :][: step["num_inputs"] + step["num_outputs"]].tolist()
        first_attr = all_attrs[int(step["attrs"]) : int(step["attrs"]) + 8]
        order = _order(text(step["kernel"]), first_attr, tensors, operands)
        others |= {id for i, id in enumerate(operands) if i != 1 or order is None or orders.get(id, order) != order}
        if order is not None:
            orders[operands[1]] = order
    held = [i for i, row in enumerate(tensors) if text(spaces[row["space"]]["kind"]) == "weights"]
    begins = {i: (int(tensors[i]["offset"]), extent(tensors[i], sizes[text(tensors[i]["dtype"])])) for i in held}
    for id in sorted((orders.keys() - others) & set(held)):
        row, item = tensors[id], sizes[text(tensors[id]["dtype"])]
        shape = tuple(int(n) for n in row["shape"][: row["rank"]])
        dense = tuple(item * prod(shape[axis + 1 :]) for axis in range(len(shape)))
        begin, size = begins[id]
        alone = all(
            other == id or not (begin < at + length and at < begin + size) for other, (at, length) in begins.items()
        )
        if not alone or size == 0 or tuple(row["strides"][: row["rank"]].tolist()) != dense:
            continue
        order = orders[id]
        array = np.ndarray(shape, f"u{item}", weights[begin : begin + size].copy())
        weights[begin : begin + size] = np.ascontiguousarray(array.transpose(order)).reshape(-1).view(np.uint8)
        stride = item
        for axis in reversed(order):
            tensors[id]["strides"][axis] = stride
            stride *= shape[axis]
    sections |= _without_sources(sections)
    if len(sections["blocks"]):
        sections |= packed_weights(sections["blocks"], weights)
    else:
        sections["weights"] = weights
    return bytes(_core.plan_write({**sections, "tensors": tensors}))


def _order(kernel: str, first_attr: bytes, tensors: Any, operands: list[int]) -> list[int] | None:
    """Returns the order in which a kernel reads the axes of its weight, or None for the order of its shape."""
    if kernel in ("conv", "quantized_conv", "q31_conv"):
        x, weight = (tensors[id] for id in operands[:2])
        rank = int(weight["rank"])
        # Depthwise convolutions have the output channels innermost.
        depthwise = weight["shape"][1] == 1 and x["shape"][x["rank"] - 1] > 1
        return [*range(2, rank), 1, 0] if depthwise else [0, *range(2, rank), 1]
    if kernel in ("quantized_matmul", "q31_matmul") and not any(first_attr):  # transpose_y
        rank = int(tensors[operands[1]]["rank"])
        return [*range(rank - 2), rank - 1, rank - 2]
    return None


def _without_sources(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the strings, and the steps without their sources, if the sources are stored after all other names."""
    used = [0, *sections["outputs"]["emitted_name"].tolist(), *sections["inputs"]["emitted_name"].tolist()]
    for section, fields in _NAMED.items():
        for field in fields:
            used += sections[section][field].tolist()
    layouts = {row["name"]: row["attrs"] for row in _core.kernels()}
    strings = bytes(sections["strings"])
    for step in sections["steps"]:
        begin, size = int(step["attrs"]), int(step["attrs_bytes"])
        words = np.frombuffer(bytes(sections["attrs"])[begin : begin + size], np.int64).tolist()
        used += string_offsets(layouts.get(text_at(strings, step["kernel"]), ""), words)
    end = max(used)
    end = strings.index(b"\0", end) + 1
    steps = sections["steps"].copy()
    steps["source"][steps["source"] >= end] = 0
    return {"strings": strings[:end], "steps": steps}


_NAMED = {
    "spaces": ("name", "kind"), "tensors": ("name", "dtype", "layout"), "numerics": ("name", "family"), "steps": ("kernel", "device"),  # noqa: E501
    "inputs": ("name",), "outputs": ("name",), "blocks": ("codec",),
}  # fmt: skip
