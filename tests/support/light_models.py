"""The nine light_* networks of the onnx package, whose weights are all one constant there, and the same with seeded
weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # hundreds of megabytes of weights
LIGHT = [
    pytest.param(path.stem[len("light_") :], marks=[pytest.mark.slow] if path.stem.endswith(LARGE) else [])
    for path in sorted(FOLDER.glob("light_*.onnx"))
]


def load(name: str) -> tuple[onnx.ModelProto, str, tuple[int, ...]]:
    """The model, and the name and shape of its input."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    constants = {tensor.name for tensor in model.graph.initializer}
    (x,) = [value for value in model.graph.input if value.name not in constants]
    return model, x.name, tuple(d.dim_value for d in x.type.tensor_type.shape.dim)


def fill_with_random_weights(model: onnx.ModelProto) -> None:
    """Initializers of seeded random numbers in place of the constant fills, so that sums of products keep about the
    size of what they add: every activation of the nine stays within fp16."""
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if "__SHAPE" in tensor.name}
    nodes = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shape = shapes[node.input[0]]
        if len(shape) > 1:
            array = rng.standard_normal(shape, np.float32) * np.float32(np.prod(shape[1:]) ** -0.5)
        else:  # scales and variances are among them
            array = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)


def seeded_light_model(name: str) -> onnx.ModelProto:
    """The model with random weights. The input of a softmax at its end is an output too: it shows errors better."""
    model, _, _ = load(name)
    fill_with_random_weights(model)
    if model.graph.node[-1].op_type == "Softmax":
        model.graph.output.append(helper.make_empty_tensor_value_info(model.graph.node[-1].input[0]))
    return model
