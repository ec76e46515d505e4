"""Fourier transforms, as products with constant matrices, and mel filters."""

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.onnx.handlers.constants import limited
from hexane.importers.onnx.load import element_type
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of


def dft(b: Builder, n: OnnxNode) -> Result:
    """The last axis is (real,) or (real, imaginary); the axis is an attribute before opset 20."""
    x = n.value(0)
    if len(x.shape) < 2 or x.shape[-1] not in (1, 2):
        raise Error(f"got the shape {x.shape}, need a last axis of 1 or 2")
    axis = axis_of(n.attrs["axis"] if n.version < 20 else n.integer(2) if n.has(2) else -2, len(x.shape))
    if axis == len(x.shape) - 1:
        raise Error(f"axis: got {axis}, need one before the last")
    inverse, onesided = bool(n.attrs["inverse"]), bool(n.attrs["onesided"])
    length = x.shape[axis] if not (inverse and onesided) else 2 * (x.shape[axis] - 1)
    length = n.integer(1) if n.has(1) else length
    if length < 1 or (inverse and onesided and x.shape[-1] != 2):
        raise Error(f"got the length {length} for the shape {x.shape}, need a signal")
    if onesided and not inverse and x.shape[-1] != 1:
        raise Error("onesided: got a complex signal, need a real one")
    return transform(b, x, axis, length, inverse, onesided)


def transform(b: Builder, x: Value, axis: int, length: int, inverse: bool, onesided: bool) -> Result:
    """x cut or filled with zeros to the length, times the matrix of the transform."""
    needed = length // 2 + 1 if inverse and onesided else length
    extent, parts = min(x.shape[axis], needed), x.shape[-1]
    outputs = (length // 2 + 1 if not inverse else length) if onesided else length
    results = 1 if inverse and onesided else 2
    limited(extent * parts * outputs * results, x.dtype.numpy)
    matrix = _matrix(extent, length, outputs, inverse, onesided)[:, :parts, :, :results]
    x = b.slice_by_index(x, begin=(0,) * len(x.shape), end=[extent if i == axis else d for i, d in enumerate(x.shape)])
    others = [i for i in range(len(x.shape) - 1) if i != axis]
    x = b.transpose(x, perm=(*others, axis, len(x.shape) - 1))
    lines = tuple(x.shape[:-2])
    flat = b.reshape(x, shape=(-1, extent * parts)) if 0 not in lines else b.reshape(x, shape=(0, extent * parts))
    y = b.matmul(flat, b.const(matrix.reshape(extent * parts, outputs * results).astype(x.dtype.numpy)))
    y = b.reshape(y, shape=(*lines, outputs, results))
    order = [*others, axis, len(x.shape) - 1]
    return b.transpose(y, perm=[order.index(i) for i in range(len(order))])


def _matrix(extent: int, length: int, outputs: int, inverse: bool, onesided: bool) -> Array:
    """(input, its real and imaginary part, output, its real and imaginary part) in fp64."""
    turns = np.outer(np.arange(extent), np.arange(outputs)) % length / length
    angles = 2 * np.pi * turns * (1 if inverse else -1)
    cos, sin = np.cos(angles), np.sin(angles)
    cos[turns % 0.5 == 0.25], sin[turns % 0.5 == 0] = 0, 0
    if inverse and onesided:  # what is not there is the conjugate of what is
        twice = np.where((np.arange(extent) == 0) | (2 * np.arange(extent) == length), 1, 2)[:, None]
        cos, sin = cos * twice, sin * twice
    scale = 1 / length if inverse else 1.0
    return scale * np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)


def stft(b: Builder, n: OnnxNode) -> Result:
    """Frames of (batch, length, 1 or 2), weighed by the window, transformed."""
    x, step, window = n.value(0), n.integer(1), n.optional(2)
    if len(x.shape) != 3 or x.shape[-1] not in (1, 2):
        raise Error(f"got the shape {x.shape}, need (batch, length, 1 or 2)")
    if window is not None and len(window.shape) != 1:
        raise Error(f"got a window of shape {window.shape}, need a vector")
    frame = n.integer(3) if n.has(3) else window.shape[0] if window is not None else x.shape[1]
    if step < 1 or not 1 <= frame <= x.shape[1] or (window is not None and window.shape != (frame,)):
        raise Error(f"got frames of {frame} every {step} for the shape {x.shape}, need frames within the signal")
    onesided = bool(n.attrs["onesided"])
    if onesided and x.shape[-1] != 1:
        raise Error("onesided: got a complex signal, need a real one")
    count = 1 + (x.shape[1] - frame) // step
    limited(count * frame, np.dtype(np.int64))
    at = step * np.arange(count)[:, None] + np.arange(frame)
    frames = b.gather(x, b.const(at), axis=1)
    if window is not None:
        frames = b.mul(frames, b.reshape(window, shape=(frame, 1)))
    return transform(b, frames, 2, frame, False, onesided)


def mel_weight_matrix(b: Builder, n: OnnxNode) -> Result:
    """Triangles over the bins of a spectrum, their corners evenly spaced in mel."""
    bands, length, rate = n.integer(0), n.integer(1), n.integer(2)
    low, high = (float(n.scalar(i)) for i in (3, 4))
    if bands < 1 or length < 1 or rate < 1 or not 0 <= low < high:
        raise Error(f"got {bands} bands, the length {length}, the rate {rate} and {low}..{high}, need positive ones")
    spectrum = length // 2 + 1
    limited(spectrum * bands, np.dtype(np.float64))
    edges = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = np.arange(bands + 2) * ((edges[1] - edges[0]) / (bands + 2)) + edges[0]
    bins = ((length + 1) * (700 * (np.power(10, mel / 2595) - 1)) // rate).astype(np.int64)
    result = np.zeros((spectrum, bands))
    for i in range(bands):
        begin, centre, end = bins[i : i + 3]
        if centre == begin:
            result[centre : centre + 1, i] = 1
        for j in range(begin, min(centre + 1, spectrum) if centre > begin else begin):
            result[j, i] = (j - begin) / (centre - begin)
        for j in range(centre, min(end, spectrum) if end > centre else centre):
            result[j, i] = (end - j) / (end - centre)
    kind = element_type(n.attrs["output_datatype"])
    return b.const(result.astype(kind.numpy))


HANDLERS = {"DFT": dft, "MelWeightMatrix": mel_weight_matrix, "STFT": stft}
