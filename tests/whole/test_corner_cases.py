"""Shapes at the edge that random graphs came upon: nothing at all, and what has no axes."""

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.build import FUNCTIONS
from hexane.graph import Array
from hexane.ops.reference import run_reference


def every_way(op: str, x: Array, **attrs: object) -> Array:
    """The op's result on x: by the records, computed in a call, and computed when the graph is compiled; all the
    same."""
    graph = hx.graph(FUNCTIONS[op](hx.input("x", x.shape, x.dtype), **attrs))
    want = run_reference(graph, {"x": x})[op]
    assert_close(hx.compile(graph, threads=1)(x), want)
    assert_close(hx.compile(FUNCTIONS[op](hx.const(x), **attrs), threads=1)(), want)
    return want


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("axes", [(1,), (0, 1)])
def test_the_maximum_and_minimum_of_nothing_are_the_lowest_and_the_highest_value(
    dtype: type, axes: tuple[int, ...]
) -> None:
    nothing = np.zeros((2, 0), dtype)
    lowest, highest = (-np.inf, np.inf) if dtype is np.float32 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert (every_way("reduce_max", nothing, axes=axes) == lowest).all()
    assert (every_way("reduce_min", nothing, axes=axes) == highest).all()


def test_the_mean_of_nothing_is_nan_without_a_warning() -> None:
    assert np.isnan(every_way("reduce_mean", np.zeros((3, 0), np.float32), axes=(1,))).all()


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("layer_norm", {}),
        ("rms_norm", {}),
        ("instance_norm", {}),
        ("group_norm", {"num_groups": 3}),
        ("mean_variance_norm", {"axes": (0, 2)}),
    ],
)
def test_norms_of_nothing_are_nothing_without_a_warning(op: str, attrs: dict[str, object]) -> None:
    assert every_way(op, np.zeros((2, 3, 0), np.float32), **attrs).shape == (2, 3, 0)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3), (2, 5, 0)])
def test_local_response_norm_takes_no_channels(shape: tuple[int, ...]) -> None:
    assert every_way("local_response_norm", np.zeros(shape, np.float32), size=3).shape == shape


@pytest.mark.parametrize("shape", [(0, 2, 5, 4), (1, 0, 5, 4)])
def test_columns_of_no_images_are_none(shape: tuple[int, ...]) -> None:
    assert every_way("im2col", np.zeros(shape, np.float32), kernel_sizes=(3, 2)).size == 0


def test_a_byte_without_axes_is_looked_up_in_a_table() -> None:
    table = np.arange(256, dtype=np.uint8)[::-1]
    for x in (np.uint8(3), np.int8(-3)):
        want = 255 - int(x.astype(np.uint8))
        graph = hx.lookup(hx.const(x), table), hx.lookup(hx.input("x", (), x.dtype), table)
        got = hx.compile(hx.graph(list(graph)), threads=1)(x)
        for a in got.values():
            np.testing.assert_array_equal(a, np.uint8(want), strict=True)
