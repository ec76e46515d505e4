"""Chooses a tensor that a region writes over another tensor, which is read for the last time in the region."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hexane.stages.bufferize.tensors import Tensors
from hexane.stages.stream.loop_nest import Nest
from hexane.stages.stream.rows import AXIS, StepRows, lies_in_rows


class Overlay(NamedTuple):
    """A tensor `over` that is written `shift` bytes after the start of a tensor `under`, over rows that have been read
    for the last time. under, over: the indices of the two tensors. The shift may be negative."""

    under: int
    over: int
    shift: int

    def bytes(self, tensors: Tensors) -> int:
        """Returns the bytes from the first byte of either tensor to the last."""
        under, over = tensors.all[self.under].bytes, tensors.all[self.over].bytes
        return max(under, self.shift + over) - min(0, self.shift)


class Overlays:
    """Finds overlays for the regions of a program. steps: all steps of the program."""

    def __init__(self, tensors: Tensors, steps: Sequence[StepRows]) -> None:
        self.tensors, self.steps = tensors, steps
        self._last = [tensor.last for tensor in tensors.all]
        self._rows: dict[int, bool] = {}  # tensor -> it lies in whole rows

    def best(self, first: int, end: int, nest: Nest, ahead: Sequence[int], alignment: int) -> Overlay | None:
        """Returns the overlay in the steps [first, end) that saves the most bytes, or None. ahead: the rows that each
        step has computed after its run 0."""
        under = self._last_read(first, end)
        over = self._first_written(first, end)
        if not under or not over:
            return None
        deaths = {tensor: self._deaths(tensor, first, nest, ahead) for tensor in under}
        births = {tensor: self._births(tensor, first, nest, ahead) for tensor in over}
        best, saved = None, 0
        for a in under:
            for b in over:
                if {step for step, _ in self.tensors.all[a].readers} & {
                    step for step, _ in self.tensors.all[b].writers
                }:
                    continue
                overlay = Overlay(a, b, self._shift(a, deaths[a], b, births[b], alignment))
                saving = self.tensors.all[a].bytes + self.tensors.all[b].bytes - overlay.bytes(self.tensors)
                if saving > saved:
                    best, saved = overlay, saving
        return best

    def _last_read(self, first: int, end: int) -> list[int]:
        """Returns the tensors in whole rows that were written before the region and are read for the last time in
        it."""
        read = {t for step in range(first, end) for t in self.tensors.inputs[step] if t is not None}
        return [t for t in sorted(read) if self._in_rows(t) and self._last[t] < end and self._written_before(t, first)]

    def _written_before(self, tensor: int, first: int) -> bool:
        """True if a single step before `first` has written the tensor, and all views of the tensor are equal."""
        contents = self.tensors.all[tensor]
        same = len({(view.offset, view.type, view.strides) for view in contents.views}) == 1
        return same and len(contents.writers) == 1 and contents.writers[0][0] < first <= contents.readers[0][0]

    def _first_written(self, first: int, end: int) -> list[int]:
        """Returns the tensors in whole rows that are written in the region and read after it, too."""
        written = {t for step in range(first, end) for t in self.tensors.outputs[step]}
        return [
            t
            for t in sorted(written)
            if self._in_rows(t)
            and all(first <= step < end for step, _ in self.tensors.all[t].writers)
            and self._last[t] >= end
        ]

    def _in_rows(self, tensor: int) -> bool:
        if tensor not in self._rows:
            contents = self.tensors.all[tensor]
            view = contents.views[0]
            self._rows[tensor] = (
                contents.in_arena
                and not contents.version
                and lies_in_rows(contents)
                and view.type.shape[AXIS] * view.strides[AXIS] == contents.bytes
            )
        return self._rows[tensor]

    def _deaths(self, tensor: int, first: int, nest: Nest, ahead: Sequence[int]) -> NDArray[np.int64]:
        """Returns for each row the time of the last read of this and all earlier rows, or -1 if there is none."""
        dead = np.full(self.tensors.all[tensor].views[0].type.shape[AXIS], -1, np.int64)
        for reader, operand in self.tensors.all[tensor].readers:
            rows, needed_from, stop = self.steps[reader].needed(operand)
            times = nest.times(reader - first, rows, ahead[reader - first])
            for i in range(int((stop - needed_from).max(initial=0))):
                there = needed_from + i < stop
                np.maximum.at(dead, needed_from[there] + i, times[there])
        result: NDArray[np.int64] = np.maximum.accumulate(dead)
        return result

    def _births(self, tensor: int, first: int, nest: Nest, ahead: Sequence[int]) -> NDArray[np.int64]:
        """Returns for each row the time at which it is first written."""
        rows = np.arange(self.tensors.all[tensor].views[0].type.shape[AXIS])
        times = [nest.times(i - first, rows, ahead[i - first]) for i, _ in self.tensors.all[tensor].writers]
        result: NDArray[np.int64] = np.min(times, axis=0)
        return result

    def _shift(
        self, under: int, deaths: NDArray[np.int64], over: int, births: NDArray[np.int64], alignment: int
    ) -> int:
        """Returns the largest shift in bytes, at most 0, from the start of `under` to the start of `over`."""
        pitch, own = (self.tensors.all[t].views[0].strides[AXIS] for t in (under, over))
        dead = np.searchsorted(deaths, births)  # rows of `under` that are dead when a row of `over` is written
        room = (pitch * dead - own * (np.arange(len(births)) + 1))[dead < len(deaths)]
        return min(0, int(room.min(initial=0)) // alignment * alignment)
