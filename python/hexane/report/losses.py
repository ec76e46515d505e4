"""Compares the losses of the engine's products between two chips."""

from collections.abc import Sequence

import numpy as np

from hexane.graph import Array
from hexane.program import Step
from hexane.runtime.products import by_winograd, has_products


def has_the_same_loss(
    step: Step, operands: Sequence[Array | None], other: Step, others: Sequence[Array | None]
) -> bool:
    """True if both steps multiply the same numbers by the same rules, so that each product loses the same on both
    chips. Layouts may differ: one chip may compute a matrix product as a convolution."""
    if not has_products(other.node) or by_winograd(step) or by_winograd(other):
        return False
    rules = [{**s.numerics.parameters, "family": s.numerics.family, "winograd": False} for s in (step, other)]
    if rules[0] != rules[1]:
        return False
    return all(_have_the_same_numbers(operands[i], others[i]) for i in (0, 1))


def differing_elements(x: Array, y: Array) -> Array:
    """Returns a mask of the elements that are not equal. Two NaN are equal."""
    mask: Array = (x != y) & ~((x != x) & (y != y))
    return mask


def have_one_order(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if arrays of these shapes have the same elements in the same order: only axes of extent 1 differ."""
    return [n for n in a if n > 1] == [n for n in b if n > 1]


def _have_the_same_numbers(x: Array | None, y: Array | None) -> bool:
    if x is None or y is None or x.size != y.size:
        return x is y
    return bool(np.array_equal(np.sort(x, axis=None), np.sort(y, axis=None), equal_nan=True))
