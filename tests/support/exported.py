"""Small seeded networks in the forms that exporters write: Paddle's, with dims of -1, and tf2onnx', with unk__ dims."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_models import model, node


def from_paddle(dim: int | str | None = -1, channels: int = 8, classes: int = 2) -> onnx.ModelProto:
    """A classifier of pixels, 3x48x?, as Paddle2ONNX writes one: hard-swish by Clip, a shape that is computed."""
    rng = np.random.default_rng(7)
    constants = {
        "w0": (rng.standard_normal((channels, 3, 3, 3)) * 0.01).astype(np.float32),
        "w1": (rng.standard_normal((channels, 1, 3, 3)) * 0.3).astype(np.float32),
        "w2": (rng.standard_normal((channels, classes)) * 0.3).astype(np.float32),
        "bias": rng.standard_normal(classes).astype(np.float32),
        "three": np.float32(3),
        "zero": np.float32(0),
        "six": np.float32(6),
        "starts": np.array([0]),
        "ends": np.array([1]),
        "rest": np.array([-1]),
        **{f"bn_{k}": rng.uniform(0.5, 2, channels).astype(np.float32) for k in ("scale", "shift", "mean", "var")},
    }

    def hard_swish(of: str, to: str) -> list[onnx.NodeProto]:
        return [
            node("Add", f"{of} three", f"{to}.a"),
            node("Clip", f"{to}.a zero six", f"{to}.c"),
            node("Mul", f"{of} {to}.c", f"{to}.m"),
            node("Div", f"{to}.m six", to),
        ]

    nodes = [
        node("Conv", "x w0", "c0", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c0 bn_scale bn_shift bn_mean bn_var", "b0"),
        *hard_swish("b0", "h0"),
        node("Conv", "h0 w1", "c1", group=channels, strides=[2, 1], pads=[1, 1, 1, 1]),
        *hard_swish("c1", "h1"),
        node("GlobalAveragePool", "h1", "pooled"),
        node("Shape", "pooled", "shape"),
        node("Slice", "shape starts ends", "batch"),
        node("Concat", "batch rest", "flat", axis=0),
        node("Reshape", "pooled flat", "row"),
        node("MatMul", "row w2", "product"),
        node("Add", "product bias", "scores"),
        node("Softmax", "scores", "y", axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [dim, 3, 48, dim])
    made = model(nodes, {"x": x}, ["y"], constants, opset=11)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [dim, classes]))
    return made


def from_tensorflow() -> onnx.ModelProto:
    """Images with channels last, transposed for each convolution, as tf2onnx writes them."""
    rng = np.random.default_rng(8)
    constants = {
        "w0": (rng.standard_normal((8, 3, 3, 3)) * 0.02).astype(np.float32),
        "b0": rng.standard_normal(8).astype(np.float32),
        "w1": (rng.standard_normal((8, 5)) * 0.2).astype(np.float32),
    }
    nodes = [
        node("Transpose", "image", "nchw", perm=[0, 3, 1, 2]),
        node("Conv", "nchw w0 b0", "c0", strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Transpose", "c0", "nhwc", perm=[0, 2, 3, 1]),
        node("Relu", "nhwc", "r0"),
        node("ReduceMean", "r0", "pooled", axes=[1, 2], keepdims=0),
        node("MatMul", "pooled w1", "scores"),
    ]
    dims = ["unk__12", "unk__13", "unk__14", 3]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, dims)
    return model(nodes, {"image": image}, ["scores"], constants, opset=13)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.float32)
