"""Runs a model step by step: each step's outputs beside the inputs they were made from."""

from collections.abc import Iterator, Mapping

import numpy as np

import hexane as hx
from hexane.graph import Array
from hexane.ops import evaluate
from hexane.program import Step, View


class Memory:
    """Every buffer of a program by itself, filled from what the steps are seen to write. A step that reads anything
    else (memory given to another buffer too early, say) shows as a result that does not follow from these."""

    def __init__(self, net: hx.Model, feeds: Mapping[str, Array]) -> None:
        assert net.program is not None
        self.program = net.program
        self.buffers = [np.zeros(b.bytes, np.uint8) for b in self.program.buffers]
        for i, buffer in enumerate(self.program.buffers):
            if buffer.data is not None:
                self.buffers[i][:] = np.ascontiguousarray(buffer.data).reshape(-1).view(np.uint8)
        for port in self.program.inputs:
            self.window(port.view)[...] = feeds[port.name]

    def window(self, view: View) -> Array:
        kind = view.type
        whole = self.buffers[view.buffer]
        if not kind.size:
            return np.zeros(kind.shape, kind.dtype.numpy)
        return np.ndarray(kind.shape, kind.dtype.numpy, whole, view.offset, view.strides)


def traced(net: hx.Model, feeds: Mapping[str, Array]) -> Iterator[tuple[Step, list[Array | None], list[Array]]]:
    """(step, copies of its inputs, its outputs) of one run, in order."""
    memory = Memory(net, feeds)
    seen: list[list[Array]] = []
    net._core.trace(dict(feeds), lambda _, outputs: seen.append(outputs))
    assert len(seen) == len(memory.program.steps)
    for step, outputs in zip(memory.program.steps, seen, strict=True):
        inputs = [None if v is None else memory.window(v).copy() for v in step.inputs]
        for view, array in zip(step.outputs, outputs, strict=True):
            memory.window(view)[...] = array
        yield step, inputs, outputs


def expected(step: Step, inputs: list[Array | None]) -> list[Array]:
    """The values that the step has to write: its op in fp64, rounded once; for a copy, the copied values."""
    if step.kernel == "copy":
        assert inputs[0] is not None
        return [inputs[0].view(step.outputs[0].type.dtype.numpy)]  # the bits, which bit_cast calls otherwise
    return evaluate(step.node, inputs)
