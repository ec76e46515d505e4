"""Assigns the steps of a plan to CMSIS-NN if it computes the same bits, with their scratch; gives reasons for steps
that it does not compute."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hexane.emit.blocks import unpacked_weights
from hexane.emit.scratch import ALIGNMENT, Gaps, Scratch
from hexane.stages.bufferize.allocate import rounded_up

EXTENSIONS = ("dsp", "mve")  # CMSIS-NN's buffers differ in size between these extensions.
_LIST = 9  # Words of a list attribute: count, 8 values.
_MOST_EXTENT = 65535
_MVE_BLOCK = 124  # CMSIS-NN's constant CH_IN_BLOCK_MVE.
_OFFSETS = 512  # A bound of the number that zero points add to a result.
_KINDS = {"int8": np.int8, "uint8": np.uint8, "int32": np.int32}


@dataclass(frozen=True, slots=True)
class Body:
    """A step that CMSIS-NN computes: the body in csrc/c99/cmsis_nn, bytes of scratch for each of EXTENSIONS, and bytes
    of rows copied out of a ring buffer. Each channel has a shift; also a multiplier and a bias, if the plan stores them
    in a form that CMSIS-NN cannot read."""

    step: int
    name: str
    buffers: tuple[int, ...] = (0, 0)
    window: int = 0
    multipliers: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()
    biases: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ring: int
    data: np.ndarray[Any, Any] | None  # the values, if it is a weight

    @property
    def is_dense(self) -> bool:
        """True if pixels and rows are contiguous; images of a batch may have gaps between them."""
        steps = [prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        axes = range(1, len(self.shape))
        return all(self.shape[axis] == 1 or self.strides[axis] == steps[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of the plan. words: its attributes."""

    kernel: str
    inputs: Sequence[_Tensor | None]
    out: _Tensor
    words: list[int]

    def input(self, i: int) -> _Tensor:
        result = self.inputs[i]
        assert result is not None
        return result

    def list(self, at: int) -> list[int]:
        return self.words[at + 1 : at + 1 + self.words[at]]


class _No(Exception):
    """Raised with the reason why the reference body computes a step."""


