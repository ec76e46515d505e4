"""Merges convolutions of one tensor whose results are added, such as the branches of RepVGG, RepViT and MobileOne."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.lowering.affine import normalisation
from hexane.lowering.kept_constants import kept_constant
from hexane.ops import OPS, apply
from hexane.ops.predicates import channel_axis, only_along
from hexane.ops.taps import pairs
from hexane.targets import Chip, Target

_FP32_EPSILON, _LARGEST_HALF = 2.0**-23, 65504.0
_FAR = 8.0  # A mean of 8 deviations, times a scale rounded to fp16, is off by 2^-9 of a deviation.


def merge_convolutions(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w, %b) + conv(%x, %v, %c) + batch_norm(%x, ..)  ->  conv(%x, %w + %v + scale, %b + %c + shift)

    The convolutions have the same strides, dilations, groups and layout. The smaller kernel lies inside the window of
    the larger one, where zeros fill it up. A batch_norm with constant parameters is a kernel with one tap for each
    channel, and so is %x itself next to a depthwise convolution. In a sum with further terms a number, or one for each
    channel, is a bias. Nothing else may read the results that are added. The new weights of a whole sum are computed in
    fp64 and rounded once. Terms stay apart if the new weights overflow, or lose more digits than by rounding to fp32;
    in fp16, also if a batch_norm's mean is far above its deviation.
    """
    return _merged(graph, isinstance(target, Chip))


def merge_convolutions_halves(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w) + conv(%x, %v)  ->  conv(%x, %w + %v)

    Like merge_convolutions, for a network that becomes fp16.
    """
    return _merged(graph, True)


def merge_convolutions_bf16(graph: Graph, target: Target) -> Graph:
    """conv(%x, %w) + conv(%x, %v) + batch_norm(%x, ..)  ->  conv(%x, %w + %v) + batch_norm(%x, ..)

    Like merge_convolutions, for a network whose products are in bf16. A batch_norm is no product, so it stays apart and
    keeps fp32. Depthwise convolutions are in fp32, so they take batch_norms.
    """
    return _merged(graph, False, in_bf16=True)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of terms over one tensor. base: the convolution with the largest kernel. terms: convolutions, batch_norms
    and constants; None is the tensor itself."""

    base: Node
    terms: tuple[Node | None, ...]

    @property
    def x(self) -> Value | None:
        return self.base.inputs[0]


def _merged(graph: Graph, in_halves: bool, in_bf16: bool = False) -> Graph:
    counts = graph.use_counts()
    sums: dict[Value, _Sum] = {}  # a merged result -> its terms

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        for i in (0, 1):
            product, other = inputs[i], inputs[1 - i]
            if product is None or other is None or product.type != node.types[0]:
                continue
            first = _sum_of(product, counts[node.inputs[i]], sums)  # type: ignore[index]
            if first is None:
                continue
            if len(first.terms) == 1 and other.node.op == "const" and not _has_more(graph, node):
                continue
            joined = _joined(first, other, counts[node.inputs[1 - i]], sums, in_bf16)  # type: ignore[index]
            constants = None if joined is None else _constants(joined, in_halves)
            if joined is None or constants is None:
                continue
            result = apply(OPS["conv"], [joined.x, *constants], joined.base.attrs, _sources(joined, node))
            sums[result[0]] = joined
            return result
        return None

    return graph.rewrite(change, ("add",))


def _sum_of(value: Value, readers: int, sums: Mapping[Value, _Sum]) -> _Sum | None:
    """Returns the terms of a convolution's result, or of a merged result, if one node reads it."""
    node = value.node
    if readers != 1 or node.op != "conv" or value.dtype.kind != "float":
        return None
    if value in sums:
        return sums[value]
    weight, bias = node.inputs[1:]
    known = weight is not None and weight.node.op == "const" and (bias is None or bias.node.op == "const")
    return _Sum(node, (node,)) if known else None


def _joined(first: _Sum, other: Value, readers: int, sums: Mapping[Value, _Sum], in_bf16: bool) -> _Sum | None:
    """Returns the sum with the terms of the other value, or None if they do not fit into one kernel."""
    shape, axis = first.base.types[0].shape, channel_axis(first.base)
    if other.node.op == "const":
        fits = (other.type.size == 1 and other.type.rank <= len(shape)) or only_along(other, axis, shape)
        return _Sum(first.base, (*first.terms, other.node)) if fits else None
    if other.type != first.base.types[0]:
        return None
    second = _sum_of(other, readers, sums)
    if second is not None:
        if second.x != first.x:
            return None
        terms = first.terms + second.terms
        for base in (first.base, second.base):
            if all(_begin(base, term) is not None for term in terms):
                return _Sum(base, terms)
        return None
    term = None if other == first.x else other.node
    if term is None:
        if not _is_depthwise(first.base):
            return None
    elif (
        term.op != "batch_norm"
        or readers != 1
        or term.inputs[0] != first.x
        or not _is_norm_of(first.base, term)
        or (in_bf16 and not _is_depthwise(first.base))
    ):
        return None
    return None if _begin(first.base, term) is None else _Sum(first.base, (*first.terms, term))


def _has_more(graph: Graph, add: Node) -> bool:
    """True if the sum has further terms: a number that is added to a convolution alone stays a step of its own."""
    readers = graph.readers(add.values[0])
    return len(readers) == 1 and readers[0].op == "add"


def _is_depthwise(conv: Node) -> bool:
    assert conv.inputs[0] is not None
    return bool(conv.attrs["groups"] == conv.inputs[0].shape[channel_axis(conv)])


