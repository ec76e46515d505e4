"""Tensors between a chip's layers, their stays on chip, and the partitions of a program.

Their numbers and bytes are those of `program/layers.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hexane.graph import TensorType

Allocation = Literal[
    "resident",
    "streamed",
    "chained",
    "dependent",
    "in place",
    "in place, dependent",
    "ring",
    "ring, dependent",
    "in place, main memory",
]


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's stay in the on-chip memory of one partition: at offsets[0], from the first to the last layer
    that touches it, both included. A spilled tensor is in main memory instead; while touches[i] runs, one tile of it
    (`bytes`) is at offsets[i]. cost: bytes of additional traffic."""

    partition: int
    first: int
    last: int
    bytes: int
    touches: tuple[int, ...]
    offsets: tuple[int, ...]
    spilled: bool = False
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value read or written by layers.

    name: of the layer that computes the tensor, or of its leaf. producer: a layer, None for data in main memory before
    the segment runs; readers: layers; kept: it must be in main memory when the segment ends. On chip, rows of row_bytes
    lie `stride` bytes apart; bytes = rows * stride. Reading `rows` rows at once takes `conflicts` accesses of the most
    loaded memory bank. main_bytes: in main memory, with rows and pages rounded up. allocation: its type; not_chained:
    the first condition of chaining that the tensor fails, "" for a chained tensor. stays: one for each partition that
    touches it.
    """

    index: int
    name: str
    type: TensorType
    segment: int
    producer: int | None
    readers: tuple[int, ...]
    kept: bool
    row_bytes: int
    rows: int
    stride: int
    conflicts: int
    bytes: int
    main_bytes: int
    allocation: Allocation
    not_chained: str
    stays: tuple[Stay, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Layers first..end - 1, whose tensors are on chip together. peak: the most bytes that are live at a layer; limit:
    the bytes that close a partition; height: bytes in use after packing, of `capacity`. loaded, stored: tensors from
    and to main memory; spilled: additional traffic of spills; weights: bytes of weights."""

    index: int
    segment: int
    first: int
    end: int
    peak: int
    limit: int
    height: int
    capacity: int
    loaded: int
    stored: int
    spilled: int
    weights: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Bytes on chip while a layer runs, with the partition limit and the available memory."""

    layer: int
    bytes: int
    limit: int
    capacity: int


def occupancy(tensors: Sequence[Tensor], partitions: Sequence[Partition]) -> list[Occupancy]:
    """A row for each layer, in order."""
    end = partitions[-1].end if partitions else 0
    change = [0] * (end + 1)
    for tensor in tensors:
        for stay in tensor.stays:
            spans = [(i, i) for i in stay.touches] if stay.spilled else [(stay.first, stay.last)]
            for first, last in spans:
                change[first] += stay.bytes
                change[last + 1] -= stay.bytes
    rows, live = [], 0
    for p in partitions:
        for layer in range(p.first, p.end):
            live += change[layer]
            rows.append(Occupancy(layer, live, p.limit, p.capacity))
    return rows
