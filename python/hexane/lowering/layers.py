"""Lowers ops that are native on a chip to layers of its engine."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hexane.dtypes import BOOL
from hexane.errors import Error
from hexane.graph import Graph, Node, Value, constant, unique
from hexane.graph.decisions import Decision
from hexane.lowering.layouts import first_perm
from hexane.lowering.masks import FLOOR
from hexane.ops import LEAVES, OPS, apply, simpler
from hexane.ops.compose import lift
from hexane.ops.encodings import PALETTES, encoding_of, is_encoded
from hexane.ops.fold import fold_node
from hexane.ops.neurons import MODE_OF, NEURONS
from hexane.ops.recording import check, recorded
from hexane.ops.records.engine import movement, planar
from hexane.ops.records.engine.mac import CONVOLUTIONS
from hexane.ops.records.linear import scale_first
from hexane.ops.rewriter import Pattern, Rewriter
from hexane.ops.slots import activation, slot
from hexane.ops.verify import STATE_OPS
from hexane.targets import Target
from hexane.targets.rules import rules

WEIGHTS = ("const", "param")  # ops whose values can be stored with a layer as its weights

# Layers with the same meaning and attributes as the user's op.
SAME = {
    op: f"anec.{name}" for name, op, _ in (*movement.SAME, *movement.RESAMPLED, *planar.SAME) if name != "unflatten"
}
SAME |= {op: f"anec.{name}" for name, op in (*planar.WITH_SLOTS.items(), *planar.WITHOUT.items())}
SAME["softmax"] = "anec.softmax"
del SAME["write_state"]


def lower(graph: Graph, target: Target) -> Graph:
    """relu(conv(%x, %w, %b))  ->  anec.neuron(anec.convolution(%x, %w, none, %b) {epilogue=(gain_offset(offset=3, ..))}) {mode=relu}

    Most ops become one layer of the engine. An op with only constant operands becomes a constant, unless it decodes
    weights that are stored quantised. Ops without a layer are expanded into ops with layers. If the chip is known to
    compute an op with other results, the layer keeps the op's meaning, and a hazard is recorded. Raises Error for an op
    that no layer computes.
    """  # noqa: E501
    b = Layers()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in STATE_OPS or OPS[node.op].level == "engine":
            return None
        if all(is_constant(v) or is_encoded(v.node) for v in inputs if v is not None):
            stored = _with_one_table(node.with_inputs(inputs))
            known = stored.with_inputs(tuple(None if v is None else decoded(v) for v in inputs))
            # No layer supports several tables, a table of vectors, or several scales along its input channels.
            stays = is_encoded(stored) and stored.op not in (*PALETTES, "decode_blocks")
            result = None if stays else fold_node(known)
            if result is not None:
                return result
            if stored.op != node.op:
                node, inputs = stored, stored.inputs
        return b.lowered(node, inputs)

    return graph.rewrite(change).decided(*b.decisions)


def _with_one_table(node: Node) -> Node:
    """Rewrites decode_palette(const, const : fp16[1, 1, 16]) as gather(const : fp16[16], const : int32), the form of a
    layer's table. Returns other nodes unchanged."""
    indices, table = (
        (None if v is None else v.node.data for v in node.inputs[:2]) if len(node.inputs) > 1 else (None, None)
    )
    if (
        node.op != "decode_palette"
        or indices is None
        or table is None
        or table.size != table.shape[-1]
        or indices.ndim < 2
    ):
        return node
    picked = np.minimum(indices, table.size - 1).astype(np.int32)  # indices beyond the end select the last entry
    operands = [constant(table.reshape(-1), node.sources, node.types[0].dtype), constant(picked, node.sources)]
    return apply(OPS["gather"], operands, {"axis": 0}, node.sources)[0].node


def lower_node(node: Node, constant: Sequence[bool]) -> list[Node]:
    """Returns the layers to which a node is lowered by itself, in topological order. constant: for each operand,
    whether it is known when the program is compiled. Raises Error for an op that no layer computes."""
    if node.op in STATE_OPS:
        return []
    operands = tuple([_alone(v, known) for v, known in zip(node.inputs, constant, strict=True)])
    values = Layers().lowered(node.with_inputs(operands), operands)
    parts: dict[Node, None] = {}
    stack = [v.node for v in values]
    ends = {v.node for v in operands if v is not None}
    while stack:
        part = stack.pop()
        if part in parts or part in ends or part.op in LEAVES:
            continue
        parts[part] = None
        stack += [v.node for v in part.inputs if v is not None]
    return [part for part in reversed(parts) if not _of_weights(part)]


