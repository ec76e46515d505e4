"""Quantised networks of the kinds that microcontrollers run, with random weights: keyword spotting, a residual one, a
MobileNet."""

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_models import model, node, rand
from qdq import quantized_model


class _Layers:
    def __init__(self, channels: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.at, self.channels = "x", channels

    def conv(self, out: int, kernel: int, stride: int = 1, group: int = 1, relu: bool = True) -> str:
        name = f"c{len(self.nodes)}"
        fan = self.channels // group * kernel * kernel
        self.weights[f"{name}_w"] = rand(out, self.channels // group, kernel, kernel) / np.float32(fan**0.5 / 1.7)
        self.weights[f"{name}_b"] = rand(out) / np.float32(4)
        attrs = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": group}
        self.nodes.append(node("Conv", f"{self.at} {name}_w {name}_b", name, **attrs))
        self.at, self.channels = name, out
        if relu:
            self.nodes.append(node("Relu", name, f"{name}_r"))
            self.at = f"{name}_r"
        return self.at

    def separable(self, out: int, stride: int = 1) -> None:
        self.conv(self.channels, 3, stride, group=self.channels)
        self.conv(out, 1)

    def classify(self, classes: int) -> None:
        self.weights |= {"fc": rand(self.channels, classes), "fc_b": rand(classes)}
        self.nodes += [
            node("GlobalAveragePool", self.at, "pooled"),
            node("Flatten", "pooled", "flat"),
            node("MatMul", "flat fc", "product"),
            node("Add", "product fc_b", "y"),
        ]

    def quantized(self, *shape: int) -> bytes:
        feeds = {"x": rand(*shape)}
        return quantized_model(model(self.nodes, feeds, ["y"], self.weights), feeds)


def keyword_spotting() -> bytes:
    """As DS-CNN, narrower."""
    net = _Layers(1)
    net.conv(16, 3, 2)
    for _ in range(3):
        net.separable(16)
    net.classify(12)
    return net.quantized(1, 1, 25, 10)


def residual() -> bytes:
    """As ResNet-8, narrower."""
    net = _Layers(3)
    net.conv(8, 3)
    for out, stride in ((8, 1), (16, 2)):
        start, channels = net.at, net.channels
        net.conv(out, 3, stride)
        body = net.conv(out, 3, relu=False)
        net.at, net.channels = start, channels
        short = net.conv(out, 1, stride, relu=False) if stride > 1 else start
        sum_name = f"s{len(net.nodes)}"
        net.nodes += [node("Add", f"{body} {short}", sum_name), node("Relu", sum_name, f"{sum_name}_r")]
        net.at, net.channels = f"{sum_name}_r", out
    net.classify(10)
    return net.quantized(1, 3, 16, 16)


def mobile() -> bytes:
    """As MobileNetV1, shallower."""
    net = _Layers(3)
    net.conv(8, 3, 2)
    for out, stride in ((16, 1), (24, 2), (24, 1), (32, 2)):
        net.separable(out, stride)
    net.classify(5)
    return net.quantized(1, 3, 32, 32)


def camera() -> bytes:
    """As MobileNetV1, on images that are much wider than high."""
    net = _Layers(3)
    net.conv(8, 3, 2)
    for out, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1)):
        net.separable(out, stride)
    net.classify(5)
    return net.quantized(1, 3, 24, 160)


SMALL_DEVICE_NETWORKS = {"keyword_spotting": keyword_spotting, "residual": residual, "mobile": mobile}

KEPT = 0.15  # of the weights of a network that has been pruned


def pruned(data: bytes) -> bytes:
    """The network with most of its int8 weights 0, as training for small devices leaves them."""
    net = onnx.load_from_string(data)
    rng = np.random.default_rng(3)
    for tensor in net.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.int8 and values.ndim > 1:
            kept = np.where(rng.random(values.shape) < KEPT, values, 0).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(kept, tensor.name))
    found: bytes = net.SerializeToString()
    return found
