"""Recognises attention written as separate ops."""

import math
from dataclasses import dataclass

import numpy as np

from hexane.graph import Graph, Node, Value
from hexane.lowering.masks import FLOOR
from hexane.ops import OPS, apply
from hexane.ops.match import Found, made_by, op, rewrite
from hexane.ops.predicates import scalar
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.targets import Chip, Target

_PRODUCT = op("matmul")
SHOWN = 4096.0  # the largest absolute bias of a visible key: -16384 minus SHOWN is above FLOOR


@dataclass(frozen=True, slots=True)
class _Weights:
    """The attention weights, softmax(product * scale), with the nodes that mask them."""

    product: Node
    scale: float
    scores: Value  # The scores are product * scale.
    masked: Node | None  # The add or select that masks the scores.
    softmax: Value
    zeroed: Node | None  # the select that sets weights to 0


def fuse_attention(graph: Graph, target: Target) -> Graph:
    """matmul(softmax(matmul(%q, %k) {transpose_y=True} * 0.125 + %mask), %v)  ->  scaled_dot_product_attention(%q, %k, %v, %mask) {scale=0.125}

    The scale may be a factor or a divisor of the scores, of %q, of %k, or of several of them, but has to be constant.
    On chips a factor below 1 of %q or %k is not moved to the scores, because the unscaled scores may overflow the
    accumulator. A transpose of %k is absorbed, also between reshapes of its leading axes. The mask may be missing, or
    added to the scores (possibly as the product's bias), or be a select between the scores and a constant. A select may
    set NaN weights, or whole rows of weights, to 0. Nothing else may read the scores or their softmax. In fp16, scores
    and softmax are no longer rounded. If rows are set to 0, the result equals the original for finite values only: 0 *
    inf is no longer NaN. On chips, a clip of the scores at -32768 is dropped if a constant mask shows a key in each
    row.
    """  # noqa: E501

    def build(m: Found) -> tuple[Value, ...] | None:
        weights = _weights(m, isinstance(target, Chip))
        if weights is None:
            return None
        x, y, value = m.now(weights.product.inputs[0]), m.now(weights.product.inputs[1]), m.now(m.node.inputs[1])
        if x is None or y is None or value is None:
            return None
        ahead = isinstance(target, Chip)
        query, query_scale = _rows(x, swap=weights.product.attrs["transpose_x"], ahead=ahead)
        key, key_scale = _rows(y, swap=not weights.product.attrs["transpose_y"], ahead=ahead)
        scale = weights.scale * query_scale * key_scale
        if not scale or not math.isfinite(scale):
            return None
        operands = [query, key, _swapped(value) if m.node.attrs["transpose_y"] else value, _mask(weights, m)]
        by_rows = weights.zeroed is not None and not _chooses_nan(weights.zeroed, weights.softmax)
        zero = weights.zeroed is not None and not by_rows
        attrs = {"scale": scale, "zero_hidden": zero, "hidden": _hidden(weights)}
        result = m.make("scaled_dot_product_attention", operands, **attrs)
        if not by_rows or weights.zeroed is None:
            return result
        choice = [result[0] if v == weights.softmax else m.now(v) for v in weights.zeroed.inputs]
        return apply(OPS["select"], choice, {}, weights.zeroed.sources)

    return rewrite(graph, _PRODUCT, build)


def _weights(m: Found, on_chip: bool) -> _Weights | None:
    """Returns the attention weights if the node multiplies them by the values, else None."""
    node = m.node
    if node.attrs["transpose_x"] or any(node.inputs[2:]):
        return None
    softmax, zeroed = made_by(node.inputs[0], "softmax"), None
    if softmax is None:
        zeroed = m.alone(node.inputs[0], "select")
        softmax = None if zeroed is None else _zeroed(zeroed)
    if softmax is None or softmax.attrs["axis"] != softmax.types[0].rank - 1:
        return None
    weights = softmax.values[0]
    readers = 3 if zeroed is not None and _chooses_nan(zeroed, weights) else 1
    if m.graph.use_counts()[weights] != readers or weights.type.rank != node.types[0].rank:
        return None
    if weights.shape[:-2] != node.types[0].shape[:-2]:
        return None
    before = softmax.inputs[0]
    clip = m.alone(before, "clip")
    if clip is not None:
        before = clip.inputs[0]
    scaled, masked = _product(before, m), None
    if scaled is None:
        masked = m.alone(before, "add", "select")
        for value in () if masked is None else masked.inputs:
            scaled = scaled or _product(value, m)
    if scaled is None:
        return None
    product, scale, scores = scaled
    if product.inputs[2] is not None and (masked is not None or scores != product.values[0]):
        return None
    if clip is not None and not (on_chip and _changes_nothing(clip, masked, scores)):
        return None
    if masked is not None and (scores.type != weights.type or not _hides(masked, scores)):
        return None
    return _Weights(product, scale, scores, masked, weights, zeroed)


