"""Networks in TFLite's arithmetic: what the compiler makes of scales, against the model of it in Python's whole
numbers."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
import tflite_model as tflite
from hexane.errors import Error
from hexane.report.compare import compare
from small_devices import SMALL_DEVICE_NETWORKS

X, OUT = (0.021, -7), (0.043, 5)  # scales, as fp32 has them, and zero points


def single(number: float) -> float:
    return float(np.float32(number))


def port(name: str, shape: tuple[int, ...], grid: tuple[float, int] = X) -> hx.Tensor:
    return hx.dequantize(hx.input(name, shape, "int8"), np.float32(grid[0]), np.int8(grid[1]))


def stored(y: hx.Tensor, grid: tuple[float, int] = OUT) -> hx.Tensor:
    return hx.quantize(y, np.float32(grid[0]), np.int8(grid[1]), dtype="int8")


def compiled(y: hx.Tensor) -> hx.Model:
    net = hx.compile(y, target="host", numerics="q31")
    assert isinstance(net, hx.Model)
    return net


def kernels(net: hx.Model) -> set[str]:
    assert net.program is not None
    return {step.kernel for step in net.program.steps}


def some(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("real_bias", [False, True])
@pytest.mark.parametrize(
    ("clamp", "low", "high"), [("", -128, 127), ("relu", 5, 127), ("relu6", 5, 127), ("clip", 3, 28)]
)
def test_a_convolution_is_tflites(clamp: str, low: int, high: int, real_bias: bool) -> None:
    weight, rng = some((6, 4, 3, 3), 1), np.random.default_rng(2)
    scales = rng.uniform(0.001, 0.03, 6).astype(np.float32)
    bias = rng.integers(-800, 800, 6).astype(np.int32)
    products = np.array([single(X[0]) * float(scale) for scale in scales])
    reals = hx.dequantize(hx.const(bias), np.float32(X[0]) * scales)
    y = hx.conv(
        port("x", (1, 4, 6, 5)),
        hx.dequantize(hx.const(weight), scales),
        np.float32(bias * products) if real_bias else reals,
        pad=1,
    )
    if clamp == "clip":
        y = hx.clip(y, alpha=-0.1, beta=1.0)
    elif clamp:
        y = getattr(hx, clamp)(y)
    net = compiled(stored(y))
    assert kernels(net) >= {"q31_conv"}
    x = some((1, 4, 6, 5))
    want = np.zeros((1, 6, 5, 6), np.int8)
    pairs = [tflite.multiplier_of(single(X[0]) * float(scale) / single(OUT[0])) for scale in scales]
    tflite.conv(x.transpose(0, 2, 3, 1), weight, bias, X[1], pairs, (1, 1), (1, 1), 1, want, OUT[1], low, high)
    assert np.array_equal(net(x), want.transpose(0, 3, 1, 2))


def test_a_sum_a_product_and_a_mean_are_tflites() -> None:
    a, b = port("a", (1, 3, 8, 7)), port("b", (1, 3, 8, 7), (0.033, 12))
    net = compiled([stored(a + b), stored(hx.relu(a * b)), stored(hx.reduce_mean(a, axes=(2, 3)))])  # type: ignore[arg-type]
    assert kernels(net) >= {"q31_add", "q31_mul", "q31_mean"}
    x, y = some((1, 3, 8, 7), 3), some((1, 3, 8, 7), 4)
    grids = [(single(s), z) for s, z in (X, (0.033, 12), OUT)]
    added, scaled, mean = net(a=x, b=y).values()
    for i in np.ndindex(*x.shape):
        assert added[i] == tflite.add(int(x[i]), int(y[i]), grids, -128, 127)
        assert scaled[i] == tflite.mul(int(x[i]), int(y[i]), grids, 5, 127)
    want = [tflite.mean(x[0, c].reshape(-1).tolist(), [grids[0], grids[2]], -128, 127) for c in range(3)]
    assert mean.reshape(-1).tolist() == want


def test_an_average_pool_of_one_grid_is_tflites() -> None:
    net = compiled(stored(hx.avg_pool(port("x", (1, 5, 7, 6)), kernel_sizes=3, strides=2, pad=1), X))
    assert "q31_avg_pool" in kernels(net)
    x = some((1, 5, 7, 6))
    got = net(x)
    for _, c, oy, ox in np.ndindex(*got.shape):
        taps = [int(p[0]) for _, p in tflite.window(x[0, c][:, :, None], (oy, ox), (3, 3), (2, 2), (1, 1))]
        assert got[0, c, oy, ox] == tflite.average(taps)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: stored(hx.avg_pool(x, kernel_sizes=2)), "different scales"),
        (lambda x: stored(hx.avg_pool(x, kernel_sizes=2, pad=1, exclude_padding=False), X), "count the padding"),
        (
            lambda x: stored(hx.sigmoid(hx.conv(x, hx.dequantize(hx.const(some((2, 5, 1, 1))), np.float32(0.01))))),
            "sigmoid",
        ),
    ],
)
def test_what_tflite_has_no_integers_for_is_kept_and_said(make: Any, reason: str) -> None:
    net = compiled(make(port("x", (1, 5, 7, 6))))
    assert net.program is not None
    assert not any(name.startswith("q31") for name in kernels(net))
    (decision,) = (d for d in net.program.decisions if d.stage == "use_q31")
    assert reason in decision.reason


@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_a_network_streams_and_is_a_few_steps_from_onnxs_arithmetic(name: str) -> None:
    model = SMALL_DEVICE_NETWORKS[name]()
    exact = hx.compile(model, target="host")
    whole, streamed = (hx.compile(model, target="host", numerics="q31", memory=hx.Memory(rows=rows)) for rows in (0, 1))
    assert isinstance(exact, hx.Model)
    x = np.random.default_rng(0).standard_normal(exact.inputs[0].shape).astype(np.float32)
    assert whole(x).tobytes() == streamed(x).tobytes()
    assert np.abs(whole(x) - exact(x)).max() < 0.05 * np.abs(exact(x)).max()


def test_compare_shows_where_the_two_part() -> None:
    graph = hx.graph(
        stored(
            hx.conv(port("x", (1, 4, 6, 5)), hx.dequantize(hx.const(some((6, 4, 3, 3), 1)), np.float32(0.02)), pad=1)
        )
    )
    found = compare(graph, ["q31", "host"], {"x": some((1, 4, 6, 5))}, tolerance=0.0)
    assert found.targets == ("q31", "ieee")
    assert found.ok or {p.cause.kind for p in found.partings if p.cause} == {"q31"}


def test_a_chip_has_no_such_arithmetic() -> None:
    with pytest.raises(Error, match="q31"):
        hx.compile(stored(port("x", (1, 4))), target="h13", numerics="q31")
