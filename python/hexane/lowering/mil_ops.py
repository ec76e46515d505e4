"""Rewrites a graph so that MIL can express it: in fp16, and with each node as one op of MIL with MIL's arguments."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, DTYPES, INT32, INT64, UINT16, DType
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, Value, constant, make_node
from hexane.lowering.finite_constants import without_infinities
from hexane.lowering.halves import half, keeps_scale
from hexane.lowering.round_attributes import rounded
from hexane.mil.arguments import parameters_of
from hexane.mil.forms import WRITE, MilCall
from hexane.mil.forms.form import FINDS, finds_indices, values_of
from hexane.mil.forms.products import PRODUCTS
from hexane.mil.forms.quantised import palette
from hexane.mil.forms.resizing import in_mil_lines
from hexane.ops import LEAVES, OPS, apply, simpler
from hexane.ops.compose import Builder
from hexane.ops.encodings import PALETTES, encoding_of, is_encoded
from hexane.ops.recording import check, recorded
from hexane.ops.records.linear import scale_first
from hexane.ops.rewriter import Pattern, Rewriter
from hexane.targets.mil import mil_limits

_WIDE = (INT64, DTYPES["uint64"])  # dtypes that MIL lacks; doubles become fp16


def in_mil_ops(graph: Graph) -> Graph:
    """conv(%x, %w, %b)  ->  add(conv(%x, %w), %b reshaped)

    Returns the graph with each node in its MIL form (hexane/mil/forms). The passes of "mil" must have run before.
    Raises Error for an op without a MIL form.
    """
    small, b = _stored_small(graph), _MilOps()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return _as_stored(node).values if node in small else b.change(node, inputs)

    graph = without_infinities(_live_outputs(graph.rewrite(change)))
    for node in graph.nodes:
        if node.op not in LEAVES and written(node) is None:
            raise Error(f"[emit] {node.where}: got {node.types[0]}, need a dtype that MIL has, or the host")
    return graph


def mil_nodes(node: Node) -> list[Node]:
    """Returns the MIL ops that express a node, without regard to its neighbours, in topological order. Raises Error if
    MIL has no ops for it."""
    values = _MilOps(*node.sources).settled(node)
    outside = {v.node for v in node.inputs if v is not None}
    parts: dict[Node, None] = {}
    stack = [narrow.node if (narrow := _unwidened(v)) is not None else v.node for v in values]
    while stack:
        part = stack.pop()
        if part in outside or part in parts or part.op in LEAVES:
            continue
        if written(part) is None:
            raise Error(f"[emit] {node.where}: got {part.types[0]}, need a dtype that MIL has, or the host")
        parts[part] = None
        stack += [v.node for v in part.inputs if v is not None]
    return list(reversed(parts))


def written(node: Node) -> MilCall | None:
    """Returns the node as an op of MIL, or None if it has no form without being rewritten."""
    write = WRITE.get(node.op)
    view = recorded(node)
    operation = None if write is None else write(view)
    if operation is not None:
        check(view, "form in MIL")
    if operation is None:
        return None
    read = [value.type for argument in operation.arguments.values() for value in values_of(argument)]
    if any(kind.dtype in _WIDE for kind in (*node.types, *read)):
        return None
    if not _takes(node):
        return None
    for p in parameters_of(operation.op):
        value = operation.arguments.get(p.name)
        if p.kind == "weight" and isinstance(value, Value) and not (value.node.op == "const" or is_encoded(value.node)):
            return None
        if (
            p.kind == "float" and value is not None and (node.types[0].dtype is BOOL or not math.isfinite(value))
        ):  # MIL text cannot express it
            return None
    return operation


def _takes(node: Node) -> bool:
    """True if the engine's compiler accepts a node that has a MIL form. The compiler needs biases added after
    convolutions (constraint 13), ignores masks of attention, and has no int32 port for indices that fit uint16."""
    if node.op in ("conv", "conv_transpose"):
        return node.inputs[2] is None
    if node.op == "scaled_dot_product_attention":
        return node.inputs[3] is None
    if node.op in FINDS:
        return node.attrs["dtype"] is UINT16 or not finds_indices(node)
    return node.op != "layer_norm" or _takes_norm(node)


def _takes_norm(node: Node) -> bool:
    """True if the compiler accepts a layer norm over that many elements (constraint 28)."""
    x, gamma, beta = node.inputs
    assert x is not None
    count, limits = math.prod(x.shape[a] for a in node.attrs["axes"]), mil_limits()
    affine = len(x.shape) == 4 and not (gamma is None and beta is None)
    limit: int = (limits.affine_norm_elements if affine else limits.norm_elements).fact.value
    return bool(count < limit)


class _MilOps(Rewriter):
    """A Rewriter that applies ops in forms of MIL, with attributes rounded as in the chip's programs."""

    __slots__ = ()

    def __init__(self, *sources: str) -> None:
        super().__init__(*sources, legal=_is_written, patterns=_PATTERNS, folds=True)

    def settled(self, node: Node) -> tuple[Value, ...]:
        return super().settled(make_node(node.op, node.inputs, rounded(node), node.types, node.sources))

    def stuck(self, node: Node) -> tuple[Value, ...]:
        raise Error(f"[emit] {node.where}: got an op that MIL has no form for, need it on the host")


