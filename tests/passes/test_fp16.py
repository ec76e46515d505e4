"""Bulk fp16 <-> fp32 conversion against NumPy, over every fp16 value and every tie."""

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.errors import Error
from hexane.lowering.halves import half
from hexane.ops.encodings import encoding_of
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.system.large_pages import LargePages
from hexane.targets import load_target
from kernels import Array, same_bits

ALL = np.arange(65536, dtype=np.uint16).view(np.float16)
FINITE = np.sort(ALL[np.isfinite(ALL)].astype(np.float32))


def narrowed(values: Array) -> Array:
    out = np.empty(values.shape, np.float16)
    _core.convert(values, out)
    return out


def widened(values: Array) -> Array:
    out = np.empty(values.shape, np.float32)
    _core.convert(values, out)
    return out


def same_values(a: Array, b: Array) -> bool:
    nan = np.isnan(a)
    return np.array_equal(nan, np.isnan(b)) and same_bits(a[~nan], b[~nan])


def test_every_fp16_value_widens_exactly() -> None:
    assert same_values(widened(ALL), ALL.astype(np.float32))


def test_every_fp16_value_round_trips() -> None:
    assert same_values(narrowed(widened(ALL)), ALL)


def test_ties_and_their_neighbours_round_as_in_numpy() -> None:
    ties = (FINITE[1:].astype(np.float64) + FINITE[:-1]) / 2
    ties = np.concatenate([ties, [65520, -65520]]).astype(np.float32)
    values = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    with np.errstate(over="ignore"):
        assert same_values(narrowed(values), values.astype(np.float16))


def test_random_fp32_bits_round_as_in_numpy() -> None:
    seed = 5
    print("seed", seed)
    values = np.random.default_rng(seed).integers(0, 2**32, 1 << 20, np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        assert same_values(narrowed(values), values.astype(np.float16))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 33, 63, 65, 1000])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_value_does_not_depend_on_its_place(n: int, offset: int) -> None:
    values = ALL[1000 : 1000 + offset + n][offset:]
    assert same_bits(widened(values), values.astype(np.float32))
    assert same_bits(narrowed(values.astype(np.float32)), values)


@pytest.mark.parametrize("offset", [0, 3])
def test_arrays_larger_than_the_caches_are_the_same(offset: int) -> None:
    small = ALL[np.isfinite(ALL)]
    large = np.tile(small, (9 << 20) // small.size + 1)[: (9 << 20) + 21]
    out = np.empty(large.size + offset, np.float32)[offset:]
    assert _core.convert(large, out)
    assert np.array_equal(out, large.astype(np.float32))
    back = np.empty(large.size + offset, np.float16)[offset:]
    _core.convert(out, back)
    assert same_bits(back.copy(), large)


@pytest.mark.parametrize("value", [65520.0, -65520.0, np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("place", [0, 8191, 8192, 20000])
def test_a_result_that_is_not_finite_is_told(value: float, place: int) -> None:
    values = np.full(20001, -65519.0, np.float32)
    out = np.empty(values.shape, np.float16)
    assert _core.convert(values, out)
    values[place] = value
    assert not _core.convert(values, out)


def in_blocks(scale: float, target: str) -> tuple[hx.Tensor, Array, Array]:
    """The weight of a product of which two blocks have these scales, in fp16; its integers; its scales."""
    codes = np.arange(-64, 64, dtype=np.int8).reshape(4, 32)
    scales = np.float32([[scale, 2 * scale]])
    graph = hx.graph(hx.matmul(hx.input("x", (2, 4)), hx.decode_blocks(codes, scales)))
    weight = to_fp16(graph, load_target(target)).outputs[0].value.node.inputs[0].node.inputs[1]  # type: ignore[union-attr]
    assert weight is not None
    assert weight.dtype.name == "fp16"
    return weight, codes, scales


@pytest.mark.parametrize(
    ("scale", "target"), [(0.25, "h13"), (0.25, "host"), (0.1, "host"), (3e-8, "h13"), (1.5e-5, "h13"), (0.1, "h11")]
)
def test_integers_in_blocks_are_rounded_once(scale: float, target: str) -> None:
    """A scale that fp16 does not hold would be rounded before the product; a small one to nothing."""
    weight, codes, scales = in_blocks(scale, target)
    assert (weight.node.op == "decode_blocks") == (scale == 0.25)
    want = (codes * np.repeat(scales.astype(np.float64), 16, 1)).astype(np.float16)
    np.testing.assert_array_equal(encoding_of(weight).decode().node.data, want)


def test_scales_of_blocks_that_keep_their_digits_become_fp16_for_a_chip() -> None:
    """As scales of int8 do: the weight stays small."""
    weight, codes, scales = in_blocks(0.1, "h13")
    assert weight.node.op == "decode_blocks"
    want = (codes * np.repeat(scales.astype(np.float16).astype(np.float64), 16, 1)).astype(np.float16)
    np.testing.assert_array_equal(encoding_of(weight).decode().node.data, want)


def test_halves_that_share_a_block_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (40_001, 3, 1 << 20, 70_000, 3 << 20, 33_333, 2 << 20)]
    room = LargePages()
    halves = [half(a, room) for a in arrays]
    assert all(same_bits(h, a.astype(np.float16)) for h, a in zip(halves, arrays, strict=True))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float16)),
        (np.zeros(3, np.float32), np.zeros(3, np.float32)),
        (np.zeros(3, np.float64), np.zeros(3, np.float16)),
        (np.zeros(6, np.float32)[::2], np.zeros(3, np.float16)),
        (np.zeros(3, ">f4"), np.zeros(3, np.float16)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(src: Array, dst: Array) -> None:
    with pytest.raises(Error, match="convert"):
        _core.convert(src, dst)


@pytest.mark.parametrize("count", [1, 5, 33, 1000])
@pytest.mark.parametrize("number", [65520.0, -1e9, np.inf, -np.inf, np.nan])
def test_conversion_says_where_a_half_is_no_finite_number(count: int, number: float):
    for place in (0, count // 2, count - 1):
        array = np.full(count, 65519.0, np.float32)
        assert _core.convert(array, np.empty(count, np.float16))
        array[place] = number
        assert not _core.convert(array, np.empty(count, np.float16))
