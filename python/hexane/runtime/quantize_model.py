"""Quantises an ONNX model on this machine: `hx.quantize_model`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hexane import _core, sources
from hexane.errors import Error
from hexane.feeds import Feeds, check_feeds, port_of
from hexane.graph import Array
from hexane.quant import Quantization, QuantizedLayer
from hexane.runtime.compile import compile

if TYPE_CHECKING:
    import onnx

    from hexane.importers.onnx.load import ModelSource
    from hexane.quant.calibrate import Feed, Run


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantised ONNX model, the result for each layer, and the largest relative error of an output, |y - y'| / |y| in
    Euclidean norms over all calibration inputs (None without calibration). inputs: the number of calibration inputs."""

    model: "onnx.ModelProto"
    layers: tuple[QuantizedLayer, ...]
    error: float | None
    inputs: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as an ONNX file, atomically. Raises Error above 2 GiB, the limit of ONNX files."""
        _core.save_file(os.fspath(path), _serialised(self.model))


def quantize_model(
    model: "ModelSource | sources.Module",
    calibration: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None = None,
    asked: Quantization | None = None,
    *,
    threads: int | None = None,
) -> Quantized:
    """Quantises an ONNX model (a path, bytes, or a ModelProto): weights and activations become integers, between
    QuantizeLinear and DequantizeLinear. hx.compile and other runtimes compute such layers in integers.

    calibration: inputs by name, like those that the model will see, or the path of a file or folder with .npz or .npy
    files. Each array of an .npz file is an input; several samples have an extra first axis, or use a first axis whose
    extent is 1 in the model. A .npy file is one input of a model with a single input; so are images (pixels are divided
    by 255) and sounds. Only hx.Quantization(weights_only=True) and (dynamic=True) need no calibration; the error is
    then not measured.

    Raises Error for a model without layers to quantise, for weights or activations that are not finite, for
    calibration inputs that are missing or do not fit the model, and for a tolerance that no layer meets.
    """
    opened = sources.open_onnx(model, where="quantize")
    from hexane.quant.measure import OutputError
    from hexane.quant.network import INT16_OPSET, LEAST_OPSET, read_network
    from hexane.quant.quantize import quantize_network, quantize_weights

    asked = asked or Quantization()
    described = opened.function().signature
    ports, optional = (tuple(map(port_of, inputs)) for inputs in (described.inputs, described.optional))
    network = read_network(opened.source, INT16_OPSET if asked.dtype == "int16" else LEAST_OPSET)
    feeds: Iterable[Feed]
    if calibration is None:
        feeds = []
    elif isinstance(calibration, Feeds):
        feeds = calibration
    elif isinstance(calibration, (str, os.PathLike)):
        feeds = Feeds(Path(calibration), ports, optional)
    else:
        feeds = check_feeds(calibration, ports, optional)

    def runs(proto: "onnx.ModelProto") -> "Run":
        return _runs(proto, threads)

    if not asked.calibrated:
        stored, layers = quantize_weights(network, asked)
        if calibration is None:
            return Quantized(stored, layers, None, 0)
        error = OutputError(runs(network.proto), feeds).of(runs(stored))
        return Quantized(stored, layers, error, _count(feeds))
    quantized = quantize_network(network, feeds, asked, runs)
    return Quantized(quantized.model, quantized.layers, quantized.error, _count(feeds))


def _count(feeds: "Iterable[Feed]") -> int:
    return sum(1 for _ in feeds)


def _runs(proto: "onnx.ModelProto", threads: int | None) -> "Run":
    names = [output.name for output in proto.graph.output]
    if not names:
        return lambda feed: {}
    net = compile(_serialised(proto), threads=threads)

    def run(feed: "Feed") -> Mapping[str, Array]:
        returned = net({name: np.asarray(array, order="C") for name, array in feed.items()})
        return returned if isinstance(returned, dict) else {names[0]: returned}

    return run


def _serialised(proto: "onnx.ModelProto") -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except ValueError as error:  # protobuf's limit
        raise Error(f"[quantize] model: got more than 2 GiB, need less: {error}") from None
