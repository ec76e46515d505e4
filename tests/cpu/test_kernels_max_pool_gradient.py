"""max_pool_gradient against a loop over windows, and the same bits in every piece."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from kernels import Array, poisoned, run, same_bits

# x (N, H, W, C), windows of g, then what differs from WINDOW.
CASES: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((2, 8, 8, 16), (4, 4), {}),
    ((1, 9, 11, 3), (5, 6), {"kernel_sizes": (3, 3), "pads": (1, 1, 1, 1)}),
    ((3, 7, 9, 37), (4, 5), {"pads": (0, 1, 1, 0)}),
    ((2, 7, 7, 8), (4, 4), {"ceil_mode": 1}),
    ((1, 10, 12, 20), (8, 4), {"kernel_sizes": (2, 3), "strides": (1, 3), "dilations": (2, 2), "pads": (0, 0, 1, 1)}),
    ((2, 1, 30, 4), (1, 26), {"kernel_sizes": (1, 5), "strides": (1, 1)}),
    ((1, 4, 4, 70), (1, 1), {"kernel_sizes": (4, 4), "strides": (4, 4)}),
]
WINDOW = {"kernel_sizes": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "ceil_mode": 0}


def wanted(x: Array, g: Array, a: dict[str, Any]) -> Array:
    dx = np.zeros(x.shape, np.float64)
    for n, y, z, c in np.ndindex(*g.shape):
        best = None
        for i, j in product(*map(range, a["kernel_sizes"])):
            row = y * a["strides"][0] - a["pads"][0] + i * a["dilations"][0]
            column = z * a["strides"][1] - a["pads"][2] + j * a["dilations"][1]
            if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
                value, place = x[n, row, column, c], (n, row, column, c)
                if best is None or value > x[best] or (np.isnan(value) and not np.isnan(x[best])):
                    best = place
        if best is not None:
            dx[best] += g[n, y, z, c]
    return dx


def gradient(x: Array, g: Array, a: dict[str, Any]) -> Array:
    out = poisoned(x.shape, np.float32)
    run("max_pool_gradient", [x, g], [out], a)
    for pieces in (2, 3, 7):
        again = poisoned(x.shape, np.float32)
        run("max_pool_gradient", [x, g], [again], a, pieces=pieces)
        assert same_bits(out, again), f"{pieces} pieces differ from the whole"
    return out


@pytest.mark.parametrize(("shape", "windows", "window"), CASES)
def test_each_window_gives_to_the_first_of_its_largest(
    shape: tuple[int, ...], windows: tuple[int, int], window: dict[str, Any]
) -> None:
    rng, a = np.random.default_rng(len(shape)), {**WINDOW, **window}
    x = rng.integers(-2, 3, shape).astype(np.float32)  # many are equal
    g = rng.integers(-8, 9, (shape[0], *windows, shape[3])).astype(np.float32)
    np.testing.assert_array_equal(gradient(x, g, a), wanted(x, g, a))


def test_a_nan_is_the_largest_and_minus_infinity_gets_what_nothing_beats() -> None:
    x = np.full((1, 2, 4, 1), -np.inf, np.float32)
    x[0, 0, 1], x[0, 1, 0] = np.nan, 5
    g = np.array([[[[3], [4]]]], np.float32)
    got = gradient(x, g, WINDOW)
    np.testing.assert_array_equal(got[0, :, :, 0], [[0, 3, 4, 0], [0, 0, 0, 0]])


def test_operands_that_do_not_fit_are_refused() -> None:
    x, g = np.zeros((1, 5, 5, 4), np.float32), np.zeros((1, 2, 2, 4), np.float32)
    run("max_pool_gradient", [x, g], [np.zeros_like(x)], WINDOW)
    for change in ({"pads": (1, 1, 1, 1)}, {"strides": (0, 1)}, {"kernel_sizes": (6, 2)}, {"pads": (-1, 0, 0, 0)}):
        with pytest.raises(Error, match="need"):
            run("max_pool_gradient", [x, g], [np.zeros_like(x)], {**WINDOW, **change})
    for other in (np.zeros((1, 2, 2, 3), np.float32), np.zeros((1, 3, 2, 4), np.float32)):
        with pytest.raises(Error, match="need"):
            run("max_pool_gradient", [x, other], [np.zeros_like(x)], WINDOW)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_training_step_reads_images_in_either_layout(layout: str) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(-3, 4, (2, 3, 7, 7)).astype(np.float32)
    x = hx.input("x", image.shape)
    seen = hx.transpose(x, perm=(0, 2, 3, 1)) if layout == "nhwc" else x
    loss = hx.reduce_sum(hx.max_pool(seen, kernel_sizes=3, strides=2, pad=1, layout=layout) * 2)
    net = hx.compile(hx.graph({"dx": hx.grad(loss, [x])[0]}), threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert "max_pool_gradient" in {step.kernel for step in net.program.steps}
    attrs = {**WINDOW, "kernel_sizes": (3, 3), "pads": (1, 1, 1, 1)}
    want = wanted(image.transpose(0, 2, 3, 1), np.full((2, 4, 4, 3), 2), attrs).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(net(image), want)