def _alone(value: Value | None, constant: bool) -> Value | None:
    """Returns a placeholder for an operand: an input, or a weight without numbers, because the numbers of float weights
    do not affect the lowering. Constant integers and booleans, and encoded constants, are returned unchanged."""
    if value is None or (constant and (value.node.op == "const" or is_encoded(value.node)) and _decides(value)):
        return value
    return unique("param" if constant else "input", "x", value.type)


def _decides(value: Value) -> bool:
    return value.dtype.kind != "float" or is_encoded(value.node)


def _of_weights(node: Node) -> bool:
    """True if the node computes weights from weights, which the compiler does at compile time. A convolution is always
    treated as a layer, because its bias may be computed."""
    if node.op in CONVOLUTIONS:
        return False
    inputs = [v for v in node.inputs if v is not None]
    return bool(inputs) and all(v.node.op in WEIGHTS or _of_weights(v.node) for v in inputs)


def is_layer(node: Node) -> bool:
    return OPS[node.op].level == "engine"


class Layers(Rewriter):
    """A Rewriter that turns users' ops into layers of the engine and folds constants."""

    __slots__ = ("decisions",)

    def __init__(self) -> None:
        super().__init__(legal=is_layer, patterns=PATTERNS, folds=True)
        self.decisions: list[Decision] = []

    def layer(self, name: str, *inputs: Any, **attrs: Any) -> Any:
        """Applies the layer anec.NAME. Returns its output, or a tuple if it has several."""
        values = apply(OPS[f"anec.{name}"], lift(inputs, self.sources), attrs, self.sources)
        return values if len(values) > 1 else values[0]

    def apply(self, name: str, *inputs: Any, **attrs: Any) -> Any:
        """Applies a user's op, lowered to layers. Returns its output, or a tuple if it has several."""
        values = self.several(name, *inputs, **attrs)
        return values if len(values) > 1 else values[0]

    def lowered(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """Returns the values of an op with these inputs, lowered to layers. The op itself is not folded."""
        outer, self.sources = self.sources, node.sources
        try:
            return self.rewritten(node.with_inputs(inputs))
        finally:
            self.sources = outer

    def rewritten(self, node: Node) -> tuple[Value, ...]:
        if not any(math.prod(t.shape) for t in node.types):  # every result has 0 elements
            return tuple(constant(np.empty(t.shape, t.dtype.numpy), node.sources) for t in node.types)
        return super().rewritten(node)

    def stuck(self, node: Node) -> tuple[Value, ...]:
        raise Error(f"[{node.where}] got {node.op}, which no layer of the engine computes, need it on another device")

    def hazard(self, node: Node, reason: str, source: str) -> None:
        self.decisions.append(Decision("lower", node.where, "hazard", reason, source))


# ---- convolutions and products ----


def is_constant(value: Value | None) -> bool:
    return value is None or value.node.op == "const"


def is_weight(value: Value | None) -> bool:
    """True if the value is not computed, so that it can lie in kernel memory as part of a layer."""
    return value is not None and (value.node.op in WEIGHTS or is_encoded(value.node))


def decoded(weight: Value) -> Value:
    """Returns an encoded constant decoded, or another value unchanged."""
    return encoding_of(weight).decode() if is_encoded(weight.node) else weight


def _conv(b: Any, node: Node, x: Any, weight: Any, bias: Any, transposed: bool = False) -> Any:
    """Lowers a convolution. Images become channels first, with a height of 1 if they have one axis. A constant bias
    becomes the layer's offset."""
    a = node.attrs
    if a["layout"] == "nhwc":
        rank = len(x.shape)
        result = _conv_first(b, node, b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1))), weight, bias, transposed)
        return b.transpose(result, perm=(0, *range(2, rank), 1))
    return _conv_first(b, node, x, weight, bias, transposed)


