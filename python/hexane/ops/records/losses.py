"""Losses: distances of results from targets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import INT32, INT64
from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.ops.attributes import integer, number, text
from hexane.ops.compose import Builder, Operand
from hexane.ops.dtype_rules import floating
from hexane.ops.gradients.rule import zeros
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any
REDUCTION = text("mean", ("mean", "sum", "none"))


def _shape_of_loss(shape: Shape, reduction: str) -> Shape:
    return shape if reduction == "none" else ()


def _cross_entropy_shape(logits: Shape, labels: Shape, ignored: int, label_smoothing: float, reduction: str) -> Shape:
    if not logits or labels != logits[:-1] or not logits[-1]:
        raise Error(f"got logits {logits} and labels {labels}, need (.., classes) and (..)")
    return _shape_of_loss(labels, reduction)


def _cross_entropy_dtype(logits: Any, labels: Any, **_: Any) -> Any:
    if labels not in (INT32, INT64):
        raise Error(f"labels: got {labels}, need int32 or int64")
    return floating(logits)


def _counted(b: Builder, logits: Value, labels: Value, ignored: int) -> tuple[Value, Value]:
    """Returns 0 for ignored labels and 1 for others, and the labels with 0 in place of ignored ones."""
    counts = b.not_equal(labels, ignored)
    return b.cast(counts, dtype=logits.dtype), b.select(counts, labels, zeros(b, labels))


def _share(_: Any, attrs: Mapping[str, Any]) -> None:
    if not 0 <= attrs["label_smoothing"] <= 1:
        raise Error(f"label_smoothing: got {attrs['label_smoothing']}, need a share in 0..1")


def _expand_cross_entropy(
    b: Builder, logits: Value, labels: Value, ignored: int, label_smoothing: float, reduction: str
) -> Value:
    counts, known = _counted(b, logits, labels, ignored)
    at, logs = b.reshape(known, shape=(*labels.shape, 1)), b.log_softmax(logits)
    each = b.reshape(b.gather_along_axis(logs, at, axis=len(labels.shape)), shape=labels.shape)
    if label_smoothing:
        all_of_row = b.reduce_mean(logs, axes=(-1,), keep_dims=False)
        each = b.add(b.mul(each, 1 - label_smoothing), b.mul(all_of_row, label_smoothing))
    return _reduced(b, b.neg(b.mul(each, counts)), reduction, counts)


def _reduced(b: Builder, each: Value, reduction: str, counts: Operand) -> Value:
    if reduction == "none":
        return each
    total = b.reduce_sum(each, keep_dims=False)
    return total if reduction == "sum" else b.real_div(total, counts if isinstance(counts, float) else _sum(b, counts))


def _sum(b: Builder, counts: Operand) -> Value:
    return b.reduce_sum(counts, keep_dims=False)


def _cross_entropy_gradient(b: Builder, node: Node, g: Value) -> tuple[Value | None, ...]:
    """The gradient of a row whose label is not ignored is g times the difference of softmax(logits) and target; for a
    mean, divided by the number of these rows. The target is 1 at the label; smoothing spreads a part of it over all
    classes."""
    logits, labels = node.inputs
    assert logits is not None
    assert labels is not None
    counts, known = _counted(b, logits, labels, int(node.attrs["ignored"]))
    share = b.mul(counts, b.real_div(g, _sum(b, counts)) if node.attrs["reduction"] == "mean" else g)
    column = b.reshape(share, shape=(*labels.shape, 1))
    at, smoothing = b.reshape(known, shape=(*labels.shape, 1)), float(node.attrs["label_smoothing"])
    shares, target = b.softmax(logits, axis=-1), b.neg(column)
    if smoothing:
        shares, target = b.sub(shares, smoothing / logits.shape[-1]), b.mul(column, smoothing - 1)
    return b.scatter_along_axis(b.mul(shares, column), at, target, axis=len(labels.shape), mode="add"), None


def _cross_entropy(logits: Array, labels: Array, ignored: int, label_smoothing: float, reduction: str) -> Array:
    counts = labels != ignored
    known = np.where(counts, labels, 0)
    if known.size and (known.min() < 0 or known.max() >= logits.shape[-1]):
        raise Error(f"got a label in {known.min()}..{known.max()}, need 0..{logits.shape[-1] - 1}")
    top = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
    target = np.take_along_axis(logits, known[..., None], -1)[..., 0]
    if label_smoothing:  # 0 times an infinite number would be NaN
        target = target * (1 - label_smoothing) + label_smoothing * logits.mean(axis=-1)
    each = np.where(counts, total - target, 0)
    if reduction == "none":
        return each
    return each.sum() / (counts.sum() if reduction == "mean" else 1)


def _mse_shape(x: Shape, y: Shape, reduction: str) -> Shape:
    if x != y:
        raise Error(f"got the shapes {x} and {y}, need equal shapes: broadcasting in a loss is usually a mistake")
    return _shape_of_loss(x, reduction)


def _expand_mse(b: Builder, x: Value, y: Value, reduction: str) -> Value:
    return _reduced(b, b.square(b.sub(x, y)), reduction, float(x.type.size))


def _mse(x: Array, y: Array, reduction: str) -> Array:
    each = np.square(x - y)
    return {"none": each, "sum": each.sum(), "mean": each.mean() if each.size else np.nan}[reduction]


_LABELS = np.array([[3, 0], [1, -100], [2, 4]])
_LOGITS = np.random.default_rng(0).standard_normal((3, 2, 5)).astype(np.float32)

OPS = (
    Op(
        name="cross_entropy",
        doc="-log of the label's share of softmax(logits), averaged over the labels that are not `ignored`. The logits "
            "are (.., classes), the labels (..) integers. label_smoothing: the part of a target that is divided "
            "equally among all classes. The mean of no labels is NaN.",
        inputs=("logits", "labels"), attrs={"ignored": integer(-100), "label_smoothing": number(0.0), "reduction": REDUCTION},
        shape=_cross_entropy_shape, dtype=_cross_entropy_dtype, check=(_share,), expand=_expand_cross_entropy, grad=_cross_entropy_gradient, ref=_cross_entropy,
        cases=(*(Case(arrays=(_LOGITS, _LABELS), attrs={"reduction": r}) for r in ("mean", "sum", "none")),
               Case(arrays=(_LOGITS[0], np.array([4, 1], np.int32))),
               *(Case(arrays=(_LOGITS, _LABELS), attrs={"label_smoothing": s, "reduction": r}) for s, r in ((0.1, "mean"), (1.0, "none")))),
    ),
    Op(
        name="mse", doc="The mean of (x - y)^2, its sum, or (x - y)^2 "
                        "of each element.", inputs=("x", "y"), attrs={"reduction": REDUCTION},
        shape=_mse_shape, dtype=floating, expand=_expand_mse, ref=_mse,
        cases=tuple(Case(((3, 5), (3, 5)), {"reduction": r}) for r in ("mean", "sum", "none")),
    ),
)  # fmt: skip