def _is_written(node: Node) -> bool:
    """True if MIL can express the node without a rewrite. False for a cast of a value that was widened before without
    need."""
    return not (node.op == "cast" and _unwidened(node.inputs[0])) and written(node) is not None


def _stored_small(graph: Graph) -> set[Node]:
    """Returns the weights of products that stay encoded: integers with a scale, or indices of a table."""
    users, ports = graph.users(), {p.value for p in graph.outputs}

    def is_weight(value: Value, user: Node) -> bool:
        return user.op in PRODUCTS and user.inputs[1] == value and user.inputs[0] != value

    return {
        node
        for node in graph.nodes
        if is_encoded(node)
        and node.values[0] not in ports
        and all(is_weight(node.values[0], user) for user in users.get(node.values[0], ()))
        and written(_as_stored(node)) is not None
    }


def _as_stored(node: Node) -> Node:
    """Returns an encoded weight in the form of MIL: a palette with all of its entries, or integers with fp16 scales. A
    zero point of 0 is left out."""
    if node.op in (*PALETTES, "decode_blocks"):
        return node
    if encoding_of(node.values[0]).kind == "palette":
        return palette(node) or node
    x, scale, zero = node.inputs
    assert scale is not None
    assert scale.node.data is not None
    if not keeps_scale(scale.node.data):
        return node
    narrow = half(scale.node.data).astype(np.float32)
    if zero is not None and zero.node.data is not None and not zero.node.data.astype(np.float64).any():
        zero = None
    inputs = [x, constant(narrow, scale.node.sources), zero]
    return make_node(node.op, inputs, node.attrs, node.types, node.sources)


def _half(value: float) -> float:
    return float(half(np.array(value)))


def with_weights(graph: Graph) -> Graph:
    """Returns the graph with params as constants. Raises Error for states, which programs of the engine do not have."""
    for node in graph.nodes:
        if node.op == "state":
            raise Error(
                f"[emit] state {node.attrs['name']!r}: got a state, need a graph that has it as an input and an output"
            )
    return as_constants(graph)


def as_constants(graph: Graph) -> Graph:
    """param w  ->  const"""
    table = {}
    for node in graph.nodes:
        if node.op == "param":
            assert node.data is not None
            table[node.values[0]] = constant(node.data, node.sources)
    return graph.rewrite(lambda node, inputs: None, became=table) if table else graph


def _live_outputs(graph: Graph) -> Graph:
    """Makes every output a computed value, a different value for each port, as the engine requires (constraint 14).
    Removes inputs without readers."""
    taken: set[Value] = set()
    ports: list[Port] = []
    for port in graph.outputs:
        value = port.value
        while value.node.op in LEAVES or value in taken:
            value = (
                _MilOps(*value.node.sources).mul(value, 1.0) if value.node.op != "const" else _computed(graph, value)
            )
        taken.add(value)
        ports.append(port._replace(value=value))
    graph = replace(graph, outputs=tuple(ports))
    read = {v for node in graph.nodes for v in node.inputs}
    return replace(graph, inputs=tuple(v for v in graph.inputs if v in read))


def _computed(graph: Graph, value: Value) -> Value:
    raise Error(
        f"[emit] got the constant {value.type} as an output, need outputs that the engine computes (constraint 14)"
    )


# ---- ops that MIL lacks, or has only in part ----


def _conv(op: str) -> Callable[..., Value]:
    """Returns the form of a convolution: the bias is added after it (constraint 13), and output padding reduces the pad
    where possible, else adds zeros."""

    def form(b: Builder, x: Value, weight: Value, bias: Value | None, **attrs: Any) -> Value:
        if attrs["layout"] != "nchw":
            raise Error("[emit] got channels last, need them first")
        more = attrs.get("output_padding", ())
        zeros = [0] * len(more)
        if any(more):
            pad = list(attrs["pad"])
            for i, extra in enumerate(more):
                cut = min(pad[2 * i + 1], extra)
                pad[2 * i + 1] -= cut
                zeros[i] = extra - cut
            attrs |= {"pad": tuple(pad), "output_padding": (0,) * len(more)}
        result = b.apply(op, x, weight, None, **attrs)
        if any(zeros):
            result = b.pad(result, begin=(0,) * len(result.shape), end=(0, 0, *zeros))
        if bias is None:
            return result
        return b.add(result, b.reshape(bias, shape=(1, -1, *[1] * (len(result.shape) - 2))))

    return form