class Chooser:
    """Chooses bodies for the steps of a plan. sections: the result of `_core.plan_read` for a plan that `prepared`
    returned."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self._sections, self._weights = sections, np.ascontiguousarray(unpacked_weights(sections))
        self._strings = bytes(sections["strings"])
        self._attrs = bytes(sections["attrs"])

    def choose(self) -> Iterator[tuple[int, str, Body | str]]:
        """Yields for each step its row, its kernel, and the body or the reason for none."""
        makers = {
            "q31_conv": self._conv, "q31_matmul": self._matmul, "q31_add": self._add, "q31_avg_pool": self._pool, "max_pool": self._pool,  # noqa: E501
        }  # fmt: skip
        for i, row in enumerate(self._sections["steps"]):
            kernel = self._text(row["kernel"])
            if kernel not in makers:
                yield i, kernel, "CMSIS-NN has no function with its arithmetic"
                continue
            first, count = int(row["operands"]), int(row["num_inputs"]) + int(row["num_outputs"])
            ids = self._sections["operands"][first : first + count].tolist()
            *inputs, out = (self._tensor(id) if id < len(self._sections["tensors"]) else None for id in ids)
            assert out is not None
            begin, size = int(row["attrs"]), int(row["attrs_bytes"])
            words = np.frombuffer(self._attrs[begin : begin + size], np.int64).tolist()
            try:
                yield i, kernel, makers[kernel](i, _Step(kernel, inputs, out, words))
            except _No as reason:
                yield i, kernel, str(reason)

    def _text(self, offset: Any) -> str:
        return self._strings[int(offset) : self._strings.index(b"\0", int(offset))].decode()

    def _tensor(self, id: int) -> _Tensor:
        row = self._sections["tensors"][id]
        rank, dtype = int(row["rank"]), self._text(row["dtype"])
        shape = tuple(int(n) for n in row["shape"][:rank])
        strides = tuple(int(n) for n in row["strides"][:rank])
        data = None
        if self._text(self._sections["spaces"][int(row["space"])]["kind"]) == "weights" and dtype in _KINDS:
            data = np.ndarray(shape, _KINDS[dtype], self._weights.data, int(row["offset"]), strides)
        return _Tensor(dtype, shape, strides, int(row["ring"]), data)

    # ---- convolutions and products ----

    def _conv(self, i: int, step: _Step) -> Body:
        x, w, out = step.input(0), step.input(1), step.out
        strides, dilations, pads = (step.list(k * _LIST) for k in range(3))
        groups, channels, outputs = step.words[3 * _LIST], x.shape[-1], out.shape[-1]
        if groups > 1 and channels > groups:
            raise _No(f"got {groups} groups of {channels // groups} channels, need one group or one channel in each")
        kernels = w.shape[2:]
        _check_windows(x, out, kernels, strides, dilations, pads)
        _check_images(x, out)
        spatial = (*range(2, len(w.shape)),)
        if not _lies_in_order(w, (*spatial, 1, 0) if groups > 1 else (0, *spatial, 1)):
            raise _No("its weight is stored in another order, because other steps read it too")
        height, width = kernels[0], prod(kernels[1:])
        if groups > 1:
            buffers = _depthwise_buffers(channels, outputs, height, width, dilations, pads)
        else:
            buffers = _conv_buffers(channels, height, width, dilations, pads)
        window = _window_bytes(x, (height - 1) * dilations[0] + 1, strides[0], self._rows_at_once(i))
        return Body(i, "conv", buffers, window, *_scaling(step, (0, 1, *spatial)))

    def _matmul(self, i: int, step: _Step) -> Body:
        x, y, out = step.input(0), step.input(1), step.out
        rows, terms, columns = x.shape[-2], x.shape[-1], out.shape[-1]
        axes = (0, 1) if step.words[0] else (1, 0)
        if len(y.shape) != 2 or not _lies_in_order(y, axes):
            raise _No("y is no matrix with the terms of a sum innermost")
        if (terms > 1 and x.strides[-1] != 1) or (rows > 1 and (x.strides[-2], out.strides[-2]) != (terms, columns)):
            raise _No("its rows lie with gaps")
        if max(rows, terms, columns) > _MOST_EXTENT or 0 in (*x.shape, *out.shape):
            raise _No("it is too large or empty")
        return Body(i, "matmul", (0, 0), 0, *_scaling(step, axes))

    # ---- pools and additions ----

    def _pool(self, i: int, step: _Step) -> Body:
        x, out = step.input(0), step.out
        if {x.dtype, out.dtype} != {"int8"}:
            raise _No(f"got {x.dtype}, need int8")
        kernels, strides, dilations, pads = (step.list(k * _LIST) for k in range(4))
        if set(dilations) != {1}:
            raise _No("its windows have gaps")
        _check_windows(x, out, kernels, strides, dilations, pads)
        _check_images(x, out)
        window = _window_bytes(x, kernels[0], strides[0], self._rows_at_once(i))
        if step.kernel == "max_pool":
            return Body(i, "max_pool", (0, 0), window)
        return Body(i, "avg_pool", (4 * x.shape[-1], 0), window)

    def _add(self, i: int, step: _Step) -> Body:
        these = (step.input(0), step.input(1), step.out)
        if {one.dtype for one in these} != {"int8"}:
            raise _No(f"got {', '.join(one.dtype for one in these)}, need int8")
        shape = step.out.shape
        for one in these:
            if one.shape != shape or not one.is_dense or (shape and shape[0] > 1 and one.strides[0] != prod(shape[1:])):
                raise _No("need tensors of one shape without gaps")
        if max(step.words[2], step.words[5], step.words[7]) > 0:
            raise _No("one of its shifts goes to the left")
        return Body(i, "add")

    def _rows_at_once(self, step: int) -> int:
        """Returns the highest number of output rows that a run computes; 0 for all."""
        row = self._sections["steps"][step]
        return int(row["end"]) - int(row["begin"]) if int(row["cut_axis"]) == 1 else 0


def _scaling(step: _Step, axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns each channel's multiplier, if the plan has one multiplier for all channels; each channel's shift; and
    zeros, if there is no bias. axes: the weight's axes, beginning with the channel. Raises _No if sums may overflow,
    because CMSIS-NN's results may then differ."""
    x, weight, scale = (step.input(i) for i in range(3))
    if {x.dtype, weight.dtype, step.out.dtype} != {"int8"}:
        raise _No(f"got {x.dtype}, {weight.dtype} and {step.out.dtype}, need int8")
    if scale.dtype != "int32":
        raise _No("its sums are rounded once, as products of doubles")
    bias, x_zero, y_zero, shift = ([*step.inputs, *4 * (None,)][i] for i in range(3, 7))
    if any(one is not None and one.data is None for one in (weight, scale, bias, x_zero, y_zero, shift)):
        raise _No("its weights are computed")
    if _values_of(y_zero).any():
        raise _No("its weights have a zero point")
    columns = _values_of(weight).transpose(axes).astype(np.int64)
    columns = columns.reshape(len(columns), -1)
    if columns.shape[1] > _MOST_EXTENT:
        raise _No(f"got sums of {columns.shape[1]} terms, need at most {_MOST_EXTENT}")
    multipliers, shifts, biases = (np.broadcast_to(_values_of(one), len(columns)) for one in (scale, shift, bias))
    zero = int(_values_of(x_zero))
    largest = np.abs(columns).sum(1) * max(127 - zero, zero + 128) + np.abs(biases)
    if ((largest << np.maximum(shifts, 0)) + _OFFSETS > np.iinfo(np.int32).max).any():
        raise _No("its sums may overflow")
    return (
        () if scale.shape else tuple(multipliers.tolist()),
        tuple(shifts.tolist()),
        () if bias is not None else (0,) * len(columns),
    )


