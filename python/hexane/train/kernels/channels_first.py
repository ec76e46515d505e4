"""Rewrites a group of nodes as a graph in channels-first layout, with one input and one output.

Input and output are (batch, channels, 1, tokens). Each value is stored as a tensor and a permutation of its axes. The
tokens are the tensor's last axis, except in results of ops without a form here, which keep the value's own order:

    value (batch, tokens, channels)              tensor (batch, channels, tokens)            order (0, 2, 1)
    value (batch, heads, tokens, head channels)  tensor (batch, heads, head channels, tokens) order (0, 1, 3, 2)

So products with weights become convolutions if the params are made constants, transposes cost nothing, and inputs and
outputs can be concatenated along the channels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from hexane import build as hx
from hexane.build import FUNCTIONS, Tensor
from hexane.dtypes import DType
from hexane.graph import Array, Node, Value, topological
from hexane.graph.origins import source_scope
from hexane.ops import OPS
from hexane.ops.fold import Folder
from hexane.ops.simpler import LARGEST_SQUARED
from hexane.train.kernels.branches import is_leaf, weight_of


class Placed(NamedTuple):
    """A value and its tensor: axis i of the value is axis order[i] of the tensor."""

    tensor: Tensor
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[i] for i in self.order)

    def plain(self) -> Tensor:
        """Returns the tensor with its axes in the value's order."""
        return self.tensor if is_plain(self.order) else hx.transpose(self.tensor, perm=self.order)


class Place(NamedTuple):
    """The layout of a value in memory: the shape of its tensor, and the permutation of its axes."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


class Unfit(Exception):
    """Raised for a value that does not fit the layout, such as one without an axis of tokens."""


def is_plain(order: Sequence[int]) -> bool:
    return tuple(order) == tuple(range(len(order)))


def default_place(shape: Sequence[int], tokens: int) -> Place:
    """Returns the host's layout of (batch, tokens, channels), with tokens last. Raises Unfit for another shape."""
    if len(shape) == 3 and shape[1] == tokens:
        return Place((shape[0], shape[2], shape[1]), (0, 2, 1))
    raise Unfit(f"got a value of shape {tuple(shape)} from the host, need (batch, {tokens}, channels)")


def shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns x in another shape. Earlier reshapes of x are dropped."""
    while x.value.node.op == "reshape" and x.value.node.inputs[0] is not None:
        x = Tensor(x.value.node.inputs[0])
    return x if tuple(x.shape) == tuple(shape) else hx.reshape(x, shape=shape)


class Writer:
    """Adds nodes one by one. arrays: values of the params, which become constants; None: params stay params."""

    def __init__(self, arrays: Mapping[str, Array] | None) -> None:
        self.placed: dict[Value, Placed] = {}
        self._arrays = arrays

    @property
    def baked(self) -> bool:
        return self._arrays is not None

    def write(self, node: Node) -> None:
        """Adds a node, whose operands are leaves or were added before."""
        with source_scope(*node.sources):
            form = _FORMS.get(node.op)
            if form is None and OPS[node.op].elementwise:
                form = _elementwise
            one = None if form is None else form(self, node)
            placed = [one] if one is not None else self._as_it_is(node)
        self.placed |= dict(zip(node.values, placed, strict=True))

    def _as_it_is(self, node: Node) -> list[Placed]:
        """Applies the op to the values with their axes in the original order."""
        tensors = _applied(node, [None if v is None else self.plain(v) for v in node.inputs])
        return [Placed(t, tuple(range(len(t.shape)))) for t in tensors]

    def plain(self, value: Value) -> Tensor:
        """Returns the value with its axes in the original order."""
        placed = self.placed.get(value)
        return self.constant(value) if placed is None else placed.plain()

    def constant(self, value: Value) -> Tensor:
        """Returns a leaf, or a value computed from leaves only. With `arrays` a param becomes a constant."""
        node = value.node
        if node.data is not None and node.op == "const":
            return hx.const(node.data)
        if node.op in ("param", "state"):
            return Tensor(value) if self._arrays is None else hx.const(self._arrays[str(node.attrs["name"])])
        if not node.inputs:
            raise Unfit(f"got {node.op}, which no program of the engine holds")
        return _applied(node, [None if v is None else self.constant(v) for v in node.inputs])[value.output]

    def get(self, value: Value) -> Placed | None:
        return self.placed.get(value)


def _applied(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    result = FUNCTIONS[node.op](*inputs, **node.attrs)
    return result if isinstance(result, tuple) else (result,)


def _elementwise(w: Writer, node: Node) -> Placed | None:
    """Uses the axis order of the first operand with the result's shape; other operands are transposed to it."""
    shape = node.values[0].shape
    leader = next((p for v in node.inputs if v is not None and (p := w.get(v)) and p.shape == shape), None)
    if leader is None or len(node.values) > 1:
        return None
    inverse = [leader.order.index(i) for i in range(len(leader.order))]

    def along(value: Value) -> Tensor:
        placed = w.get(value)
        if placed is not None and placed.order == leader.order:
            return placed.tensor
        tensor = w.plain(value)
        missing = len(shape) - len(tensor.shape)
        if missing and tensor.shape:
            tensor = shaped(tensor, (1,) * missing + tuple(tensor.shape))
        return tensor if not tensor.shape or is_plain(inverse) else hx.transpose(tensor, perm=inverse)

    result = FUNCTIONS[node.op](*(None if v is None else along(v) for v in node.inputs), **node.attrs)
    return Placed(result, leader.order)


