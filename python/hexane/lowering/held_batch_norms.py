"""Rewrites batch norms whose constants overflow or underflow fp16."""

from collections.abc import Sequence
from math import inf

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant, make_node

_LARGEST, _TINY = 65504.0, 2.0**-14
_POWERS = 4.0 ** np.arange(8)  # variances whose roots are powers of two


def held_batch_norms(graph: Graph) -> Graph:
    """batch_norm(%x, mean, 388000, gamma, beta)  ->  batch_norm(%x, mean, 16, gamma * 4 / 622.9, beta)

    If a variance or gamma is not a normal number of fp16, both are replaced by a pair with the same gamma /
    sqrt(variance + epsilon). Networks trained on pixels from 0 to 255 have large variances after their first
    convolution. A norm whose mean or beta overflows fp16 is kept.
    """
    return graph.rewrite(_held, {"batch_norm"})


def _held(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    given = [None if v is None or v.node.op != "const" else v.node.data for v in node.inputs[1:]]
    mean, variance, gamma, beta = given
    if (
        mean is None
        or variance is None
        or any(v is not None and n is None for v, n in zip(node.inputs[1:], given, strict=True))
    ):
        return None
    if all(_fits(numbers) for numbers in (variance, gamma)) or not all(_below(numbers) for numbers in (mean, beta)):
        return None
    epsilon = node.attrs["epsilon"]
    scale = (1.0 if gamma is None else gamma.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + epsilon)
    scale = np.broadcast_to(scale, variance.shape)
    least = np.where(scale == 0, inf, np.abs(scale))
    which = (least[:, None] * np.sqrt(_POWERS) < _TINY * 16).sum(1).clip(max=len(_POWERS) - 1)
    pair = (_POWERS[which] - epsilon, scale * np.sqrt(_POWERS[which]))
    if not all(_below(numbers) for numbers in pair):
        return None
    kind = node.inputs[2].dtype.numpy if node.inputs[2] is not None else np.float32
    new = [constant(numbers.astype(kind), node.sources) for numbers in pair]
    return make_node(node.op, (*inputs[:2], *new, inputs[4]), node.attrs, node.types, node.sources).values


def _fits(numbers: Array | None) -> bool:
    if numbers is None:
        return True
    size = np.abs(numbers[numbers != 0])
    return _below(numbers) and not (size < _TINY).any()


def _below(numbers: Array | Sequence[float] | None) -> bool:
    return numbers is None or bool((np.abs(numbers) <= _LARGEST).all())
