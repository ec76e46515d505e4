"""Tensors of tokens as images (batch, channels, rows, columns), the form that the engine computes fastest.

A tensor (.., S, C) of S tokens with C features is an image of C channels, one row and S columns; (B, H, W, C) is an
image of H rows. An image may also represent a tensor whose features are split into several axes, such as attention
heads.
"""

from dataclasses import dataclass, replace
from math import prod

from hexane.graph import Value
from hexane.ops.compose import Builder
from hexane.passes.fuse.fuse_transpose import transposed

BATCH, ROWS, COLUMNS = -1, -2, -3  # Tensor axes that are axes of the image.
TOKENS = {2: (COLUMNS, 0), 3: (BATCH, COLUMNS, 0), 4: (BATCH, ROWS, COLUMNS, 0)}  # By rank: axes of a tensor of tokens.


@dataclass(frozen=True, slots=True)
class Image:
    """The image of a tensor.

    pixels: (batch, channels, rows, columns). axes: for each tensor axis BATCH, ROWS, COLUMNS, or an index into
    `factors`. factors: the extents into which the channels are split, outermost first.
    """

    pixels: Value
    axes: tuple[int, ...]
    factors: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extent(axis) for axis in self.axes)

    def extent(self, axis: int) -> int:
        return self.factors[axis] if axis >= 0 else self.pixels.shape[{BATCH: 0, ROWS: 2, COLUMNS: 3}[axis]]

    def of(self, pixels: Value) -> "Image":
        """Returns an image of other pixels with the same axes."""
        return replace(self, pixels=pixels)


def in_memory(axes: tuple[int, ...], count: int) -> list[int]:
    """Returns the tensor's axes in the order of its image. count: the number of factors."""
    return [axis for axis in (BATCH, *range(count), ROWS, COLUMNS) if axis in axes or axis >= 0]


def tensor(b: Builder, image: Image) -> Value:
    """Returns the tensor that an image represents."""
    order = in_memory(image.axes, len(image.factors))
    spread = reshaped(b, image.pixels, [image.extent(axis) for axis in order])
    return transposed(spread, tuple(order.index(axis) for axis in image.axes), b.sources)


def image(b: Builder, x: Value, axes: tuple[int, ...], factors: tuple[int, ...]) -> Image:
    """Returns the image of a tensor. Like a broadcast operand, the tensor may have fewer axes, or axes of extent 1. The
    image has one channel, or as many as the product of the factors."""
    wide = reshaped(b, x, (*[1] * (len(axes) - x.type.rank), *x.shape))
    order = in_memory(axes, len(factors))
    moved = transposed(wide, tuple(axes.index(axis) for axis in order), b.sources)
    own = [moved.shape[order.index(i)] for i in range(len(factors))]
    if prod(own) != 1 and tuple(own) != factors:
        front = [factors[axis] if axis >= 0 else n for axis, n in zip(order, moved.shape, strict=True)]
        moved, own = b.broadcast_to(moved, shape=front), list(factors)
    extents = [moved.shape[order.index(axis)] if axis in order else 1 for axis in (BATCH, ROWS, COLUMNS)]
    return Image(reshaped(b, moved, (extents[0], prod(own), *extents[1:])), axes, tuple(own))


def spread(b: Builder, image: Image) -> tuple[Value, list[int]]:
    """Returns the image's pixels with an axis for each factor, and the order of these axes. With one factor, they are
    the pixels themselves."""
    if len(image.factors) == 1:
        return image.pixels, [BATCH, 0, ROWS, COLUMNS]
    order = in_memory(image.axes, len(image.factors))
    return reshaped(b, image.pixels, [image.extent(axis) for axis in order]), order


def gathered(b: Builder, x: Value, order: list[int], axes: tuple[int, ...]) -> Image:
    """Returns the image of pixels that `spread` returned, whose extents may have changed."""
    extent = dict(zip(order, x.shape, strict=True))
    factors = tuple(extent[axis] for axis in order if axis >= 0)
    shape = (extent.get(BATCH, 1), prod(factors), extent.get(ROWS, 1), extent.get(COLUMNS, 1))
    return Image(reshaped(b, x, shape), axes, factors)


def reshaped(b: Builder, x: Value, shape: list[int] | tuple[int, ...]) -> Value:
    return x if x.shape == tuple(shape) else b.reshape(x, shape=tuple(shape))


def viewed(image: Image, shape: tuple[int, ...]) -> Image | None:
    """Returns the same pixels as the image of a reshaped tensor. The reshape may split or merge feature axes, and add
    or drop axes of extent 1. Returns None for other reshapes, and if no axis is left for the features."""
    long = [axis for axis, n in zip(image.axes, image.shape, strict=True) if n != 1]
    places = [i for i, n in enumerate(shape) if n != 1]
    axes: dict[int, int] = {}  # Index in the new shape -> axis of the image.
    pieces: dict[int, list[int]] = {}  # First old factor -> indices in the new shape.
    while long or places:
        old, new = _next_group(image, shape, long, places)
        if len(old) == len(new) == 1 and old[0] < 0:
            axes[new[0]] = old[0]
        elif old and old[0] >= 0 and _are_neighbours(image, old):
            pieces[old[0]] = new
        else:
            return None
    factors: list[int] = []
    for first in sorted(pieces):
        for place in pieces[first]:
            axes[place] = len(factors)
            factors.append(shape[place])
    ones = [i for i, n in enumerate(shape) if n == 1]
    if not factors:
        if not ones:
            return None
        axes[ones.pop()] = 0
        factors.append(1)
    free = [axis for axis in (BATCH, ROWS, COLUMNS) if axis not in axes.values()]
    for place in ones:
        if free:
            axes[place] = free.pop(0)
        else:
            axes[place] = len(factors)
            factors.append(1)
    return Image(image.pixels, tuple(axes[i] for i in range(len(shape))), tuple(factors))


def _next_group(
    image: Image, shape: tuple[int, ...], long: list[int], places: list[int]
) -> tuple[list[int], list[int]]:
    """Removes from the lists the first axes and the first new axes that have equal numbers of elements, and returns
    them."""
    old, new = [long.pop(0)], [places.pop(0)]
    while (have := prod(image.extent(axis) for axis in old)) != (need := prod(shape[i] for i in new)):
        if have < need:
            old.append(long.pop(0))
        else:
            new.append(places.pop(0))
    return old, new


def _are_neighbours(image: Image, axes: list[int]) -> bool:
    """True if no factor other than 1 lies between these factors in memory."""
    between = [i for i in range(axes[0], axes[-1] + 1) if image.factors[i] != 1] if min(axes) >= 0 else []
    return axes == between