def _linear(w: Writer, node: Node) -> Placed | None:
    x, weight, bias = node.inputs
    assert x is not None
    assert weight is not None
    return _times_weight(w, x, w.constant(weight), bias, transposed=False)


def _matmul(w: Writer, node: Node) -> Placed | None:
    x, y, bias = node.inputs
    assert x is not None
    assert y is not None
    flip_x, flip_y = bool(node.attrs["transpose_x"]), bool(node.attrs["transpose_y"])
    if (weight_of(y) is not None or is_leaf(y.node)) and len(y.shape) == 2 and not flip_x:
        return _times_weight(w, x, w.constant(y), bias, transposed=not flip_y)
    left, right = w.get(x), w.get(y)
    if left is None or right is None or bias is not None or len(left.order) != len(right.order):
        return None
    swapped_x, swapped_y = _swaps_last_two(left.order), _swaps_last_two(right.order)
    if swapped_x is None or swapped_y is None:
        return None
    flips = {"transpose_x": flip_x ^ swapped_x, "transpose_y": flip_y ^ swapped_y}
    batch = range(len(left.order) - 2)
    if flip_y == swapped_y:  # the last axis of y's tensor becomes the columns of the result: tokens
        return Placed(hx.matmul(left.tensor, right.tensor, **flips), (*batch, len(batch), len(batch) + 1))
    transposes = {"transpose_x": not flips["transpose_y"], "transpose_y": not flips["transpose_x"]}
    return Placed(hx.matmul(right.tensor, left.tensor, **transposes), (*batch, len(batch) + 1, len(batch)))


def _swaps_last_two(order: Sequence[int]) -> bool | None:
    """False if the order is the identity, True if it swaps the last two axes, None for others."""
    rank = len(order)
    if tuple(order[:-2]) != tuple(range(rank - 2)):
        return None
    return order[-1] != rank - 1


def _times_weight(w: Writer, x: Value, weight: Tensor, bias: Value | None, transposed: bool) -> Placed | None:
    """weight: (out, in), or (in, out) if `transposed`. The result is a 1 x 1 convolution if the params are made
    constants, and a matmul otherwise. None if x is not (batch, channels, tokens) in memory."""
    placed = w.get(x)
    if placed is None or placed.order != (0, 2, 1):
        return None
    batch, channels, tokens = placed.tensor.shape
    if not w.baked:
        product = hx.matmul(weight, placed.tensor, transpose_x=transposed)
        return Placed(product if bias is None else product + shaped(w.constant(bias), (-1, 1)), (0, 2, 1))
    weight = hx.transpose(weight) if transposed else weight
    image = shaped(placed.tensor, (batch, channels, 1, tokens))
    square = shaped(weight, (*weight.shape, 1, 1))
    result = hx.conv(image, square, None if bias is None else w.constant(bias))
    return Placed(shaped(result, (batch, weight.shape[0], tokens)), (0, 2, 1))


def _transpose(w: Writer, node: Node) -> Placed | None:
    placed = w.get(_only(node))
    return None if placed is None else Placed(placed.tensor, tuple(placed.order[i] for i in node.attrs["perm"]))


def _reshape(w: Writer, node: Node) -> Placed | None:
    """Axes that are split or merged must be neighbours in the tensor."""
    x = _only(node)
    placed = w.get(x)
    if placed is None:
        return None
    pieces = []  # (first axis of the piece in the tensor, the new axes)
    for old, new in _common_pieces(x.shape, node.values[0].shape):
        there = [placed.order[i] for i in old]
        if not there or there != list(range(there[0], there[0] + len(there))):
            return None
        pieces.append((there[0], new))
    axes = [i for _, new in sorted(pieces) for i in new]
    tensor = shaped(placed.tensor, [node.values[0].shape[i] for i in axes])
    return Placed(tensor, tuple(axes.index(i) for i in range(len(axes))))


