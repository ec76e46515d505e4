"""What the kernels say about rows: whether a step can be computed row by row, and which operand rows each row needs."""

from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexane import _core
from hexane.program import Program, Step, View
from hexane.program.attrs import Strings, pack
from hexane.stages.bufferize.tensors import Contents

AXIS = 1  # the axis of rows
LONGEST_PERIOD = 8

Needs = tuple[NDArray[np.int64], NDArray[np.int64]]  # by output row: a half-open range of operand rows


class StepRows:
    """The rows of one step, as its kernel computes them."""

    def __init__(self, step: Step, program: Program) -> None:
        """program: a program with the step, or another program for the same target and runtime."""
        self.step, self._target = step, program.target
        self._computes_rows = program.computes_rows(step.kernel)
        self.out = step.outputs[0]
        self.extent = self.out.type.shape[AXIS] if self.out.type.rank > AXIS else 0
        self._needs: dict[int, Needs] = {}
        self._needed: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = {}
        self._strides: dict[int, Fraction] = {}
        self._inverses: dict[int, Fraction] = {}
        self._rings: dict[int, bool] = {}

    @cached_property
    def is_cut(self) -> bool:
        """True if the rows of a single image can be computed one by one."""
        shape = self.out.type.shape
        if len(self.step.outputs) != 1 or len(shape) < 3 or shape[0] != 1 or self.extent < 2 or self.out.type.size == 0:
            return False
        if not self._computes_rows:
            return False
        return any((axis, grain) == (AXIS, 1) for axis, _, grain in _core.kernel_cuts(**self._call))

    def needs(self, i: int) -> Needs:
        """Returns the rows of input i that each row of the output needs. The input must have the axis of rows."""
        if i not in self._needs:
            spans = np.array(_core.kernel_needs_along(**self._call, input=i, axis=AXIS), np.int64)
            self._needs[i] = spans[:, 0], spans[:, 1]
        return self._needs[i]

    def needed(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the output rows that need any row of input i, and their `needs`."""
        if i not in self._needed:
            first, stop = self.needs(i)
            rows = np.flatnonzero(first < stop)
            self._needed[i] = rows, first[rows], stop[rows]
        return self._needed[i]

    def is_packed(self, i: int) -> bool:
        """True if the kernel packs all of input i before it computes the first row."""
        return i in (1, 2) and self._target.kernels.packs(self.step.kernel)

    def reads_ring(self, i: int) -> bool:
        """True if input i may be a ring."""
        if i not in self._rings:
            self._rings[i] = self._may_be_ring(i)
        return self._rings[i]

    def _may_be_ring(self, i: int) -> bool:
        view = self.step.inputs[i]
        assert view is not None
        if i == 0 and self._target.kernels.reads_ring(self.step.kernel) and view.type.rank == 4:
            return True
        first, stop = self.needs(i)
        rows = np.arange(self.extent)
        return bool((first == rows).all() and (stop == rows + 1).all())

    def stride(self, i: int) -> Fraction:
        """Returns by how many rows of input i the window moves per output row, away from the edges. The number affects
        speed and memory only; `needs` ensures correct results."""
        if i not in self._strides:
            self._strides[i] = self._find_stride(i)
        return self._strides[i]

    def inverse_stride(self, i: int) -> Fraction:
        """Returns 1 / stride."""
        if i not in self._inverses:
            self._inverses[i] = 1 / self.stride(i)
        return self._inverses[i]

    def _find_stride(self, i: int) -> Fraction:
        view = self.step.inputs[i]
        assert view is not None
        first, stop = self.needs(i)
        inside = (first > 0) & (stop < view.type.shape[AXIS])
        for period in range(1, min(LONGEST_PERIOD, self.extent - 1) + 1):
            moves = (first[period:] - first[:-period])[inside[period:] & inside[:-period]]
            if len(moves) and moves[0] > 0 and (moves == moves[0]).all():
                return Fraction(int(moves[0]), period)
        return Fraction(max(1, round(view.type.shape[AXIS] / self.extent)))

    @cached_property
    def _call(self) -> dict[str, Any]:
        step, strings = self.step, Strings()
        attrs = pack(self._target.kernels.layout(step.kernel), step.attrs, strings)
        block = _core.numerics_families()[step.numerics.family]
        return {
            "name": step.kernel,
            "family": step.numerics.family,
            "inputs": [_described(view) for view in step.inputs],
            "outputs": [_described(view) for view in step.outputs],
            "attrs": attrs,
            "strings": strings.tobytes(),
            "numerics": pack(block, step.numerics.parameters, Strings()) if block else b"",
        }


def lies_in_rows(tensor: Contents) -> bool:
    """True if all writers and readers of a tensor see the same rows in the same order."""
    views = tensor.views
    if any(view.type.rank <= AXIS or view.type.shape[0] != 1 for view in views):
        return False
    return len({(view.type.shape[AXIS], view.strides[AXIS]) for view in views}) == 1


def _described(view: View | None) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    return None if view is None else (view.type.dtype.name, view.type.shape, view.strides)
