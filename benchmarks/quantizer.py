"""Output errors of `hx.quantize_model` and of the best setting of onnxruntime.quantization, on eight small networks of seeded
weights: `python benchmarks/quantizer.py`.

Both quantizers calibrate on the same inputs. The quantised networks are compared with the float network on other
inputs, in onnxruntime without its fusions, so that only the numbers in the files count.
"""

import argparse
import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

import hexane as hx

Array = np.ndarray
CALIBRATED, JUDGED = 32, 32
BAR = 0.8


class Builder:
    """Nodes with seeded weights."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def const(self, array: Array) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, shape: tuple[int, ...], terms: int, spread: float) -> str:
        """Normally distributed weights. spread: the standard deviation of the logarithm of the channels' scales."""
        sizes = np.exp(spread * self.rng.standard_normal((shape[0],) + (1,) * (len(shape) - 1)))
        return self.const((self.rng.standard_normal(shape) * sizes / terms**0.5 * 1.4).astype(np.float32))

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [result], f"{op.lower()}{len(self.nodes)}", **attrs))
        return result

    def conv(self, x: str, n: int, c: int, k: int, *, groups: int = 1, stride: int = 1, spread: float = 0.3) -> str:
        weight = self.weight((n, c // groups, k, k), c // groups * k * k, spread)
        bias = self.const((0.1 * self.rng.standard_normal(n)).astype(np.float32))
        pad = k // 2
        return self.node("Conv", x, weight, bias, group=groups, strides=[stride] * 2, pads=[pad] * 4)

    def linear(self, x: str, n: int, c: int, spread: float = 0.3) -> str:
        bias = self.const((0.1 * self.rng.standard_normal(n)).astype(np.float32))
        return self.node("Gemm", x, self.weight((n, c), c, spread), bias, transB=1)

    def model(self, y: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "net", inputs, [helper.make_empty_tensor_value_info(y)], self.tensors)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


def mlp(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.linear("x", 64, 32))
    x = b.node("Relu", b.linear(x, 64, 64))
    return b.linear(x, 10, 64), (1, 32)


def plain(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.conv("x", 16, 3, 3))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Relu", b.conv(x, 32, 16, 3))
    return b.linear(b.node("Flatten", b.node("GlobalAveragePool", x)), 10, 32), (1, 3, 16, 16)


def residual(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.conv("x", 16, 3, 3))
    for _ in range(3):
        y = b.node("Relu", b.conv(x, 16, 16, 3))
        x = b.node("Relu", b.node("Add", b.conv(y, 16, 16, 3), x))
    return b.linear(b.node("Flatten", b.node("GlobalAveragePool", x)), 10, 16), (1, 3, 12, 12)


def depthwise(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.conv("x", 16, 3, 3, stride=2))
    for _ in range(2):
        x = b.node("Relu", b.conv(x, 16, 16, 3, groups=16, spread=1.0))
        x = b.node("Relu", b.conv(x, 16, 16, 1, spread=0.7))
    return b.linear(b.node("Flatten", b.node("GlobalAveragePool", x)), 10, 16), (1, 3, 16, 16)


def branches(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.conv("x", 16, 3, 3))
    one, three = b.node("Relu", b.conv(x, 8, 16, 1)), b.node("Relu", b.conv(x, 8, 16, 3))
    x = b.node("Concat", one, three, axis=1)
    x = b.node("AveragePool", b.node("Relu", b.conv(x, 16, 16, 3)), kernel_shape=[2, 2], strides=[2, 2])
    return b.linear(b.node("Flatten", x), 10, 16 * 36), (1, 3, 12, 12)


def gates(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.conv("x", 16, 3, 3)
    x = b.node("Mul", x, b.node("Sigmoid", x))
    x = b.node("HardSwish", b.conv(x, 16, 16, 3))
    x = b.node("Tanh", b.conv(x, 16, 16, 1))
    return b.linear(b.node("Flatten", b.node("GlobalAveragePool", x)), 10, 16), (1, 3, 12, 12)


def decoder(b: Builder) -> tuple[str, tuple[int, ...]]:
    x = b.node("Relu", b.conv("x", 16, 3, 3, stride=2))
    x = b.node("Relu", b.conv(x, 32, 16, 3, stride=2))
    weight = b.const((b.rng.standard_normal((32, 16, 2, 2)) / 32**0.5).astype(np.float32))
    x = b.node("Relu", b.node("ConvTranspose", x, weight, strides=[2, 2]))
    return b.conv(x, 3, 16, 3), (1, 3, 16, 16)


def attention(b: Builder) -> tuple[str, tuple[int, ...]]:
    def project(x: str, n: int, c: int) -> str:
        weight = b.const((b.rng.standard_normal((c, n)) / c**0.5).astype(np.float32))
        return b.node("MatMul", x, weight)

    q, k, v = (project("x", 32, 32) for _ in range(3))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 1]))
    shares = b.node("Softmax", b.node("Mul", scores, b.const(np.float32(32**-0.5))), axis=-1)
    x = b.node("Add", "x", project(b.node("MatMul", shares, v), 32, 32))
    return b.node("Add", x, project(b.node("Relu", project(x, 64, 32)), 32, 64)), (1, 8, 32)


