"""Resizes images as Pillow does, with a filter that is wider the more pixels it averages."""

from collections.abc import Callable, Mapping

import numpy as np

from hexane.graph import Array

BITS = 22  # bits of the fractions in Pillow's weights for 8-bit pixels


def _bilinear(x: Array) -> Array:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0)


def _bicubic(x: Array) -> Array:
    a, x = -0.5, np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


# Filters by name, each with the distance beyond which the filter is 0.
FILTERS: Mapping[str, tuple[Callable[[Array], Array], float]] = {"bilinear": (_bilinear, 1), "bicubic": (_bicubic, 2)}


def resized(image: Array, height: int, width: int, mode: str) -> Array:
    """The image in another size. image: (height, width, channels), uint8 or fp32; the result has the same dtype. mode:
    one of `FILTERS`.

    The width is resized first, and uint8 is rounded in between, so results have the same bytes as Pillow's. Floats are
    not rounded or clipped.
    """
    if width != image.shape[1]:
        image = _rows(image.transpose(1, 0, 2), width, mode).transpose(1, 0, 2)
    return np.ascontiguousarray(_rows(image, height, mode) if height != image.shape[0] else image)


def _rows(image: Array, count: int, mode: str) -> Array:
    weigh, reach = FILTERS[mode]
    whole = len(image)
    scale = whole / count
    stretch = max(scale, 1.0)
    centre = (np.arange(count) + 0.5) * scale
    begin = np.maximum((centre - reach * stretch + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + reach * stretch + 0.5).astype(np.int64), whole)
    place = begin[:, None] + np.arange((end - begin).max())  # (count, taps)
    weights = np.where(place < end[:, None], weigh((place + 0.5 - centre[:, None]) / stretch), 0)
    weights /= weights.sum(1, keepdims=True)
    place = np.minimum(place, whole - 1)
    if image.dtype == np.uint8:
        fixed = weights * (1 << BITS)
        weights = np.trunc(np.where(fixed < 0, fixed - 0.5, fixed + 0.5)).astype(np.int32)
    given = np.ascontiguousarray(image, weights.dtype).reshape(whole, -1)
    rows = np.full((count, given.shape[1]), 1 << (BITS - 1) if image.dtype == np.uint8 else 0, weights.dtype)
    for tap in range(place.shape[1]):  # a product of matrices would start threads, which cost more than they save
        row = given[place[:, tap]]
        row *= weights[:, tap, None]
        rows += row
    if image.dtype == np.uint8:
        rows = np.clip(rows >> BITS, 0, 255)
    return rows.astype(image.dtype).reshape(count, *image.shape[1:])
