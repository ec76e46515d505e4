"""Products with constant weights as convolutions of 1 x 1, and attention with separate heads. Core AI's published rules
require these forms of tokens for the engine."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hexane.dtypes import FP16
from hexane.emit.coreai.heads import heads_apart
from hexane.emit.coreai.images import TOKENS, Image, gathered, image, reshaped, spread, tensor, viewed
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply, simpler
from hexane.ops.compose import Builder, Operand, lift
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import is_encoded
from hexane.ops.rewriter import Rewriter, expansion

Made = Image | Value | Sequence[Image | Value] | None


def tokens_as_images(graph: Graph) -> Graph:
    """linear(%x : fp32[1, 64, 128], const)  ->  conv(%x : fp32[1, 128, 1, 64], const)

    Products of tokens by constants are computed on images (batch, features, 1, tokens). Ops that read such images are
    computed on images too: elementwise ops, norms, softmaxes, reductions, slices and concatenations. Attention is
    computed one head at a time. Transposes are inserted where values change between tensors and images. A product of
    one token is unchanged: its image would have one pixel, and the engine pads rows to 64 bytes. The results differ
    only by rounding.
    """
    return graph.rewrite(_Tokens().change)


class _OnImages(Rewriter):
    """A rewriter that moves encoded constants without decoding them."""

    __slots__ = ()

    def settled(self, node: Node) -> tuple[Value, ...]:
        stored = moved(node)
        return (stored,) if stored is not None else super().settled(node)


class _Tokens:
    def __init__(self) -> None:
        self.images: dict[Value, Image] = {}

    def change(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        images = [None if v is None else self.images.get(v) for v in inputs]
        if not any(images) and node.op not in _BEGIN:
            return None
        if any(v is not None and 0 in v.shape for v in (*inputs, *node.values)):
            return None
        node = node.with_inputs(inputs)
        if node.op in _WRITTEN_OUT:
            return _as_values(expansion(_Steps(self, node.sources), node))
        handler = _HANDLERS.get(node.op) or (_elementwise if OPS[node.op].elementwise else None)
        b = _OnImages(*node.sources, folds=True)
        result = None if handler is None else handler(b, node, images)
        if result is None:
            return None
        several = [result] if isinstance(result, Image | Value) else result
        return tuple([self._tensor(b, one) for one in several])

    def _tensor(self, b: Builder, value: Image | Value) -> Value:
        if isinstance(value, Value):
            return value
        result = tensor(b, value)
        self.images[result] = value
        return result


class _Steps(Builder):
    """A builder whose ops are rewritten by the pass."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: _Tokens, sources: tuple[str, ...]) -> None:
        super().__init__(*sources)
        self.tokens = tokens

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        node = apply(OPS[name], lift(inputs, self.sources), attrs, self.sources)[0].node
        return self.tokens.change(node, node.inputs) or node.values


def _as_values(results: Value | Sequence[Value] | None) -> tuple[Value, ...] | None:
    return (results,) if isinstance(results, Value) else results if results is None else tuple(results)


def _dim(image: Image, order: list[int], axis: int) -> int:
    """Returns the index of a tensor axis in the axes of `spread`."""
    return order.index(image.axes[axis % len(image.axes)])


# ---- products ----


def _linear(b: Builder, node: Node, images: list[Image | None]) -> Made:
    x, weight, bias = node.inputs
    return _multiplied(b, x, images[0], weight, bias, transposed=False)


def _matmul(b: Builder, node: Node, images: list[Image | None]) -> Made:
    x, weight, bias = node.inputs
    if node.attrs["transpose_x"]:
        return None
    return _multiplied(b, x, images[0], weight, bias, transposed=not node.attrs["transpose_y"])


