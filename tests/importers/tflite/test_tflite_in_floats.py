"""Net.tflite#float: quantised files as the real numbers that they stand for, whole on the engine."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import sources
from hexane.errors import Error
from hexane.importers.tflite.opened import open_model
from tflite_networks import NETWORKS, Network
from tflite_references import reference
from tflite_writer import TfliteModel


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_of_bytes_are_near_litert_and_on_the_engine(name: str, tmp_path: Path) -> None:
    data = NETWORKS[name](Network(3))
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    (tensor,) = sources.open(path).graph().inputs
    rng = np.random.default_rng(0)
    info = np.iinfo(tensor.dtype.numpy)
    x = rng.integers(info.min, info.max + 1, tensor.shape).astype(tensor.dtype.numpy)
    got = hx.compile(f"{path}#float", threads=1)(x)
    results = list(got.values()) if isinstance(got, dict) else [got]
    for result, want in zip(results, reference(data, x), strict=True):
        assert (result.dtype, result.shape) == (want.dtype, want.shape)
        assert np.abs(result.astype(int) - want.astype(int)).max() <= 4
    found = hx.preflight(f"{path}#float", "M4")
    assert len(found.host) <= 1 + len(results)  # the casts of its ports


def test_what_is_left_of_a_relu_in_the_scales_is_kept() -> None:
    """Integers from 0 on: the sums below are cut off though no activation is named."""
    m = TfliteModel()
    x, y = m.tensor((1, 4), "int8", scales=0.5), m.tensor((1, 4), "int8", scales=0.25, zero=-128)
    m.op("ADD", [x, x], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    net = hx.compile(open_model(m.tobytes()).graph("float", {}))
    feed = np.array([[-5, 3, 100, 127]], np.int8)
    assert np.array_equal(np.asarray(net(feed)), reference(m.tobytes(), feed)[0])


def test_layers_of_dynamic_range_are_products_of_floats() -> None:
    m, rng = TfliteModel(), np.random.default_rng(1)
    w, scales = rng.integers(-127, 128, (6, 30)).astype(np.int8), rng.uniform(0.01, 0.02, 6).astype("f")
    x, y = m.tensor((3, 30)), m.tensor((3, 6))
    m.op("FULLY_CONNECTED", [x, m.tensor((6, 30), "int8", w, scales)], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    feed = rng.normal(0, 1, (3, 30)).astype("f")
    got = np.asarray(hx.compile(open_model(m.tobytes()).graph("float", {}))(feed))
    np.testing.assert_allclose(got, feed @ (w * scales[:, None]).T, rtol=1e-5, atol=1e-5)


def test_a_signature_has_its_floats_and_others_are_named() -> None:
    m = TfliteModel()
    x, y = m.tensor((2,)), m.tensor((2,))
    m.op("NEG", [x], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    model = open_model(m.tobytes())
    assert model.graph("main.float", {}).outputs[0].value.shape == (2,)
    with pytest.raises(Error, match="got the function 'other', need one of main, or 'float'"):
        model.graph("other.float", {})


@pytest.mark.parametrize(("stride", "kernel", "out"), [(2, 3, 10), (2, 2, 10), (3, 2, 15), (1, 3, 5), (2, 4, 11)])
@pytest.mark.parametrize("padding", [0, 1])
def test_transposed_convolutions_of_floats_are_those_of_litert(
    stride: int, kernel: int, out: int, padding: int
) -> None:
    m, rng = TfliteModel(), np.random.default_rng(2)
    extent = -(-out // stride) if padding == 0 else (out - kernel) // stride + 1
    x, y = m.tensor((2, extent, extent, 3)), m.tensor((2, out, out, 4))
    shape = m.tensor((4,), "int32", np.array([2, out, out, 4]))
    w = m.tensor((4, kernel, kernel, 3), "float32", rng.normal(0, 1, (4, kernel, kernel, 3)))
    m.op("TRANSPOSE_CONV", [shape, w, x], [y], stride_h=stride, stride_w=stride, padding=padding)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    feed = rng.normal(0, 1, (2, extent, extent, 3)).astype("f")
    (want,) = reference(m.tobytes(), feed)
    np.testing.assert_allclose(np.asarray(hx.compile(m.tobytes())(feed)), want, rtol=1e-5, atol=1e-5)
