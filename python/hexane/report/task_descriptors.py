"""The task descriptors of a network on a chip, which are experimental: none is ever sent to an engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexane import _core, sources
from hexane.containers.hwx_writer import make_hwx
from hexane.containers.task_descriptor import write_descriptors
from hexane.emit.task_descriptors import Task, emit_descriptors
from hexane.errors import Error, UnsupportedError
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.pipeline import divide, scheduled_segments
from hexane.program.partitions import Tensor
from hexane.report.preflight import Model
from hexane.targets import Chip
from hexane.targets.query import load_chip

NOTE = (
    "Experimental: written by published tables, never run on an engine. Fields without a published meaning are 0"
    " (docs/descriptors.md)."
)


@dataclass(frozen=True, slots=True)
class SegmentTasks:
    """The tasks of a segment on the engine. ports: (name, bytes) of its results and inputs."""

    segment: int
    tasks: tuple[Task, ...]
    ports: tuple[tuple[str, int], ...]
    weight_bytes: int

    @property
    def text(self) -> bytes:
        """All descriptors, in the format of a program."""
        return write_descriptors([task.descriptor for task in self.tasks])


@dataclass(frozen=True)
class Descriptors:
    """A network's task descriptors on a chip. Printed, they are a table of the fields that are not 0."""

    name: str
    chip: Chip
    segments: tuple[SegmentTasks, ...]

    def record(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        return {
            "model": self.name,
            "target": self.chip.name,
            "version": self.chip.descriptor,
            "note": NOTE,
            "segments": [
                {
                    "segment": part.segment,
                    "tasks": [
                        {
                            "layer": task.layer,
                            "where": task.name,
                            "kind": task.kind,
                            "fields": task.descriptor.fields,
                            "bytes": task.descriptor.bytes.hex(),
                            "left_out": list(task.left_out),
                        }
                        for task in part.tasks
                    ],
                }
                for part in self.segments
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        num = sum(len(part.tasks) for part in self.segments)
        yield f"{self.name} on {self.chip.label}: {counted(num, 'task descriptor')} of version {self.chip.descriptor}"
        yield NOTE
        for part in self.segments:
            yield f"\nsegment {part.segment}: {counted(len(part.tasks), 'task')}, {len(part.text)} bytes"
            for task in part.tasks:
                yield f"\n  layer {task.layer}, {task.kind}: {task.name}"
                fields = [(path, value) for path, value in task.descriptor.fields.items() if value]
                yield from (f"    {path} = {value}" for path, value in fields)
                yield from (f"    left out: {words}" for words in task.left_out)


def descriptors(
    model: Model, target: str | Chip, *, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Descriptors:
    """Returns a network's task descriptors, one per layer on the engine. Experimental: no engine ever gets descriptors.

    model, target, input_shapes: see `estimate`. Raises UnsupportedError for chips whose descriptors are not of version
    7, and for a network without a layer on the engine.
    """
    opened = sources.open_network(model, where="descriptors")
    return descriptors_of(opened.graph(input_shapes), load_chip(target), opened.name)


def descriptors_of(graph: Graph, chip: Chip, name: str = "", schedule: str = "apple") -> Descriptors:
    """Returns the descriptors of a graph, with layers in the order of this schedule."""
    divided, segments = divide(graph, chip)
    parts = []
    for segment, scheduled, placed in scheduled_segments(divided, segments, chip, schedule):
        tasks = emit_descriptors(scheduled, placed, chip)
        if not tasks:  # a segment of reshapes has no layers
            continue
        tensors = [t for t in placed.tensors if t.segment == segment.index]
        mine = placed.layers[len(placed.layers) - len(tasks) :]
        weights = sum(layer.weights.packed_bytes for layer in mine if layer.weights is not None)
        parts.append(SegmentTasks(segment.index, tasks, tuple(_ports(tensors)), weights))
    if not parts:
        raise UnsupportedError(f"[descriptors] {chip.label}: got a network without a layer on the engine, need one")
    return Descriptors(name or graph.name, chip, tuple(parts))


def write_hwx(
    path: str | Path,
    model: Model | Descriptors,
    target: str | Chip | None = None,
    *,
    segment: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Writes a segment's task descriptors into a container (.hwx) that `hexane info` reads. Experimental: the container
    has no weights, and never ran on an engine.

    model: a network, with its target, or the result of `descriptors`. segment: its number; None: the only one.
    """
    if isinstance(model, Descriptors):
        listing = model
    elif target is None:
        raise Error("[write_hwx] target: got None, need a chip, as h13")
    else:
        listing = descriptors(model, target, input_shapes=input_shapes)
    chosen = [part for part in listing.segments if segment is None or part.segment == segment]
    if len(chosen) != 1:
        numbers = ", ".join(str(part.segment) for part in listing.segments)
        raise Error(f"[write_hwx] segment: got {segment}, need the number of one: {numbers}")
    subtype = listing.chip.cpu_subtype
    assert subtype is not None, "chips with descriptors have a subtype"
    part = chosen[0]
    _core.save_file(str(path), make_hwx(subtype, part.text, part.ports, part.weight_bytes))


def _ports(tensors: Sequence[Tensor]) -> Iterator[tuple[str, int]]:
    for produced in (True, False):
        for t in tensors:
            if (t.producer is not None and t.kept) if produced else t.producer is None:
                yield t.name, t.main_bytes