def _changes_nothing(clip: Node, masked: Node | None, scores: Value) -> bool:
    """True if the clip is that of `clamp_masks` and has no effect. The clip affects only rows whose keys are all
    hidden, so the constant mask must show a key in each row."""
    if masked is None or masked.op != "add" or (clip.attrs["alpha"], clip.attrs["beta"]) != (FLOOR, math.inf):
        return False
    mask = _other(masked, scores)
    data = None if mask is None or mask.node.op != "const" else mask.node.data
    return data is not None and data.ndim > 0 and bool((np.abs(data.max(axis=-1)) <= SHOWN).all())


def _product(value: Value | None, m: Found) -> tuple[Node, float, Value] | None:
    """Returns (the product, the scale, the value) if the value is a matrix product times a constant scale."""
    inner, scale = value, 1.0
    if value is not None and m.alone(value, "mul", "real_div") is not None:
        inner, scale = _unscaled(value)
    product = m.alone(inner, "matmul")
    return None if value is None or product is None else (product, scale, value)


def _zeroed(select: Node) -> Node | None:
    """Returns the softmax if the select sets only whole rows of it, or its NaNs, to 0."""
    where, a, b = select.inputs
    softmax = made_by(a, "softmax") or made_by(b, "softmax")
    if softmax is None or softmax.types != select.types or scalar(b if softmax.values[0] == a else a) != 0:
        return None
    rows = where is not None and (where.type.rank == 0 or where.shape[-1] == 1)
    return softmax if rows or _chooses_nan(select, softmax.values[0]) else None


def _chooses_nan(select: Node, softmax: Value) -> bool:
    """True if the select replaces only the NaNs of the softmax."""
    where = made_by(select.inputs[0], "equal", "not_equal")
    place = 1 if where is not None and where.op == "equal" else 2
    return where is not None and where.inputs == (softmax, softmax) and select.inputs[place] == softmax


def _hides(masked: Node, scores: Value) -> bool:
    """True if the node adds to the scores, or selects between them and a constant."""
    if masked.op == "add":
        return True
    other = scalar(_other(masked, scores))
    return other is not None and not math.isnan(other)


def _other(masked: Node, scores: Value) -> Value | None:
    """Returns the operand that is added to the scores or selected instead of them."""
    a, b = masked.inputs[-2:]
    return b if a == scores else a


def _mask(weights: _Weights, m: Found) -> Value | None:
    """Returns the mask as an operand of attention: numbers to add to the scores, or True for visible keys."""
    masked = weights.masked
    if masked is None or masked.op == "add":
        other = m.now(weights.product.inputs[2] if masked is None else _other(masked, weights.scores))
        nothing = other is None or (other.node.op == "const" and not other.node.data.any())  # type: ignore[union-attr]
        return None if nothing else other
    keep, where = masked.inputs[1] == weights.scores, m.now(masked.inputs[0])
    return where if keep else apply(OPS["logical_not"], [where], {}, masked.sources)[0]


def _hidden(weights: _Weights) -> float:
    """Returns the score of a hidden key."""
    chosen = (
        None if weights.masked is None or weights.masked.op == "add" else scalar(_other(weights.masked, weights.scores))
    )
    return -math.inf if chosen is None else chosen


def _rows(value: Value, swap: bool, ahead: bool) -> tuple[Value, float]:
    """Returns (x, c) such that the value is x * c with constant c, and x has its last axes exchanged if `swap`. ahead:
    a factor below 1 stays part of x."""
    inner, outer = _unscaled(value)
    inner, factor = _unscaled(_swapped(inner) if swap else inner)
    factor *= outer
    if ahead and abs(factor) < 1:
        return _swapped(value) if swap else value, 1.0
    return inner, factor


def _unscaled(value: Value) -> tuple[Value, float]:
    """Returns (x, c) such that the value is x * c with constant c."""
    scale = 1.0
    while (node := made_by(value, "mul", "real_div")) is not None:
        x, factor = node.inputs[0], scalar(node.inputs[1])
        if factor is None and node.op == "mul":
            x, factor = node.inputs[1], scalar(node.inputs[0])
        if not factor or x is None or x.type != value.type:
            break
        value, scale = x, scale / factor if node.op == "real_div" else scale * factor
    return value, scale


def _swapped(value: Value) -> Value:
    """Returns the value with its last two axes exchanged."""
    inner = made_by(value, "reshape")
    source = inner.inputs[0] if inner is not None else None
    if source is not None and made_by(source, "transpose") is not None and source.shape[-2:] == value.shape[-2:]:
        shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
        return apply(OPS["reshape"], [_swapped(source)], {"shape": shape}, value.node.sources)[0]
    rank = value.type.rank
    return transposed(value, (*range(rank - 2), rank - 1, rank - 2), value.node.sources)
