"""Writes a program as the sections of a plan (defined in csrc/plan/plan.h)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hexane import _core
from hexane.emit.blocks import CODEC, packed_weights
from hexane.errors import Error
from hexane.graph import Array
from hexane.program import Buffer, PortView, Program, Step, View, dense_strides
from hexane.program.attrs import Strings, pack
from hexane.stages.bufferize.allocate import live_ranges
from hexane.targets import Numerics
from hexane.targets.kernels import kernels

ABSENT = 0xFFFFFFFF
WEIGHTS_ALIGNMENT = 16  # the alignment of Python's bytes and arrays, so that weights are used in place
_FAMILIES = _core.numerics_families()
_DTYPES = _core.plan_dtypes()


Section = Array | bytes | list[tuple[int, Array]]


def emit_plan(program: Program) -> dict[str, Section]:
    """Returns the sections by name: structured arrays, and bytes for strings and attributes. State and weights are
    lists of the graph's arrays, without a copy, because they may be large; or one array of all weights if some are
    packed."""
    writer = _Writer(program)
    writer.numerics(program.target.arithmetic)  # the first row is the target's arithmetic, even if no step uses it
    operands: list[int] = []
    steps = []
    for step in program.steps:
        attrs = pack(kernels(step.numerics.family).layout(step.kernel), step.attrs, writer.strings)
        steps.append(
            {
                "kernel": writer.strings.add(step.kernel),
                "numerics": writer.numerics(step.numerics),
                "device": writer.strings.add("ane" if step.kernel == "program" else program.target.device),
                "source": 0,
                "operands": len(operands),
                "num_inputs": len(step.inputs),
                "num_outputs": len(step.outputs),
                "attrs_bytes": len(attrs),
                "attrs": writer.attr(attrs),
                **dict(zip(("cut_axis", "begin", "end"), step.cut or (-1, 0, 0), strict=True)),
            }
        )
        operands += [ABSENT if v is None else writer.tensor(v) for v in (*step.inputs, *step.outputs)]
    loops: list[dict[str, Any]] = []
    moves: list[int] = []
    for loop in program.loops:
        row = {"first_step": loop.first, "num_steps": len(loop.moves), "trips": loop.trips}
        loops.append({**row, "moves": _place(moves, loop.moves)})
    inputs, outputs = writer.ports(program.inputs), writer.ports(program.outputs)
    writer.add_named()
    blocks = writer.blocks()
    for row, step in zip(steps, program.steps, strict=True):  # sources come last, so that they can be cut off
        row["source"] = writer.strings.add(_source(step))
    return {
        "spaces": _rows("spaces", writer.spaces),
        "tensors": _rows("tensors", writer.tensors),
        "operands": np.array(operands, np.uint32),
        "numerics": _rows("numerics", list(writer.numerics_rows.values())),
        "steps": _rows("steps", steps),
        "loops": _rows("loops", loops),
        "moves": np.array(moves, np.int64),
        "attrs": bytes(writer.attrs),
        "inputs": _rows("inputs", inputs),
        "outputs": _rows("outputs", outputs),
        **writer.weights(blocks),
        "state": writer.pieces("state", "param"),
        "strings": writer.strings.tobytes(),
    }


class _Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.strings = Strings()
        self.attrs = bytearray()
        self.spaces: list[dict[str, Any]] = []
        self.tensors: list[dict[str, Any]] = []
        self.attr_rows: dict[bytes, int] = {}
        self.numerics_rows: dict[str, dict[str, Any]] = {}
        self.rows: dict[View, int] = {}
        self.same_rows: dict[tuple[object, ...], int] = {}
        self.space_of: list[int] = []  # the space of each buffer
        self.touched = live_ranges(program).keys()
        rows = {}
        for name, extent in program.extents.items():
            space = extent.space
            alignment = WEIGHTS_ALIGNMENT if space.kind == "weights" else space.alignment
            rows[name] = self.space(name, space.kind, extent.bytes, space.limit, alignment)
        for buffer in program.buffers:
            port = buffer.kind == "port"
            self.space_of.append(self.space(buffer.name, "port", buffer.bytes) if port else rows[buffer.space])

    def space(self, name: str, kind: str, size: int, limit: int = 0, alignment: int = 1) -> int:
        row = {"name": self.strings.add(name), "kind": self.strings.add(kind), "bytes": size}
        self.spaces.append({**row, "limit": limit, "alignment": alignment})
        return len(self.spaces) - 1

    def attr(self, attrs: bytes) -> int:
        """Returns the offset of the bytes in the section. Equal structs are stored once."""
        if attrs not in self.attr_rows:
            self.attr_rows[attrs] = len(self.attrs)
            self.attrs += attrs
        return self.attr_rows[attrs]

    def numerics(self, numerics: Numerics) -> int:
        """Returns the arithmetic's row in the section "numerics", which has one row per name."""
        if numerics.name not in self.numerics_rows:
            if numerics.family not in _FAMILIES:
                raise Error(f"[emit] got the family {numerics.family!r}, need one of {', '.join(_FAMILIES)}")
            block = pack(_FAMILIES[numerics.family], numerics.parameters, self.strings)
            self.numerics_rows[numerics.name] = {
                "name": self.strings.add(numerics.name),
                "family": self.strings.add(numerics.family),
                "offset": self.attr(block),
                "bytes": len(block),
            }
        return list(self.numerics_rows).index(numerics.name)

    def tensor(self, view: View) -> int:
        """Returns the row of the view in the section "tensors". Equal views have one row."""
        if view not in self.rows:
            buffer = self.program.buffers[view.buffer]
            shape, rank = view.type.shape, view.type.rank
            strides = buffer.strides or dense_strides(view.type)
            whole = view.type == buffer.type and view.strides == strides  # parts of the buffer do not get its name
            row = {
                "name": self.strings.add(buffer.name if whole else ""),
                "dtype": self.strings.add(view.type.dtype.name),
                "layout": 0,
                "space": self.space_of[view.buffer],
                "offset": self.program.offsets[view.buffer] + view.offset,
                "rank": rank,
                "ring": view.ring,
                "shape": (*shape, *[0] * (8 - rank)),
                "strides": (*view.strides, *[0] * (8 - rank)),
            }
            # Buffers that use the same bytes at different times share a row, except for ring buffers.
            same = tuple(row.values())
            if view.ring or same not in self.same_rows:
                self.same_rows[same] = len(self.tensors)
                self.tensors.append(row)
            self.rows[view] = self.same_rows[same]
        return self.rows[view]

    def add_named(self) -> None:
        """Adds a row for each whole param and state, so that its name can be found if steps read only parts of it."""
        for i, buffer in enumerate(self.program.buffers):
            kept = buffer.kind in ("weights", "state", "param") and self.has_place(i)
            if kept and buffer.name and buffer.type:
                self.tensor(View(i, 0, buffer.type, buffer.strides or dense_strides(buffer.type)))

    def has_place(self, number: int) -> bool:
        """True if the buffer has memory, which unused weights do not."""
        return self.program.buffers[number].kind != "weights" or number in self.touched

    def ports(self, ports: Sequence[PortView]) -> list[dict[str, Any]]:
        rows = []
        place = {port.name: i for i, port in enumerate(ports, 1)}
        for port in ports:
            name, tensor = self.strings.add(port.name), self.tensor(port.view)
            length = place[port.length] if port.length else 0
            row = {"name": name, "emitted_name": name, "tensor": tensor, "length": length, "axis": port.axis}
            rows.append({**row, "streamed": int(port.streamed)})
        return rows

    def blocks(self) -> list[dict[str, Any]]:
        """Returns the rows of packed blocks, without their packed contents."""
        rows, (buffers, offsets) = [], (self.program.buffers, self.program.offsets)
        for block in self.program.blocks:
            begin, last = offsets[block.buffers[0]], block.buffers[-1]
            row = {
                "offset": begin,
                "bytes": offsets[last] + buffers[last].bytes - begin,
                "packed": 0,
                "packed_bytes": 0,
            }
            place = {"arena": self.space_of[block.home], "arena_offset": offsets[block.home]}
            steps = {"codec": self.strings.add(CODEC), "first_step": block.first, "num_steps": block.steps}
            rows.append(row | place | steps)
        return rows

    def weights(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the sections of the weights, with the packed contents of these blocks."""
        rows = _rows("blocks", blocks)
        if blocks:
            return packed_weights(rows, self.contents("weights"))
        return {"blocks": rows, "weights": self.pieces("weights"), "packed": b""}

    def contents(self, *kinds: str) -> Array:
        """Returns the initial contents of the spaces of these kinds, concatenated."""
        data = np.zeros(self.begins(*kinds)[1], np.uint8)
        for begin, buffer in self.filled(*kinds):
            assert buffer.data is not None
            mine = np.ndarray(buffer.data.shape, buffer.data.dtype, data, begin, buffer.strides or None)
            mine[...] = buffer.data
        return data

    def pieces(self, *kinds: str) -> list[tuple[int, Array]]:
        """Like `contents`, but without the zeros between buffers: each buffer's offset and contents. The last piece is
        empty, at the end of all contents."""
        result = []
        for begin, buffer in self.filled(*kinds):
            assert buffer.data is not None
            data = np.ascontiguousarray(buffer.data).reshape(-1).view(np.uint8)
            if buffer.strides:
                data = np.zeros(buffer.bytes, np.uint8)
                np.ndarray(buffer.data.shape, buffer.data.dtype, data, 0, buffer.strides)[...] = buffer.data
            result.append((begin, data))
        return [*sorted(result, key=lambda piece: piece[0]), (self.begins(*kinds)[1], np.zeros(0, np.uint8))]

    def begins(self, *kinds: str) -> tuple[dict[str, int], int]:
        """Returns the offsets of the spaces of these kinds when concatenated, and their total size."""
        begins, size = {}, 0
        for name, extent in self.program.extents.items():
            if extent.space.kind in kinds:
                begins[name] = size
                size += extent.bytes
        return begins, size

    def filled(self, *kinds: str) -> Iterator[tuple[int, Buffer]]:
        """Yields the buffers of these kinds that have initial contents, with their offsets, in rising order."""
        begins, _ = self.begins(*kinds)
        gaps = [
            (begins[buffer.space] + offset, i)
            for i, (buffer, offset) in enumerate(zip(self.program.buffers, self.program.offsets, strict=True))
            if buffer.kind in kinds and buffer.data is not None and self.has_place(i)
        ]
        for begin, i in sorted(gaps):
            yield begin, self.program.buffers[i]


def _source(step: Step) -> str:
    """Returns the source of a step in the model, without the op's name if the kernel has the same name."""
    return step.node.source if step.node.op.rpartition(".")[2] == step.kernel else step.node.where


def _place(moves: list[int], those: Sequence[int]) -> int:
    for place in range(len(moves) - len(those) + 1):
        if moves[place : place + len(those)] == list(those):
            return place
    moves += those
    return len(moves) - len(those)


def _rows(section: str, rows: Sequence[dict[str, Any]]) -> Array:
    table = np.zeros(len(rows), _DTYPES[section])
    for name in table.dtype.names or ():
        if rows:
            table[name] = [row[name] for row in rows]
    return table
