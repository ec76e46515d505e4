"""Products in bf16: against what the instructions compute, number by number, and against NumPy in fp64."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bf16 import emulated, rounded
from hexane import _core
from hexane.errors import Error
from instruction_sets import assert_passes_on, on_others
from kernels import Array, poisoned, run, same_bits

FORMS = _core.bf16_forms()
RANGES = [("normal", 1.0), ("pixels", 255.0), ("large", 20000.0), ("small", 1e-5)]
SHAPES = [(1, 1, 1), (1, 384, 130), (3, 5, 7), (6, 33, 16), (16, 32, 64), (17, 64, 65), (37, 100, 77), (50, 1101, 130),
          (70, 2200, 50)]  # fmt: skip


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.use_bf16_form(request.param)
    yield request.param
    _core.use_bf16_form(FORMS[0])


def random(shape: Sequence[int], scale: float = 1.0, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return (np.abs(values) if scale == 255.0 else values).astype(np.float32)


def narrow(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def pieced(
    name: str, inputs: Sequence[Any], attrs: Any, shape: Sequence[int], constant: bool = True, dtype: Any = np.float32
) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    cut: dict[str, Any] = {"constants": [1, 2] if constant else []}
    out = poisoned(shape, dtype)
    run(name, inputs, [out], attrs, **cut)
    for which in range(3):
        for pieces in (3, 7):
            again = poisoned(shape, dtype)
            run(name, inputs, [again], attrs, pieces=pieces, which=which, **cut)
            assert same_bits(out, again), f"{pieces} pieces of cut {which} differ from the whole"
    return out


def matmul(
    x: Array, y: Array, *more: Array | None, transpose_x: bool = False, transpose_y: bool = False, constant: bool = True,
    epilogue: Sequence[tuple[str, float, float, int]] = (),
) -> Array:  # fmt: skip
    a, b = (np.swapaxes(v, -1, -2) if swap else v for v, swap in ((x, transpose_x), (y, transpose_y)))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    attrs = {"transpose_x": int(transpose_x), "transpose_y": int(transpose_y), "epilogue": epilogue}
    return pieced("matmul", [x, y, *(more or (None,))], attrs, shape, constant)


def assert_near(got: Array, x: Array, y: Array) -> None:
    """Of x (m, k) and y (k, n) in bf16: each x is off by half a unit in 8 bits, and a sum is rounded in fp32 for every
    term of a block and for every block."""
    exact, size = x.astype(float) @ y.astype(float), np.abs(x).astype(float) @ np.abs(y.astype(float))
    roundings = min(x.shape[1], 512) + x.shape[1] / 32 + 2
    assert np.all(np.abs(got - exact) <= size * (2.0**-8 + 1.01 * roundings * 2.0**-24))


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_products_are_those_of_the_instruction(form: str, m: int, k: int, n: int) -> None:
    x, y = random((m, k), 20.0), narrow(random((k, n), seed=1))
    assert same_bits(matmul(x, y), emulated(form, x, y.astype(np.float32)))


@pytest.mark.parametrize(("name", "scale"), RANGES, ids=[name for name, _ in RANGES])
def test_products_are_near_those_in_fp64(form: str, name: str, scale: float) -> None:
    for k in (7, 64, 1600):
        x, y = random((19, k), scale, seed=k), narrow(random((k, 45), k**-0.5, seed=2))
        assert_near(matmul(x, y), x, y)


def test_a_product_of_very_many_terms_is_near_the_one_in_fp64(form: str) -> None:
    x, y = np.abs(random((2, 300_000), seed=3)), narrow(np.abs(random((300_000, 3), seed=4)))
    got = matmul(x, y)
    assert_near(got, x, y)
    assert same_bits(got[:, :1], emulated(form, x, y[:, :1].astype(np.float32)))


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize("transpose_x", [False, True])
def test_operands_may_be_transposed_and_computed(
    form: str, transpose_x: bool, transpose_y: bool, constant: bool
) -> None:
    x, y = random((23, 41), 3.0), narrow(random((41, 37), seed=1))
    a, b = (np.ascontiguousarray(v.T) if swap else v for v, swap in ((x, transpose_x), (y, transpose_y)))
    got = matmul(a, b, transpose_x=transpose_x, transpose_y=transpose_y, constant=constant)
    assert same_bits(got, emulated(form, x, y.astype(np.float32)))


@pytest.mark.parametrize("k", [1, 31, 32, 33, 64, 99])
@pytest.mark.parametrize("transpose_y", [False, True])
def test_computed_operands_are_packed_with_subnormals_as_0(form: str, transpose_y: bool, k: int) -> None:
    x, y = random((18, k), 255.0), narrow(random((k, 35), 1e-5, seed=1))
    y.reshape(-1)[::3] = ml_dtypes.bfloat16(1e-39)  # subnormal
    got = matmul(x, np.ascontiguousarray(y.T) if transpose_y else y, transpose_y=transpose_y, constant=False)
    assert same_bits(got, emulated(form, x, y.astype(np.float32)))


def test_matrices_of_a_batch(form: str) -> None:
    x, y = random((2, 3, 18, 40)), narrow(random((3, 40, 33), seed=1))
    got = matmul(x, y, constant=False)
    for i in range(2):
        for j in range(3):
            assert same_bits(got[i, j], emulated(form, x[i, j], y[j].astype(np.float32)))


@pytest.mark.parametrize("n", [9, 30, 48, 50])  # one to four panels
@pytest.mark.parametrize(
    ("op", "f"), [("relu", lambda v: np.maximum(v, 0)), ("clip", lambda v: np.clip(v, -0.5, 1.5)), ("tanh", np.tanh)]
)
def test_bias_and_epilogue_are_in_fp32(form: str, op: str, f: Any, n: int) -> None:
    x, y, bias, more = (
        random((37, 64)),
        narrow(random((64, n), 0.1, 1)),
        random((n,), 1.0, 2),
        random((37, n), 1.0, 3),
    )
    alpha, beta = (-0.5, 1.5) if op == "clip" else (0.0, 0.0)
    got = matmul(x, y, bias, more, epilogue=[("add", 0.0, 0.0, 3), (op, alpha, beta, -1)])
    want = f((emulated(form, x, y.astype(np.float32)) + bias) + more)
    near = 1e-6 if op == "tanh" else 0
    np.testing.assert_allclose(got, want, rtol=near, atol=near)


@pytest.mark.parametrize("shape", [(1, 3, 37, 64), (2, 1, 37, 64), (2, 3, 5, 64)])
def test_rows_of_several_axes_meet_their_own_addends(form: str, shape: tuple[int, ...]) -> None:
    x, y, more = random(shape), narrow(random((64, 20), 0.1, 1)), random((*shape[:-1], 20), 1.0, 3)
    got = matmul(x, y, None, more, epilogue=[("add", 0.0, 0.0, 3)])
    want = emulated(form, x.reshape(-1, 64), y.astype(np.float32)) + more.reshape(-1, 20)
    assert same_bits(got.reshape(-1, 20), want)


def test_x_is_rounded_to_nearest_even() -> None:
    bits = np.arange(0x3F7F_0000, 0x3F81_0000, 0x1000, np.uint32)
    x = np.concatenate([bits, bits + 1, bits - 1, bits + 0x8000]).view(np.float32)[:, None]
    assert same_bits(matmul(x, narrow(np.ones((1, 1)))), rounded(x))


def test_infinities_and_nan_stay_in_their_rows(form: str) -> None:
    x, y = random((20, 70)), narrow(random((70, 40), seed=1))
    whole = matmul(x, y)
    for row, value in ((2, np.inf), (5, -np.inf), (9, np.nan), (17, 3.4e38)):  # the last is beyond bf16's largest
        x[row, 69] = value
    got = matmul(x, y)
    strange = np.isin(np.arange(20), (2, 5, 9, 17))
    assert same_bits(got[~strange], whole[~strange])
    sign = np.sign(y[69].astype(float))
    for row, value in ((2, np.inf), (5, -np.inf), (17, np.inf)):
        assert np.array_equal(got[row], value * sign)
    assert np.isnan(got[9]).all()


# The first and the last NaN of either sign, those whose upper 16 bits are all ones (the NaN of CUDA), and a quiet one.
NANS = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0x7F808000, 0x7FC00000], np.uint32)


@pytest.mark.parametrize("k", [16, 37])  # of whole vectors, and with a rest
def test_nan_of_any_bits_stays(form: str, k: int) -> None:
    x = np.ones((len(NANS), k), np.float32)
    for column in (0, k - 1):
        marked = x.copy()
        marked[:, column] = NANS.view(np.float32)
        assert np.isnan(matmul(marked, narrow(np.ones((k, 20))))).all()


@pytest.mark.parametrize("channels", [16, 21])
def test_a_result_of_nan_is_stored_as_nan(form: str, channels: int) -> None:
    """Of a bias, which is added in fp32."""
    bias = np.resize(NANS, channels).view(np.float32)
    out: dict[str, Any] = {"dtype": ml_dtypes.bfloat16}
    attrs: dict[str, Any] = {"transpose_x": 0, "transpose_y": 0, "epilogue": ()}
    x, y = random((5, 32)), narrow(random((32, channels)))
    assert np.isnan(pieced("matmul", [x, y, bias], attrs, (5, channels), **out).astype(np.float32)).all()
    image, w = random((1, 5, 6, channels)), random((channels, 1, 3, 3))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1,) * 4, "groups": channels, "epilogue": ()}
    assert np.isnan(pieced("conv", [image, w, bias], attrs, image.shape, **out).astype(np.float32)).all()


def test_a_sum_beyond_fp32_is_infinite(form: str) -> None:
    x, y = np.full((2, 4), 2e38, np.float32), narrow(np.ones((4, 3)))
    assert np.isinf(matmul(x, y)).all()


def test_subnormal_operands_are_zero(form: str) -> None:
    least = np.float32(2.0**-126)
    x = np.array([[least, least / 2, -least / 2, np.float32(1e-45)]], np.float32).T * np.ones((1, 3), np.float32)
    got = matmul(x, narrow(np.ones((3, 1))))
    assert np.array_equal(got[:, 0], [3 * least, 0, 0, 0])
    assert np.array_equal(matmul(np.ones((1, 3), np.float32), narrow(np.ascontiguousarray(x.T))), got.T)


def test_subnormal_sums_are_as_the_instruction_has_them(form: str) -> None:
    x, y = random((9, 40), 1e-19), narrow(random((40, 11), 3e-20, 1))
    got = matmul(x, y)
    if form != "plain" or _core.instruction_sets()[0] != "SSE4":
        assert same_bits(got, emulated(form, x, y.astype(np.float32)))
    assert np.abs(got - x.astype(float) @ y.astype(float)).max() < 40 * 2.0**-126


def test_forms_of_a_chain_have_the_same_bits() -> None:
    chains = [name for name in FORMS if name != "amx"]
    x, y, results = random((40, 700), 20000.0), narrow(random((700, 70), 0.05, 1)), []
    for name in chains:
        _core.use_bf16_form(name)
        results.append(matmul(x, y))
    _core.use_bf16_form(FORMS[0])
    assert all(same_bits(results[0], other) for other in results)


# ---- convolutions: x, weight, strides, dilations, pads, groups ----

CONVS = [
    ((1, 5, 6, 3), (4, 3, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((1, 14, 14, 40), (70, 40, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1),
    ((2, 9, 7, 24), (20, 24, 1, 1), (2, 2), (1, 1), (0, 0, 0, 0), 1),
    ((1, 7, 7, 17), (33, 17, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((2, 13, 11, 16), (64, 16, 3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 1),
    ((1, 20, 23, 3), (8, 3, 7, 7), (2, 2), (1, 1), (3, 3, 3, 3), 1),
    ((1, 10, 20, 5), (9, 5, 3, 3), (1, 1), (2, 3), (2, 2, 3, 3), 1),
    ((1, 12, 10, 64), (9, 64, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((1, 6, 7, 384), (40, 384, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((2, 8, 8, 12), (54, 4, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 3),
    ((2, 9, 14, 64), (36, 32, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 2),
    ((1, 9, 12, 32), (10, 32, 2, 5), (1, 1), (1, 2), (1, 0, 4, 2), 1),
    ((1, 25, 7, 1024), (5, 1024, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1),
    ((1, 30, 6), (20, 6, 5), (2,), (1,), (2, 2), 1),
]


def terms(x: Array, w: Array, strides: Any, dilations: Any, pads: Any, groups: int, form: str) -> tuple[Any, ...]:
    """For each group what its pixels meet, and the weights, with the zeros that segments of terms end in."""
    if x.ndim == 3:
        x, w, strides, dilations = x[:, :, None], w[..., None], (*strides, 1), (*dilations, 1)
        pads = (*pads, 0, 0)
    c, o = w.shape[1], w.shape[0] // groups
    joined = dilations[1] == 1 and groups == 1
    padded = np.pad(x, ((0, 0), pads[:2], pads[2:], (0, 0)))
    h, width = ((padded.shape[1 + i] - (w.shape[2 + i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2))
    found = []
    for g in range(groups):
        taps, weights = [], []
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                rows = slice(i * dilations[0], i * dilations[0] + (h - 1) * strides[0] + 1, strides[0])
                columns = slice(j * dilations[1], j * dilations[1] + (width - 1) * strides[1] + 1, strides[1])
                even = ((0, 0), (0, c % 2))
                taps.append(np.pad(padded[:, rows, columns, g * c : (g + 1) * c].reshape(-1, c), even))
                weights.append(np.pad(w[g * o : (g + 1) * o, :, i, j].astype(np.float32), even))
        segments = []
        for parts in (taps, weights):
            step = w.shape[3] if joined else 1
            each = [np.concatenate(parts[t : t + step], 1) for t in range(0, len(parts), step)]
            more = -each[0].shape[1] % 32 if form == "amx" else 0
            segments.append(np.concatenate([np.pad(part, ((0, 0), (0, more))) for part in each], 1))
        found.append((segments[0], segments[1].T))
    return found, (x.shape[0], h, width, w.shape[0])


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", CONVS, ids=range(len(CONVS)))
def test_convolutions_are_those_of_the_instruction(form: str, case: Any, constant: bool) -> None:
    shape, weight, strides, dilations, pads, groups = case
    x, w = random(shape, 20.0), narrow(random(weight, seed=1))
    parts, out = terms(x, w, strides, dilations, pads, groups, form)
    want = np.concatenate([emulated(form, *part) for part in parts], 1).reshape(out)
    want = want[:, :, 0] if x.ndim == 3 else want
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups, "epilogue": ()}
    assert same_bits(pieced("conv", [x, w, None], attrs, want.shape, constant), want)


@pytest.mark.parametrize(("name", "scale"), RANGES, ids=[name for name, _ in RANGES])
def test_convolutions_are_near_those_in_fp64(form: str, name: str, scale: float) -> None:
    case = ((1, 9, 17, 19), (21, 19, 3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1)
    x, w, bias = random(case[0], scale), narrow(random(case[1], 0.1, 1)), random((21,), scale, 2)
    (part,), out = terms(x, w, *case[2:], form)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1, "epilogue": ()}
    plain = pieced("conv", [x, w, None], attrs, out)
    assert_near(plain.reshape(-1, 21), *part)
    relu = pieced("conv", [x, w, bias], {**attrs, "epilogue": [("relu", 0.0, 0.0, -1)]}, out)
    assert same_bits(relu, np.maximum(plain + bias, 0))


@pytest.mark.parametrize("slot", [("relu", 0.0, 0.0, -1), ("tanh", 0.0, 0.0, -1)], ids=["relu", "tanh"])
def test_the_pixels_between_two_rows_are_not_part_of_the_result(form: str, slot: Any) -> None:
    x, w, more = random((2, 9, 14, 32)), narrow(random((20, 32, 3, 3), 0.1, 1)), random((2, 9, 14, 20), 1.0, 3)
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}
    attrs["epilogue"] = [("add", 0.0, 0.0, 3), slot]
    whole = pieced("conv", [x, w, None, more], attrs, more.shape)
    x[1, 4, 13], x[0, 0, 0] = np.inf, np.nan
    met = np.zeros(more.shape[:3], bool)
    met[1, 3:6, 12:14] = met[0, :2, :2] = True
    got = pieced("conv", [x, w, None, more], attrs, more.shape)
    assert same_bits(got[~met], whole[~met])
    assert np.isnan(got[0, :2, :2]).all()
    assert not np.array_equal(got[1, 3:6, 12:14], whole[1, 3:6, 12:14])


def stored(name: str, x: Array, inputs: Sequence[Any], attrs: Any, shape: Sequence[int]) -> None:
    """x and the result in bf16 are those in fp32, rounded: subnormal ones are 0, infinities and NaN stay."""
    x.reshape(-1)[::7] *= 2.0**-130
    x.reshape(-1)[1], x.reshape(-1)[-1] = np.inf, np.nan
    wide = pieced(name, [narrow(x).astype(np.float32), *inputs], attrs, shape)
    assert same_bits(pieced(name, [narrow(x), *inputs], attrs, shape), wide)
    want = narrow(rounded(wide))
    for given in (x, narrow(x)):
        got = pieced(name, [given, *inputs], attrs, shape, dtype=want.dtype)
        assert np.array_equal(got.view(np.uint16)[~np.isnan(wide)], want.view(np.uint16)[~np.isnan(wide)])
        assert np.isnan(got.astype(np.float32)[np.isnan(wide)]).all()


@pytest.mark.parametrize("slot", [("relu", 0.0, 0.0, -1), ("tanh", 0.0, 0.0, -1)], ids=["relu", "tanh"])
@pytest.mark.parametrize(("m", "k", "n"), [(40, 64, 50), (37, 70, 9), (5, 33, 16), (70, 96, 128), (3, 1, 4), (2, 0, 3)])
def test_matrices_may_be_stored_in_bf16(form: str, m: int, k: int, n: int, slot: Any) -> None:
    x, y, bias = random((m, max(k, 5)))[:, :k].copy(), narrow(random((k, n), seed=1)), random((n,), 1e-3, 2)
    bias[0], y[:, 0] = 1e-40, 0  # a sum that is subnormal in bf16
    attrs = {"transpose_x": 0, "transpose_y": 0, "epilogue": [slot]}
    if k:
        stored("matmul", x, [y, bias], attrs, (m, n))
    else:
        got = pieced("matmul", [x, y, bias], attrs, (m, n), dtype=narrow(bias).dtype)
        assert np.array_equal(got[:, 0].astype(np.float32), np.zeros(m))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("channels", "taps", "pad"), [(32, 1, 0), (32, 3, 0), (18, 3, 0), (5, 1, 0), (32, 3, 1), (0, 3, 1)]
)
def test_images_may_be_stored_in_bf16(form: str, channels: int, taps: int, pad: int, stride: int) -> None:
    x, w = random((2, 9, 14, channels)), narrow(random((20, channels, taps, taps), 0.1, 1))
    attrs = {"strides": (stride, stride), "dilations": (1, 1), "pads": (pad,) * 4, "groups": 1, "epilogue": ()}
    shape = (2, *((size + 2 * pad - taps) // stride + 1 for size in (9, 14)), 20)
    if channels:
        return stored("conv", x, [w, random((20,), 1.0, 2)], attrs, shape)
    for one in (x, narrow(x)):
        assert same_bits(pieced("conv", [one, w, random((20,))], attrs, shape), np.broadcast_to(random((20,)), shape))


@pytest.mark.parametrize("slot", [("clip", 0.0, 6.0, -1), ("tanh", 0.0, 0.0, -1)], ids=["clip", "tanh"])
@pytest.mark.parametrize(
    ("channels", "group", "taps", "stride", "dilation", "pad"),
    [
        (96, 1, 3, 1, 1, 1), (96, 1, 3, 2, 1, 1), (33, 1, 3, 1, 1, 1), (18, 1, 5, 2, 1, 2), (16, 1, 5, 1, 1, 2),
        (40, 1, 3, 1, 2, 0), (7, 1, 3, 1, 1, 1), (2, 1, 27, 1, 1, 13), (32, 4, 3, 1, 1, 1), (32, 32, 3, 1, 1, 1),
    ],
)  # fmt: skip
def test_convolutions_in_fp32_may_read_and_store_bf16(
    channels: int, group: int, taps: int, stride: int, dilation: int, pad: int, slot: Any
) -> None:
    """As fp32 computes with the numbers that bf16 has: depthwise, of small groups, and of one group."""
    x, w = random((2, 9, 26, channels), 20.0), random((channels, group, taps, taps), 0.1, 1)
    attrs = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": (pad,) * 4, "groups": channels // group}
    attrs["epilogue"] = [slot]
    shape = (2, *((size + 2 * pad - (taps - 1) * dilation - 1) // stride + 1 for size in (9, 26)), channels)
    x.reshape(-1)[1], x.reshape(-1)[-1] = np.inf, np.nan
    bias, exact = random((channels,), 1.0, 2), narrow(x)
    wide = pieced("conv", [exact.astype(np.float32), w, bias], attrs, shape)
    assert same_bits(pieced("conv", [exact, w, bias], attrs, shape), wide)
    want = narrow(rounded(wide))
    for given in (exact, exact.astype(np.float32)):
        got = pieced("conv", [given, w, bias], attrs, shape, dtype=want.dtype)
        assert np.array_equal(got.view(np.uint16)[~np.isnan(wide)], want.view(np.uint16)[~np.isnan(wide)])
        assert np.isnan(got.astype(np.float32)[np.isnan(wide)]).all()


def test_strided_pixels_in_bf16() -> None:
    """Of a part of the channels of an image."""
    whole, w = narrow(random((1, 6, 9, 64), 3.0)), random((32, 1, 3, 3), 0.3, 1)
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 32, "epilogue": ()}
    part = whole[..., 16:48]
    out, want = (poisoned(part.shape, np.float32) for _ in range(2))
    run("conv", [part, w, None], [out], attrs, constants=[1])
    run("conv", [np.ascontiguousarray(part).astype(np.float32), w, None], [want], attrs, constants=[1])
    assert same_bits(out, want)


def test_groups_of_an_odd_number_of_channels_are_refused() -> None:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 2, "epilogue": ()}
    with pytest.raises(Error, match=r"\[conv\] groups: got 3 channels in each of 2, need an even number"):
        run(
            "conv",
            [random((1, 4, 4, 6)), narrow(random((32, 3, 1, 1))), None],
            [poisoned((1, 4, 4, 32), np.float32)],
            attrs,
        )


@on_others
def test_products_in_bf16_on_an_instruction_set(name: str) -> None:
    assert_passes_on(name, "not on_an_instruction_set and not very_many", [Path(__file__)])


def weights_of(query: Array, key: Array, mask: Array | None) -> Array:
    """In fp64, of numbers rounded to bf16."""
    scores = rounded(query).astype(float) @ np.swapaxes(rounded(key), -1, -2).astype(float)
    if mask is not None:
        scores = scores + mask
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


ATTENTIONS = [((2, 3, 70, 64), 200, 64), ((1, 66, 33), 193, 17), ((5, 64, 7), 222, 1), ((1, 1, 65, 80), 320, 40)]


@pytest.mark.parametrize(("query", "keys", "width"), ATTENTIONS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "scale"), RANGES, ids=[name for name, _ in RANGES])
def test_attention_is_near_the_one_in_fp64(
    form: str, query: tuple[int, ...], keys: int, width: int, masked: bool, name: str, scale: float
) -> None:
    """Queries are scaled, keys are normal, values have the range: 255, 20,000, 1e-5."""
    q, k = random(query, query[-1] ** -0.5), random((*query[:-2], keys, query[-1]), seed=1)
    v = random((*query[:-2], keys, width), scale, seed=2)
    mask = random((query[-2], keys), 3.0, seed=3) if masked else None
    attrs = {"scale": 1.0, "causal": 0, "zero_hidden": 0, "hidden": -np.inf}
    got = pieced("bf16_scaled_dot_product_attention", [q, k, v, mask], attrs, (*query[:-1], width), constant=False)
    weights = weights_of(q, k, mask)
    exact, size = weights @ rounded(v).astype(float), weights @ np.abs(rounded(v)).astype(float)
    assert np.all(np.abs(got - exact) <= size * (2.0**-8 + (keys + 80) * 2.0**-23))


def test_attention_hides_keys_by_masks_and_order(form: str) -> None:
    q, k, v = random((1, 64, 32)), random((1, 192, 32), seed=1), random((1, 192, 16), 255.0, seed=2)
    shown = np.arange(192) < 100
    attrs = {"scale": 32**-0.5, "causal": 0, "zero_hidden": 0, "hidden": -np.inf}
    name, shape = "bf16_scaled_dot_product_attention", (1, 64, 16)
    masked = pieced(name, [q, k, v, np.tile(shown, (64, 1))], attrs, shape, constant=False)
    loud = np.where(shown[:, None], v, np.float32(1e30))
    assert same_bits(masked, pieced(name, [q, k, loud, np.tile(shown, (64, 1))], attrs, shape, constant=False))
    causal = pieced(name, [q, k, v, None], {**attrs, "causal": 1}, shape, constant=False)
    np.testing.assert_array_equal(causal[0, 0], rounded(v)[0, 0])
