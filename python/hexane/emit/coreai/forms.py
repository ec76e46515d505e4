"""Writes ops of the catalogue as Core AI's operations. Ops without a form are first expanded to other ops
(rules.py)."""

from collections.abc import Callable
from math import ceil, inf, log2, prod
from typing import Any

import numpy as np

from hexane.coreai.table import (
    BINARY,
    GELU,
    INTERPOLATION,
    PADDING,
    REDUCTIONS,
    SCAN,
    SCATTER,
    STEP_OF_REDUCTION,
    STEP_OF_SCATTER,
    UNARY,
)
from hexane.dtypes import FP32, INT32, DType
from hexane.emit.coreai.asset import ELEMENT_OF
from hexane.emit.coreai.scope import Scope, Typed
from hexane.graph import Node, tensor_type
from hexane.ops import OPS

Form = Callable[[Scope, Node, list[Typed]], Typed]
FORMS: dict[str, Form] = {}
STARTS = {"add": 0.0, "mul": 1.0, "maximum": -inf, "minimum": inf}  # initial value of a reduction, by its step
# Kinds of attributes whose value is one of a few choices.
PADDING_KIND, GELU_KIND, SCATTER_KIND, SCAN_KIND, INTERPOLATION_KIND = 17, 19, 20, 25, 43
SCATTERS = {"update", *STEP_OF_SCATTER} - {"sub"}  # scatter modes of the catalogue


def form(*names: str) -> Callable[[Form], Form]:
    def register(write: Form) -> Form:
        for name in names:
            FORMS[name] = write
        return write

    return register


def can_be_written(node: Node) -> bool:
    """True if the table has a form for this node, which takes its dtypes and attributes."""
    types = (*node.types, *[v.type for v in node.inputs if v is not None])
    if node.op not in FORMS or any(t.dtype.name not in ELEMENT_OF for t in types):
        return False
    check = _CHECKS.get(node.op)
    return check is None or check(node)


for _name in UNARY:

    def _unary(s: Scope, node: Node, x: list[Typed], name: str = _name) -> Typed:
        return s.add(f"primitive.{name}_v1", x, node.types[0])

    FORMS[_name] = _unary

for _name, _other in BINARY.items():

    def _binary(s: Scope, node: Node, x: list[Typed], name: str = _other) -> Typed:
        return s.binary(name, x[0], x[1], node.types[0])

    FORMS[_name] = _binary


