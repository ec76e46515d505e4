"""One registration holds everything that the importer knows of an ONNX op, and a wrong one is an error at import."""

from collections.abc import Iterator

import numpy as np
import pytest

from hexane.errors import Error
from hexane.importers.onnx import import_onnx, registry
from hexane.importers.onnx.handlers import ONNX_OPS
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.shape_inputs import find_shape_inputs
from hexane.ops.reference import run_reference
from onnx_models import by_onnxruntime, model, node


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registrations of the test are gone after it."""
    monkeypatch.setattr(registry, "ONNX_OPS", ONNX_OPS)
    monkeypatch.setattr(registry, "_registered", set(registry._registered))
    before = dict(ONNX_OPS)
    yield
    ONNX_OPS.clear()
    ONNX_OPS.update(before)


def whole_image(b, n):
    """MaxRoiPool of regions that are whole images, into one number for each channel."""
    assert (n.attrs["pooled_shape"], n.attrs["spatial_scale"]) == ((1, 1), 1)
    n.array(1)
    return b.reduce_max(n.value(0), axes=(2, 3), keep_dims=True)


def test_a_new_op_is_one_function_with_its_facts(scratch: None) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    feeds = {"x": x, "rois": np.array([[0, 0, 0, 3, 3]], np.float32)}
    pool = node("MaxRoiPool", "x rois", "y", pooled_shape=[1, 1])
    proto = model([pool], feeds, ["y"])
    with pytest.raises(Error, match=r"MaxRoiPool .*: Hexane has no such op yet"):
        import_onnx(proto)
    onnx_op("MaxRoiPool", shape_inputs=(1,))(whole_image)
    graph = import_onnx(proto, values={"rois": feeds["rois"]})
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], by_onnxruntime(proto, feeds)[0])
    assert find_shape_inputs([pool], [], feeds) == {"rois"}


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("Reshape", {}, "'Reshape'.: got a second registration, need one"),
        ("Reshapes", {}, "'Reshapes'.: ONNX has no such op"),
        ("MaxRoiPool", {"shape_inputs": (2,)}, "'MaxRoiPool'.: got 2, need one of its 2 inputs or an attribute"),
        ("MaxRoiPool", {"ignores": ("pooled",)}, "'MaxRoiPool'.: got 'pooled', need one of its 2 inputs"),
        ("MaxRoiPool", {"until": 6}, "'MaxRoiPool', until=6.: need until=6, no facts, and the newer op before"),
        ("Abs", {"until": 5}, "'Abs', until=5.: need until=6, no facts, and the newer op before"),
        ("Abs", {"until": 6, "ignores": (0,)}, "'Abs', until=6.: need until=6, no facts"),
    ],
)
def test_a_wrong_registration_is_refused(scratch: None, name: str, facts: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        onnx_op(name, **facts)(whole_image)


def test_an_unknown_fact_is_refused(scratch: None) -> None:
    with pytest.raises(TypeError, match="'shape_input'"):
        onnx_op("MaxRoiPool", shape_input=(1,))(whole_image)


@pytest.mark.parametrize("op", ["BlackmanWindow", "HammingWindow", "HannWindow"])
def test_shape_inputs_of_an_op_that_onnx_writes_as_others_follow_from_those(op: str) -> None:
    assert op not in ONNX_OPS
    assert find_shape_inputs([node(op, "n", "y")], [], {"n"}) == {"n"}