def _values_of(tensor: _Tensor | None) -> np.ndarray[Any, Any]:
    """Returns the values of a weight, or 0 if there is none."""
    return np.zeros((), np.int64) if tensor is None or tensor.data is None else tensor.data.astype(np.int64)


def _lies_in_order(weight: _Tensor, order: Sequence[int]) -> bool:
    """True if the weight's axes are contiguous in this order, outermost first."""
    step = 1
    for axis in reversed(order):
        if weight.shape[axis] > 1 and weight.strides[axis] != step:
            return False
        step *= weight.shape[axis]
    return True


def _check_images(*images: _Tensor) -> None:
    if not all(image.is_dense for image in images):
        raise _No("its images lie with gaps")
    if max(extent for image in images for extent in image.shape) > _MOST_EXTENT or any(
        0 in one.shape for one in images
    ):
        raise _No("it is too large or empty")


def _check_windows(
    x: _Tensor, out: _Tensor, kernels: Sequence[int], strides: list[int], dilations: list[int], pads: list[int]
) -> None:
    """Raises _No if a window lies completely in the padding."""
    for axis, kernel in enumerate(kernels):
        last = (out.shape[1 + axis] - 1) * strides[axis] - pads[2 * axis]
        if pads[2 * axis] > (kernel - 1) * dilations[axis] or last >= x.shape[1 + axis]:
            raise _No("a window lies in the padding")


def _window_bytes(x: _Tensor, reach: int, stride: int, rows: int) -> int:
    """Returns the bytes of the input's rows for `rows` of the output, if they may wrap around in a ring buffer, else 0.
    reach: rows of a window."""
    if not x.ring or not rows:
        return 0
    count = min((rows - 1) * stride + reach, x.ring)
    return 0 if count == 1 else count * prod(x.shape[2:])


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a plan's steps. steps: each step's row, kernel, and body, or the reason why it has no body.
    scratch: by the step's row, for one of EXTENSIONS. partly: steps for which the runtime computes rows that wrap
    around in a ring buffer, because there is no memory to copy them. sizes: bytes of each arena, by its row, with
    scratch."""

    steps: tuple[tuple[int, str, Body | str], ...]
    scratch: Mapping[int, Scratch]
    partly: frozenset[int]
    sizes: Mapping[int, int]


def assigned(
    sections: Mapping[str, Any], extension: str, item_bytes: Mapping[int, int], without: Mapping[int, str] | None = None
) -> Assignment:
    """Returns bodies for the steps of a plan, with their scratch placed. item_bytes: see Gaps. without: steps that get
    no body, with the reason.

    Rows that wrap around in a ring get memory for a copy only if the arenas need not grow for it.
    """
    strings = bytes(sections["strings"])
    kinds = [strings[(at := int(row["kind"])) : strings.index(b"\0", at)] for row in sections["spaces"]]
    gaps = Gaps(sections, [i for i, kind in enumerate(kinds) if kind == b"arena"], item_bytes)
    steps, scratch, partly = [], {}, set()
    for i, kernel, body in Chooser(sections).choose():
        body = (without or {}).get(i, body)
        if isinstance(body, Body) and (size := body.buffers[EXTENSIONS.index(extension)]):
            place = gaps.place(i, size)
            if place is None:
                body = "no arena has room for its scratch"
            else:
                scratch[i] = place
        steps.append((i, kernel, body))
    for i, _, body in steps:  # after the arenas' sizes are known
        if isinstance(body, Body) and body.window:
            size = rounded_up(body.buffers[EXTENSIONS.index(extension)], ALIGNMENT) + body.window
            place = gaps.place(i, size, grows=False)
            if place is None:
                partly.add(i)
            else:
                scratch[i] = place
    return Assignment(tuple(steps), scratch, frozenset(partly), gaps.sizes)


# ---- CMSIS-NN's buffers, as in version 7.0.0; at run time the library is queried ----


def _conv_buffers(channels: int, height: int, width: int, dilations: list[int], pads: list[int]) -> tuple[int, int]:
    if height == width == 1 and not any(pads) and set(dilations) == {1}:
        return 0, 0
    terms = channels * height * width
    return 2 * rounded_up(terms, 4) * 2, 4 * rounded_up(terms, 16)


def _depthwise_buffers(
    channels: int, outputs: int, height: int, width: int, dilations: list[int], pads: list[int]
) -> tuple[int, int]:
    if channels != outputs or set(dilations) != {1}:
        return 0, 0
    before = (pads[0], pads[2] if len(pads) > 2 else 0)
    dsp = 0 if height == width == 3 and max(before) <= 1 else 2 * channels * height * width
    return dsp, 4 * _MVE_BLOCK * height * width