@form("logical_not", "bitwise_not")
def _not(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.not_v1", x, node.types[0])


@form("select")
def _select(s: Scope, node: Node, x: list[Typed]) -> Typed:
    kind = node.types[0]
    if all(v.shape == kind.shape for v in x):
        return s.add("primitive.where_v1", x, kind)

    def fill(t: Scope, *parts: Typed) -> Typed:
        return t.add("primitive.where_v1", [t.broadcast(v, kind.shape) for v in parts], kind)

    return s.composite("broadcasting_where_v1", x, kind, fill)


@form("cast")
def _cast(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.cast_v1", x, node.types[0])


@form("gelu", "gelu_tanh")
def _gelu(s: Scope, node: Node, x: list[Typed]) -> Typed:
    how = s.writer.setting(GELU_KIND, GELU[node.op])
    return s.add("primitive.gelu_v1", x, node.types[0], settings=(how,))


@form("relu")
def _relu(s: Scope, node: Node, x: list[Typed]) -> Typed:
    kind = node.types[0]
    return s.composite("relu_v1", x, kind, lambda t, a: t.binary("maximum", a, t.number(0.0, a), kind))


@form("sigmoid")
def _sigmoid(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.composite("sigmoid_v1", x, node.types[0], _logistic)


def _logistic(s: Scope, a: Typed) -> Typed:
    opposite = s.binary("sub", s.number(0.0, a), a, a.type)
    below = s.binary("add", s.number(1.0, a), s.add("primitive.exp_v1", (opposite,), a.type), a.type)
    return s.binary("divide", s.number(1.0, a), below, a.type)


@form("silu")
def _silu(s: Scope, node: Node, x: list[Typed]) -> Typed:
    kind = node.types[0]
    return s.composite("silu_v1", x, kind, lambda t, a: t.binary("mul", a, _logistic(t, a), kind))


@form("softmax")
def _softmax(s: Scope, node: Node, x: list[Typed]) -> Typed:
    kind = node.types[0]
    axis = int(node.attrs["axis"]) % max(kind.rank, 1)

    def fill(t: Scope, a: Typed, _: Typed) -> Typed:
        shifted = t.binary("sub", a, t.reduce("maximum", a, (axis,), -inf), kind)
        weights = t.add("primitive.exp_v1", (shifted,), kind)
        return t.binary("divide", weights, t.reduce("add", weights, (axis,), 0.0), kind)

    return s.composite("softmax_v1", (x[0], s.scalar(axis)), kind, fill)


@form(*REDUCTIONS)
def _reduction(s: Scope, node: Node, x: list[Typed]) -> Typed:
    axes = tuple(sorted(int(a) % max(x[0].type.rank, 1) for a in node.attrs["axes"] or range(x[0].type.rank)))
    if not axes:
        return x[0]
    if node.op == "reduce_mean":
        reduced = _mean(s, x[0], axes)
    else:
        step = STEP_OF_REDUCTION[node.op]
        first = STARTS[step]
        if node.types[0].dtype.kind != "float":
            limits = np.iinfo(node.types[0].dtype.numpy)
            first = {-inf: limits.min, inf: limits.max}.get(first, first)
        reduced = s.reduce(step, x[0], axes, first)
    return s.reshape(reduced, node.types[0].shape)


def _mean(s: Scope, x: Typed, axes: tuple[int, ...]) -> Typed:
    """Writes Core AI's mean, which sums in fp32, because in fp16 a sum of many elements, or their number, may
    overflow."""
    count = prod(x.shape[a] for a in axes)
    kind = tensor_type(x.type.dtype, [1 if i in axes else n for i, n in enumerate(x.shape)])

    def fill(t: Scope, a: Typed, _: Typed) -> Typed:
        narrow = a.type.dtype is not FP32 and a.type.dtype.kind == "float"
        wide = t.add("primitive.cast_v1", (a,), tensor_type(FP32, a.shape)) if narrow else a
        total = t.reduce("add", wide, axes, 0.0)
        mean = t.binary("divide", total, t.number(count, total), total.type)
        return t.add("primitive.cast_v1", (mean,), kind) if narrow else mean

    return s.composite("reduce_mean_v1", (x, s.axes(*axes)), kind, fill)


@form("matmul")
def _matmul(s: Scope, node: Node, x: list[Typed]) -> Typed:
    a, b = (_turned(s, v, node.attrs[f"transpose_{side}"]) for v, side in zip(x, "xy", strict=False))
    kind = node.types[0]
    front = kind.shape[:-2]
    if a.shape[:-2] == b.shape[:-2] == front:
        return s.add("primitive.batch_matmul_v1", (a, b), kind)

    def fill(t: Scope, p: Typed, q: Typed) -> Typed:
        wide = [t.broadcast(v, (*front, *v.shape[-2:])) for v in (p, q)]
        return t.add("primitive.batch_matmul_v1", wide, kind)

    return s.composite("broadcasting_batch_matmul_v1", (a, b), kind, fill)


def _turned(s: Scope, x: Typed, is_turned: Any) -> Typed:
    if not is_turned:
        return x
    rank = x.type.rank
    return _permuted(s, x, (*range(rank - 2), rank - 1, rank - 2))


def _permuted(s: Scope, x: Typed, perm: tuple[int, ...]) -> Typed:
    kind = tensor_type(x.type.dtype, [x.shape[i] for i in perm])
    return s.add("primitive.transpose_v1", (x, s.extents(perm)), kind)


# ---- windows: a bias is a separate operation, and so is padding, except in conv_transpose ----


@form("conv")
def _conv(s: Scope, node: Node, x: list[Typed]) -> Typed:
    a = node.attrs
    padded = _padded(s, x[0], (0, 0, *a["pad"][::2]), (0, 0, *a["pad"][1::2]), 0.0)
    operands = (
        padded,
        x[1],
        s.extents(a["strides"]),
        s.extents(a["dilations"]),
        s.const(np.array(a["groups"], np.uint32)),
    )
    return _biased(s, s.add(f"primitive.conv{len(a['strides'])}d_v1", operands, node.types[0]), x[2:])


@form("conv_transpose")
def _conv_transpose(s: Scope, node: Node, x: list[Typed]) -> Typed:
    a = node.attrs
    operands = (
        x[0], x[1], s.extents(a["strides"]), s.extents(a["pad"][::2]), s.extents(a["dilations"]),
        s.extents(a["output_padding"]), s.const(np.array(a["groups"], np.uint32)),
    )  # fmt: skip
    return _biased(s, s.add(f"primitive.conv_transpose{len(a['strides'])}d_v1", operands, node.types[0]), x[2:])


def _biased(s: Scope, y: Typed, bias: list[Typed]) -> Typed:
    if not bias:
        return y
    shape = (1, bias[0].shape[0], *[1] * (y.type.rank - 2))
    return s.binary("add", y, s.reshape(bias[0], shape), y.type)


def _padded(s: Scope, x: Typed, begin: Any, end: Any, value: float, mode: str = "constant") -> Typed:
    if not any((*begin, *end)):
        return x
    kind = tensor_type(x.type.dtype, [n + b + e for n, b, e in zip(x.shape, begin, end, strict=True)])
    sizes = s.extents([n for pair in zip(begin, end, strict=True) for n in pair])
    how = s.writer.setting(PADDING_KIND, PADDING[mode])
    return s.add("primitive.pad_v1", (x, sizes, s.number(value, x)), kind, settings=(how,))


@form("pad")
def _pad(s: Scope, node: Node, x: list[Typed]) -> Typed:
    a = node.attrs
    return _padded(s, x[0], a["begin"], a["end"], a["value"], a["mode"])


def _least(dtype: DType) -> float:
    """Returns the initial value of a maximum."""
    return -inf if dtype.kind == "float" else int(np.iinfo(dtype.numpy).min)


@form("max_pool")
def _max_pool(s: Scope, node: Node, x: list[Typed]) -> Typed:
    a = node.attrs
    padded = _padded(s, x[0], (0, 0, *a["pad"][::2]), (0, 0, *_ends(node)), _least(x[0].type.dtype))
    operands = (
        padded, s.extents(a["kernel_sizes"]), s.extents(a["strides"]), s.extents(a["dilations"]),
        s.const(np.array(False)),
    )  # fmt: skip
    return s.add(f"primitive.max_pool_{len(a['strides'])}d_v1", operands, node.types[0])


@form("avg_pool")
def _avg_pool(s: Scope, node: Node, x: list[Typed]) -> Typed:
    """Writes sums divided by their numbers of elements. A window over the whole image is a mean. In fp16 the terms are
    first scaled by a power of two, so that no sum overflows."""
    a, kind = node.attrs, node.types[0]
    spatial = tuple(range(2, x[0].type.rank))
    if tuple(a["kernel_sizes"]) == x[0].shape[2:] and not any(a["pad"]) and set(kind.shape[2:]) == {1}:
        return _mean(s, x[0], spatial)
    scale = 2.0 ** -ceil(log2(prod(a["kernel_sizes"]))) if kind.dtype.numpy.itemsize < 4 else 1.0
    image = x[0] if scale == 1 else s.binary("mul", x[0], s.number(scale, x[0]), x[0].type)
    padded = _padded(s, image, (0, 0, *a["pad"][::2]), (0, 0, *_ends(node)), 0.0)
    operands = (padded, s.extents(a["kernel_sizes"]), s.extents(a["strides"]), s.extents(a["dilations"]))
    total = s.add(f"primitive.sum_pool_{len(a['strides'])}d_v1", operands, kind)
    count: Any = np.array(prod(a["kernel_sizes"]) * scale)
    if a["ceil_mode"] or (a["exclude_padding"] and any(a["pad"])):
        count = _counts(node) * scale
    return s.binary("divide", total, s.const(count.astype(kind.dtype.numpy), kind.dtype), kind)


def _ends(node: Node) -> tuple[int, ...]:
    """Returns the padding after each axis. With ceil_mode, the padding extends to the end of the last window. Core AI's
    own ceil mode is not used, because it may start a window in the padding after the axis, unlike the catalogue."""
    a, x = node.attrs, node.inputs[0]
    assert x is not None
    if not a["ceil_mode"]:
        return tuple(a["pad"][1::2])
    ends = []
    for i, extent in enumerate(x.shape[2:]):
        reach = a["dilations"][i] * (a["kernel_sizes"][i] - 1) + 1
        last = (node.types[0].shape[2 + i] - 1) * a["strides"][i]
        ends.append(max(0, last + reach - extent - a["pad"][2 * i]))
    return tuple(ends)


def _counts(node: Node) -> Any:
    """Returns the number of elements in each window of an average: of the input, or of the input and its padding."""
    a, x = node.attrs, node.inputs[0]
    assert x is not None
    lines = []
    for i, extent in enumerate(x.shape[2:]):
        before, after = (0, 0) if a["exclude_padding"] else (a["pad"][2 * i], a["pad"][2 * i + 1])
        starts = np.arange(node.types[0].shape[2 + i]) * a["strides"][i] - a["pad"][2 * i]
        taps = starts[:, None] + np.arange(a["kernel_sizes"][i]) * a["dilations"][i]
        lines.append(((taps >= -before) & (taps < extent + after)).sum(1))
    counts = lines[0]
    for line in lines[1:]:
        counts = counts[..., None] * line
    return counts[None, None]


@form("resize_bilinear")
def _resize(s: Scope, node: Node, x: list[Typed]) -> Typed:
    """Writes a resize. Core AI's output i reads the source at (i + 0.5 - offset) / scale - 0.5, which must be (i * a +
    b) / unit."""
    n, scales, offsets = node.attrs, [1.0, 1.0], [0.0, 0.0]
    for side in "hw":
        if n[f"scale_{side}"]:
            scale = float(n[f"unit_{side}"]) / float(n[f"scale_{side}"])
        else:  # the output has one pixel, or all outputs read the same pixel
            scale = float(node.types[0].shape[len(scales)])
        scales.append(scale)
        offsets.append(0.5 - (float(n[f"offset_{side}"]) / float(n[f"unit_{side}"]) + 0.5) * scale)
    places = [s.const(np.array(numbers, np.float32)) for numbers in (scales, offsets)]
    operands = (x[0], s.axes(*node.types[0].shape), *places)
    how = s.writer.setting(INTERPOLATION_KIND, INTERPOLATION["linear"])
    return s.add("primitive.interpolate_v1", operands, node.types[0], settings=(how,))


@form("resize_nearest_neighbor")
def _repeat(s: Scope, node: Node, x: list[Typed]) -> Typed:
    scales = [n / d for n, d in zip(node.types[0].shape, x[0].shape, strict=True)]
    places = [s.const(np.array(numbers, np.float32)) for numbers in (scales, [0.0] * len(scales))]
    how = s.writer.setting(INTERPOLATION_KIND, INTERPOLATION["nearest"])
    return s.add(
        "primitive.interpolate_v1", (x[0], s.axes(*node.types[0].shape), *places), node.types[0], settings=(how,)
    )


def nearest_places(node: Node) -> list[Any]:
    """Returns the source row of each result row, and the source column of each result column."""
    (x,) = node.inputs
    assert x is not None
    result = []
    for axis in (2, 3):
        line = [1, 1, 1, 1]
        line[axis] = x.shape[axis]
        image = np.broadcast_to(np.arange(x.shape[axis], dtype=np.float64).reshape(line), (1, 1, *x.shape[2:]))
        places = np.asarray(OPS[node.op].ref(image, **node.attrs))
        result.append((places[0, 0, :, 0] if axis == 2 else places[0, 0, 0, :]).astype(np.int32))
    return result


def _repeats_pixels(node: Node) -> bool:
    (x,) = node.inputs
    if x is None or node.attrs["layout"] != "nchw" or 0 in x.shape:
        return False
    sizes = list(zip(node.types[0].shape[2:], x.shape[2:], strict=True))
    if any(n % d for n, d in sizes):
        return False
    places = nearest_places(node)
    return all(np.array_equal(p, np.arange(n) // (n // d)) for p, (n, d) in zip(places, sizes, strict=True))


# ---- views, slices and concatenations ----


@form("reshape")
def _reshape(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.reshape(x[0], node.types[0].shape)


@form("transpose")
def _transpose(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return _permuted(s, x[0], node.attrs["perm"])


@form("broadcast_to")
def _broadcast_to(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.broadcast(x[0], node.types[0].shape)


@form("concat")
def _concat(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.concat_v1", (s.scalar(node.attrs["axis"]), *x), node.types[0])


@form("slice_by_index")
def _slice(s: Scope, node: Node, x: list[Typed]) -> Typed:
    places = [s.axes(*node.attrs[name]) for name in ("begin", "end", "stride")]
    return s.add("primitive.slice_v1", (x[0], *places), node.types[0])


@form("reverse")
def _reverse(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.reverse_v1", (x[0], s.axes(*node.attrs["axes"])), node.types[0])


# ---- gathers, scatters and sorts ----


@form("gather_nd")
def _gather_nd(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.gather_nd_v1", x, node.types[0])


@form("gather_along_axis")
def _gather_along_axis(s: Scope, node: Node, x: list[Typed]) -> Typed:
    return s.add("primitive.gather_along_axis_v1", (*x, s.scalar(node.attrs["axis"])), node.types[0])


@form("scatter_along_axis")
def _scatter_along_axis(s: Scope, node: Node, x: list[Typed]) -> Typed:
    how = s.writer.setting(SCATTER_KIND, SCATTER[node.attrs["mode"]])
    return s.add("primitive.scatter_along_axis_v1", (*x, s.scalar(node.attrs["axis"])), node.types[0], settings=(how,))


@form("scatter_nd")
def _scatter_nd(s: Scope, node: Node, x: list[Typed]) -> Typed:
    one, mode = tensor_type(x[0].type.dtype, ()), node.attrs["mode"]

    def fill(t: Scope, old: Typed, new: Typed) -> Typed:
        return new if mode == "update" else t.add(f"primitive.{STEP_OF_SCATTER[mode]}_v1", (old, new), one)

    return s.add("primitive.scatter_nd_v1", x, node.types[0], bodies=(s.body((one, one), fill),))


@form("argsort")
def _argsort(s: Scope, node: Node, x: list[Typed]) -> Typed:
    operands = (
        x[0], s.scalar(node.attrs["axis"]), s.const(np.array(node.attrs["descending"])), s.const(np.array(True)),
    )  # fmt: skip
    order = s.add("primitive.argsort_v1", operands, tensor_type("uint32", x[0].shape))
    return s.add("primitive.cast_v1", (order,), node.types[0])


@form("cumsum")
def _cumsum(s: Scope, node: Node, x: list[Typed]) -> Typed:
    how = s.writer.setting(SCAN_KIND, SCAN["cumsum"])
    operands = (x[0], s.scalar(node.attrs["axis"]), s.const(np.array(node.attrs["reverse"])))
    return s.add("primitive.scan_v1", operands, node.types[0], settings=(how,))


def _is_of_floats(node: Node) -> bool:
    return node.types[0].dtype.kind == "float"


def _is_nchw(node: Node) -> bool:
    return node.attrs["layout"] == "nchw" and len(node.attrs["strides"]) in (2, 3)


def _has_narrow_places(node: Node) -> bool:
    return node.inputs[1] is not None and node.inputs[1].dtype is INT32


def _moves(node: Node) -> bool:
    """True if each axis that has several pixels in input and output reads them from different positions."""
    x = node.inputs[0]
    assert x is not None
    extents = zip(x.shape[2:], node.types[0].shape[2:], strict=True)
    return all(node.attrs[f"scale_{side}"] or 1 in pair for side, pair in zip("hw", extents, strict=True))


def _is_plain_pad(node: Node) -> bool:
    return node.attrs["mode"] in PADDING and min((*node.attrs["begin"], *node.attrs["end"], 0)) >= 0


def _is_of_matrices(node: Node) -> bool:
    return node.inputs[2] is None and all(v is None or v.type.rank >= 2 for v in node.inputs)


_CHECKS: dict[str, Callable[[Node], bool]] = {
    "conv": _is_nchw,
    "conv_transpose": lambda node: _is_nchw(node) and node.attrs["pad"][::2] == node.attrs["pad"][1::2],
    "max_pool": _is_nchw,
    "avg_pool": _is_nchw,
    "pad": _is_plain_pad,
    "matmul": _is_of_matrices,
    "gather_nd": lambda node: not node.attrs["batch_dims"] and _has_narrow_places(node),
    "gather_along_axis": _has_narrow_places,
    "scatter_along_axis": lambda node: node.attrs["mode"] in SCATTERS and _has_narrow_places(node),
    "scatter_nd": lambda node: node.attrs["mode"] in SCATTERS and _has_narrow_places(node),
    "cumsum": lambda node: not node.attrs["exclusive"],
    "gelu": _is_of_floats,
    "softmax": lambda node: node.types[0].rank > 0,
    "resize_nearest_neighbor": _repeats_pixels,
    "resize_bilinear": lambda node: node.attrs["layout"] == "nchw" and _moves(node),
}