def _conv_first(b: Any, node: Node, x: Any, weight: Any, bias: Any, transposed: bool) -> Any:
    a, flat = node.attrs, len(x.shape) == 3
    ones = (1,) * flat
    if flat or transposed:
        weight = decoded(weight)
    if flat:
        x = b.reshape(x, shape=(*x.shape[:2], 1, x.shape[2]))
        weight = b.reshape(weight, shape=(*weight.shape[:2], 1, weight.shape[2]))
    attrs = {"strides": ones + a["strides"], "dilation_rates": ones + a["dilations"], "groups": a["groups"]}
    attrs["explicit_padding"] = (0, 0) * flat + a["pad"]
    fixed = bias is not None and is_weight(bias)
    if transposed:
        attrs["output_padding"] = (0,) * flat + a["output_padding"]
        operands, name = [x, weight], "deconvolution"
    elif is_weight(weight):
        operands, name = [x, weight, None], "convolution"
    else:
        operands, name = [x, weight], "cross_correlation"
    if fixed:
        attrs["epilogue"] = (slot("gain_offset", gain=-1, offset=len(operands), axis=1),)
        operands.append(bias)
    y = b.layer(name, *operands, **attrs)
    if bias is not None and not fixed:
        y = b.layer("add", y, b.reshape(bias, shape=(-1, *[1] * (len(y.shape) - 2))))
    return b.reshape(y, shape=(*y.shape[:2], y.shape[3])) if flat else y


def _matmul(b: Any, node: Node, x: Any, y: Any, bias: Any) -> Any:
    flags = {"transpose_lhs": node.attrs["transpose_x"], "transpose_rhs": node.attrs["transpose_y"]}
    product = b.layer("matmul", x, y, **flags)
    return product if bias is None else b.layer("add", product, bias)


def _linear(b: Any, node: Node, x: Any, weight: Any, bias: Any) -> Any:
    if not is_weight(weight) or not 2 <= len(x.shape) <= 4:
        return OPS["linear"].expand(b, x, weight, bias)  # type: ignore[misc]
    product = b.layer("linear", x, weight)
    return product if bias is None else b.layer("add", product, bias)


