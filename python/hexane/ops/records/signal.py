"""Fourier transforms: kernels on the host, products with constant matrices elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType, Value
from hexane.graph.printer import size_text
from hexane.ops.attributes import flag, integer
from hexane.ops.compose import Builder, WriteOutError, limited, part
from hexane.ops.dtype_rules import floating
from hexane.ops.shape_rules import Shape, axis_index
from hexane.ops.spec import Case, Op
from hexane.system.limits import MAX_GROWTH_BYTES

Array = Any

MOST_LENGTH = 1 << 17  # elements of a transform, as in the kernel


def _sizes(extent: int, length: int, inverse: bool, onesided: bool) -> tuple[int, int, int]:
    """Returns the number of elements read, the number of results, and 1 for real or 2 for complex results."""
    half = length // 2 + 1
    if not onesided:
        return min(extent, length), length, 2
    return (min(extent, half), length, 1) if inverse else (min(extent, length), half, 2)


def _dft_canonical(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes. By default, a transform has the signal's length."""
    shape, inverse, onesided = types[0].shape, attrs["inverse"], attrs["onesided"]
    if len(shape) < 2 or shape[-1] not in (1, 2):
        raise Error(f"got the shape {shape}, need a last axis of 1 or 2: real, or real and imaginary")
    axis = axis_index(attrs["axis"], len(shape))
    if axis == len(shape) - 1:
        raise Error(f"axis: got {axis}, need one before the last")
    length = attrs["length"] or (2 * (shape[axis] - 1) if inverse and onesided else shape[axis])
    if length < 1 or (inverse and onesided and shape[-1] != 2):
        raise Error(f"got the length {length} for the shape {shape}, need a signal")
    if onesided and not inverse and shape[-1] != 1:
        raise Error("onesided: got a complex signal, need a real one")
    if length > MOST_LENGTH:
        raise Error(f"got a transform of {length} elements, need at most {MOST_LENGTH}")
    return {**attrs, "axis": axis, "length": length}


def _dft_shape(x: Shape, axis: int, length: int, inverse: bool, onesided: bool) -> Shape:
    _, outputs, results = _sizes(x[axis], length, inverse, onesided)
    return (*x[:axis], outputs, *x[axis + 1 : -1], results)


def _expand_dft(b: Builder, x: Value, axis: int, length: int, inverse: bool, onesided: bool) -> Value:
    """Multiplies x, cropped or zero-padded to the length, by the transform's matrix."""
    read, outputs, results = _sizes(x.shape[axis], length, inverse, onesided)
    parts, last = x.shape[-1], len(x.shape) - 1
    if (count := read * parts * outputs * results * x.dtype.numpy.itemsize) > MAX_GROWTH_BYTES:
        raise WriteOutError(
            f"[{b.sources[0] if b.sources else 'dft'}] got a transform of {length} elements, whose matrix takes"
            f" {size_text(count)}, need at most {size_text(MAX_GROWTH_BYTES)}: use a shorter one, or fp32 on the host"
        )
    matrix = _matrix(read, length, outputs, inverse, onesided)[:, :parts, :, :results]
    others = [i for i in range(last) if i != axis]
    order = [*others, axis, last]
    x = b.transpose(part(b, x, axis, 0, read), perm=order)
    lines = tuple(x.shape[:-2])
    flat = b.reshape(x, shape=(0 if 0 in lines else -1, read * parts))
    y = b.matmul(flat, b.const(matrix.reshape(read * parts, outputs * results).astype(x.dtype.numpy)))
    return b.transpose(b.reshape(y, shape=(*lines, outputs, results)), perm=[order.index(i) for i in range(last + 1)])


def _matrix(read: int, length: int, outputs: int, inverse: bool, onesided: bool) -> Array:
    """Returns the matrix (input, real or imaginary part, output, real or imaginary part) in fp64."""
    turns = np.outer(np.arange(read), np.arange(outputs)) % length / length
    angles = 2 * np.pi * turns * (1 if inverse else -1)
    cos, sin = np.cos(angles), np.sin(angles)
    cos[turns % 0.5 == 0.25], sin[turns % 0.5 == 0] = 0, 0
    if inverse and onesided:  # the missing half is the conjugate of the given half
        twice = np.where((np.arange(read) == 0) | (2 * np.arange(read) == length), 1, 2)[:, None]
        cos, sin = cos * twice, sin * twice
    scale = 1 / length if inverse else 1.0
    return scale * np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)