def _common_pieces(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Splits the axes of both shapes into the smallest groups with equal products."""
    pieces: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [i], [j]
        while prod(old[a] for a in left) != prod(new[a] for a in right):
            if prod(old[a] for a in left) < prod(new[a] for a in right):
                left.append(left[-1] + 1)
            else:
                right.append(right[-1] + 1)
        pieces.append((left, right))
        i, j = left[-1] + 1, right[-1] + 1
    if pieces:  # the last piece gets the remaining axes, of extent 1
        pieces[-1][0].extend(range(i, len(old)))
        pieces[-1][1].extend(range(j, len(new)))
    return pieces


def _reduced(w: Writer, node: Node) -> Placed | None:
    placed = w.get(_only(node))
    if placed is None or not node.attrs["keep_dims"]:
        return None
    axes = [placed.order[i] for i in node.attrs["axes"]]
    return Placed(FUNCTIONS[node.op](placed.tensor, **{**node.attrs, "axes": axes}), placed.order)


def _softmax(w: Writer, node: Node) -> Placed | None:
    placed = w.get(_only(node))
    if placed is None:
        return None
    return Placed(hx.softmax(placed.tensor, axis=placed.order[node.attrs["axis"]]), placed.order)


def _rms_norm(w: Writer, node: Node) -> Placed | None:
    """u * rsqrt(mean(u^2) + epsilon f^2) * gamma over the channels, with u = x f, f = min(1, 128 / max |x|). The factor
    avoids overflow: 256 squared is infinite in the engine's fp16."""
    x, gamma = node.inputs
    assert x is not None
    placed = w.get(x)
    if placed is None or placed.order != (0, 2, 1) or node.attrs["axes"] != (2,):
        return None
    top = hx.reduce_max(hx.abs(placed.tensor), axes=1, keep_dims=True)
    factor = hx.inverse(hx.maximum(top, LARGEST_SQUARED) * (1 / LARGEST_SQUARED))
    u = placed.tensor * factor
    mean = hx.reduce_mean(hx.square(u), axes=1, keep_dims=True)
    y = u * hx.rsqrt(mean + factor * node.attrs["epsilon"] * factor)
    return Placed(y if gamma is None else y * shaped(w.constant(gamma), (1, x.shape[-1], 1)), placed.order)


def _rotary(w: Writer, node: Node) -> Placed | None:
    """x cos + (R x) sin, where R swaps the two channels of each pair and negates the first."""
    x, cos, sin = node.inputs
    assert x is not None
    assert cos is not None
    assert sin is not None
    placed = w.get(x)
    if placed is None or not _swaps_last_two(placed.order) or not (is_leaf(cos.node) and is_leaf(sin.node)):
        return None
    swap, angle_of = _swapped_pairs(x.shape[-1] // 2, bool(node.attrs["interleaved"]), cos.dtype)
    of_cos, of_sin = (hx.transpose(hx.gather(w.constant(v), angle_of, axis=-1)) for v in (cos, sin))
    return Placed(placed.tensor * of_cos + hx.matmul(hx.const(swap), placed.tensor) * of_sin, placed.order)


@lru_cache(maxsize=16)
def _swapped_pairs(half: int, interleaved: bool, dtype: DType) -> tuple[Array, Array]:
    """Returns the matrix R, and for each channel the index of its angle."""
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, half + i) for i in range(half)]
    swap, angle_of = np.zeros((2 * half, 2 * half), dtype.numpy), np.zeros(2 * half, np.int32)
    for i, (first, second) in enumerate(pairs):
        swap[first, second], swap[second, first] = -1, 1
        angle_of[[first, second]] = i
    return swap, angle_of


def _attention(w: Writer, node: Node) -> Placed | None:
    """Writes the attention as the products and the softmax of its expansion."""
    expand = OPS[node.op].expand
    assert expand is not None
    result: Value = expand(Folder(*node.sources), *node.inputs, **node.attrs)
    new: dict[int, Node] = {}
    stack = [result]
    while stack:
        value = stack.pop()
        if value not in w.placed and not is_leaf(value.node):
            new[id(value.node)] = value.node
            stack += [v for v in value.node.inputs if v is not None]
    for inner in topological([result]):
        if id(inner) in new:
            w.write(inner)
    return w.placed[result]


def _only(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


_FORMS: Mapping[str, Callable[[Writer, Node], Placed | None]] = {
    "linear": _linear,
    "matmul": _matmul,
    "transpose": _transpose,
    "reshape": _reshape,
    "reduce_sum": _reduced,
    "reduce_mean": _reduced,
    "reduce_max": _reduced,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "rotary_embedding": _rotary,
    "scaled_dot_product_attention": _attention,
}