def _multiplied(
    b: Builder, x: Value | None, known: Image | None, weight: Value | None, bias: Value | None, transposed: bool
) -> Made:
    """Returns a product with a constant weight, computed on images. transposed: the weight is (in, out)."""
    assert x is not None
    assert weight is not None
    if x.type.rank > max(TOKENS):
        flat = b.reshape(x, shape=(x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))
        product = _multiplied(b, flat, None, weight, bias, transposed)
        return (
            b.reshape(tensor(b, product), shape=(*x.shape[:-1], product.factors[0]))
            if isinstance(product, Image)
            else None
        )
    axes = TOKENS.get(x.type.rank)
    is_constant = weight.node.op == "const" or is_encoded(weight.node)
    if axes is None or not is_constant or weight.type.rank != 2 or prod(x.shape[:-1]) <= 1 or x.node.op == "const":
        return None
    if known is None or known.axes != axes:
        known = image(b, x, axes, (x.shape[-1],))
    kernel = b.transpose(weight, perm=(1, 0)) if transposed else weight
    kernel = b.reshape(kernel, shape=(*kernel.shape, 1, 1))
    return Image(b.conv(known.pixels, kernel, bias), axes, (kernel.shape[0],))


# ---- ops that compute on images as on tensors ----


def _elementwise(b: Builder, node: Node, images: list[Image | None]) -> Made:
    first = next((i for i in images if i is not None and i.shape == node.types[0].shape), None)
    if first is None or node.op == "bit_cast" or len(node.types) > 1:
        return None
    operands = []
    for x, known in zip(node.inputs, images, strict=True):
        if x is None or x.type.rank == 0:
            operands.append(x)
        elif known is not None and known.axes == first.axes and _fits(known.factors, first.factors):
            operands.append(known.pixels)
        else:
            operands.append(image(b, x, first.axes, first.factors).pixels)
    return first.of(b.apply(node.op, *operands, **node.attrs))


