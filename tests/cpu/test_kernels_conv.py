"""conv against a sum over taps in fp64, rounded once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_kernels_matmul import CONSTANT, DTYPE, close, integers, random

from hexane.errors import Error
from kernels import Array, poisoned, run, same_bits


def reference(x: Array, w: Array, strides: Any, dilations: Any, pads: Any, groups: int) -> Array:
    """x [N, *spatial, C] in fp64; pads are (begin, end) of each axis."""
    spatial, kernel = x.ndim - 2, w.shape[2:]
    padded = np.pad(x.astype(float), [(0, 0), *[(pads[2 * i], pads[2 * i + 1]) for i in range(spatial)], (0, 0)])
    extents = [(padded.shape[1 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(spatial)]
    out = np.zeros((x.shape[0], *extents, w.shape[0]))
    c, o = x.shape[-1] // groups, w.shape[0] // groups
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, extents, strides, strict=True)
        )
        view = padded[(slice(None), *window)]
        for g in range(groups):
            weight = w[(slice(g * o, (g + 1) * o), slice(None), *tap)].astype(float)
            out[..., g * o : (g + 1) * o] += view[..., g * c : (g + 1) * c] @ weight.T
    return out


def pieced(name: str, inputs: Sequence[Any], attrs: Any, shape: Sequence[int], constant: bool) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    cut: dict[str, Any] = {"constants": [1, 2] if constant else []}
    out = poisoned(shape, inputs[0].dtype)
    run(name, inputs, [out], attrs, **cut)
    for which in range(3):
        for pieces in (3, 7):
            again = poisoned(shape, inputs[0].dtype)
            run(name, inputs, [again], attrs, pieces=pieces, which=which, **cut)
            assert same_bits(out, again), f"{pieces} pieces of cut {which} differ from the whole"
    return out


def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *extra: Array,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    epilogue: Sequence[tuple[str, float, float, int]] = (),
    constant: bool = True,
    shape: Sequence[int],
) -> Array:
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups, "epilogue": epilogue}
    return pieced("conv", [x, w, bias, *extra], attrs, shape, constant)


# x, weight, strides, dilations, pads, groups
CASES = [
    ((1, 5, 6, 3), (4, 3, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 14, 14, 40), (70, 40, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((2, 9, 7, 24), (20, 24, 1, 1), (2, 2), (1, 1), (0, 0, 0, 0), 1),
    ((1, 7, 7, 17), (33, 17, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((2, 13, 11, 16), (64, 16, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 1),
    ((1, 9, 9, 16), (65, 16, 3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 20, 23, 3), (8, 3, 7, 7), (2, 2), (1, 1), (3, 3, 3, 3), 1),
    ((1, 10, 10, 5), (9, 5, 3, 3), (1, 1), (2, 3), (2, 2, 3, 3), 1),
    ((1, 12, 10, 5), (9, 5, 3, 2), (2, 1), (3, 2), (0, 0, 0, 0), 1),
    ((1, 8, 9, 6), (5, 6, 2, 3), (1, 2), (1, 1), (0, 1, 2, 0), 1),
    ((1, 3, 3, 4), (7, 4, 5, 5), (1, 1), (1, 1), (4, 4, 4, 4), 1),
    ((1, 300, 40, 64), (16, 64, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((2, 8, 8, 12), (18, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 3),
    ((1, 8, 8, 12), (12, 3, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 4),
    ((1, 9, 8, 6), (12, 1, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 6),
    ((2, 9, 11, 33), (33, 1, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 33),
    ((1, 14, 14, 96), (96, 1, 3, 3), (2, 2), (1, 1), (0, 1, 0, 1), 96),
    ((1, 12, 12, 16), (16, 1, 5, 5), (1, 1), (2, 2), (4, 4, 4, 4), 16),
    ((1, 7, 9, 18), (18, 1, 3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 18),
    ((2, 9, 11, 36), (36, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 9),
    ((1, 9, 3, 8), (8, 4, 3, 2), (2, 1), (1, 2), (0, 1, 1, 0), 2),
    ((1, 14, 15, 128), (128, 4, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 32),
    ((2, 19, 20), (20, 4, 5), (2,), (1,), (2, 2), 5),
    ((1, 40, 12), (20, 12, 5), (1,), (1,), (2, 2), 1),
    ((2, 41, 12), (20, 12, 3), (2,), (3,), (0, 4), 1),
    ((1, 41, 12), (12, 1, 3), (1,), (1,), (1, 1), 12),
    ((1, 30, 7), (9, 7, 4), (3,), (1,), (0, 0), 1),
    ((0, 5, 5, 3), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((1, 2, 2, 3), (4, 3, 3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1),
]


@CONSTANT
@DTYPE
@pytest.mark.parametrize(("x", "w", "strides", "dilations", "pads", "groups"), CASES)
def test_conv_is_the_sum_over_taps(
    dtype: str, constant: bool, x: Any, w: Any, strides: Any, dilations: Any, pads: Any, groups: int
) -> None:
    image, weight, bias = random(x, dtype, 1), random(w, dtype, 2), random(w[:1], dtype, 3)
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    if min(x) == 0 or x[1] + pads[0] + pads[1] < w[2]:
        shape = (x[0], *([5, 5] if x[0] == 0 else [0, 0]), w[0])
        assert conv(image, weight, bias, constant=constant, shape=shape, **window).size == 0
        return
    want = reference(image, weight, **window) + bias
    assert close(conv(image, weight, bias, constant=constant, shape=want.shape, **window), want)


@DTYPE
@pytest.mark.parametrize(("x", "w", "strides", "dilations", "pads", "groups"), CASES[:-2])
def test_conv_of_small_integers_is_exact(
    dtype: str, x: Any, w: Any, strides: Any, dilations: Any, pads: Any, groups: int
) -> None:
    image, weight = integers(x, dtype, 1), integers(w, dtype, 2)
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    want = reference(image, weight, **window).astype(dtype)
    assert same_bits(conv(image, weight, shape=want.shape, **window), want)


@CONSTANT
@DTYPE
@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (19, 1), (70, 1), (16, 16), (19, 19), (12, 3), (15, 3)])
def test_conv_epilogue_adds_a_residual_then_clamps(dtype: str, constant: bool, channels: int, groups: int) -> None:
    x, w = random((2, 6, 7, channels), dtype, 1), random((channels, channels // groups, 3, 3), dtype, 2)
    bias, residual = random((channels,), dtype, 3), random((2, 6, 7, channels), dtype, 4)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": groups}
    sums = reference(x, w, **window) + bias
    add, relu, relu6 = ("add", 0.0, 0.0, 3), ("relu", 0.0, 0.0, -1), ("relu6", 0.0, 0.0, -1)
    for epilogue, want in [
        ([add, relu], np.maximum(sums + residual, 0)),
        ([relu6], np.clip(sums, 0, 6)),
        ([("tanh", 0.0, 0.0, -1), add], np.tanh(sums) + residual),
    ]:
        got = conv(x, w, bias, residual, epilogue=epilogue, constant=constant, shape=want.shape, **window)
        assert close(got, want)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("padding", [0, 1])
def test_conv_reads_and_writes_strided_images(groups: int, padding: int) -> None:
    x = random((2, 20, 9, 24), "float32", 1)[:, ::2, 1:, 8:16]
    w, residual = random((8, 8 // groups, 3, 3), "float32", 2), random((2, 10, 8, 20), "float32", 3)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (padding,) * 4, "groups": groups}
    want = reference(x, w, **window)
    extra = residual[:, : want.shape[1], : want.shape[2], 4:12]
    out = poisoned((2, 10, 8, 20), "float32")[:, : want.shape[1], : want.shape[2], 3:11]
    run("conv", [x, w, None, extra], [out], {**window, "epilogue": [("add", 0.0, 0.0, 3)]})
    assert close(out, want + extra)


@pytest.mark.parametrize(
    ("x", "w", "out", "change"),
    [
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 4, 4), {}),
        ((1, 5, 5, 3), (4, 2, 3, 3), (1, 3, 3, 4), {}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (2, 3, 3, 4), {}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"groups": 0}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"groups": 3}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"strides": (0, 1)}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"pads": (-1, 0, 0, 0)}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"pads": (0, 0)}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"dilations": (1, 1 << 40)}),
        ((1, 5, 5, 5, 3), (4, 3, 3, 3, 3), (1, 3, 3, 3, 4), {}),
    ],
)
def test_conv_refuses_what_does_not_fit(x: Any, w: Any, out: Any, change: Any) -> None:
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "epilogue": (), **change}
    with pytest.raises(Error, match=r"\[conv\]"):
        run("conv", [np.ones(x, "float32"), np.ones(w, "float32"), None], [np.ones(out, "float32")], window)


def transposed_reference(
    x: Array, w: Array, strides: Any, dilations: Any, pads: Any, output_padding: Any, groups: int
) -> Array:
    """Every input pixel adds its taps to the output, in fp64; then the pads are cut off."""
    spatial, kernel = x.ndim - 2, w.shape[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + more
        for n, s, k, d, more in zip(x.shape[1:-1], strides, kernel, dilations, output_padding, strict=True)
    ]
    c, o = x.shape[-1] // groups, w.shape[1]
    out = np.zeros((x.shape[0], *full, o * groups))
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[1:-1], strides, strict=True)
        )
        for g in range(groups):
            weight = w[(slice(g * c, (g + 1) * c), slice(None), *tap)].astype(float)
            out[(slice(None), *window, slice(g * o, (g + 1) * o))] += x[..., g * c : (g + 1) * c] @ weight
    kept = (slice(pads[2 * i], full[i] - pads[2 * i + 1]) for i in range(spatial))
    return out[(slice(None), *kept)]


# x, weight, strides, dilations, pads, output_padding, groups
TRANSPOSED = [
    ((1, 4, 5, 6), (6, 7, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    ((2, 6, 5, 20), (20, 33, 2, 2), (2, 2), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    ((1, 7, 6, 20), (20, 65, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 7, 6, 5), (5, 9, 4, 4), (2, 2), (1, 1), (1, 1, 1, 1), (0, 0), 1),
    ((1, 5, 6, 5), (5, 9, 3, 2), (1, 3), (2, 1), (1, 0, 0, 1), (0, 2), 1),
    ((1, 5, 6, 3), (3, 4, 2, 2), (3, 4), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    ((1, 5, 4, 12), (12, 2, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    ((1, 5, 4, 12), (12, 1, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), (0, 0), 12),
    ((2, 6, 9, 37), (37, 1, 4, 4), (2, 2), (1, 1), (1, 1, 1, 1), (0, 0), 37),
    ((1, 4, 15, 16), (16, 1, 2, 3), (3, 2), (1, 2), (0, 1, 2, 1), (1, 0), 16),
    ((1, 23, 40), (40, 1, 5), (2,), (1,), (2, 1), (1,), 40),
    ((1, 90, 60, 64), (64, 16, 2, 2), (2, 2), (1, 1), (0, 0, 0, 0), (0, 0), 1),
    ((2, 11, 6), (6, 18, 4), (2,), (1,), (1, 1), (0,), 1),
    ((0, 4, 5, 6), (6, 7, 2, 2), (1, 1), (1, 1), (0, 0, 0, 0), (0, 0), 1),
]


@CONSTANT
@DTYPE
@pytest.mark.parametrize(("x", "w", "strides", "dilations", "pads", "output_padding", "groups"), TRANSPOSED)
def test_conv_transpose_adds_the_taps_of_every_pixel(
    dtype: str,
    constant: bool,
    x: Any,
    w: Any,
    strides: Any,
    dilations: Any,
    pads: Any,
    output_padding: Any,
    groups: int,
) -> None:
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    window["output_padding"] = output_padding
    image, weight, bias = random(x, dtype, 1), random(w, dtype, 2), random((w[1] * groups,), dtype, 3)
    attrs = {**window, "epilogue": [("add", 0.0, 0.0, 3), ("relu", 0.0, 0.0, -1)]}
    sums = transposed_reference(image, weight, **window) + bias
    residual = random(sums.shape, dtype, 4)
    want = np.maximum(sums + residual, 0)
    assert close(pieced("conv_transpose", [image, weight, bias, residual], attrs, want.shape, constant), want)


@DTYPE
@pytest.mark.parametrize(("x", "w", "strides", "dilations", "pads", "output_padding", "groups"), TRANSPOSED[:-1])
def test_conv_transpose_of_small_integers_is_exact(
    dtype: str, x: Any, w: Any, strides: Any, dilations: Any, pads: Any, output_padding: Any, groups: int
) -> None:
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    window["output_padding"] = output_padding
    image, weight = integers(x, dtype, 1), integers(w, dtype, 2)
    want = transposed_reference(image, weight, **window).astype(dtype)
    assert same_bits(pieced("conv_transpose", [image, weight], {**window, "epilogue": ()}, want.shape, True), want)


@pytest.mark.parametrize(
    "change", [{"output_padding": (1, 0)}, {"pads": (1, 0, 0, 0)}, {"groups": 2}, {"strides": (1, 2)}, {"strides": ()}]
)
def test_conv_transpose_refuses_what_does_not_fit(change: Any) -> None:
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "output_padding": (0, 0), "groups": 1}
    operands = [np.ones((1, 5, 5, 3), "float32"), np.ones((3, 4, 3, 3), "float32"), None]
    with pytest.raises(Error, match=r"\[conv_transpose\]"):
        run("conv_transpose", operands, [np.ones((1, 7, 7, 4), "float32")], {**window, "epilogue": (), **change})


def test_conv_refuses_sizes_that_overflow() -> None:
    w = np.lib.stride_tricks.as_strided(np.ones(1, "float32"), (1, 1, 2**24, 2**24), (0, 0, 0, 0))
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "epilogue": ()}
    operands = [np.ones((1, 1, 1, 1), "float32"), w, None]
    with pytest.raises(Error, match=r"2\^40"):
        run("conv", operands, [np.ones((1, 0, 0, 1), "float32")], window)
