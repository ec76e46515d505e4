"""Describes a segment's layers, and the tensors between them, for the scheduler and the allocator."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from hexane import _core
from hexane.graph import Graph, Node, TensorType, Value
from hexane.ops import LEAVES, OPS
from hexane.passes.engine.moves import keeps_rows
from hexane.program.layers import Engine
from hexane.targets.chip import Memory

Rows = NDArray[np.int64]
_ENGINES: dict[str, Engine] = {"mac": "NE", "planar": "PE"}
ENGINES: tuple[Engine, ...] = ("NE", "PE", "DMA")  # engines in the order of the scheduler's numbers
VIEWS = ("anec.reshape", "anec.flatten", "anec.unflatten")
_WEIGHTED = ("anec.convolution", "anec.deconvolution", "anec.linear")


@dataclass(frozen=True, slots=True)
class Footprint:
    """A tensor's rows in on-chip memory and its bytes in main memory. The fields are named as in `Tensor`."""

    row_bytes: int
    rows: int
    stride: int
    conflicts: int
    bytes: int
    main_bytes: int


@lru_cache(maxsize=1 << 12)
def footprint(kind: TensorType, memory: Memory) -> Footprint:
    """Returns the footprint of a tensor. Rows (the last axis) have the smallest stride with the fewest bank
    conflicts."""
    *outer, columns = kind.shape or (1,)
    row_bytes, rows = -(-columns * kind.dtype.bits // 8), prod(outer)
    if not row_bytes or not rows:
        return Footprint(row_bytes, rows, row_bytes, 0, 0, 0)
    most = memory.working_set if memory.destination_stride is None else memory.destination_stride
    stride = _core.bank_stride(memory.banks, memory.bank_bytes, rows, row_bytes, most)
    conflicts = _core.bank_conflicts(memory.banks, memory.bank_bytes, rows, stride)
    height = outer[-1] if outer else 1
    pitch = _core.main_memory_pitch(row_bytes, height, rows // height, memory.row_alignment, memory.page)
    return Footprint(row_bytes, rows, stride, conflicts, rows * stride, pitch[2])


class LayerProblem:
    """Layers in the graph's order, and tensors in the order in which they are first touched. Operands that are stored
    with a layer (its weights, its slots' operands, one number per channel) are not tensors. A reshape that keeps the
    rows is no layer, and neither is a view of whole rows: the reader gets another address or other strides for the
    same tensor. The result of write_state lies in the state, in main memory, and does not bring the state on chip."""

    def __init__(self, graph: Graph, memory: Memory) -> None:
        roots, counts = set(graph.roots), graph.use_counts()
        nodes = [node for node in graph.nodes if node.op not in LEAVES]
        self.layers = [node for node in nodes if not _is_other_shape(node, roots, counts) and not _is_part(node, roots)]
        self.names = [node.where for node in self.layers]
        self.values: list[Value] = []
        self.producers: list[int] = []  # -1: the tensor is in main memory before the segment runs
        self.readers: list[list[int]] = []
        self.rewrites: list[int] = []
        self.makes: list[list[int]] = [[] for _ in self.layers]
        self.reads: list[list[int]] = [[] for _ in self.layers]
        self.parts: list[list[int]] = [[] for _ in self.layers]  # elements read of each tensor in `reads`
        self._index: dict[Value, int] = {}
        number = {node: i for i, node in enumerate(self.layers)}
        for node in nodes:
            if node not in number:
                assert node.inputs[0] is not None
                self._index[node.values[0]] = self._tensor(node.inputs[0])
                continue
            i = number[node]
            writes = node.op == "write_state"
            for place, value in enumerate(node.inputs):
                if value is None or _comes_with(node, place, value):
                    continue
                tensor = self._tensor(value)
                if writes and place == 0:
                    continue
                if i not in self.readers[tensor][-1:]:
                    self.readers[tensor].append(i)
                    self.reads[i].append(tensor)
                    self.parts[i].append(value.type.size)
                elif node.inputs.index(value) == place:
                    which = self.reads[i].index(tensor)
                    self.parts[i][which] = min(self.parts[i][which] + value.type.size, self.values[tensor].type.size)
            for value in node.values:
                tensor = self._tensor(value, i)
                self.makes[i].append(tensor)
                if writes:
                    assert node.inputs[0] is not None
                    self.rewrites[tensor] = self._index[node.inputs[0]]
        self.edges = self._state_edges()
        kept = {self._index[v] for v in roots if v in self._index}
        self.kept = [t in kept or self.rewrites[t] >= 0 or v.node.op == "state" for t, v in enumerate(self.values)]
        self.footprints = [footprint(v.type, memory) for v in self.values]

    def _state_edges(self) -> list[tuple[int, int]]:
        """Returns (before, after) edges: a write precedes the readers of its result and follows the readers of the old
        value. A reader of the old value that also needs the update reads the copy that save_states made, which is
        another tensor in main memory."""
        written = [(self.rewrites[t], t) for t in range(len(self.values)) if self.rewrites[t] >= 0]
        edges = [(self.producers[t], reader) for _, t in written for reader in self.readers[t]]
        edges += [(self.producers[old], self.producers[t]) for old, t in written if self.producers[old] >= 0]
        successors = [[reader for t in self.makes[i] for reader in self.readers[t]] for i in range(len(self.layers))]
        for before, after in edges:
            successors[before].append(after)
        for old, t in written:
            write = self.producers[t]
            late = _reached(successors, write)
            for reader in [r for r in self.readers[old] if r not in late]:
                edges.append((reader, write))
                successors[reader].append(write)
            for reader in [r for r in self.readers[old] if r in late]:
                self._read_copy(reader, old)
        return edges

    def _read_copy(self, reader: int, tensor: int) -> None:
        copy = len(self.values)
        self.values.append(self.values[tensor])
        self.producers.append(-1)
        self.rewrites.append(-1)
        self.readers.append([reader])
        self.readers[tensor].remove(reader)
        self.reads[reader][self.reads[reader].index(tensor)] = copy

    def _tensor(self, value: Value, producer: int = -1) -> int:
        result = self._index.get(value)
        if result is None:
            result = self._index[value] = len(self.values)
            self.values.append(value)
            self.producers.append(producer)
            self.readers.append([])
            self.rewrites.append(-1)
        return result

    def ordered(self, order: Sequence[int]) -> "LayerProblem":
        """Returns the problem with layers numbered in this order, and tensors in the order in which they are
        touched."""
        step = [0] * len(order)
        for i, layer in enumerate(order):
            step[layer] = i
        touched = dict.fromkeys(t for layer in order for t in (*self.reads[layer], *self.makes[layer]))
        chosen = [*touched, *(t for t in range(len(self.values)) if t not in touched)]
        number = [0] * len(chosen)
        for i, t in enumerate(chosen):
            number[t] = i
        result = copy(self)
        result.layers = [self.layers[layer] for layer in order]
        result.names = [self.names[layer] for layer in order]
        result.makes, result.reads = (
            [[number[t] for t in given[layer]] for layer in order] for given in (self.makes, self.reads)
        )
        result.parts = [self.parts[layer] for layer in order]
        result.values = [self.values[t] for t in chosen]
        result.kept = [self.kept[t] for t in chosen]
        result.footprints = [self.footprints[t] for t in chosen]
        result.producers = [-1 if (p := self.producers[t]) < 0 else step[p] for t in chosen]
        result.rewrites = [-1 if (old := self.rewrites[t]) < 0 else number[old] for t in chosen]
        result.readers = [sorted([step[layer] for layer in self.readers[t]]) for t in chosen]
        result.edges = [(step[a], step[b]) for a, b in self.edges]
        return result

    def touches(self, tensor: int) -> list[int]:
        """Returns the layers during which the tensor is on chip: its producer, unless the tensor comes from main
        memory, and its readers."""
        is_computed = self.producers[tensor] >= 0 and self.rewrites[tensor] < 0
        return [self.producers[tensor], *self.readers[tensor]] if is_computed else self.readers[tensor]

    def engines(self) -> list[Engine]:
        """Returns the engine of each layer: the multiplier array (NE), the planar engine (PE), or else DMA, which
        transfers data."""
        known = {op: _ENGINES.get(OPS[op].unit, "DMA") for op in {node.op for node in self.layers}}
        return [known[node.op] for node in self.layers]

    def scheduling(self, traffic: bool) -> _core.Scheduling:
        """Returns the scheduling problem. For orders (no traffic): tensors are results of layers, each on chip until
        its last reader has run. traffic: for partitions, includes tensors that have to be loaded and stored."""
        chosen = [
            t
            for t in range(len(self.values))
            if (traffic or self.producers[t] >= 0) and (self.readers[t] or self.producers[t] >= 0)
        ]
        on_chip = [self.producers[t] if self.rewrites[t] < 0 else -1 for t in chosen]
        return _core.Scheduling(
            bytes=column(
                [self.footprints[t].bytes if p >= 0 or traffic else 0 for t, p in zip(chosen, on_chip, strict=True)]
            ),
            producers=column(on_chip),
            kept=column([int(traffic and p >= 0 and self.kept[t]) for t, p in zip(chosen, on_chip, strict=True)]),
            reads=rows([(i, reader) for i, t in enumerate(chosen) for reader in self.readers[t]], 2),
            num_layers=len(self.layers),
            edges=rows(self.edges, 2),
        )


def _is_other_shape(node: Node, roots: Collection[Value], counts: Mapping[Value, int]) -> bool:
    """True if the node only changes the shape in which its readers see a tensor.

    If the tensor is an output of the segment, a layer must write it, and this node must be its only reader.
    """
    x = node.inputs[0] if node.op in VIEWS else None
    if x is None or x.node.op in ("const", "param") or not keeps_rows(x.shape, node.types[0].shape):
        return False
    if node.values[0] not in roots:
        return True
    return counts[x] == 1 and counts[node.values[0]] == 1 and x.node.op not in (*LEAVES, *VIEWS, "write_state")


def _is_part(node: Node, roots: Collection[Value]) -> bool:
    """True if the node only selects rows of a layer's result for its readers.

    Such a node needs no layer: readers of its result read at another address, a multiple of the row stride. False for
    an output of the segment: a layer writes its rows. False for a tensor in main memory: only its selected rows should
    be loaded.
    """
    x = node.inputs[0] if node.op == "anec.input_view" else None
    while x is not None and x.node.op in VIEWS:
        x = x.node.inputs[0]
    if x is None or x.node.op in (*LEAVES, "write_state") or node.values[0] in roots:
        return False
    return int(node.attrs["axis"]) != node.types[0].rank - 1


def _comes_with(node: Node, place: int, value: Value) -> bool:
    """True if an operand is stored with the layer."""
    op = OPS[node.op]
    if op.takes_slots and place >= len(op.inputs):
        return True
    if value.node.op not in ("const", "param"):
        return False
    return (node.op in _WEIGHTED and place > 0) or value.type.size == max(value.shape, default=1)


def _reached(successors: Sequence[Sequence[int]], start: int) -> set[int]:
    result, stack = {start}, [start]
    while stack:
        for layer in successors[stack.pop()]:
            if layer not in result:
                result.add(layer)
                stack.append(layer)
    return result


def column(values: Sequence[int]) -> Rows:
    return np.array(values, np.int64)


def rows(values: Sequence[Sequence[int]], columns: int) -> Rows:
    return np.array(values, np.int64).reshape(-1, columns)
