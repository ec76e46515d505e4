"""layer_norm, rms_norm, batch_norm, instance_norm and local_response_norm against NumPy in fp64."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut

SEED = 31
FLOATS = ["float32", "float16"]


def some_floats(shape: tuple[int, ...], dtype: str, seed: int = SEED) -> Array:
    print("seed", seed)
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(dtype)


def assert_close(got: Array, exact: Array) -> None:
    rounded = exact.astype(got.dtype)
    bound = 2e-6 * np.maximum(np.abs(exact), 1)
    if got.dtype == np.float16:
        bound = bound + 1.01 * np.spacing(np.abs(rounded)).astype(np.float64)
    good = np.abs(got.astype(np.float64) - exact) <= bound
    assert good.all(), f"{(~good).sum()} of {good.size}: got {got[~good][:5]}, need {exact[~good][:5]}"


def normal(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centered = x - x.mean(axes, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((17,), (0,)),
        ((3, 63), (1,)),
        ((2, 5, 384), (-1,)),
        ((2, 3, 5, 13), (2, 3)),
        ((4, 1), (1,)),
        ((3, 1000), (0, 1)),
        ((0, 5), (1,)),
    ],
)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm(dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], given: tuple[bool, bool]) -> None:
    x = some_floats(shape, dtype)
    scale_shape = tuple(shape[a] for a in axes)
    gamma, beta = (some_floats(scale_shape, dtype, SEED + 1 + i) if g else None for i, g in enumerate(given))
    out = poisoned(shape, dtype)
    run_every_cut("layer_norm", [x, gamma, beta], [out], axes=axes, epsilon=1e-5)
    exact = normal(x.astype(np.float64), axes, 1e-5)
    assert_close(
        out, exact * (1 if gamma is None else gamma.astype(float)) + (0 if beta is None else beta.astype(float))
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("with_gamma", [True, False])
@pytest.mark.parametrize(("shape", "axes"), [((3, 63), (1,)), ((2, 5, 768), (-1,)), ((2, 3, 4, 5), (2, 3))])
def test_rms_norm(dtype: str, with_gamma: bool, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = some_floats(shape, dtype)
    gamma = some_floats(tuple(shape[a] for a in axes), dtype, SEED + 1) if with_gamma else None
    out = poisoned(shape, dtype)
    run_every_cut("rms_norm", [x, gamma], [out], axes=axes, epsilon=1e-6)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt(np.square(wide).mean(axes, keepdims=True) + 1e-6)
    assert_close(out, exact * (1 if gamma is None else gamma.astype(np.float64)))


def test_layer_norm_of_a_far_mean_keeps_its_digits() -> None:
    x = some_floats((4, 384), "float32") + np.float32(1000)
    out = poisoned(x.shape, "float32")
    run("layer_norm", [x, None, None], [out], {"axes": (1,), "epsilon": 1e-5})
    assert np.allclose(out, normal(x.astype(np.float64), (1,), 1e-5), atol=2e-4)


def shaped(v: Array | None, rank: int, axis: int, otherwise: float) -> Array | float:
    return otherwise if v is None else v.astype(np.float64).reshape([-1 if i == axis else 1 for i in range(rank)])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("with_scale", [True, False])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 3, 5, 7), 1),
        ((2, 5, 7, 33), -1),
        ((3, 17), 1),
        ((5,), 0),
        ((2, 3, 4, 5), 2),
        ((2, 16, 1, 1), 1),
        ((4, 0, 3), 1),
    ],
)
def test_batch_norm(dtype: str, with_scale: bool, shape: tuple[int, ...], axis: int) -> None:
    channels, rank = shape[axis], len(shape)
    x, mean = some_floats(shape, dtype), some_floats((channels,), dtype, SEED + 1)
    variance = np.abs(some_floats((channels,), dtype, SEED + 2)) + np.asarray(0.1, dtype)
    gamma, beta = (some_floats((channels,), dtype, SEED + i) if with_scale else None for i in (3, 4))
    out = poisoned(shape, dtype)
    run_every_cut("batch_norm", [x, mean, variance, gamma, beta], [out], epsilon=1e-3, axis=axis)
    m, v, g, b = (shaped(p, rank, axis % rank, d) for p, d in [(mean, 0), (variance, 1), (gamma, 1), (beta, 0)])
    exact = (x.astype(np.float64) - m) / np.sqrt(v + 1e-3) * g + b
    bound = 4 if dtype == "float32" else 1
    assert_close(out / np.asarray(bound, dtype) if dtype == "float32" else out, exact / bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("with_scale", [True, False])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 33, 4, 17), (3, 5, 19), (2, 18, 300), (2, 301, 1)])
def test_instance_norm(dtype: str, with_scale: bool, layout: str, shape: tuple[int, ...]) -> None:
    x = some_floats(shape, dtype)
    rank, channel = len(shape), 1 if layout == "nchw" else len(shape) - 1
    gamma, beta = (some_floats((shape[channel],), dtype, SEED + i) if with_scale else None for i in (1, 2))
    out = poisoned(shape, dtype)
    run_every_cut("instance_norm", [x, gamma, beta], [out], epsilon=1e-5, layout=layout)
    exact = normal(x.astype(np.float64), tuple(i for i in range(1, rank) if i != channel), 1e-5)
    assert_close(out, exact * shaped(gamma, rank, channel, 1) + shaped(beta, rank, channel, 0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(("shape", "axis"), [((2, 7, 5, 3), 1), ((2, 5, 3, 19), 3), ((2, 9), -1)])
def test_local_response_norm(dtype: str, size: int, shape: tuple[int, ...], axis: int) -> None:
    x = some_floats(shape, dtype)
    out = poisoned(shape, dtype)
    attrs = {"alpha": 0.5, "beta": 0.75, "k": 1.5, "size": size, "axis": axis}
    run_every_cut("local_response_norm", [x], [out], **attrs)
    squares = np.moveaxis(np.square(x.astype(np.float64)), axis, -1)
    before, after = (size - 1) // 2, size // 2
    total = [squares[..., max(0, c - before) : c + after + 1].sum(-1) for c in range(squares.shape[-1])]
    assert_close(out, x / np.power(1.5 + 0.5 / size * np.moveaxis(np.stack(total, -1), -1, axis), 0.75))


@pytest.mark.parametrize(
    ("name", "inputs", "attrs"),
    [
        ("layer_norm", [(3, 4), (3,), None], {"axes": (1,), "epsilon": 1e-5}),
        ("layer_norm", [(3, 4), None, None], {"axes": (0,), "epsilon": 1e-5}),
        ("layer_norm", [(3, 4), None, None], {"axes": (2,), "epsilon": 1e-5}),
        ("rms_norm", [(3, 4), (3, 4)], {"axes": (1,), "epsilon": 1e-5}),
        ("batch_norm", [(3, 4), (3,), (3,), None, None], {"axis": 1, "epsilon": 1e-5}),
        ("batch_norm", [(3, 4), (4,), None, None, None], {"axis": 1, "epsilon": 1e-5}),
        ("batch_norm", [(3, 4), (4,), (4,), None, None], {"axis": 2, "epsilon": 1e-5}),
        ("instance_norm", [(3, 4), (3,), None], {"epsilon": 1e-5, "layout": "nchw"}),
        ("instance_norm", [(3, 4), None, None], {"epsilon": 1e-5, "layout": "hwio"}),
        ("local_response_norm", [(3, 4)], {"alpha": 1, "beta": 1, "k": 1, "size": 0, "axis": 1}),
    ],
)
def test_shapes_and_attributes_that_do_not_fit_are_refused(
    name: str, inputs: list[tuple[int, ...] | None], attrs: dict[str, Any]
) -> None:
    arrays = [None if shape is None else np.ones(shape, np.float32) for shape in inputs]
    with pytest.raises(Error, match=name):
        run(name, arrays, [np.zeros((3, 4), np.float32)], attrs)


def test_an_input_with_gaps_is_refused() -> None:
    x = np.ones((4, 6), np.float32)[:, :4]
    with pytest.raises(Error, match="layer_norm"):
        run("layer_norm", [x, None, None], [np.zeros((4, 4), np.float32)], {"axes": (1,), "epsilon": 1e-5})


@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (5, 7)])
def test_a_softmax_gives_no_subnormal_weights(shape: tuple[int, int]) -> None:
    """A weight below 2^-125 beside one of 1 is 0: products with subnormal numbers take some 150 cycles each."""
    x = np.zeros(shape, np.float32)
    x[1:, 1:] = -np.linspace(80, 110, (shape[0] - 1) * (shape[1] - 1), dtype=np.float32).reshape(shape[0] - 1, -1)
    x[0, 1:] = np.resize(np.float32([-1e4, -np.inf, -95, -3e38]), shape[1] - 1)
    y = np.empty_like(x)
    run("softmax", [x], [y], {"axis": 1})
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(y, np.where(exact < 2.0**-124, 0, exact), rtol=1e-6, atol=2.0**-123)
    assert ((y == 0) | (y >= np.finfo(np.float32).tiny)).all()