def _matmul(b: Builder, x: Value, y: Value, bias: Value | None, **attrs: Any) -> Value:
    assert bias is not None
    return b.add(b.matmul(x, y, None, **attrs), bias)


def _pad(b: Builder, x: Value, begin: Any, end: Any, mode: str, value: float) -> Value:
    """Replaces a negative pad by a crop. Replaces a border of infinities, which MIL text cannot express, by a
    concatenated constant."""
    if mode == "wrap":
        raise Error("[emit] got a pad that wraps around, need another mode")
    if min((*begin, *end)) >= 0:
        if mode != "constant" or math.isfinite(value):
            raise Error(f"[emit] got a pad of mode {mode}, need one that MIL has")
        for axis, (before, after) in enumerate(zip(begin, end, strict=True)):
            parts = [_filled(b, x, axis, n, value) for n in (before, after)]
            x = b.concat(*parts[0], x, *parts[1], axis=axis) if before or after else x
        return x
    cut, before, after = simpler.inner_pad(b, x, begin, end)
    return b.pad(cut, begin=before, end=after, mode=mode, value=value) if any((*before, *after)) else cut


def _filled(b: Builder, x: Value, axis: int, count: int, value: float) -> list[Value]:
    """Returns a constant of `count` repeated values to concatenate with x along an axis, as a list; empty for 0."""
    shape = [count if i == axis else d for i, d in enumerate(x.shape)]
    return [b.const(np.full(shape, value, x.dtype.numpy))] if count else []


def _broadcast(b: Builder, x: Value, shape: Any) -> Value:
    thin = (*[1] * (len(shape) - len(x.shape)), *x.shape)
    x = b.reshape(x, shape=thin) if thin != x.shape else x
    reps = [n if d == 1 else 1 for n, d in zip(shape, thin, strict=True)]
    return b.tile(x, reps=reps) if max(reps, default=1) > 1 else x


def _scaled(form: Callable[..., Value]) -> Callable[..., Value]:
    """Returns the form of a norm whose rows are scaled before they are squared, with an epsilon rounded to fp16."""
    return lambda b, *inputs, epsilon, **attrs: form(b, *inputs, epsilon=_half(epsilon), **attrs)


def _layer_norm(b: Builder, x: Value, gamma: Value | None, beta: Value | None, axes: Any, epsilon: float) -> Value:
    """Applies gamma and beta after the norm. A norm with neither is computed by its formula, with x scaled before it is
    squared."""
    if gamma is not None or beta is not None:
        y = b.layer_norm(x, axes=axes, epsilon=epsilon)
        y = y if gamma is None else b.mul(y, gamma)
        return y if beta is None else b.add(y, beta)
    return simpler.layer_norm(b, x, None, None, axes, _half(epsilon))


def _resize(op: str) -> Callable[..., Value]:
    """Returns the form of a resize in one of MIL's coordinate modes, if this mode reads the same positions."""

    def form(b: Builder, x: Value, **attrs: Any) -> Value:
        own = in_mil_lines(apply(OPS[op], [x], attrs)[0].node)
        if own is None or all(attrs[name] == value for name, value in own.items()):
            raise Error(f"[emit] {op}: got coordinates that MIL has no name for, need it on the host")
        return b.apply(op, x, **own)

    return form


def _quantised(op: str) -> Callable[..., Value]:
    def form(b: Builder, x: Value, scale: Value, zero: Value | None, **attrs: Any) -> Value:
        if scale.node.data is None or not np.isfinite(half(scale.node.data)).all():
            raise Error(f"[emit] {op}: got a scale that is computed or no number, need a constant")
        narrow = half(scale.node.data).astype(np.float32)
        if np.array_equal(narrow, scale.node.data):
            raise Error(f"[emit] {op}: got {x.type}, which MIL does not take here, need it on the host")
        return b.apply(op, x, b.const(narrow), zero, **attrs)

    return form


def _by_index(op: str) -> Callable[..., Value]:
    """Returns the form of a gather with constant indices cast to int32, because MIL has no int64."""

    def form(b: Builder, x: Value, indices: Value, **attrs: Any) -> Value:
        data = indices.node.data
        if data is None or indices.dtype is INT32 or (data.size and not -(2**31) <= data.min() <= data.max() < 2**31):
            raise Error(f"[emit] {op}: got indices {indices.type}, need constants or int32, as many as MIL takes")
        return b.apply(op, x, b.const(data.astype(np.int32)), **attrs)

    return form


