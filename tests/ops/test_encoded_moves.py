"""Encoded constants whose elements move, against NumPy on what they decode to."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Value
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of, is_encoded

RNG = np.random.default_rng(8)
BYTES = RNG.integers(-100, 100, (4, 6, 2)).astype(np.int8)
INDICES = RNG.integers(0, 4, (4, 6, 2))
WEIGHTS: dict[str, Callable[[], hx.Tensor]] = {
    "palette": lambda: hx.gather(hx.const(np.arange(4, dtype=np.float32)), hx.const(INDICES.astype(np.int32)), axis=0),
    "palettes": lambda: hx.decode_palette(
        hx.const(INDICES.astype(np.uint8)), hx.const(RNG.standard_normal((2, 3, 1, 4)).astype(np.float32))
    ),
    "palettes of int8": lambda: hx.decode_scaled_palette(
        hx.const(INDICES.astype(np.uint8)),
        hx.const(RNG.integers(-127, 128, (2, 3, 1, 4)).astype(np.int8)),
        hx.const(RNG.random((2, 3, 1, 1)).astype(np.float32)),
    ),
    "vectors": lambda: hx.decode_vectors(
        hx.const(INDICES[:, :3].astype(np.uint8)),
        hx.const(RNG.standard_normal((2, 3, 1, 4, 2)).astype(np.float32)),
        axis=1,
    ),
    "blocks": lambda: hx.decode_blocks(hx.const(BYTES), hx.const(RNG.random((4, 2, 1)).astype(np.float32))),
    "channels": lambda: hx.dequantize(
        hx.const(BYTES), hx.const(RNG.random(6).astype(np.float32)), hx.const(np.arange(6, dtype=np.int8)), axis=1
    ),
    "whole": lambda: hx.dequantize(hx.const(BYTES), hx.const(np.float32(0.5)), None),
}
MOVES: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "transpose": (lambda x: hx.transpose(x, perm=(2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "expand_dims": (lambda x: hx.expand_dims(x, axes=(0, 2)), lambda x: x[None, :, None]),
    "reshape": (lambda x: hx.reshape(x, shape=(1, 4, 6, 1, 2)), lambda x: x.reshape(1, 4, 6, 1, 2)),
}


def numbers(value: Value) -> np.ndarray:
    data = encoding_of(value).decode().node.data
    assert data is not None
    return data


SLICES: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], tuple[slice, ...]]] = {
    "whole blocks": (lambda x: hx.slice_by_size(x, begin=(2, 0, 0), size=(2, 6, 2)), np.s_[2:]),
    "from the end": (lambda x: hx.slice_by_size(x, begin=(-2, -2, 0), size=(2, 2, 2)), np.s_[2:, 4:]),
    "by index": (lambda x: hx.slice_by_index(x, begin=(0, -9, 0), end=(2, 9, 1)), np.s_[:2, :, :1]),
    "part of a block": (lambda x: hx.slice_by_size(x, begin=(3, 0, 1), size=(1, 6, 1)), np.s_[3:, :, 1:]),
}


@pytest.mark.parametrize("part", SLICES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_an_encoded_constant_is_sliced(weight: str, part: str) -> None:
    stored = WEIGHTS[weight]()
    slice_it, want = SLICES[part]
    found = moved(slice_it(stored).value.node)
    assert found is not None
    assert is_encoded(found.node)
    np.testing.assert_array_equal(numbers(found), numbers(stored.value)[want])


def test_slices_that_cut_blocks_or_skip_elements_are_refused() -> None:
    stored = WEIGHTS["blocks"]()
    assert moved(hx.slice_by_size(stored, begin=(0, 1, 0), size=(4, 4, 2)).value.node) is None
    assert moved(hx.slice_by_index(stored, begin=(0, 0, 0), end=(4, 6, 2), stride=(2, 1, 1)).value.node) is None


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_elements_of_an_encoded_constant_move(weight: str, move: str) -> None:
    stored = WEIGHTS[weight]()
    move_it, want = MOVES[move]
    found = moved(move_it(stored).value.node)
    assert found is not None
    assert found.node.op == stored.value.node.op
    assert is_encoded(found.node)
    np.testing.assert_array_equal(numbers(found), want(numbers(stored.value)))


@pytest.mark.parametrize("weight", ["palettes", "palettes of int8", "vectors", "blocks", "channels"])
def test_a_reshape_that_joins_blocks_is_left_alone(weight: str) -> None:
    assert moved(hx.reshape(WEIGHTS[weight](), shape=(24, 2)).value.node) is None


def test_an_axis_that_stays_whole_keeps_its_scales() -> None:
    stored = WEIGHTS["channels"]()
    found = moved(hx.reshape(stored, shape=(2, 2, 6, 2)).value.node)
    assert found is not None
    np.testing.assert_array_equal(numbers(found), numbers(stored.value).reshape(2, 2, 6, 2))


def test_other_ops_and_other_constants_are_left_alone() -> None:
    assert moved(hx.relu(WEIGHTS["palette"]()).value.node) is None
    assert moved(hx.transpose(hx.input("x", (2, 3)), perm=(1, 0)).value.node) is None
    assert (
        moved(hx.reshape(WEIGHTS["palette"](), shape=(48,)).value.node) is None
    )  # indices along one axis are rows to pick
