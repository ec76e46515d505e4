"""Quantised .tflite networks in the C99 runtime: the bytes of LiteRT's reference kernels and of the host."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from command import Cli
from hexane.emit.cmsis_nn import Body
from hexane.emit.plan_view import PlanView
from hexane.emit.prepare import prepared
from hexane.runtime.c99 import C99Model
from tflite_networks import NETWORKS, Network
from tflite_references import reference
from tflite_writer import TfliteModel

GRIDS = {"int8": ("int8", True), "one scale": ("int8", False), "uint8": ("uint8", False)}
FEEDS = 3


def has_litert_s_bytes(data: bytes, c99: Any, folder: Path, rows: int, seed: int = 0) -> None:
    net = hx.compile(data, target="host", threads=1, memory=hx.Memory(rows=rows))
    assert isinstance(net, hx.Model)
    net.save(folder / "plan.hxp")
    device = C99Model((folder / "plan.hxp").read_bytes(), c99)
    (port,) = net.inputs
    for i in range(FEEDS):
        info = np.iinfo(port.dtype.numpy)
        feed = np.random.default_rng(seed + i).integers(info.min, info.max + 1, port.shape).astype(port.dtype.numpy)
        want = reference(data, feed)
        here, there = net(feed), device({port.name: feed})
        for j, array in enumerate(want):
            name = net.outputs[j].name
            assert np.array_equal(np.asarray(here[name] if isinstance(here, dict) else here), array), name
            assert np.array_equal(there[name], array), name
        assert len(np.unique(np.concatenate([array.ravel() for array in want]))) > 8


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_litert_s_bytes(c99: Any, tmp_path: Path, name: str, grid: str) -> None:
    kind, by_channel = GRIDS[grid]
    has_litert_s_bytes(NETWORKS[name](Network(len(name), kind, by_channel)), c99, tmp_path, 0)


@pytest.mark.parametrize("name", ["keyword spotting", "visual wake words", "image classification"])
def test_a_network_that_is_streamed_has_litert_s_bytes(c99: Any, tmp_path: Path, name: str) -> None:
    has_litert_s_bytes(NETWORKS[name](Network(5)), c99, tmp_path, 1)


@pytest.mark.parametrize("bias", ["int64", "int32", ""])
@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_layers_of_int16_have_litert_s_bytes(c99: Any, tmp_path: Path, kind: str, bias: str) -> None:
    """Fully connected, on a range where no number is stored at its end; by weights of 8 bits."""
    rng, m = np.random.default_rng(len(bias)), TfliteModel()
    x = m.tensor((4, 64), "int16", scales=0.0003)
    scales = rng.uniform(0.005, 0.02, 70)
    w = m.tensor((70, 64), "int8", rng.integers(-127, 128, (70, 64)), scales)
    b = m.tensor((70,), bias, rng.integers(-(2**24), 2**24, 70), scales * 0.0003) if bias else -1
    y = m.tensor((4, 70), "int16", scales=0.0024)
    m.op("FULLY_CONNECTED", [x, w, b], [y], **({"quantized_bias_type": 2} if bias == "int32" else {}))
    if kind == "int8":  # in front of a layer and behind one
        before, after = m.tensor((4, 64), "int8", scales=0.07, zero=3), m.tensor((4, 70), "int8", scales=0.6, zero=-9)
        m.op("QUANTIZE", [before], [x])
        m.graph["operators"].insert(0, m.graph["operators"].pop())
        m.op("QUANTIZE", [y], [after])
        x, y = before, after
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    has_litert_s_bytes(m.tobytes(), c99, tmp_path, 0)


def test_a_product_of_int16_has_litert_s_bytes(c99: Any, tmp_path: Path) -> None:
    m = TfliteModel()
    x, y = m.tensor((2, 5, 24), "int16", scales=0.0003), m.tensor((2, 5, 5), "int16", scales=0.003)
    m.op("BATCH_MATMUL", [x, x], [y], adj_y=1)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    has_litert_s_bytes(m.tobytes(), c99, tmp_path, 0)


def test_cmsis_nn_leaves_sums_that_are_rounded_once_to_the_runtime(tmp_path: Path) -> None:
    """Its functions round twice."""
    net = hx.compile(NETWORKS["keyword spotting"](Network(9)), target="host", threads=1)
    assert isinstance(net, hx.Model)
    net.save(tmp_path / "net.hxp")
    steps = PlanView(prepared((tmp_path / "net.hxp").read_bytes())).bodies()["dsp"].steps
    assert [body for _, kernel, body in steps if kernel == "q31_matmul"] == [
        "its sums are rounded once, as products of doubles"
    ]
    assert any(isinstance(body, Body) for _, kernel, body in steps if kernel == "q31_conv")


def test_the_app_of_a_network_builds_and_checks_its_bytes(cli: Cli, tmp_path: Path) -> None:
    """The golden output that the app compares with comes from the host."""
    (tmp_path / "net.tflite").write_bytes(NETWORKS["keyword spotting"](Network(9)))
    plan, app = tmp_path / "net.hxp", tmp_path / "app"
    assert cli("compile", tmp_path / "net.tflite", "--runtime", "c99", "-o", plan).code == 0
    assert cli("codegen", plan, "-o", app).code == 0
    ran = subprocess.run(["make", "check"], cwd=app, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_softmax_of_bytes_is_one_step_with_litert_s_bytes(c99: Any, tmp_path: Path, kind: str) -> None:
    m, least = TfliteModel(), -128 if kind == "int8" else 0
    x, y = m.tensor((6, 40), kind, scales=0.11, zero=least + 100), m.tensor((6, 40), kind, scales=2**-8, zero=least)
    m.op("SOFTMAX", [x], [y], beta=1.0)
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    has_litert_s_bytes(m.tobytes(), c99, tmp_path, 0)
    assert kernels(tmp_path) == ["q31_softmax"]


def kernels(folder: Path) -> list[str]:
    view = PlanView((folder / "plan.hxp").read_bytes())
    return [view.string(step["kernel"]) for step in view.sections["steps"]]


@pytest.mark.parametrize("by_channel", [False, True])
def test_a_network_of_dynamic_range_has_the_bits_of_litert(c99: Any, tmp_path: Path, by_channel: bool) -> None:
    """Convolution and depthwise convolution; then a layer of each row."""
    rng, m = np.random.default_rng(5), TfliteModel()

    def weights(*shape: int, axis: int = 0) -> int:
        scales = rng.uniform(0.002, 0.01, shape[axis] if by_channel else 1)
        return m.tensor(shape, "int8", rng.integers(-127, 128, shape), scales, axis=axis)

    x, first, second = m.tensor((1, 9, 8, 4)), m.tensor((1, 9, 8, 16)), m.tensor((1, 9, 8, 16))
    rows, y = m.tensor((72, 16)), m.tensor((72, 10))
    window = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
    m.op("CONV_2D", [x, weights(16, 3, 3, 4), m.tensor((16,), "float32", rng.normal(0, 1, 16))], [first],
         fused_activation_function=1, **window)  # fmt: skip
    m.codes[-1]["version"] = 5
    if by_channel:
        m.op("DEPTHWISE_CONV_2D", [first, weights(1, 3, 3, 16, axis=3), m.tensor((16,), "float32", rng.normal(0, 1, 16))],
             [second], depth_multiplier=1, fused_activation_function=3, **window)  # fmt: skip
        m.codes[-1]["version"] = 6
    else:
        second = first
    m.op("RESHAPE", [second], [rows], new_shape=[72, 16])
    m.op("FULLY_CONNECTED", [rows, weights(10, 16), -1], [y], asymmetric_quantize_inputs=by_channel)
    m.codes[-1]["version"] = 9
    m.graph["inputs"], m.graph["outputs"] = [x], [second, y]
    data = m.tobytes()
    net = hx.compile(data, target="host", threads=1)
    assert isinstance(net, hx.Model)
    net.save(tmp_path / "plan.hxp")
    assert kernels(tmp_path).count("quantize_by_range") == (3 if by_channel else 2)
    device = C99Model((tmp_path / "plan.hxp").read_bytes(), c99)
    for size in (1, 300):
        feed = (rng.standard_normal((1, 9, 8, 4)) * size).astype(np.float32)
        (image, scores), (port,) = reference(data, feed), net.inputs
        here, there = net(feed), device({port.name: feed})
        assert isinstance(here, dict)
        for name, array in here.items():
            assert np.array_equal(there[name], np.asarray(array))
        assert np.array_equal(np.asarray(here["t2" if by_channel else "t1"]), image)
        assert np.array_equal(np.asarray(here["t4"]), scores)


def test_a_network_of_bytes_takes_and_gives_floats(c99: Any, tmp_path: Path) -> None:
    """The converter's default for int8: QUANTIZE in front, DEQUANTIZE behind."""
    rng, m = np.random.default_rng(2), TfliteModel()
    before, x = m.tensor((3, 40)), m.tensor((3, 40), "int8", scales=0.03, zero=11)
    w = m.tensor((6, 40), "int8", rng.integers(-127, 128, (6, 40)), 0.017)
    b = m.tensor((6,), "int32", rng.integers(-9000, 9000, 6), 0.03 * 0.017)
    y, after = m.tensor((3, 6), "int8", scales=0.21, zero=-4), m.tensor((3, 6))
    m.op("QUANTIZE", [before], [x])
    m.op("FULLY_CONNECTED", [x, w, b], [y])
    m.op("DEQUANTIZE", [y], [after])
    m.graph["inputs"], m.graph["outputs"] = [before], [after]
    net = hx.compile(m.tobytes(), threads=1)
    assert isinstance(net, hx.Model)
    device = C99Model(net.plan_bytes(), c99)
    for scale in (1, 20):
        feed = (rng.normal(size=(3, 40)) * scale).astype(np.float32)
        (want,) = reference(m.tobytes(), feed)
        np.testing.assert_array_equal(device({net.inputs[0].name: feed})[net.outputs[0].name], want)
    feed = np.full((3, 40), 1e30, np.float32)
    np.testing.assert_array_equal(device({net.inputs[0].name: feed})[net.outputs[0].name], net(feed))
