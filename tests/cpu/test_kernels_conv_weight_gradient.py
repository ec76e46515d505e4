"""conv_weight_gradient against a sum over pixels in fp64: exact on integers, the same bits in every piece."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from hexane.ops import OPS
from kernels import Array, poisoned, run, same_bits

# x (N, H, W, C), outputs, then the window.
CASES: list[tuple[tuple[int, ...], int, dict[str, Any]]] = [
    ((2, 9, 11, 3), 5, {"kernel_sizes": (3, 3), "pad": (1, 1, 1, 1)}),
    ((1, 8, 8, 16), 16, {"kernel_sizes": (3, 3), "pad": (1, 1, 1, 1)}),
    ((2, 7, 9, 37), 6, {"kernel_sizes": (1, 1)}),
    ((1, 12, 10, 8), 7, {"kernel_sizes": (2, 3), "strides": (3, 2), "pad": (1, 0, 0, 2)}),
    ((2, 11, 13, 6), 4, {"kernel_sizes": (3, 2), "dilations": (2, 3), "strides": (1, 2)}),
    ((1, 9, 9, 12), 8, {"kernel_sizes": (3, 3), "groups": 4, "pad": (2, 0, 1, 1)}),
    ((2, 8, 9, 40), 40, {"kernel_sizes": (3, 3), "groups": 40, "pad": (1, 1, 1, 1), "strides": (2, 1)}),
    ((1, 6, 7, 5), 10, {"kernel_sizes": (2, 2), "groups": 5}),
    ((3, 1, 30, 4), 3, {"kernel_sizes": (1, 5), "pad": (0, 0, 2, 2)}),
]
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "pad": (0, 0, 0, 0), "groups": 1}


def extents(shape: tuple[int, ...], a: dict[str, Any]) -> tuple[int, ...]:
    return tuple(
        (shape[1 + i] + a["pad"][2 * i] + a["pad"][2 * i + 1] - a["dilations"][i] * (a["kernel_sizes"][i] - 1) - 1)
        // a["strides"][i] + 1
        for i in range(2)
    )  # fmt: skip


def gradient(x: Array, g: Array, a: dict[str, Any]) -> Array:
    shape = (g.shape[3], x.shape[3] // a["groups"], *a["kernel_sizes"])
    attrs = {"pads" if k == "pad" else k: v for k, v in a.items()}
    out = poisoned(shape, np.float32)
    run("conv_weight_gradient", [x, g], [out], attrs)
    for pieces in (2, 3, 7):
        again = poisoned(shape, np.float32)
        run("conv_weight_gradient", [x, g], [again], attrs, pieces=pieces)
        assert same_bits(out, again), f"{pieces} pieces differ from the whole"
    return out


@pytest.mark.parametrize("whole_numbers", [True, False])
@pytest.mark.parametrize(("shape", "outputs", "window"), CASES)
def test_it_is_the_sum_over_all_pixels(
    shape: tuple[int, ...], outputs: int, window: dict[str, Any], whole_numbers: bool
) -> None:
    rng, a = np.random.default_rng(len(shape)), {**WINDOW, **window}
    size = (shape[0], *extents(shape, a), outputs)
    if whole_numbers:
        x, g = (rng.integers(-3, 4, s).astype(np.float32) for s in (shape, size))
    else:
        x, g = (rng.standard_normal(s).astype(np.float32) for s in (shape, size))
    want = OPS["conv_weight_gradient"].ref(x.astype(np.float64), g.astype(np.float64), **a)
    got = gradient(x, g, a)
    if whole_numbers:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * np.abs(want).max())


def test_operands_that_do_not_fit_are_refused() -> None:
    x, g = np.zeros((1, 5, 5, 4), np.float32), np.zeros((1, 3, 3, 2), np.float32)
    attrs = {"kernel_sizes": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    out = np.zeros((2, 4, 3, 3), np.float32)
    run("conv_weight_gradient", [x, g], [out], attrs)
    for change in ({"pads": (1, 1, 1, 1)}, {"groups": 3}, {"groups": 2}, {"strides": (0, 1)}, {"kernel_sizes": (4, 3)}):
        with pytest.raises(Error, match="need"):
            run("conv_weight_gradient", [x, g], [out], {**attrs, **change})
