"""Quantised networks end to end: in integers, and as near to onnxruntime without optimisations as its default mode is.

Where a sum of floats falls between two steps of a grid, the order of the sum decides, and twenty layers make five steps
of it: onnxruntime's own order is no nearer to ONNX than another. So a network may also be as far from onnxruntime as
ONNX is when every op is computed exactly and rounded once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.pipeline import lower
from hexane.targets import load_target
from networks import small_networks
from onnx_models import skipped_where_aged
from qdq import quantized_model

Array = Any
Find = Callable[[str], Path]
NETWORKS = (
    *small_networks(),
    "ds_cnn",
    "resnet8",
    "mobilenet_v2_035_96",
    "transformer",
    "autoencoder",
    "yolo_160",
    "unet_128",
    "randwire",
)
FLOAT = {"cpu.conv", "cpu.conv_transpose", "cpu.matmul"}
LEVELS = onnxruntime.GraphOptimizationLevel


def onnxruntime_outputs(model: bytes, feeds: dict[str, Array], level: Any) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    with skipped_where_aged():
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)  # type: ignore[no-any-return]


def random_feeds(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def steps_apart(got: list[Array], want: list[Array]) -> float:
    """The largest distance, in steps of the 8-bit grid that each output lies on."""
    apart = 0.0
    for a, b in zip(got, want, strict=True):
        values = np.unique(b)
        step = np.diff(values).min() if values.size > 1 else 1.0
        apart = max(apart, float(np.abs(a.astype(np.float64) - b).max() / step))
    return apart


@pytest.mark.parametrize(("kind", "weights"), [("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_quantised_network_is_as_near_as_onnxruntime(name: str, kind: str, weights: str, model_file: Find) -> None:
    floats = onnx.load(model_file(name))
    model = quantized_model(floats, random_feeds(floats, 1), kind, weights)
    net = hx.compile(model, threads=2)
    graph = import_onnx(model)
    for seed in (2, 3):
        feeds = random_feeds(floats, seed)
        result = net(feeds)
        got = list(result.values()) if isinstance(result, dict) else [result]
        exact = list(run_reference(graph, feeds).values())
        plain = onnxruntime_outputs(model, feeds, LEVELS.ORT_DISABLE_ALL)
        default = onnxruntime_outputs(model, feeds, LEVELS.ORT_ENABLE_ALL)
        allowed = max(steps_apart(default, plain), steps_apart(exact, plain))
        assert steps_apart(got, plain) <= allowed + 1.001, f"inputs of seed {seed}"


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_product_of_a_quantised_network_is_left_in_floats(name: str, kind: str, model_file: Find) -> None:
    floats = onnx.load(model_file(name))
    graph = import_onnx(quantized_model(floats, random_feeds(floats, 1), kind))
    assert FLOAT & {node.op for node in lower(graph, load_target("host")).nodes} == set()