NETWORKS: dict[str, Callable[[Builder], tuple[str, tuple[int, ...]]]] = {
    f.__name__: f for f in (mlp, plain, residual, depthwise, branches, gates, decoder, attention)
}


def network(name: str, seed: int = 0) -> tuple[onnx.ModelProto, list[dict[str, Array]], list[dict[str, Array]]]:
    """The model, calibration inputs and test inputs; each seed gives other weights and inputs."""
    builder = Builder(list(NETWORKS).index(name) + len(NETWORKS) * seed)
    y, shape = NETWORKS[name](builder)
    rng = np.random.default_rng(100 + seed)
    feeds = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(CALIBRATED + JUDGED)]
    return builder.model(y, shape), feeds[:CALIBRATED], feeds[CALIBRATED:]


def outputs(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, feed)[0] for feed in feeds]).astype(np.float64)


def error(model: onnx.ModelProto, quantised: onnx.ModelProto, feeds: list[dict[str, Array]]) -> float:
    whole = outputs(model, feeds)
    return float(np.linalg.norm(whole - outputs(quantised, feeds)) / np.linalg.norm(whole))


class Reader(CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, Array]]) -> None:
        self.left: Iterator[dict[str, Array]] = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


def peer_settings(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], folder: Path
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """onnxruntime's quantised model with each of its settings for 8 bits."""
    onnx.save(model, folder / "float.onnx")
    methods = (CalibrationMethod.MinMax, CalibrationMethod.Percentile, CalibrationMethod.Entropy)
    for method, per_channel, activations, symmetric, ops in product(
        methods, (False, True), ("QInt8", "QUInt8"), (False, True), (None, ["Conv", "ConvTranspose", "Gemm", "MatMul"])
    ):
        if symmetric and activations == "QUInt8":
            continue
        quantize_static(
            folder / "float.onnx",
            folder / "q.onnx",
            Reader(feeds),
            quant_format=QuantFormat.QDQ,
            calibrate_method=method,
            per_channel=per_channel,
            activation_type=QuantType[activations],
            weight_type=QuantType.QInt8,
            op_types_to_quantize=ops,
            extra_options={"ActivationSymmetric": symmetric},
        )
        channels = "per channel" if per_channel else "per tensor"
        yield (
            f"{method.name}, {activations}, {channels}{', symmetric' * symmetric}{', products' if ops else ''}",
            onnx.load(folder / "q.onnx"),
        )


def seed_of(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, need an integer from 0 on")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NETWORKS), help=f"networks: {', '.join(NETWORKS)}")
    parser.add_argument("--seed", type=seed_of, default=0, help="of weights and inputs, from 0 on")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"{'network':10} {'hexane':>9} {'peer':>9} {'ratio':>6}  the peer's best setting")
    ratios = []
    for name in asked.names:
        model, calibrated, judged = network(name, asked.seed)
        ours = error(model, hx.quantize_model(model, calibrated).model, judged)
        # Silences the peer's messages about its calibration.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            settings = peer_settings(model, calibrated, Path(folder))
            theirs, setting = min((error(model, made, judged), said) for said, made in settings)
        ratios.append(ours / theirs)
        print(f"{name:10} {ours:9.5f} {theirs:9.5f} {ratios[-1]:6.3f}  {setting}")
    print(f"largest ratio {max(ratios):.3f}, bar {BAR}")


if __name__ == "__main__":
    main()
