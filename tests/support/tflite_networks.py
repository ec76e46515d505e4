"""Quantised .tflite networks in the shapes of MLPerf Tiny's and of small image networks, with random weights whose
results use the range of their bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tflite_writer import TfliteModel

NONE, RELU, RELU6 = 0, 1, 3
SAME, VALID = 0, 1
LARGEST = 2.5  # deviations of a result that its byte holds


@dataclass
class Tensor:
    id: int
    shape: tuple[int, ...]
    scale: float
    zero: int
    size: float  # of a usual number: the root of the mean square


@dataclass
class Network:
    """Layers are added in order; each takes and gives tensors."""

    seed: int
    kind: str = "int8"
    by_channel: bool = True
    m: TfliteModel = field(default_factory=TfliteModel)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.least = -128 if self.kind == "int8" else 0

    def made(self, shape: Sequence[int], scale: float, zero: int, size: float) -> Tensor:
        scale = float(np.float32(scale))
        return Tensor(self.m.tensor(shape, self.kind, scales=scale, zero=zero), tuple(shape), scale, zero, size)

    def input(self, *shape: int) -> Tensor:
        """Pixels from 0 to 1, or numbers of both signs."""
        x = self.made(shape, 1 / 255, self.least, 0.58) if len(shape) == 4 else self.made(shape, 0.3, 7, 12.0)
        self.m.graph["inputs"] = [x.id]
        return x

    def result(self, shape: Sequence[int], size: float, activation: int) -> Tensor:
        """On a grid of its range."""
        if activation == NONE:
            zero = self.least + 128 + int(self.rng.integers(-20, 20))
            return self.made(shape, LARGEST * size / 110, zero, size)
        most = min(LARGEST * size, 6.0) if activation == RELU6 else LARGEST * size
        return self.made(shape, most / 255, self.least, size * 0.7)

    def _weights(self, shape: tuple[int, ...], axis: int, x: Tensor, terms: int) -> tuple[int, int, float]:
        """Weight, bias, and the size of a result."""
        n, by_channel = shape[axis], self.by_channel and self.kind == "int8"
        spread = 1.0 if terms * x.size**2 > 3 else 2.0
        real = spread / np.sqrt(terms)
        scales = real * 3 / 127 * self.rng.uniform(0.5, 1.5, n if by_channel else 1)
        of = scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        w = np.clip(np.round(self.rng.standard_normal(shape) * real / of), -127, 127)
        biases = self.rng.standard_normal(n) * 0.3 * real * np.sqrt(terms) * x.size
        bias_scales = np.float32(x.scale) * np.float32(scales)
        zero = 0
        if self.kind == "uint8":
            zero, w = 131, np.clip(w + 131, 0, 255)
        weight = self.m.tensor(shape, self.kind, w, scales, zero, axis)
        bias = self.m.tensor((n,), "int32", np.round(biases / bias_scales), bias_scales)
        return weight, bias, float(real * np.sqrt(terms) * x.size)

    def conv(
        self, x: Tensor, channels: int, kernel: Sequence[int] = (1, 1), stride: int = 1, activation: int = RELU,
        padding: int = SAME,
    ) -> Tensor:  # fmt: skip
        w, b, size = self._weights((channels, *kernel, x.shape[3]), 0, x, prod(kernel) * x.shape[3])
        return self._window("CONV_2D", x, channels, kernel, stride, padding, activation, [w, b], size)

    def depthwise(self, x: Tensor, stride: int = 1, activation: int = RELU, padding: int = SAME) -> Tensor:
        w, b, size = self._weights((1, 3, 3, x.shape[3]), 3, x, 9)
        extra = {"depth_multiplier": 1}
        return self._window(
            "DEPTHWISE_CONV_2D", x, x.shape[3], (3, 3), stride, padding, activation, [w, b], size, **extra
        )

    def _window(
        self, name: str, x: Tensor, channels: int, kernel: Sequence[int], stride: int, padding: int, activation: int,
        weights: list[int], size: float, **options: int,
    ) -> Tensor:  # fmt: skip
        extents = [
            -(-(n - (k - 1 if padding == VALID else 0)) // stride) for n, k in zip(x.shape[1:3], kernel, strict=True)
        ]
        y = self.result((x.shape[0], *extents, channels), size, activation)
        self.m.op(
            name, [x.id, *weights], [y.id], stride_h=stride, stride_w=stride, padding=padding,
            fused_activation_function=activation, **options,
        )  # fmt: skip
        return y

    def average(self, x: Tensor) -> Tensor:
        """Of each channel."""
        y = self.made((x.shape[0], 1, 1, x.shape[3]), x.scale, x.zero, x.size)
        h, w = x.shape[1:3]
        self.m.op(
            "AVERAGE_POOL_2D", [x.id], [y.id], filter_height=h, filter_width=w, stride_h=h, stride_w=w, padding=VALID
        )
        return y

    def mean(self, x: Tensor) -> Tensor:
        axes = self.m.tensor((2,), "int32", np.array([1, 2]))
        y = self.made((x.shape[0], x.shape[3]), x.scale * 0.8, x.zero, x.size)
        self.m.op("MEAN", [x.id, axes], [y.id])
        return y

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        to = self.m.tensor((len(shape),), "int32", np.array(shape))
        y = self.made(shape, x.scale, x.zero, x.size)
        self.m.op("RESHAPE", [x.id, to], [y.id], new_shape=list(shape))
        return y

    def add(self, x: Tensor, y: Tensor, activation: int = NONE) -> Tensor:
        z = self.result(x.shape, float(np.hypot(x.size, y.size)), activation)
        self.m.op("ADD", [x.id, y.id], [z.id], fused_activation_function=activation)
        return z

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.result(x.shape, x.size * y.size, NONE)
        self.m.op("MUL", [x.id, y.id], [z.id])
        return z

    def pad(self, x: Tensor) -> Tensor:
        """A pixel on the right and below."""
        ends = self.m.tensor((4, 2), "int32", np.array([[0, 0], [0, 1], [0, 1], [0, 0]]))
        y = self.made((x.shape[0], x.shape[1] + 1, x.shape[2] + 1, x.shape[3]), x.scale, x.zero, x.size)
        self.m.op("PAD", [x.id, ends], [y.id])
        return y

    def hard_swish(self, x: Tensor) -> Tensor:
        y = self.made(x.shape, x.scale, self.least + 40, x.size)
        self.m.op("HARD_SWISH", [x.id], [y.id])
        return y

    def logistic(self, x: Tensor) -> Tensor:
        y = self.made(x.shape, 1 / 256, self.least, 0.5)
        self.m.op("LOGISTIC", [x.id], [y.id])
        return y

    def dense(self, x: Tensor, columns: int, activation: int = NONE, bias: bool = True, keep: bool = False) -> Tensor:
        w, b, size = self._weights((columns, x.shape[-1]), 0, x, x.shape[-1])
        shape = (*x.shape[:-1], columns) if keep else (prod(x.shape[:-1]), columns)
        y = self.result(shape, size, activation)
        options = {"fused_activation_function": activation, "keep_num_dims": int(keep)}
        self.m.op("FULLY_CONNECTED", [x.id, w, b if bias else -1], [y.id], **options)
        return y

    def softmax(self, x: Tensor) -> Tensor:
        y = self.made(x.shape, 1 / 256, self.least, 0.3)
        self.m.op("SOFTMAX", [x.id], [y.id], beta=1.0)
        return y

    def bytes(self, *outputs: Tensor) -> bytes:
        self.m.graph["outputs"] = [y.id for y in outputs]
        return self.m.tobytes()


def keyword_spotting(net: Network) -> bytes:
    """DS-CNN."""
    x = net.conv(net.input(1, 49, 10, 1), 64, (10, 4), 2)
    for _ in range(4):
        x = net.conv(net.depthwise(x), 64)
    x = net.average(x)
    y = net.dense(net.reshape(x, 1, 64), 12)
    return net.bytes(y, net.softmax(y))


def visual_wake_words(net: Network) -> bytes:
    """MobileNet at a width of 1/4, with images of 96 pixels."""
    x = net.conv(net.input(1, 96, 96, 3), 8, (3, 3), 2)
    for channels, stride in (
        (16, 1),
        (32, 2),
        (32, 1),
        (64, 2),
        (64, 1),
        (128, 2),
        *((128, 1),) * 5,
        (256, 2),
        (256, 1),
    ):
        x = net.conv(net.depthwise(x, stride), channels)
    y = net.dense(net.reshape(net.average(x), 1, 256), 2)
    return net.bytes(x, y, net.softmax(y))


def image_classification(net: Network) -> bytes:
    """ResNet-8."""
    x = net.conv(net.input(1, 32, 32, 3), 16, (3, 3))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = net.conv(net.conv(x, channels, (3, 3), stride), channels, (3, 3), 1, NONE)
        if stride > 1:
            x = net.conv(x, channels, (1, 1), stride, NONE)
        x = net.add(x, inner, RELU)
    y = net.dense(net.reshape(net.average(x), 1, 64), 10)
    return net.bytes(y, net.softmax(y))


def anomaly_detection(net: Network) -> bytes:
    """An autoencoder of fully connected layers."""
    x = net.input(1, 640)
    for columns in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = net.dense(x, columns, RELU)
    return net.bytes(net.dense(x, 640))


def inverted_bottlenecks(net: Network) -> bytes:
    """MCUNet and MobileNetV2: expand, pad and stride, project, add."""
    x = net.conv(net.pad(net.input(1, 64, 64, 3)), 16, (3, 3), 2, RELU6, VALID)
    for channels, stride in ((16, 1), (24, 2), (24, 1), (40, 2), (40, 1)):
        inner = net.conv(x, 3 * x.shape[3], activation=RELU6)
        inner = net.depthwise(net.pad(inner), 2, RELU6, VALID) if stride == 2 else net.depthwise(inner, 1, RELU6)
        inner = net.conv(inner, channels, activation=NONE)
        x = net.add(x, inner) if x.shape == inner.shape else inner
    y = net.dense(net.mean(x), 100)
    return net.bytes(y, net.softmax(y))


def squeeze_and_excite(net: Network) -> bytes:
    """MobileNetV3: hard swish, gates of channels by fully connected layers, two images at once."""
    x = net.hard_swish(net.conv(net.input(2, 32, 32, 3), 16, (3, 3), 2, NONE))
    for _ in range(2):
        y = net.hard_swish(net.depthwise(net.hard_swish(net.conv(x, 48, activation=NONE)), 1, NONE))
        gate = net.logistic(net.dense(net.dense(net.mean(y), 12, RELU), 48, bias=False))
        y = net.conv(net.mul(y, net.reshape(gate, 2, 1, 1, 48)), 16, activation=NONE)
        x = net.add(x, y)
    return net.bytes(x, net.dense(x, 5, RELU6, keep=True), net.dense(net.mean(x), 11))


NETWORKS: dict[str, Callable[[Network], bytes]] = {
    "keyword spotting": keyword_spotting,
    "visual wake words": visual_wake_words,
    "image classification": image_classification,
    "anomaly detection": anomaly_detection,
    "inverted bottlenecks": inverted_bottlenecks,
    "squeeze and excite": squeeze_and_excite,
}