def _fits(factors: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return factors == whole or prod(factors) == 1


def _softmax(b: Builder, node: Node, images: list[Image | None]) -> Made:
    (known,) = images
    assert known is not None
    x, order = spread(b, known)
    return gathered(b, b.softmax(x, axis=_dim(known, order, int(node.attrs["axis"]))), order, known.axes)


def _reduction(b: Builder, node: Node, images: list[Image | None]) -> Made:
    (known,) = images
    assert known is not None
    x, order = spread(b, known)
    axes = node.attrs["axes"] or range(len(known.axes))
    reduced = b.apply(node.op, x, axes=sorted(_dim(known, order, int(a)) for a in axes), keep_dims=True)
    kept = gathered(b, reduced, order, known.axes)
    return kept if node.attrs["keep_dims"] else b.reshape(tensor(b, kept), shape=node.types[0].shape)


def _norm(b: Builder, node: Node, images: list[Image | None]) -> Made:
    """Expands a norm over the last axis, because the catalogue's norms support only the last axes of their operand."""
    known = images[0]
    rank = node.types[0].rank
    if known is None or [int(a) % rank for a in node.attrs["axes"]] != [rank - 1]:
        return None
    x, order = spread(b, known)
    dim = _dim(known, order, -1)
    epsilon = float(node.attrs["epsilon"])
    if x.dtype is FP16:  # fp16 cannot represent the square of 256
        x = (
            simpler.layer_norm(b, x, None, None, (dim,), epsilon)
            if node.op == "layer_norm"
            else simpler.rms_norm(b, x, None, (dim,), epsilon)
        )
    else:
        x = b.sub(x, b.reduce_mean(x, axes=(dim,))) if node.op == "layer_norm" else x
        x = b.mul(x, b.rsqrt(b.add(b.reduce_mean(b.square(x), axes=(dim,)), epsilon)))
    line = [x.shape[dim] if i == dim else 1 for i in range(x.type.rank)]
    for step, operand in zip(("mul", "add"), node.inputs[1:], strict=False):
        if operand is not None:
            x = b.apply(step, x, b.reshape(operand, shape=line))
    return gathered(b, x, order, known.axes)


# ---- slices, concatenations and views ----


def _sliced(b: Builder, known: Image, places: Sequence[tuple[int, int, int]]) -> Image:
    """places: (begin, end, stride) for each axis of the tensor."""
    x, order = spread(b, known)
    whole = [(0, n, 1) for n in x.shape]
    for axis, place in enumerate(places):
        whole[_dim(known, order, axis)] = place
    begin, end, stride = zip(*whole, strict=True)
    return gathered(b, b.slice_by_index(x, begin=begin, end=end, stride=stride), order, known.axes)


def _slice(b: Builder, node: Node, images: list[Image | None]) -> Made:
    (known,) = images
    assert known is not None
    a = node.attrs
    if node.op == "slice_by_size":
        begin = [p % n if p else 0 for p, n in zip(a["begin"], known.shape, strict=True)]
        return _sliced(b, known, [(p, p + n, 1) for p, n in zip(begin, node.types[0].shape, strict=True)])
    stride = a["stride"] or [1] * len(known.axes)
    given = zip(a["begin"], a["end"], stride, known.shape, strict=True)
    return _sliced(b, known, [slice(p, e, s).indices(n) for p, e, s, n in given])


def _split(b: Builder, node: Node, images: list[Image | None]) -> Made:
    (known,) = images
    assert known is not None
    axis, start, result = int(node.attrs["axis"]) % len(known.axes), 0, list[Image | Value]()
    for kind in node.types:
        places = [(0, n, 1) for n in known.shape]
        places[axis] = (start, start + kind.shape[axis], 1)
        result.append(_sliced(b, known, places))
        start += kind.shape[axis]
    return result


def _gather(b: Builder, node: Node, images: list[Image | None]) -> Made:
    """Gathers at one constant index: a slice whose axis is dropped."""
    known, indices = images[0], node.inputs[1]
    data = None if indices is None else indices.node.data
    if known is None or data is None or data.size != 1:
        return None
    axis = int(node.attrs["axis"]) % len(known.axes)
    place = int(data.item()) % known.shape[axis]
    part = _sliced(b, known, [(place, place + 1, 1) if i == axis else (0, n, 1) for i, n in enumerate(known.shape)])
    return viewed(part, node.types[0].shape)


def _concat(b: Builder, node: Node, images: list[Image | None]) -> Made:
    first = next(i for i in images if i is not None)
    axis = first.axes[int(node.attrs["axis"]) % len(first.axes)]
    parts = []
    for x, known in zip(node.inputs, images, strict=True):
        assert x is not None
        factors = tuple(x.shape[first.axes.index(i)] for i in range(len(first.factors)))
        same = known if known is not None and known.axes == first.axes else image(b, x, first.axes, factors)
        parts.append(spread(b, same))
    order = parts[0][1]
    return gathered(b, b.concat(*[x for x, _ in parts], axis=order.index(axis)), order, first.axes)


def _view(b: Builder, node: Node, images: list[Image | None]) -> Made:
    (known,) = images
    assert known is not None
    return viewed(known, node.types[0].shape)


def _transpose(b: Builder, node: Node, images: list[Image | None]) -> Made:
    """Starts an image if the transpose moves features to the last axis; the transpose then costs nothing."""
    (known,), (x,), perm = images, node.inputs, tuple(node.attrs["perm"])
    assert x is not None
    if known is None:
        if perm not in ((0, 2, 1), (0, 2, 3, 1)):
            return None
        return Image(
            reshaped(b, x, (*x.shape[:2], *[1] * (4 - len(perm)), *x.shape[2:])), TOKENS[len(perm)], x.shape[1:2]
        )
    return Image(known.pixels, tuple(known.axes[i] for i in node.attrs["perm"]), known.factors)


_REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum_square",
               "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp")  # fmt: skip
_HANDLERS: dict[str, Callable[[Builder, Node, list[Image | None]], Made]] = {
    "linear": _linear, "matmul": _matmul, "scaled_dot_product_attention": heads_apart,
    "softmax": _softmax, "layer_norm": _norm, "rms_norm": _norm, **dict.fromkeys(_REDUCTIONS, _reduction),
    "slice_by_index": _slice, "slice_by_size": _slice, "split": _split, "gather": _gather, "concat": _concat,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _view), "transpose": _transpose,
}  # fmt: skip
# Ops that start an image, and ops that are expanded to ops with handlers.
_BEGIN = {"linear", "matmul", "scaled_dot_product_attention", "transpose"}
_WRITTEN_OUT = {"rotary_embedding", "stack"}
