"""ONNX models become graphs that mean the same."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hexane.importers.onnx import import_onnx
from hexane.reference import run_reference


def model(nodes, inputs, outputs, constants=None, opset=17, **parts):
    """A ModelProto; inputs are name -> (shape, dtype)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (shape, dtype) in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **parts)


def peer(proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def assert_matches(found, wanted):
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    scale = max(np.abs(wanted).max(initial=0), 1e-30)
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "randwire", "resnet8", "resnet8_bn",
     "transformer", "unet_128", "yolo_160"],
)  # fmt: skip
def test_benchmark_networks_match_onnxruntime(name, model_file):
    proto = onnx.load(model_file(name))
    graph = import_onnx(proto)
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    found = run_reference(graph, feeds)
    for output, wanted in peer(proto, feeds).items():
        assert_matches(found[output], wanted)


def test_an_output_may_be_an_input_or_a_constant():
    graph = import_onnx(model([], {"x": ([2], "f4")}, ["x", "c"], {"c": np.arange(3.0)}))
    found = run_reference(graph, {"x": np.ones(2, np.float32)})
    assert found["x"].tolist() == [1, 1]
    assert found["c"].tolist() == [0, 1, 2]
    assert TensorProto.FLOAT == 1
