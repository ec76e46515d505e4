"""The nine light_* networks of the onnx package, whose weights are all one constant there: as they are, and with random
weights.

onnxruntime is what they are held against: the evaluator of the onnx package takes batch norms of opset 9 for training,
and does not flatten what goes into the softmax of that time.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import hexane as hx
from compare import assert_close
from light_models import FOLDER, LIGHT, load, seeded_light_model


def by_onnxruntime(data: bytes, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_all_nine_are_there() -> None:
    assert len(LIGHT) == 9


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_model_gives_the_output_that_comes_with_it(name: str) -> None:
    model, _, shape = load(name)
    x = (np.arange(np.prod(shape), dtype=np.float32) / np.prod(shape)).reshape(shape).astype(np.float32)
    want = numpy_helper.to_array(onnx.load_tensor(FOLDER / f"light_{name}_output_0.pb"))
    assert_close(hx.compile(model)(x), want)


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_model_with_random_weights_matches_onnxruntime(name: str) -> None:
    _, x, shape = load(name)
    data = seeded_light_model(name).SerializeToString()
    feeds = {x: np.random.default_rng(1).standard_normal(shape, np.float32)}
    got = hx.compile(data)(feeds)
    for array, want in zip(got.values() if isinstance(got, dict) else [got], by_onnxruntime(data, feeds), strict=True):
        assert_close(array, want)
