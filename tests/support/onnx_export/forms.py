"""Ops that ONNX says otherwise than their records do: form(exporter, node, *input names) -> output names, None if it
cannot."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf, isinf, prod, sqrt
from typing import Any

import numpy as np

from hexane.graph import Array, Node
from hexane.ops.shape_rules import broadcast
from onnx_export import Exporter, element_type

Form = Callable[..., Any]


def as_op(op_type: str, **fixed: Any) -> Form:
    """The op of that name, with these attributes only."""
    return lambda e, n, *inputs: e.emit(op_type, *inputs, **fixed)


def chain(*op_types: str) -> Form:
    """Ops of one result each, the next reading the last."""

    def form(e: Exporter, n: Node, *inputs: str) -> str:
        for op_type in op_types:
            inputs = (e.emit(op_type, *inputs),)
        return inputs[0]

    return form


def scalar(e: Exporter, n: Node, value: float) -> str:
    """A constant of the dtype of the node's first input."""
    first = n.inputs[0]
    assert first is not None
    return e.const(value, first.dtype.numpy)


def shape_of(n: Node, i: int = 0) -> tuple[int, ...]:
    value = n.inputs[i]
    assert value is not None
    return value.shape


def is_float(n: Node) -> bool:
    return n.types[0].dtype.kind == "float"


# ---- elementwise ----


def clip(e: Exporter, n: Node, x: str) -> str:
    bounds = ["" if isinf(n.attrs[k]) else scalar(e, n, n.attrs[k]) for k in ("alpha", "beta")]
    return e.emit("Clip", x, *bounds)


def scaled_tanh(e: Exporter, n: Node, x: str) -> str:
    inner = e.emit("Tanh", e.emit("Mul", x, scalar(e, n, n.attrs["beta"])))
    return e.emit("Mul", inner, scalar(e, n, n.attrs["alpha"]))


def linear_activation(e: Exporter, n: Node, x: str) -> str:
    return e.emit("Add", e.emit("Mul", x, scalar(e, n, n.attrs["alpha"])), scalar(e, n, n.attrs["beta"]))


def floor_div(e: Exporter, n: Node, x: str, y: str) -> str:
    """Without a floor, which would show how a quotient was rounded."""
    quotient = e.emit("Div", e.emit("Sub", x, mod(e, n, x, y)), y)
    return e.emit("Round", quotient) if is_float(n) else quotient


def mod(e: Exporter, n: Node, x: str, y: str) -> str:
    """ONNX's has the sign of x on floats."""
    if not is_float(n):
        return e.emit("Mod", x, y)
    rest = e.emit("Mod", x, y, fmod=1)
    return e.emit("Where", e.emit("Less", e.emit("Mul", rest, y), scalar(e, n, 0)), e.emit("Add", rest, y), rest)


def prelu(e: Exporter, n: Node, x: str, slope: str) -> str:
    if broadcast(shape_of(n), shape_of(n, 1)) == shape_of(n):
        return e.emit("PRelu", x, slope)
    return e.emit("Where", e.emit("Less", x, scalar(e, n, 0)), e.emit("Mul", x, slope), x)


def shift(direction: str) -> Form:
    def form(e: Exporter, n: Node, x: str, y: str) -> str | None:
        return e.emit("BitShift", x, y, direction=direction) if n.types[0].dtype.kind == "uint" else None

    return form


def cast(e: Exporter, n: Node, x: str) -> str:
    return e.emit("Cast", x, to=element_type(n.types[0].dtype))


def index_dtype(e: Exporter, n: Node, indices: str, output: int = 0) -> str:
    """ONNX's indices are int64."""
    kind = n.types[output].dtype
    return indices if kind.name == "int64" else e.emit("Cast", indices, to=element_type(kind))


# ---- reductions and norms ----


def reduction(op_type: str) -> Form:
    def form(e: Exporter, n: Node, x: str) -> str:
        return e.emit(op_type, x, e.ints(*n.attrs["axes"]), keepdims=int(n.attrs["keep_dims"]))

    return form


def squared_norm(e: Exporter, n: Node, x: str, when: str) -> str:
    total = e.emit("ReduceSumSquare", x, keepdims=0)
    return e.emit("Where", e.emit("Squeeze", when), total, scalar(e, n, 0)) if when else total


def arg(op_type: str) -> Form:
    def form(e: Exporter, n: Node, x: str) -> str:
        return index_dtype(e, n, e.emit(op_type, x, axis=n.attrs["axis"], keepdims=int(n.attrs["keep_dims"])))

    return form