def _finds(op: str) -> Callable[..., Any]:
    """Returns the form of an op that returns indices: in uint16, which ports support, if the indices fit, else in
    int32. A cast to the op's own dtype follows. Readers that accept the narrow indices read the operand of the cast."""

    def form(b: Builder, x: Value, dtype: DType, **attrs: Any) -> tuple[Value, ...]:
        node = apply(OPS[op], [x], {**attrs, "dtype": dtype}, b.sources)[0].node
        narrow = UINT16 if finds_indices(node) else INT32
        if dtype is narrow:
            raise Error(f"[emit] {op}: got {x.type}, need an op that MIL takes, or the host")
        *values, indices = b.several(op, x, **attrs, dtype=narrow)
        return *values, *apply(OPS["cast"], [indices], {"dtype": dtype}, b.sources)

    return form


def _sorted(b: Builder, x: Value, dtype: DType, **attrs: Any) -> Value:
    """Sorts with indices in int32, the only dtype in MIL. A cast to the op's own dtype follows, which readers look
    through."""
    if dtype is INT32:
        raise Error(f"[emit] argsort: got {x.type}, need an op that MIL takes, or the host")
    return apply(OPS["cast"], [b.argsort(x, **attrs, dtype=INT32)], {"dtype": dtype}, b.sources)[0]


def _unwidened(x: Value | None) -> Value | None:
    """Returns the integers from which a cast to more bits made x, or None for other values."""
    narrow = x.node.inputs[0] if x is not None and x.node.op == "cast" else None
    if x is None or narrow is None or not {narrow.dtype.kind, x.dtype.kind} <= {"int", "uint"}:
        return None
    return narrow if narrow.dtype.bits < x.dtype.bits else None


def _narrowed(b: Builder, node: Node) -> Value | None:
    """cast(cast(%x, wide), dtype)  ->  cast(%x, dtype), or %x if it has this dtype; None if no cast widened %x."""
    narrow, dtype = _unwidened(node.inputs[0]), node.types[0].dtype
    return narrow if narrow is None or narrow.dtype is dtype else b.cast(narrow, dtype=dtype)


def _cast(b: Builder, x: Value, dtype: DType) -> Value:
    """Keeps a cast of integers to int64, although MIL lacks int64: the cast's readers read its operand instead."""
    if dtype is INT64 and x.dtype.kind in ("int", "uint"):
        return apply(OPS["cast"], [x], {"dtype": dtype}, b.sources)[0]
    raise Error(f"[emit] cast: got {x.type} to {dtype}, need dtypes that MIL has, or the host")


def _depth_to_space(b: Builder, x: Value, block_size: int, mode: str) -> Value:
    """Rewrites the CRD mode as pixel_shuffle. MIL's depth_to_space has the DCR mode, except in some dtypes."""
    if mode != "CRD":
        raise Error(f"[emit] depth_to_space: got {x.type}, need dtypes that MIL has, or the host")
    return b.pixel_shuffle(x, upscale_factor=block_size)


def _celu(b: Builder, x: Value, alpha: float) -> Value:
    return b.mul(b.elu(b.real_div(x, alpha)), alpha)


def _prelu(b: Builder, x: Value, slope: Value) -> Value:
    return b.add(b.relu(x), b.mul(b.minimum(x, 0.0), slope))


FORMS: Mapping[str, Callable[..., Any]] = {
    "conv": _conv("conv"),
    "conv_transpose": _conv("conv_transpose"),
    "matmul": _matmul,
    "clip": simpler.clip,
    "pad": _pad,
    "broadcast_to": _broadcast,
    "rms_norm": _scaled(simpler.rms_norm),
    "l2_norm": _scaled(simpler.l2_norm),
    "mean_variance_norm": _scaled(simpler.mean_variance_norm),
    "layer_norm": _layer_norm,
    "resize_nearest_neighbor": _resize("resize_nearest_neighbor"),
    "resize_bilinear": _resize("resize_bilinear"),
    "quantize": _quantised("quantize"),
    "dequantize": _quantised("dequantize"),
    "gather": _by_index("gather"),
    "gather_along_axis": _by_index("gather_along_axis"),
    "gather_nd": _by_index("gather_nd"),
    "topk": _finds("topk"),
    "argsort": _sorted,
    "reduce_argmax": _finds("reduce_argmax"),
    "reduce_argmin": _finds("reduce_argmin"),
    "cast": _cast,
    "celu": _celu,
    "prelu": _prelu,
    "scaled_dot_product_attention": scale_first,
    "selu": simpler.selu,
    "hard_swish": simpler.hard_swish,
    "neg": simpler.neg,
    "depth_to_space": _depth_to_space,
}


def _pattern(form: Callable[..., Any]) -> Pattern:
    return lambda b, node: form(b, *node.inputs, **node.attrs)


_PATTERNS: dict[str, tuple[Pattern, ...]] = {op: (_pattern(form),) for op, form in FORMS.items()}
_PATTERNS["cast"] = (_narrowed, *_PATTERNS["cast"])