def _is_norm_of(conv: Node, norm: Node) -> bool:
    """True if the batch_norm has constant parameters for each channel of the convolution."""
    return norm.attrs["axis"] == channel_axis(conv) and all(v is None or v.node.op == "const" for v in norm.inputs[1:])


def _kernel(conv: Node) -> tuple[int, ...]:
    assert conv.inputs[1] is not None
    return conv.inputs[1].shape[2:]


def _begin(base: Node, term: Node | None) -> tuple[int, ...] | None:
    """Returns the first tap of the term's kernel in the window of the base, for each axis. None if it is outside."""
    kernel, attrs = _kernel(base), base.attrs
    pads, dilations = [begin for begin, _ in pairs(attrs["pad"])], attrs["dilations"]
    if term is not None and term.op == "const":
        return ()
    if term is None or term.op == "batch_norm":
        if set(attrs["strides"]) != {1}:
            return None
        offsets, extents = pads, (1,) * len(kernel)
    else:
        if any(term.attrs[name] != attrs[name] for name in ("strides", "groups", "layout")):
            return None
        extents = _kernel(term)
        if any(n > 1 and d != e for n, d, e in zip(extents, term.attrs["dilations"], dilations, strict=True)):
            return None
        offsets = [pad - begin for pad, (begin, _) in zip(pads, pairs(term.attrs["pad"]), strict=True)]
    if any(o < 0 or o % d or o // d + n > k for o, d, n, k in zip(offsets, dilations, extents, kernel, strict=True)):
        return None
    return tuple(o // d for o, d in zip(offsets, dilations, strict=True))


def _sources(joined: _Sum, node: Node) -> tuple[str, ...]:
    result: tuple[str, ...] = ()
    for term in joined.terms:
        result += tuple(s for s in (term.sources if term is not None else ()) if s not in result)
    return (*result, *(s for s in node.sources if s not in result))


def _constants(joined: _Sum, in_halves: bool) -> tuple[Value, Value] | None:
    """Returns the weight and the bias of the sum, or None if digits would be lost.

    Both are kept for other shapes of the image: their key has the constants of the terms, and no convolution."""
    parts = tuple(_part(joined.base, term) for term in joined.terms)
    weights = [term.inputs[1] for term in (joined.base, *joined.terms) if term is not None and term.op == "conv"]
    base, last = weights[0], weights[-1]
    assert base is not None
    assert last is not None
    # Each partial sum of a block ends with another convolution, so that few results are kept for one constant.
    return kept_constant(last.node, ("merged", base.node, parts, in_halves), lambda: _added(joined, in_halves))


def _part(base: Node, term: Node | None) -> tuple[Hashable, ...]:
    """Returns what the term adds to the weight and the bias: its constants and the place of its kernel."""
    begin = _begin(base, term)
    if term is None or term.op == "const":
        return (begin, term)
    constants = (None if v is None else v.node for v in term.inputs[1:])
    return (begin, term.op, term.attrs.get("epsilon"), *constants)


def _added(joined: _Sum, in_halves: bool) -> tuple[Value, Value] | None:
    like = joined.base.inputs[1]
    assert like is not None
    weight = np.zeros(like.shape, np.float64)
    bias = np.zeros(like.shape[0], np.float64)
    with np.errstate(all="ignore"):
        for term in joined.terms:
            begin = _begin(joined.base, term)
            assert begin is not None
            if term is not None and term.op == "conv":
                place = tuple(slice(b, b + n) for b, n in zip(begin, _kernel(term), strict=True))
                weight[(slice(None), slice(None), *place)] += _data(term.inputs[1])
                bias += 0.0 if term.inputs[2] is None else _data(term.inputs[2])
                continue
            if term is not None and term.op == "const":
                bias += _data(term.values[0]).reshape(-1)
                continue
            scale, shift = np.ones(like.shape[0]), np.zeros(like.shape[0])
            if term is not None:
                affine = normalisation(term, term.inputs[1:])
                assert affine is not None
                scale, shift = affine.scale, affine.shift
                if in_halves and _is_far(term, scale):
                    return None
            channels = np.arange(like.shape[0])
            taps = weight.reshape(*like.shape[:2], -1)  # a view
            taps[channels, channels % like.shape[1], np.ravel_multi_index(begin, _kernel(joined.base))] += scale
            bias += shift
    constants = [_rounded(wide, like, in_halves) for wide in (weight, bias)]
    return None if constants[0] is None or constants[1] is None else (constants[0], constants[1])


def _is_far(norm: Node, scale: Array) -> bool:
    """True if fp16 would lose digits of a batch_norm as a product and a bias: its means are far above its deviations,
    so the two nearly cancel."""
    gamma = norm.inputs[3]
    largest = 1.0 if gamma is None else np.abs(_data(gamma)).max(initial=0.0)
    return bool((np.abs(_data(norm.inputs[1]) * scale) > _FAR * largest).any())


def _data(value: Value | None) -> Array:
    assert value is not None
    assert value.node.data is not None
    return value.node.data.astype(np.float64)


def _rounded(wide: Array, like: Value, in_halves: bool) -> Value | None:
    """Returns the numbers in the dtype of `like`, or None if they overflow, underflow or are coarser than fp32."""
    with np.errstate(all="ignore"):
        narrow = wide.astype(like.dtype.numpy)
        fits = np.abs(narrow.astype(np.float64) - wide) <= _FP32_EPSILON * np.abs(wide)
    if not fits.all() or (in_halves and wide.size and np.abs(wide).max() > _LARGEST_HALF):
        return None
    return constant(narrow, like.node.sources)
