"""Blocks of axes that a view and its source share."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]


class Block(NamedTuple):
    """A group of the view's axes and a group of its source's axes that have the same elements."""

    view: tuple[int, ...]
    source: tuple[int, ...]


def blocks_of(view: Shape, source: Shape) -> list[Block]:
    """Returns the smallest blocks, in order. An axis of extent 1 belongs to the block of the axes before it."""
    result = list[Block]()
    i = j = 0
    while i < len(view) or j < len(source):
        first, own = i, j
        i, j = min(i + 1, len(view)), min(j + 1, len(source))
        while (a := prod(view[first:i])) != (b := prod(source[own:j])):
            i, j = (i + 1, j) if a < b else (i, j + 1)
        result.append(Block(tuple(range(first, i)), tuple(range(own, j))))
    return result


def broadcast_shape(operand: Shape, view: Shape, source: Shape, blocks: Sequence[Block]) -> Shape | None:
    """Returns the shape in which an operand broadcasts over the source as it does over the view, or None. The operand
    must have all elements of a block, or extent 1 in it."""
    padded, shape = (1,) * (len(view) - len(operand)) + operand, [1] * len(source)
    for block in blocks:
        own = [padded[a] for a in block.view]
        if own == [view[a] for a in block.view]:
            for a in block.source:
                shape[a] = source[a]
        elif prod(own) != 1:
            return None
    return tuple(shape)


def axes_of_source(given: Shape, view: Shape, blocks: Sequence[Block]) -> Shape | None:
    """Returns the source's axes for axes of the view, or None if the axes are only a part of a block."""
    axes = {a % len(view) for a in given} or set(range(len(view)))
    result = list[int]()
    for block in blocks:
        longer = {a for a in block.view if view[a] > 1}
        taken = axes.intersection(longer)
        if taken and taken != longer:
            return None
        result += block.source if taken else ()
    return tuple(result) or None