def _dft(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    signal = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    if onesided and inverse:
        return np.fft.irfft(signal, length, axis)[..., None]
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    y = transform(signal, length, axis)
    return np.stack([y.real, y.imag], -1)


def _stft_canonical(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
    signal, window = types
    assert signal is not None
    if signal.rank != 3 or signal.shape[-1] not in (1, 2):
        raise Error(f"got the shape {signal.shape}, need (batch, length, 1 or 2)")
    if window is not None and window.rank != 1:
        raise Error(f"got a window of shape {window.shape}, need a vector")
    step, extent = attrs["frame_step"], signal.shape[1]
    frame = attrs["frame_length"] or (window.shape[0] if window is not None else extent)
    if step < 1 or not 1 <= frame <= extent or (window is not None and window.shape != (frame,)):
        raise Error(f"got frames of {frame} every {step} for the shape {signal.shape}, need frames within the signal")
    if attrs["onesided"] and signal.shape[-1] != 1:
        raise Error("onesided: got a complex signal, need a real one")
    limited(_frames(extent, frame, step) * frame, np.dtype(np.int64))
    if frame > MOST_LENGTH:
        raise Error(f"got frames of {frame} elements, need at most {MOST_LENGTH}")
    return {**attrs, "frame_length": frame}


def _frames(extent: int, frame: int, step: int) -> int:
    return 1 + (extent - frame) // step


def _stft_shape(signal: Shape, window: Shape | None, frame_step: int, frame_length: int, onesided: bool) -> Shape:
    bins = frame_length // 2 + 1 if onesided else frame_length
    return (signal[0], _frames(signal[1], frame_length, frame_step), bins, 2)


def _expand_stft(
    b: Builder, signal: Value, window: Value | None, frame_step: int, frame_length: int, onesided: bool
) -> Value:
    count = _frames(signal.shape[1], frame_length, frame_step)
    at = frame_step * np.arange(count)[:, None] + np.arange(frame_length)
    frames = b.gather(signal, b.const(at), axis=1)
    if window is not None:
        frames = b.mul(frames, b.reshape(window, shape=(frame_length, 1)))
    return b.dft(frames, axis=2, length=frame_length, onesided=onesided)


def _stft(signal: Array, window: Array | None, frame_step: int, frame_length: int, onesided: bool) -> Array:
    starts = range(0, signal.shape[1] - frame_length + 1, frame_step)
    weights = np.ones((frame_length, 1)) if window is None else window[:, None]
    frames = [_dft(signal[:, s : s + frame_length] * weights, 1, frame_length, False, onesided) for s in starts]
    return np.stack(frames, 1)


_ONESIDED = {"onesided": flag(False)}

OPS = (
    Op(
        name="dft",
        doc="The discrete Fourier transform along an axis of x (..., 1) or (..., 2), real or real and imaginary -> "
            "(..., 2). A length other than 0 cuts x or appends zeros first. With onesided, a real signal loses the "
            "mirrored half of its transform. The inverse divides by length, and with onesided returns a real signal "
            "(..., 1).",
        inputs=("x",), attrs={"axis": integer(-2), "length": integer(0), "inverse": flag(False), **_ONESIDED},
        canonical=_dft_canonical, shape=_dft_shape, dtype=floating, kernel="dft", expand=_expand_dft, ref=_dft,
        cases=(
            Case(((2, 9, 1),), {"onesided": True}), Case(((2, 8, 3, 2),), {"axis": 1}),
            Case(((3, 5, 2),), {"inverse": True, "length": 7}), Case(((2, 5, 2),), {"inverse": True, "onesided": True}),
            Case(((2, 9, 1),), {"length": 6}), Case(((1, 7, 8, 1),), {"onesided": True}),
        ),
    ),
    Op(
        name="stft",
        doc="The Fourier transforms of frames of a signal (batch, length, 1 or 2), frame_length long, one every frame_step, weighed by "
            "a window (frame_length,) -> (batch, frames, bins, 2).",
        inputs=("signal", "window?"), attrs={"frame_step": integer(), "frame_length": integer(0), **_ONESIDED},
        canonical=_stft_canonical, shape=_stft_shape, dtype=floating, expand=_expand_stft, ref=_stft,
        cases=(Case(((2, 30, 1), (8,)), {"frame_step": 4, "onesided": True}),
               Case(((2, 30, 2),), {"frame_step": 5, "frame_length": 10})),
    ),
)  # fmt: skip