def cumsum(e: Exporter, n: Node, x: str) -> str:
    flags = {k: int(n.attrs[k]) for k in ("exclusive", "reverse")}
    return e.emit("CumSum", x, e.const(n.attrs["axis"], np.int64), **flags)


def dft(e: Exporter, n: Node, x: str) -> str:
    """onnxruntime has no transform back to real numbers: the real parts of the whole spectrum's transform are it."""
    attrs, rank, axis = n.attrs, n.types[0].rank, n.attrs["axis"]
    length = e.const(attrs["length"], np.int64)
    where = e.const(axis, np.int64)
    if not (attrs["inverse"] and attrs["onesided"]):
        flags = {k: int(attrs[k]) for k in ("inverse", "onesided")}
        return e.emit("DFT", x, length, where, **flags)
    half = attrs["length"] // 2 + 1
    read = min(n.inputs[0].shape[axis], half)  # type: ignore[union-attr]
    pads = np.zeros((2, rank), np.int64)
    pads[1, axis] = half - read
    cut = e.emit("Slice", x, e.const([0], np.int64), e.const([read], np.int64), e.const([axis], np.int64))
    whole = e.emit("Pad", cut, e.const(pads.reshape(-1), np.int64))
    rest = [k for k in range(half - 1, 0, -1) if 2 * k != attrs["length"]]
    mirrored = e.emit("Gather", whole, e.const(rest, np.int64), axis=axis)
    signs = np.array([1.0, -1.0], np.float32)
    mirrored = e.emit("Mul", mirrored, e.const(signs, np.float32))
    both = e.emit("Concat", whole, mirrored, axis=axis)
    y = e.emit("DFT", both, length, where, inverse=1)
    return e.emit("Slice", y, e.const([0], np.int64), e.const([1], np.int64), e.const([rank - 1], np.int64))


def filled(e: Exporter, n: Node, given: str, shape: Sequence[int], value: float) -> str:
    return given or e.const(np.full(shape, value), n.types[0].dtype.numpy)


def layer_norm(e: Exporter, n: Node, x: str, gamma: str, beta: str = "") -> str:
    axes = n.attrs["axes"]
    gamma = filled(e, n, gamma, shape_of(n)[axes[0] :], 1)
    op_type = "LayerNormalization" if n.op == "layer_norm" else "RMSNormalization"
    return e.emit(op_type, x, gamma, beta, axis=axes[0], epsilon=n.attrs["epsilon"])


def batch_norm(e: Exporter, n: Node, x: str, mean: str, variance: str, gamma: str, beta: str) -> str:
    """By hand where channels are not at axis 1."""
    axis, shape, epsilon = n.attrs["axis"], shape_of(n), n.attrs["epsilon"]
    channels = [shape[axis]]
    gamma, beta = filled(e, n, gamma, channels, 1), filled(e, n, beta, channels, 0)
    if axis == 1:
        return e.emit("BatchNormalization", x, gamma, beta, mean, variance, epsilon=epsilon)
    wide = e.ints(*(d if i == axis else 1 for i, d in enumerate(shape)))
    mean, variance, gamma, beta = (e.emit("Reshape", p, wide, allowzero=1) for p in (mean, variance, gamma, beta))
    deviation = e.emit("Sqrt", e.emit("Add", variance, scalar(e, n, epsilon)))
    return e.emit("Add", e.emit("Mul", e.emit("Div", e.emit("Sub", x, mean), deviation), gamma), beta)


def mean_variance_norm(e: Exporter, n: Node, x: str) -> str | None:
    """ONNX has this epsilon only."""
    return e.emit("MeanVarianceNormalization", x, axes=n.attrs["axes"]) if n.attrs["epsilon"] == 1e-9 else None


def instance_norm(e: Exporter, n: Node, x: str, gamma: str, beta: str) -> str:
    channels = [shape_of(n)[-1 if n.attrs["layout"] == "nhwc" else 1]]
    params = filled(e, n, gamma, channels, 1), filled(e, n, beta, channels, 0)
    return channels_first(e, n, x, lambda y: e.emit("InstanceNormalization", y, *params, epsilon=n.attrs["epsilon"]))


