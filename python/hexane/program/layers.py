"""What a chip's program is on the engine: layers in order, the tensors between them, and the partitions of both.

Reports read these: `explain`, the page and the trace compute nothing of their own. Layers, tensors and partitions are
numbered through the whole program, over all of its segments; bytes are of on-chip memory unless a field says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hexane.graph import TensorType
from hexane.program.work import NO_WORK, Work

Encoding = Literal["fp16", "int8", "palette", "sparse"]
Engine = Literal["NE", "PE", "DMA"]  # multiply-accumulate array, planar engine, transfers
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

    encoding: what the chip streams, "fp16" where it streams no other; bytes: as they are stored so, a palette left out;
    bits: of a weight, or of a pruned one's numbers; groups: of output channels, `group` channels each; engines: that
    have a group; passes: groups of each engine; packed_bytes: of all sub-kernels with their padding. shared: in the
    memory that all cores share, else in that of each core; demand: of that memory; limit: bytes that it has.
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
    """One layer, in the order they run.

    name: its op and where it comes from in the user's model, as decisions have it; op: "anec.convolution"; kind: the
    layer of a netplist ("Conv"); slots: what it finishes with, in order, as text. segment, partition: numbers. rule:
    the tie-break of the list scheduler that chose it ("" for an optimal order). reads, makes: numbers of tensors;
    parts: elements that it reads of each of `reads`.
    partner: the layer that it could be issued with, else None, and why: the verdict on it and the layer behind it.
    loaded, stored: bytes from and to main memory, spills included, without weights. steps: the first step of the
    program that computes it, and the one after its last; equal where it costs nothing. work: what it does, known with
    its steps.
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
    """A tensor in the on-chip memory of one partition: at `offset` from the layer that touches it first to the one that
    does last, both included. A spilled one lies in main memory instead, and one tile of it (`bytes`) at offsets[i]
    while touches[i] runs; cost: bytes of extra traffic."""

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
    """What layers make and read.

    name: of the layer that makes it, or of the leaf it comes from. producer: a layer, None for what is in main memory
    before the segment runs; readers: layers; kept: it has to be in main memory when the segment ends. rows of row_bytes
    lie `stride` bytes apart on chip, so that reading `rows` of them at once takes `conflicts` turns; bytes = rows *
    stride. main_bytes: in main memory, rows and pages rounded. allocation: its type; not_chained: the first part of the
    conjunction that fails, "" for a chained one. stays: one for each partition that touches it.
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
    """Layers first..end - 1, whose tensors lie on chip together. peak: the most bytes live at a layer, limit: what
    closes a partition; height: bytes in use after packing, of `capacity`. loaded, stored: tensors from and to main
    memory; spilled: extra traffic of spills; weights: bytes of weights."""

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
    """Bytes that lie on chip while a layer runs, beside the limit of partitions and the memory there is."""

    layer: int
    bytes: int
    limit: int
    capacity: int


def occupancy(tensors: Sequence[Tensor], partitions: Sequence[Partition]) -> list[Occupancy]:
    """One row for each layer, in order."""
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
