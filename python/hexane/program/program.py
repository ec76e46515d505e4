"""A program: the steps of a graph in order, on buffers with solved offsets, written as a flat plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hexane.graph import Graph, Node, TensorType, Value, printer
from hexane.graph.decisions import Decision
from hexane.program.layers import Layer
from hexane.program.partitions import Occupancy, Partition, Tensor, occupancy
from hexane.program.view import Buffer, View
from hexane.program.work import NO_WORK, Work
from hexane.system.c99_library import row_kernels
from hexane.targets import Numerics, Space, Target


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call. numerics: its arithmetic. node: the node that it computes, for messages and attributes. cut: an
    axis of the output and the range computed along it; None for the whole output."""

    kernel: str
    node: Node
    inputs: tuple[View | None, ...]
    outputs: tuple[View, ...]
    attrs: Mapping[str, Any]
    numerics: Numerics
    cut: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps from `first` on that run `trips` times. After each trip, the range (`cut`) of each step moves by the step's
    number in `moves`."""

    first: int
    trips: int
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Weights (`buffers`) that are packed in the plan, and unpacked into the arena's buffer `home` before step `first`,
    for `steps` steps. Each buffer begins at the next aligned offset after the previous one."""

    buffers: tuple[int, ...]
    home: int
    first: int
    steps: int


@dataclass(frozen=True, slots=True)
class SegmentPort:
    """An input or output value of a segment, with its type in the segment: an engine's floats are fp16. source: the
    segment that computes it, None for an input of the model; readers: for an output, the segments that read it."""

    name: str
    value: Value
    type: TensorType
    source: int | None
    readers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a network that one device runs by itself: "ane", which is the engine, or "host". nodes: of the divided
    graph, in order; moved: nodes on the host that the engine would take. why: the reason for a separate segment. steps:
    a half-open range of the program's steps. work: set once the steps are known. For the engine it is the sum of the
    layers; for a device's program its products, weights and ports; for the host its steps and ports."""

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
        """The values of other segments that the segment reads."""
        return tuple(port for port in self.inputs if port.source is not None)

    @property
    def crossing_bytes(self) -> int:
        return sum(port.type.bytes for port in self.crossings)


@dataclass(frozen=True, slots=True)
class PortView:
    """A named input or output, with the view that is bound to the user's buffer."""

    name: str
    view: View
    length: str = ""  # For an output: the output with the number of valid elements along the axis.
    axis: int = 0
    streamed: bool = False  # The port's rows pass through the arena one after another.


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of a memory that a program needs. bound: the largest sum of bytes that are live at once, a lower bound
    for any allocation."""

    space: Space
    bytes: int
    bound: int


@dataclass(frozen=True)
class Program:
    """Steps, buffers and ports. `allocate` solves `offsets`, one for each buffer within its memory, and `extents`, by
    name of the memory. decisions: of the passes, then of the stages. segments: of a chip's program, in running order;
    layers, tensors, partitions: the contents of the engine's segments. swaps: a state's buffer and the buffer of its
    next value, computed by a device; they change places after each call. spans: the range of steps in which a buffer
    lives in each loop, if it carries nothing between iterations. blocks: by their first steps. repeated:
    multiply-accumulates computed more than once, in stripes of columns. spaces: the memories of the buffers, preferred
    ones of a kind first: the target's memories, and others that planning adds or limits. runtime: runs the steps
    (hx.Memory)."""

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
        """The program's first memory of this kind."""
        return next(space for space in self.spaces if space.kind == kind)

    def computes_rows(self, kernel: str) -> bool:
        """True if the runtime can compute only some rows of a tensor with the kernel."""
        return self.runtime == "host" or kernel in row_kernels()

    def occupancy(self) -> list[Occupancy]:
        """For each layer the bytes on chip while it runs, with the partition limit and the available memory."""
        return occupancy(self.tensors, self.partitions)

    def __str__(self) -> str:
        return printer.print_program(self)

    def print(self) -> None:
        """Prints the steps in order with the places of their operands, the bytes of every memory, and the decisions."""
        print(self, end="")