def _attention(b: Any, node: Node, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Lowers attention to one layer if the layer supports its operands, else to products and a softmax."""
    a = node.attrs
    scores = (*node.types[0].shape[:-1], key.shape[-2])
    plain = not a["zero_hidden"] and max(len(v.shape) for v in (query, key, value)) <= 4 and key.shape == value.shape
    hides = mask is not None and mask.dtype is BOOL
    # The op replaces hidden scores by a number, but the layer can only add a mask to the scores.
    replaced = not math.isinf(a["hidden"]) and (hides or a["causal"]) and not _shows_keys(a, mask, scores)
    if not plain or replaced or (hides and mask.node.op != "const") or (mask is not None and len(mask.shape) > 4):
        return scale_first(b, query, key, value, mask, **a)
    kind, most = query.dtype.numpy, rules()["infinite_mask"].number("value")
    if hides:
        mask = b.const(np.where(mask.node.data, 0, -most).astype(kind))
    if a["causal"]:
        causal = np.where(np.tri(*scores[-2:], dtype=np.bool_), 0, -most).astype(kind)
        mask = b.const(causal) if mask is None else b.maximum(b.add(mask, b.const(causal)), -float(most))
    if mask is not None and mask.shape[-1:] != scores[-1:]:
        mask = b.broadcast_to(mask, shape=(*mask.shape[:-1], scores[-1]))
    return b.layer("sdpa", query, key, value, mask, scale=a["scale"], subtract_max=True)


def _shows_keys(attrs: Mapping[str, Any], mask: Any, scores: tuple[int, ...]) -> bool:
    """True if each row of a constant mask shows a key and the hidden score is far below any other score. In that case
    the weights of hidden keys are 0, whether the hidden score replaces the scores or is added to them."""
    if attrs["hidden"] > FLOOR:
        return False
    shown = np.tri(*scores[-2:], dtype=np.bool_) if attrs["causal"] else np.ones((1, scores[-1]), np.bool_)
    if mask is not None:
        if mask.dtype is not BOOL or mask.node.op != "const" or mask.node.data.ndim == 0:
            return False
        shown = shown & mask.node.data
    return bool(shown.any(axis=-1).all())


def _rotary(b: Any, node: Node, x: Any, cos: Any, sin: Any) -> Any:
    """Lowers rotary embedding. The halves, or every second element, are views with no more axes than x."""
    axis, half, step = len(x.shape) - 1, x.shape[-1] // 2, 2 if node.attrs["interleaved"] else 1
    first, second = (
        b.layer("input_view", x, axis=axis, offset=i if step == 2 else i * half, size=half, step=step) for i in (0, 1)
    )
    rotated = (
        b.layer("sub", b.layer("mul", first, cos), b.layer("mul", second, sin)),
        b.layer("add", b.layer("mul", first, sin), b.layer("mul", second, cos)),
    )
    if step == 1:
        return b.layer("concat", *rotated, axis=axis)
    flat = [b.reshape(v, shape=(-1, half, 1)) for v in rotated]
    return b.reshape(b.layer("concat", *flat, axis=2), shape=x.shape)


# ---- elementwise ----


def _neuron(b: Any, node: Node, x: Any) -> Any:
    return b.layer("neuron", x, **neuron_attrs(MODE_OF[node.op], node))


def neuron_attrs(mode: str, node: Node) -> dict[str, Any]:
    neuron = NEURONS[mode]
    return {
        "mode": mode,
        "alpha": node.attrs[neuron.alpha] if neuron.alpha else 0.0,
        "beta": node.attrs[neuron.beta] if neuron.beta else 0.0,
    }


def _clamped(b: Any, x: Any, low: float, high: float) -> Any:
    return b.layer("neuron", x, mode="clamped_relu", alpha=low, beta=high)


def _affine(b: Any, x: Any, gain: float | None, offset: float | None) -> Any:
    return b.layer("gain_offset_control", x, gain, offset)


def _hard_sigmoid(b: Any, node: Node, x: Any) -> Any:
    return _clamped(b, _affine(b, x, node.attrs["alpha"], node.attrs["beta"]), 0.0, 1.0)


def _hard_swish(b: Any, node: Node, x: Any) -> Any:
    return b.layer("mul", x, _affine(b, _clamped(b, _affine(b, x, None, 3.0), 0.0, 6.0), 1 / 6, None))


def _prelu(b: Any, node: Node, x: Any, slope: Any) -> Any:
    return b.layer("add", b.layer("neuron", x, mode="relu"), b.layer("mul", _clamped(b, x, -np.inf, 0.0), slope))


def _floor_div(b: Any, node: Node, x: Any, y: Any) -> Any:
    b.hazard(
        node, "the chip multiplies with a reciprocal that is rounded, which may give the next integer", "guide ch35"
    )
    return b.layer("div", x, y, epilogue=(activation("post_activation", "floor"),))


def _div(b: Any, node: Node, x: Any, y: Any) -> Any:
    b.hazard(node, "the chip multiplies with a reciprocal from a table", "ANEForge 0.4.0, netplists")
    return b.layer("div", x, y)


def _or_equal(strict: str) -> Callable[..., Any]:
    return lambda b, node, x, y: b.layer("logical_or", b.layer(strict, x, y), b.layer("equal", x, y))


# ---- windows and reductions ----


def _pool(kind: str) -> Callable[..., Any]:
    def lowered(b: Any, node: Node, x: Any) -> Any:
        attrs = {k: v for k, v in node.attrs.items() if k != "layout"}
        if node.attrs["layout"] == "nchw":
            return b.layer("pool", x, kind=kind, **attrs)
        rank = len(x.shape)
        first = b.transpose(x, perm=first_perm(rank))
        return b.transpose(b.layer("pool", first, kind=kind, **attrs), perm=(0, *range(2, rank), 1))

    return lowered


def _reduction(kind: str, operand: str = "none", after: str = "") -> Callable[..., Any]:
    slots = (activation("post_activation", after),) if after else ()
    return lambda b, node, x: b.layer("reduction", x, kind=kind, operand=operand, **node.attrs, epilogue=slots)


def _log_sum_exp(b: Any, node: Node, x: Any) -> Any:
    """Lowers logsumexp without subtracting the largest number first, as the chip does. M3 Max returns 0 if the sum of
    exponentials overflows fp16, from 7.63 on over 32 channels (coremltools#2690)."""
    axes, keep = node.attrs["axes"], node.attrs["keep_dims"]
    powers = b.layer("neuron", x, mode="exp")
    total = b.layer("reduction", powers, kind="sum", axes=axes, epilogue=(activation("post_activation", "log"),))
    return total if keep else b.reshape(total, shape=node.types[0].shape)


def _rms_norm(b: Any, node: Node, x: Any, gamma: Any) -> Any:
    """Lowers an RMS norm. One layer computes the mean square, adds epsilon and computes the reciprocal root."""
    axes = tuple(a % len(x.shape) for a in node.attrs["axes"])
    slots = (slot("gain_offset", gain=-1, offset=1, axis=0), activation("post_activation", "rsqrt"))
    epsilon = b.const(np.array(node.attrs["epsilon"], np.float32))
    y = b.layer("mul", x, b.layer("reduction", x, epsilon, kind="avg", operand="sqr", axes=axes, epilogue=slots))
    return y if gamma is None else b.layer("mul", y, gamma)


def _l2_norm(b: Any, node: Node, x: Any) -> Any:
    """Lowers an L2 norm to its layer, or to other layers if it is along the batch, which the layer does not support."""
    axes = node.attrs["axes"]
    if len(x.shape) >= 4 and 0 in axes:
        return simpler.l2_norm(b, x, **node.attrs)
    return b.layer("l2_norm", x, axes=axes, epsilon=node.attrs["epsilon"])


def _arg(kind: str) -> Callable[..., Any]:
    return lambda b, node, x: b.layer("arg_min_max", x, kind=kind, **node.attrs)


# ---- moving elements ----


def _reshape(b: Any, node: Node, x: Any) -> Any:
    shape = node.types[0].shape
    return x if x.shape == shape else b.layer("reshape", x, shape=shape)


def _slice(b: Any, node: Node, x: Any) -> Any:
    """Lowers a slice to one view per sliced axis, after a reversal of the axes with a negative stride."""
    a, shape = node.attrs, node.types[0].shape
    if backwards := tuple(i for i, s in enumerate(a["stride"]) if s < 0 and shape[i] > 1):
        x = b.layer("reverse", x, axes=backwards)
    for axis, (begin, step, size) in enumerate(zip(a["begin"], a["stride"], shape, strict=True)):
        offset = x.shape[axis] - 1 - begin if axis in backwards else begin
        if size != x.shape[axis]:
            x = b.layer("input_view", x, axis=axis, offset=offset, size=size, step=abs(step) if size > 1 else 1)
    return x


def _concat(b: Any, node: Node, *values: Any) -> Any:
    axis = node.attrs["axis"]
    return values[0] if len(values) == 1 else b.layer("concat", *values, axis=axis)


def _transpose(b: Any, node: Node, x: Any) -> Any:
    perm = node.attrs["perm"]
    return x if perm == tuple(range(len(perm))) else b.layer("transpose", x, perm=perm)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "conv_transpose": partial(_conv, transposed=True),
    "matmul": _matmul,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "rotary_embedding": _rotary,
    "relu6": lambda b, node, x: _clamped(b, x, 0.0, 6.0),
    "threshold": lambda b, node, x: _clamped(b, x, node.attrs["alpha"], np.inf),
    "neg": lambda b, node, x: _affine(b, x, -1.0, None),
    "linear_activation": lambda b, node, x: _affine(b, x, node.attrs["alpha"], node.attrs["beta"]),
    "sigmoid_hard": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "prelu": _prelu,
    "real_div": _div,
    "floor_div": _floor_div,
    "less_equal": _or_equal("less"),
    "greater_equal": _or_equal("greater"),
    "logical_and": lambda b, node, x, y: b.layer("select", x, y, b.const(np.array(False))),
    "max_pool": _pool("max"),
    "avg_pool": _pool("avg"),
    "reduce_sum": _reduction("sum"),
    "reduce_mean": _reduction("avg"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_sum_square": _reduction("sum", "sqr"),
    "reduce_l1_norm": _reduction("sum", "abs"),
    "reduce_l2_norm": _reduction("sum", "sqr", "sqrt"),
    "reduce_log_sum": _reduction("sum", after="log"),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_argmax": _arg("max"),
    "reduce_argmin": _arg("min"),
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "identity": lambda b, node, x: x,
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "flatten2d": _reshape,
    "slice_by_index": _slice,
    "concat": _concat,
    "transpose": _transpose,
}


def checked(lowering: Callable[..., Any]) -> Pattern:
    """Returns a pattern that applies the lowering and checks that it has read every attribute of the node."""

    def pattern(b: Layers, node: Node) -> Any:
        view = recorded(node)
        result = lowering(b, view, *node.inputs)
        check(view, "lowering")
        return result

    return pattern


def _neuron_of_floats(b: Layers, node: Node) -> Any:
    return _NEURON(b, node) if node.types[0].dtype.kind == "float" else None


def _same(b: Layers, node: Node) -> Any:
    return b.layer(SAME[node.op].removeprefix("anec."), *node.inputs, **node.attrs)


_NEURON = checked(_neuron)
PATTERNS: dict[str, tuple[Pattern, ...]] = {
    op: (*([checked(LOWERINGS[op])] if op in LOWERINGS else [_neuron_of_floats] if op in MODE_OF else []),
         *([_same] if op in SAME else []))
    for op in {**LOWERINGS, **MODE_OF, **SAME}
}  # fmt: skip