def local_response_norm(e: Exporter, n: Node, x: str) -> str:
    """In the one shape that onnxruntime takes: (before, channels, behind, 1)."""
    shape, axis = shape_of(n), n.attrs["axis"]
    flat = e.emit("Reshape", x, e.ints(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), 1), allowzero=1)
    numbers = {"alpha": n.attrs["alpha"], "beta": n.attrs["beta"], "bias": n.attrs["k"], "size": n.attrs["size"]}
    return e.emit("Reshape", e.emit("LRN", flat, **numbers), e.ints(*shape), allowzero=1)


# ---- products and windows ----


def matmul(e: Exporter, n: Node, x: str, y: str, bias: str) -> str:
    flags = n.attrs["transpose_x"], n.attrs["transpose_y"]
    if len(shape_of(n)) == len(shape_of(n, 1)) == 2 and (bias or any(flags)):
        return e.emit("Gemm", x, y, bias, transA=int(flags[0]), transB=int(flags[1]))
    ranks = len(shape_of(n)), len(shape_of(n, 1))
    x, y = (swapped(e, v, rank) if flag else v for v, flag, rank in zip((x, y), flags, ranks, strict=True))
    product = e.emit("MatMul", x, y)
    return e.emit("Add", product, bias) if bias else product


def swapped(e: Exporter, x: str, rank: int) -> str:
    return e.emit("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def attention(e: Exporter, n: Node, query: str, key: str, value: str, mask: str = "") -> str:
    """softmax(query @ key.T * scale + mask) @ value, one op at a time."""
    (*_, rows, depth), (*_, columns, _) = shape_of(n), shape_of(n, 1)
    scale = scalar(e, n, n.attrs["scale"] or 1 / sqrt(max(depth, 1)))
    scores = e.emit("Mul", e.emit("MatMul", query, swapped(e, key, len(shape_of(n, 1)))), scale)
    if n.attrs["causal"]:
        scores = e.emit("Where", e.const(np.tri(rows, columns), np.bool_), scores, scalar(e, n, -inf))
    if mask:
        of_bool = n.inputs[3] is not None and n.inputs[3].dtype.kind == "bool"
        scores = (
            e.emit("Where", mask, scores, scalar(e, n, n.attrs["hidden"])) if of_bool else e.emit("Add", scores, mask)
        )
    weights = e.emit("Softmax", scores, axis=-1)
    if n.attrs.get("zero_hidden"):
        weights = e.emit("Where", e.emit("IsNaN", weights), scalar(e, n, 0), weights)
    return e.emit("MatMul", weights, value)


def rotary(e: Exporter, n: Node, x: str, cos: str, sin: str) -> str:
    """Written with halves, op by op: ONNX's RotaryEmbedding has its own layout of heads."""
    size, together = shape_of(n)[-1], n.attrs["interleaved"]
    bounds = ((0, size, 2), (1, size, 2)) if together else ((0, size // 2, 1), (size // 2, size, 1))
    a, b = (e.emit("Slice", x, e.ints(i), e.ints(j), e.ints(-1), e.ints(step)) for i, j, step in bounds)
    first = e.emit("Sub", e.emit("Mul", a, cos), e.emit("Mul", b, sin))
    second = e.emit("Add", e.emit("Mul", a, sin), e.emit("Mul", b, cos))
    if not together:
        return e.emit("Concat", first, second, axis=-1)
    pairs = e.emit("Concat", *(e.emit("Unsqueeze", v, e.ints(-1)) for v in (first, second)), axis=-1)
    return e.emit("Reshape", pairs, e.ints(*shape_of(n)), allowzero=1)


def channels_first(e: Exporter, n: Node, x: str, form: Callable[[str], str]) -> str:
    """The form between transposes, where the node's layout is channels last."""
    if n.attrs["layout"] == "nchw":
        return form(x)
    rank = len(shape_of(n))
    y = form(e.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]))
    return e.emit("Transpose", y, perm=[0, *range(2, rank), 1])


WINDOW = {"strides": "strides", "dilations": "dilations", "kernel_sizes": "kernel_shape", "groups": "group",
          "ceil_mode": "ceil_mode", "output_padding": "output_padding"}  # fmt: skip


def window(op_type: str) -> Form:
    def form(e: Exporter, n: Node, x: str, *others: str) -> str:
        attrs: dict[str, Any] = {WINDOW[k]: v for k, v in n.attrs.items() if k in WINDOW}
        attrs = {k: list(v) if isinstance(v, tuple) else int(v) for k, v in attrs.items()}
        attrs["pads"] = [*n.attrs["pad"][::2], *n.attrs["pad"][1::2]]
        if "exclude_padding" in n.attrs:
            attrs["count_include_pad"] = int(not n.attrs["exclude_padding"])
        return channels_first(e, n, x, lambda y: e.emit(op_type, y, *others, **attrs))

    return form


def col2im(e: Exporter, n: Node, x: str) -> str:
    attrs = {k: list(n.attrs[k]) for k in ("strides", "dilations")}
    pads = [*n.attrs["pad"][::2], *n.attrs["pad"][1::2]]
    return e.emit("Col2Im", x, e.ints(*n.attrs["image_shape"]), e.ints(*n.attrs["kernel_sizes"]), **attrs, pads=pads)


# ---- moving elements ----


def reshape(e: Exporter, n: Node, x: str) -> str:
    return e.emit("Reshape", x, e.ints(*n.types[0].shape), allowzero=1)


def interleave(e: Exporter, n: Node, x: str) -> str:
    (count, height, width, channels), (r, s), groups = shape_of(n), n.attrs["block"], n.attrs["groups"]
    parts = e.ints(count, height, width, groups, r, s, channels // (groups * r * s))
    pixels = e.emit("Transpose", e.emit("Reshape", x, parts, allowzero=1), perm=[0, 1, 4, 2, 5, 3, 6])
    whole = e.emit("Reshape", pixels, e.ints(count, height * r, width * s, channels // (r * s)), allowzero=1)
    begin = n.attrs["begin"]
    end = [b + extent for b, extent in zip(begin, n.attrs["shape"], strict=True)]
    return e.emit("Slice", whole, e.ints(*begin), e.ints(*end), e.ints(1, 2))


def running_sum(e: Exporter, n: Node, x: str) -> str:
    rows = e.emit("ReduceSum", cast(e, n, x), e.ints(2))
    return e.emit("CumSum", rows, e.const(1, np.int64))


def with_axes(op_type: str) -> Form:
    def form(e: Exporter, n: Node, x: str) -> str:
        return e.emit(op_type, x, e.ints(*n.attrs["axes"])) if n.attrs["axes"] else x

    return form


def with_ints(op_type: str, name: str) -> Form:
    return lambda e, n, x: e.emit(op_type, x, e.ints(*n.attrs[name]))


def slice_by_index(e: Exporter, n: Node, x: str) -> str:
    axes = e.ints(*range(len(shape_of(n))))
    bounds = [e.ints(*n.attrs[k]) for k in ("begin", "end")]
    return e.emit("Slice", x, *bounds, axes, e.ints(*n.attrs["stride"])) if shape_of(n) else x


def reverse(e: Exporter, n: Node, x: str) -> str:
    axes = n.attrs["axes"]
    if not axes:
        return x
    back = [-1] * len(axes)
    return e.emit("Slice", x, e.ints(*back), e.ints(*[-(1 << 40)] * len(axes)), e.ints(*axes), e.ints(*back))


def split(e: Exporter, n: Node, x: str) -> list[str]:
    sizes = n.attrs["split_sizes"]
    return e.several("Split", len(sizes), x, e.ints(*sizes), axis=n.attrs["axis"])


def pad(e: Exporter, n: Node, x: str) -> str:
    """Modes that read the input add first and cut then: ONNX leaves both at once open."""
    mode, begin, end = n.attrs["mode"], n.attrs["begin"], n.attrs["end"]
    if mode == "constant":
        return e.emit("Pad", x, e.ints(*begin, *end), scalar(e, n, n.attrs["value"]))
    added = [max(p, 0) for p in (*begin, *end)]
    padded = e.emit("Pad", x, e.ints(*added), mode=mode)
    if min((*begin, *end), default=0) >= 0:
        return padded
    ends = [d + max(b, 0) + q for d, b, q in zip(shape_of(n), begin, end, strict=True)]
    return e.emit("Slice", padded, e.ints(*(max(-p, 0) for p in begin)), e.ints(*ends), e.ints(*range(len(begin))))


def blocks(op_type: str, size: str, **fixed: Any) -> Form:
    def form(e: Exporter, n: Node, x: str) -> str:
        mode = {"mode": n.attrs["mode"]} if "mode" in n.attrs else fixed
        return e.emit(op_type, x, blocksize=n.attrs[size], **mode)

    return form


# ---- resizing ----

HALF = Fraction(1, 2)
NEAREST: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda v: np.ceil(v - HALF),
    "round_prefer_ceil": lambda v: np.floor(v + HALF),
}  # fmt: skip


def image_axes(n: Node) -> list[tuple[int, int, Fraction, Fraction]]:
    """(extent, output extent, scale, offset) of height and width."""
    spatial = shape_of(n)[1:3] if n.attrs["layout"] == "nhwc" else shape_of(n)[2:]
    lines = [[Fraction(n.attrs[f"{name}_{k}"]) for name in ("scale", "offset", "unit")] for k in "hw"]
    outs = n.attrs["height"], n.attrs["width"]
    return [(d, out, s / unit, o / unit) for d, out, (s, o, unit) in zip(spatial, outs, lines, strict=True)]


def nearest(
    mode: str, extent: int, out: int, scale: Fraction, offset: Fraction, nudge: Fraction = Fraction(0)
) -> Array:
    at = np.arange(out).astype(object) * scale + offset + nudge
    indices: Array = np.clip(NEAREST[mode](at), 0, extent - 1).astype(np.int64)
    return indices


def undisputed(mode: str, extent: int, out: int, scale: Fraction, offset: Fraction) -> bool:
    """Whether no rounding on the way to the coordinates decides."""
    if scale in (0.25, 0.5, 1.0, 2.0, 4.0):
        return True
    nudge = Fraction(1, 1000)
    low, high = (nearest(mode, extent, out, scale, offset, v) for v in (-nudge, nudge))
    return bool((low == high).all())


def resize_nearest(e: Exporter, n: Node, x: str) -> str:
    """As Resize where any rounding gives these indices, else as two gathers."""
    mode, axes = n.attrs["mode"], image_axes(n)
    found = [nearest(mode, *axis) for axis in axes]
    plain = all(scale == Fraction(d, out) and offset == 0 for d, out, scale, offset in axes)
    if plain and all(undisputed(mode, *axis) for axis in axes):
        attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": mode}

        def form(y: str) -> str:
            sizes = e.ints(
                *shape_of(n)[:1], n.types[0].shape[-1 if n.attrs["layout"] == "nhwc" else 1], *(a[1] for a in axes)
            )
            return e.emit("Resize", y, "", "", sizes, **attrs)

        return channels_first(e, n, x, form)
    for axis, indices in enumerate(found):
        x = e.emit("Gather", x, e.ints(*indices), axis=axis + (1 if n.attrs["layout"] == "nhwc" else 2))
    return x


def resize_bilinear(e: Exporter, n: Node, x: str) -> str:
    """As products with the matrices of weights."""

    def matrix(extent: int, out: int, scale: Fraction, offset: Fraction) -> Array:
        at = np.clip(np.arange(out) * float(scale) + float(offset), 0, extent - 1)
        return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(extent)))

    rows, columns = (e.const(matrix(*axis), n.types[0].dtype.numpy) for axis in image_axes(n))
    return channels_first(e, n, x, lambda y: e.emit("MatMul", e.emit("MatMul", rows, y), swapped(e, columns, 2)))


# ---- indices ----


def long(e: Exporter, indices: str) -> str:
    return e.emit("Cast", indices, to=7)


def one_hot(e: Exporter, n: Node, indices: str) -> str:
    values = e.const([n.attrs["off"], n.attrs["on"]], n.types[0].dtype.numpy)
    return e.emit("OneHot", indices, e.const(n.attrs["depth"], np.int64), values, axis=n.attrs["axis"])


def topk(e: Exporter, n: Node, x: str) -> list[str]:
    attrs = {"axis": n.attrs["axis"], "largest": int(n.attrs["largest"]), "sorted": 1}
    values, indices = e.several("TopK", 2, x, e.ints(n.attrs["k"]), **attrs)
    return [values, index_dtype(e, n, indices, 1)]


def argsort(e: Exporter, n: Node, x: str) -> str:
    extent = e.ints(shape_of(n)[n.attrs["axis"]])
    attrs = {"axis": n.attrs["axis"], "largest": int(n.attrs["descending"]), "sorted": 1}
    return index_dtype(e, n, e.several("TopK", 2, x, extent, **attrs)[1])


def reduction_mode(n: Node) -> str:
    return "none" if n.attrs["mode"] == "update" else str(n.attrs["mode"])


FORMS: dict[str, Form] = {
    "rsqrt": chain("Sqrt", "Reciprocal"),
    "square": lambda e, n, x: e.emit("Mul", x, x),
    "exp2": lambda e, n, x: e.emit("Pow", scalar(e, n, 2), x),
    "relu6": lambda e, n, x: e.emit("Clip", x, scalar(e, n, 0), scalar(e, n, 6)),
    "selu": lambda e, n, x: e.emit("Selu", x, alpha=n.attrs["alpha"], gamma=n.attrs["beta"]),
    "gelu": as_op("Gelu"),
    "gelu_tanh": as_op("Gelu", approximate="tanh"),
    "clip": clip,
    "scaled_tanh": scaled_tanh,
    "threshold": lambda e, n, x: e.emit("Max", x, scalar(e, n, n.attrs["alpha"])),
    "linear_activation": linear_activation,
    "floor_div": floor_div,
    "mod": mod,
    "fmod": as_op("Mod", fmod=1),
    "maximum": as_op("Max"),
    "minimum": as_op("Min"),
    "pow": as_op("Pow"),
    "prelu": prelu,
    "not_equal": chain("Equal", "Not"),
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "bit_cast": lambda e, n, x: e.emit("BitCast", x, to=element_type(n.types[0].dtype)),
    "cast": cast,
    "reduce_sum": reduction("ReduceSum"),
    "reduce_mean": reduction("ReduceMean"),
    "reduce_max": reduction("ReduceMax"),
    "reduce_min": reduction("ReduceMin"),
    "reduce_prod": reduction("ReduceProd"),
    "reduce_sum_square": reduction("ReduceSumSquare"),
    "squared_norm": squared_norm,
    "reduce_l1_norm": reduction("ReduceL1"),
    "reduce_l2_norm": reduction("ReduceL2"),
    "reduce_log_sum": reduction("ReduceLogSum"),
    "reduce_log_sum_exp": reduction("ReduceLogSumExp"),
    "reduce_argmax": arg("ArgMax"),
    "reduce_argmin": arg("ArgMin"),
    "softmax": lambda e, n, x: e.emit("Softmax", x, axis=n.attrs["axis"]),
    "log_softmax": lambda e, n, x: e.emit("LogSoftmax", x, axis=n.attrs["axis"]),
    "cumsum": cumsum,
    "dft": dft,
    "layer_norm": layer_norm,
    "rms_norm": layer_norm,
    "batch_norm": batch_norm,
    "mean_variance_norm": mean_variance_norm,
    "instance_norm": instance_norm,
    "local_response_norm": local_response_norm,
    "matmul": matmul,
    "scaled_dot_product_attention": attention,
    "rotary_embedding": rotary,
    "conv": window("Conv"),
    "conv_transpose": window("ConvTranspose"),
    "max_pool": window("MaxPool"),
    "col2im": col2im,
    "avg_pool": window("AveragePool"),
    "reshape": reshape,
    "transpose": lambda e, n, x: e.emit("Transpose", x, perm=list(n.attrs["perm"])),
    "expand_dims": with_axes("Unsqueeze"),
    "squeeze": with_axes("Squeeze"),
    "slice_by_index": slice_by_index,
    "broadcast_to": with_ints("Expand", "shape"),
    "split": split,
    "pad": pad,
    "tile": with_ints("Tile", "reps"),
    "reverse": reverse,
    "depth_to_space": blocks("DepthToSpace", "block_size"),
    "interleave": interleave,
    "running_sum": running_sum,
    "pixel_shuffle": blocks("DepthToSpace", "upscale_factor", mode="CRD"),
    "space_to_depth": blocks("SpaceToDepth", "block_size"),
    "resize_nearest_neighbor": resize_nearest,
    "resize_bilinear": resize_bilinear,
    "gather": lambda e, n, x, at: e.emit("Gather", x, at, axis=n.attrs["axis"]),
    "gather_along_axis": lambda e, n, x, at: e.emit("GatherElements", x, at, axis=n.attrs["axis"]),
    "gather_nd": lambda e, n, x, at: e.emit("GatherND", x, long(e, at), batch_dims=n.attrs["batch_dims"]),
    "scatter_along_axis": lambda e, n, x, at, new: e.emit(
        "ScatterElements", x, at, new, axis=n.attrs["axis"], reduction=reduction_mode(n)
    ),
    "scatter_nd": lambda e, n, x, at, new: e.emit("ScatterND", x, long(e, at), new, reduction=reduction_mode(n)),
    "one_hot": one_hot,
    "topk": topk,
    "argsort": argsort,
}
