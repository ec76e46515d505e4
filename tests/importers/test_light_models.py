"""The nine light_* networks of the onnx package, whose weights are all one constant there: as they are, and with random weights.

onnxruntime is what they are held against: the evaluator of the onnx package takes batch norms of opset 9 for training, and
does not flatten what goes into the softmax of that time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import hexane as hx
from compare import assert_close

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # hundreds of megabytes of weights
NAMES = [
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
    """Initializers of seeded random numbers in place of the constant fills, products keeping their size."""
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if "__SHAPE" in tensor.name}
    nodes = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shape = shapes[node.input[0]]
        if len(shape) > 1:
            array = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:  # scales and variances are among them
            array = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del graph.node[:]
    graph.node.extend(nodes)


def by_onnxruntime(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_all_nine_are_there() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", NAMES)
def test_a_light_model_gives_the_output_that_comes_with_it(name: str) -> None:
    model, _, shape = load(name)
    x = (np.arange(np.prod(shape), dtype=np.float32) / np.prod(shape)).reshape(shape).astype(np.float32)
    want = numpy_helper.to_array(onnx.load_tensor(FOLDER / f"light_{name}_output_0.pb"))
    assert_close(hx.compile(model)(x), want)


@pytest.mark.parametrize("name", NAMES)
def test_a_light_model_with_random_weights_matches_onnxruntime(name: str) -> None:
    model, x, shape = load(name)
    fill_with_random_weights(model)
    if model.graph.node[-1].op_type == "Softmax":  # its input shows errors better than its output
        model.graph.output.append(helper.make_empty_tensor_value_info(model.graph.node[-1].input[0]))
    data = model.SerializeToString()
    del model
    feeds = {x: np.random.default_rng(1).standard_normal(shape, np.float32)}
    got = hx.compile(data)(feeds)
    for array, want in zip(got.values() if isinstance(got, dict) else [got], by_onnxruntime(data, feeds), strict=True):
        assert_close(array, want)
