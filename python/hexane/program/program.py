"""A program: the steps of a graph in order, on buffers whose offsets are solved. What a flat plan is written from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from hexane.graph import Array, Graph, Node, TensorType, Value, printer
from hexane.graph.decisions import Decision
from hexane.program.layers import Layer, Occupancy, Partition, Tensor, occupancy
from hexane.program.work import NO_WORK, Work
from hexane.system.c99_library import row_kernels
from hexane.targets import Numerics, Space, Target

BufferKind = Literal["arena", "weights", "state", "param", "port"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of `bytes` bytes. `data` is its first contents; `name` and `type` are those of the leaf it belongs to.
    `space` names the target's memory that it lies in; "" for a port, which is a memory of its own. surface: a memory of
    its own, too, which a device reads and writes; a leaf lies there with `strides`, not without gaps. A param is kept
    in one as the kind "param"."""

    kind: BufferKind
    bytes: int
    name: str = ""
    type: TensorType | None = None
    data: Array | None = None
    space: str = ""
    surface: bool = False
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A typed window into a buffer: offset and strides in bytes. ring: rows that are kept of axis 1, 0 for all."""

    buffer: int
    offset: int
    type: TensorType
    strides: tuple[int, ...]
    ring: int = 0

    @property
    def dense(self) -> bool:
        """Whether the elements follow each other without gaps, in order."""
        return self.strides == dense_strides(self.type)


def dense_strides(kind: TensorType) -> tuple[int, ...]:
    """Bytes from one element to the next along each axis, for a tensor without gaps."""
    return tuple(prod(kind.shape[i + 1 :]) * kind.dtype.bits // 8 for i in range(kind.rank))


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call in an arithmetic; `node` is what it computes, for messages and attributes. cut: the axis of the
    output and the range of it, None for all of it."""

    kernel: str
    node: Node
    inputs: tuple[View | None, ...]
    outputs: tuple[View, ...]
    attrs: Mapping[str, Any]
    numerics: Numerics
    cut: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps from `first` on that run `trips` times, each range moving by its number of `moves` with a trip."""

    first: int
    trips: int
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Weights (`buffers`) that are packed in the plan, and unpacked to the arena's buffer `home` before step `first`,
    for so many steps; each begins at the next multiple of the alignment of weights behind the one before."""

    buffers: tuple[int, ...]
    home: int
    first: int
    steps: int


@dataclass(frozen=True, slots=True)
class SegmentPort:
    """A value that goes into a segment or comes out of it, and what it is on the way: an engine's floats are fp16.
    source: the segment that computes it, None for an input of the model; readers: of an output, the segments that read
    it."""

    name: str
    value: Value
    type: TensorType
    source: int | None
    readers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a network that one device runs by itself: "ane", the engine, or "host". nodes: of the graph that was
    divided, in order; moved: those of the host that the engine would take. why: it is a segment of its own. steps: the
    first step of the program that computes it, and the one after its last. work: what it does, known with its steps:
    the sum of its layers; of a device's program its products, weights and ports; of the host its steps and ports."""

    index: int
    device: Literal["ane", "host"]
    nodes: tuple[Node, ...]
    inputs: tuple[SegmentPort, ...]
    outputs: tuple[SegmentPort, ...]
    why: str
    moved: tuple[Node, ...] = ()
    steps: tuple[int, int] = (0, 0)
    work: Work = NO_WORK

    @property
    def crossings(self) -> tuple[SegmentPort, ...]:
        """The values of other segments that it reads."""
        return tuple(port for port in self.inputs if port.source is not None)

    @property
    def crossing_bytes(self) -> int:
        return sum(port.type.bytes for port in self.crossings)


@dataclass(frozen=True, slots=True)
class PortView:
    """A named input or output and the view that is bound to the user's buffer."""

    name: str
    view: View
    length: str = ""  # of an output: the output that says how much of the axis is valid
    axis: int = 0
    streamed: bool = False  # its rows come or go one after the other, through the arena


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a memory that a program needs. bound: the largest sum of bytes that are live at once; no allocation
    takes less."""

    space: Space
    bytes: int
    bound: int


@dataclass(frozen=True)
class Program:
    """Steps, buffers and ports. `allocate` solves `offsets`, one for each buffer within its memory, and `extents`, by
    name of the memory. decisions: of the passes, then of the stages. segments: of a chip's program, in the order they
    run; layers, tensors, partitions: what those of the engine consist of. swaps: the buffer of a state, and the one
    where a device has computed the state for the next call; the two change places after each. spans: of buffers in
    loops of which nothing is left from one trip to the next, the steps from and to which they live in each. blocks: in
    the order of their first steps. repeated: multiply-accumulates that are done more than once, in stripes of
    columns. spaces: the memories where buffers lie, the preferred one of a kind first: those of the target, and those
    that planning adds or limits. runtime: what runs the steps (hx.Memory)."""

    graph: Graph
    target: Target
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[PortView, ...]
    outputs: tuple[PortView, ...]
    decisions: tuple[Decision, ...] = ()
    offsets: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    extents: Mapping[str, Extent] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    layers: tuple[Layer, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    partitions: tuple[Partition, ...] = ()
    swaps: tuple[tuple[int, int], ...] = ()
    blocks: tuple[Block, ...] = ()
    repeated: int = 0
    spaces: tuple[Space, ...] = ()
    runtime: str = "host"

    def space(self, kind: str) -> Space:
        """The first memory of the kind."""
        return next(space for space in self.spaces if space.kind == kind)

    def computes_rows(self, kernel: str) -> bool:
        """Whether the runtime may have a kernel compute some rows of a tensor; how many, this library's kernels say."""
        return self.runtime == "host" or kernel in row_kernels()

    def occupancy(self) -> list[Occupancy]:
        """For each layer the bytes that lie on chip while it runs, beside the limit of partitions and the memory there
        is."""
        return occupancy(self.tensors, self.partitions)

    def __str__(self) -> str:
        return printer.print_program(self)

    def print(self) -> None:
        """Prints the steps in order, each with its operands' places, the bytes of every memory, and what was
        decided."""
        print(self, end="")
