"""A few layers of each kind of network, as ONNX models."""

import numpy as np
import onnx

from hexane.graph import Array
from onnx_models import ints, model, node, rand


def small_networks() -> dict[str, onnx.ModelProto]:
    return {
        "mobile-13": mobile(13),
        "mobile-17": mobile(17),
        "encoder": encoder(),
        "unet": unet(),
        "detector": detector(),
    }


def mobile(opset: int) -> onnx.ModelProto:
    """Batch norm, depthwise and pointwise convolution, a residual, SiLU, resizing, a classifier."""
    norm = {k: rand(8, low=0.5) for k in ("gain", "bias", "mean", "variance")}
    weights = {"w1": rand(8, 3, 3, 3), "w2": rand(8, 1, 3, 3), "w3": rand(16, 8, 1, 1), "w4": rand(8, 4, 2, 2)}
    numbers = {"halves": ints(8, 8), "scales": np.float32([1, 1, 2, 2]), "zero": np.float32(0), "six": np.float32(6)}
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [
        node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "a gain bias mean variance", "b"),
        node("Clip", "b zero six", "c"),
        node("Conv", "c w2", "d", group=8, auto_pad="SAME_UPPER"),
        node("Add", "d c", "e"),
        node("Conv", "e w3", "f"),
        *silu("f", "g"),
        node("Split", "g halves", "h1 h2", axis=1),
        onnx.helper.make_node("Resize", ["h1", "", "scales"], ["up"], **nearest),
        node("ConvTranspose", "h2 w4", "t", strides=[2, 2]),
        node("Concat", "up t", "u", axis=1),
        node("MaxPool", "u", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
        node("GlobalAveragePool", "p", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("Softmax", "flat", "y"),
    ]
    return model(nodes, {"x": rand(1, 3, 9, 8)}, ["y"], {**weights, **norm, **numbers, "b1": rand(8)}, opset)


def encoder() -> onnx.ModelProto:
    """Attention of two heads behind a layer norm, with one product for queries, keys and values."""
    nodes = [
        node("LayerNormalization", "x gain bias", "n", axis=-1),
        node("MatMul", "n wq", "qkv"),
        node("Reshape", "qkv heads", "r"),
        node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
        *(node("Gather", f"t {i}", f"{i}_1", axis=0) for i in "qkv"),
        *(node("Reshape", f"{i}_1 square", f"{i}_2") for i in "qkv"),
        node("Transpose", "k_2", "k_3", perm=[0, 1, 3, 2]),
        node("MatMul", "q_2 k_3", "scores"),
        node("Mul", "scores scale", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights v_2", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back flat", "joined"),
        node("MatMul", "joined wo", "o"),
        node("Add", "x o", "y"),
    ]
    weights = {"gain": rand(8, low=0.5), "bias": rand(8), "wq": rand(8, 24), "wo": rand(8, 8)}
    sizes = {"heads": ints(1, 5, 3, 2, 4), "square": ints(1, 2, 5, 4), "flat": ints(1, 5, 8), "scale": np.float32(0.5)}
    places = {name: ints(place) for place, name in enumerate("qkv")}
    return model(nodes, {"x": rand(1, 5, 8)}, ["y"], {**weights, **sizes, **places})


def unet() -> onnx.ModelProto:
    """Two levels with a skip between them: down by pooling, up by transposed convolutions that do and do not
    overlap."""
    nodes = [
        *block("x", "a"),
        node("MaxPool", "a", "down", kernel_shape=[2, 2], strides=[2, 2]),
        *block("down", "b"),
        node("ConvTranspose", "b b_up b_up_bias", "up", strides=[2, 2]),
        node("Concat", "up a", "both", axis=1),
        *block("both", "c"),
        node("ConvTranspose", "c c_up", "wide", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", "wide last", "y"),
    ]
    ups = {"b_up": rand(12, 8, 2, 2), "b_up_bias": rand(8), "c_up": rand(8, 5, 4, 4), "last": rand(2, 5, 1, 1)}
    convs = {"a": (8, 3), "b": (12, 8), "c": (8, 16)}
    return model(nodes, {"x": rand(1, 3, 12, 10)}, ["y"], {**kernels(convs), **ups})


def detector() -> onnx.ModelProto:
    """SiLU throughout, a stage that works on half of its channels, pools of growing windows, and heads at two
    scales."""
    pool = {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}
    nodes = [
        *block("x", "a", "silu", strides=[2, 2]),
        node("Split", "a halves", "left right", axis=1),
        *block("right", "b", "silu"),
        node("Add", "right b", "kept"),
        node("Concat", "left right kept", "stage", axis=1),
        node("MaxPool", "stage", "p1", **pool),
        node("MaxPool", "p1", "p2", **pool),
        node("Concat", "stage p1 p2", "pooled", axis=1),
        *block("pooled", "c", "silu", strides=[2, 2]),
        onnx.helper.make_node("Resize", ["c", "", "scales"], ["up"], mode="nearest"),
        node("Concat", "up stage", "wide", axis=1),
        node("Conv", "wide head1", "fine"),
        node("Conv", "c head2", "coarse"),
    ]
    convs = {"a": (12, 3), "b": (6, 6), "c": (16, 54)}
    numbers = {"halves": ints(6, 6), "scales": np.float32([1, 1, 2, 2])}
    heads = {"head1": rand(7, 34, 1, 1), "head2": rand(7, 16, 1, 1)}
    return model(nodes, {"x": rand(1, 3, 16, 24)}, ["fine", "coarse"], {**kernels(convs), **numbers, **heads})


def block(source: str, name: str, activation: str = "relu", **attrs: object) -> list[onnx.NodeProto]:
    """A 3x3 convolution with weights of the block's name, and its activation."""
    conv = node("Conv", f"{source} {name}_w {name}_b", f"{name}_conv", pads=[1, 1, 1, 1], **attrs)
    if activation == "silu":
        return [conv, *silu(f"{name}_conv", name)]
    return [conv, node("Relu", f"{name}_conv", name)]


def silu(source: str, target: str) -> list[onnx.NodeProto]:
    return [node("Sigmoid", source, f"{target}_gate"), node("Mul", f"{source} {target}_gate", target)]


def kernels(convs: dict[str, tuple[int, int]]) -> dict[str, Array]:
    """Weights and biases of blocks, by their channels out and in, scaled so that activations stay near 1."""
    weights = {f"{k}_w": rand(out, inner, 3, 3) / np.float32(3 * inner**0.5) for k, (out, inner) in convs.items()}
    return weights | {f"{k}_b": rand(out) for k, (out, _) in convs.items()}
