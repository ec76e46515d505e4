"""The part of a program on a chip's engine: layers in order, the tensors between them, and the partitions of both.

Reports read these: `explain`, the page and the trace compute nothing themselves. Layers, tensors and partitions are
numbered through the whole program, over all its segments. Bytes are of on-chip memory unless a field says otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hexane.graph import TensorType
from hexane.program.work import NO_WORK, Work

Encoding = Literal["fp16", "int8", "palette", "sparse"]
Engine = Literal["NE", "PE", "DMA"]  # the multiply-accumulate array, the planar engine, and transfers
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
class Weights:
    """The weights of a layer as the engines read them.

    encoding: the encoding in which the chip streams the weights, "fp16" if it cannot stream the stored one; bytes: in
    this encoding, without a palette; bits: of a weight, or of each stored number of a pruned weight; groups: of output
    channels, with `group` channels each; engines: number of engines with at least one group; passes: groups that each
    engine computes; packed_bytes: of all sub-kernels with their padding. shared: True for weights in the memory that
    all cores share, False in each core's own; demand: bytes that they need in this memory; limit: its size in bytes.
    """

    encoding: Encoding
    bytes: int
    bits: int
    group: int
    groups: int
    engines: int
    passes: int
    packed_bytes: int
    shared: bool
    demand: int
    limit: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a chip's program, in execution order.

    name: its op and its place in the user's model, as in decisions; op: "anec.convolution"; kind: the layer of a
    netplist ("Conv"); slots: its final operations, in order, as text. segment, partition: numbers. rule: the list
    scheduler's tie-break that chose it ("" for an optimal order). reads, makes: numbers of tensors; parts: elements
    read of each of `reads`. partner: a layer that could be issued together with it, or None; co_issue: the verdict on
    issuing it with the next layer. loaded, stored: bytes from and to main memory, spills included, without weights.
    steps: half-open range of the program's steps; empty for a layer without cost. work: set when the steps are known.
    """

    index: int
    name: str
    op: str
    kind: str
    slots: tuple[str, ...]
    engine: Engine
    segment: int
    partition: int
    rule: str
    reads: tuple[int, ...]
    parts: tuple[int, ...]
    makes: tuple[int, ...]
    weights: Weights | None
    partner: int | None
    co_issue: str
    loaded: int
    stored: int
    steps: tuple[int, int] = (0, 0)
    work: Work = NO_WORK

    @property
    def moved(self) -> int:
        """Bytes from and to main memory, weights included."""
        return self.loaded + self.stored + (0 if self.weights is None else self.weights.bytes)


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


def slot_text(slot: str) -> str:
    """Returns a slot with the layer's inputs by number: gain_offset(no gain, offset=input 3)."""
    return re.sub(r"\b(gain|offset)=(-?\d+)", lambda m: f"no {m[1]}" if m[2] == "-1" else f"{m[1]}=input {m[2]}", slot)
