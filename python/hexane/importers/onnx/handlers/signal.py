"""Fourier transforms and mel filters."""

import numpy as np

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type
from hexane.ops.compose import limited


@onnx_op("DFT", shape_inputs=(1, 2))
def dft(b: Builder, n: OnnxNode) -> Result:
    """Applies a DFT. Before opset 20 the axis is an attribute."""
    axis = n.attrs["axis"] if n.version < 20 else n.integer(2) if n.has(2) else -2
    length = n.integer(1) if n.has(1) else 0
    if n.has(1) and length < 1:
        raise Error(f"got the length {length}, need a positive one")
    return b.dft(n.value(0), axis=axis, length=length, inverse=n.attrs["inverse"], onesided=n.attrs["onesided"])


@onnx_op("STFT", shape_inputs=(1, 3))
def stft(b: Builder, n: OnnxNode) -> Result:
    frame = n.integer(3) if n.has(3) else 0
    if n.has(3) and frame < 1:
        raise Error(f"got frames of {frame}, need a positive length")
    options = {"frame_step": n.integer(1), "frame_length": frame, "onesided": n.attrs["onesided"]}
    signal = n.value(0)
    if len(signal.shape) == 2:  # the form that torch's exporter writes and onnxruntime accepts
        signal = b.expand_dims(signal, axes=(2,))
    return b.stft(signal, n.optional(2), **options)


@onnx_op("MelWeightMatrix", shape_inputs=(0, 1, 2, 3, 4))
def mel_weight_matrix(b: Builder, n: OnnxNode) -> Result:
    """Returns triangular filters over the bins of a spectrum, with corners evenly spaced in mel."""
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
