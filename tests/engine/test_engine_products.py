"""The engine's multiply-accumulate path against exact integers, on numbers chosen to hit every rule."""

from typing import Any

import numpy as np
import pytest

from engine_model import Array, matmul, winograd
from engine_planar import block
from kernels import run

KINDS = ["network", "large", "tiny", "any bits", "ties", "overflow", "cancellation"]


def numbers(rng: np.random.Generator, kind: str, *shape: int) -> Array:
    if kind == "any bits":
        return rng.integers(0, 1 << 16, shape, np.uint16).view(np.float16)
    if kind == "ties":  # few bits around 2^-8, so that products often end in half a unit
        return np.ldexp(rng.integers(-31, 32, shape), rng.integers(-13, -6, shape)).astype(np.float16)
    scale = {"network": 0.1, "large": 60.0, "tiny": 2e-3, "overflow": 500.0, "cancellation": 120.0}[kind]
    x = (rng.standard_normal(shape) * scale).astype(np.float16)
    if kind == "cancellation" and shape[-1] > 1:
        x[..., 1::2] = -x[..., 0 : shape[-1] // 2 * 2 : 2]
    return x


def engine_matmul(x: Array, y: Array, bias: Array | None = None, **how: object) -> Array:
    out = np.full((x.shape[0], y.shape[1]), np.nan, np.float16)
    attrs = {"transpose_x": 0, "transpose_y": 0, "epilogue": []}
    run("matmul", [x, y, bias], [out], attrs, family="engine", **how)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 5), (13, 64, 70), (6, 300, 129)], ids=str)
def test_matmul_in_the_engine_s_arithmetic(kind: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(k)
    for i, other in enumerate(KINDS):
        x, y, bias = numbers(rng, kind, m, k), numbers(rng, other, k, n), numbers(rng, kind, n) if i % 2 else None
        got, want = engine_matmul(x, y, bias), matmul(x, y, bias)
        assert got.tobytes() == want.tobytes(), np.argwhere(got.view(np.uint16) != want.view(np.uint16))[:5]


def engine_conv(
    x: Array, w: Array, bias: Array | None = None, groups: int = 1, winograd: bool = False, **attrs: list[int]
) -> Array:
    """x [N, H, W, C], w [O, C / groups, KH, KW]; pads (top, bottom, left, right)."""
    strides, dilations, pads = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1]), attrs.get("pads", [0] * 4)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    size = [(n + pads[2 * i] + pads[2 * i + 1] - spans[i]) // strides[i] + 1 for i, n in enumerate(x.shape[1:3])]
    out = np.full((x.shape[0], *size, w.shape[0]), np.nan, np.float16)
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups, "epilogue": []}
    run(
        "conv",
        [x, w, bias],
        [out],
        window,
        family="engine",
        constants=[1],
        numerics=block("h17s" if winograd else "h13"),
    )
    return out


def conv(x: Array, w: Array, bias: Array | None, groups: int, **attrs: list[int]) -> Array:
    """The same by the model: a matmul of the windows of each group, k in the order (kh, kw, c)."""
    strides, dilations, pads = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1]), attrs.get("pads", [0] * 4)
    x = np.pad(x, ((0, 0), (pads[0], pads[1]), (pads[2], pads[3]), (0, 0)))
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, (1, 2))  # type: ignore[call-overload]
    windows = windows[:, :: strides[0], :: strides[1], :, :: dilations[0], :: dilations[1]]
    inputs, outputs, parts = w.shape[1], w.shape[0] // groups, []
    for g in range(groups):
        rows = windows[..., g * inputs : (g + 1) * inputs, :, :].transpose(0, 1, 2, 4, 5, 3)
        own = w[g * outputs : (g + 1) * outputs].transpose(2, 3, 1, 0).reshape(-1, outputs)
        part = matmul(
            rows.reshape(-1, own.shape[0]), own, None if bias is None else bias[g * outputs : (g + 1) * outputs]
        )
        parts.append(part.reshape(*rows.shape[:3], outputs))
    return np.concatenate(parts, -1)


@pytest.mark.parametrize(
    ("shape", "weights", "attrs"),
    [
        ((2, 5, 6, 7), (18, 7, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 8, 9, 4), (5, 4, 3, 2), {"strides": [2, 1], "dilations": [1, 2], "pads": [0, 1, 2, 0]}),
        ((1, 4, 5, 6), (6, 1, 3, 3), {"groups": 6, "pads": [1, 1, 1, 1]}),
        ((1, 5, 11, 37), (37, 1, 3, 3), {"groups": 37, "strides": [2, 2], "pads": [1, 0, 0, 1]}),
        ((1, 4, 9, 20), (20, 1, 2, 5), {"groups": 20, "dilations": [1, 2], "pads": [0, 0, 4, 4]}),
        ((1, 3, 4, 8), (12, 4, 1, 1), {"groups": 2}),
        ((1, 6, 6, 40), (70, 40, 1, 1), {}),
    ],
    ids=str,
)
def test_convolution_in_the_engine_s_arithmetic(
    shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rng = np.random.default_rng(5)
    groups, attrs = attrs.get("groups", 1), {k: v for k, v in attrs.items() if k != "groups"}
    for kind, other in (("network", "network"), ("any bits", "tiny"), ("overflow", "large"), ("ties", "ties")):
        x, w, bias = numbers(rng, kind, *shape), numbers(rng, other, *weights), numbers(rng, other, weights[0])
        for b in (None, bias):
            got, want = engine_conv(x, w, b, groups, **attrs), conv(x, w, b, groups, **attrs)
            assert got.tobytes() == want.tobytes(), np.argwhere(got.view(np.uint16) != want.view(np.uint16))[:5]


@pytest.mark.parametrize(
    ("width", "channels", "groups"),
    [(1, 5, 1), (2, 5, 1), (5, 5, 1), (8, 6, 2), (1, 18, 18), (2, 18, 18), (5, 18, 18), (23, 18, 18)],
)
def test_winograd_in_the_engine_s_arithmetic(width: int, channels: int, groups: int) -> None:
    rng = np.random.default_rng(width)
    for kind, other in (("network", "network"), ("tiny", "ties"), ("cancellation", "tiny"), ("large", "network")):
        x, w = numbers(rng, kind, 2, 4, width, channels), numbers(rng, other, 18, channels // groups, 3, 3)
        bias = numbers(rng, other, 18)
        got = engine_conv(x, w, bias, groups, winograd=True, pads=[1, 1, 1, 1])
        want = winograd(x, w, bias, groups)
        assert got.tobytes() == want.tobytes(), np.argwhere(got.view(np.uint16) != want.view(np.uint16))[:5]


def test_every_pair_of_exponents() -> None:
    """One product at a time: 64 x 64 exponents and signs, with the significands that round and drop at the edges."""
    significands = np.array([0, 1, 2, 511, 512, 513, 1022, 1023], np.uint16)
    values = (np.arange(64, dtype=np.uint16)[:, None] << 10 | significands).reshape(-1).view(np.float16)
    x, y = values[:, None], values[None]
    assert engine_matmul(x, y).tobytes() == matmul(x, y).tobytes()


def hostile(rng: np.random.Generator, lines: int, k: int) -> Array:
    """[lines, k]: each line of one kind."""

    def line(kind: int) -> Array:
        bits = rng.integers(0, 1 << 16, k, np.uint16)
        exponent = rng.integers(0, 32, dtype=np.uint16)
        match kind:
            case 0:  # any bits
                return bits
            case 1:  # subnormals
                return bits & np.uint16(0x83FF)
            case 2:  # exponent 31
                return bits | np.uint16(0x7C00)
            case 3:  # one exponent, few significant bits: many ties
                return bits & np.uint16(0x8380) | exponent << np.uint16(10)
            case 4:  # a few neighbouring exponents
                return bits & np.uint16(0x83FF) | (exponent // 4 * 3 + bits % np.uint16(4)) << np.uint16(10)
            case 5:  # pairs that cancel but for a last place now and then
                pairs = bits & np.uint16(0x3FFF) | np.uint16(0x2000)
                pairs[1::2] = (pairs[: k // 2 * 2 : 2] ^ np.uint16(0x8000)) + (rng.random(k // 2) < 0.1)
                return pairs
            case _:  # equal pairs, which meet the pairs that cancel
                pairs = bits & np.uint16(0xBFFF) | np.uint16(0x2000)
                pairs[1::2] = pairs[: k // 2 * 2 : 2]
                return pairs

    return np.stack([line(kind) for kind in rng.integers(0, 7, lines)]).view(np.float16)


@pytest.mark.parametrize("batches", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_a_million_hostile_dot_products(batches: int) -> None:
    """36864 dot products a batch: subnormals, exponent 31, ties, overflows and cancellation."""
    for seed in range(batches):
        rng = np.random.default_rng(seed)
        k = int(rng.choice([1, 2, 3, 7, 16, 33, 64, 100]))
        x, y, bias = hostile(rng, 192, k), np.ascontiguousarray(hostile(rng, 192, k).T), hostile(rng, 1, 192)[0]
        got, want = engine_matmul(x, y, bias if seed % 2 else None), matmul(x, y, bias if seed % 2 else None)
        assert got.tobytes() == want.tobytes(), (seed, np.argwhere(got.view(np.uint16) != want.view(np.uint16))[:5])


@pytest.mark.parametrize("total", [32000.0, 32784.0, 32833.0])
def test_bounds_of_a_million_terms_miss_no_overflow(total: float) -> None:
    """Equal factors: the sum is as large as the product of the norms, which the fast path is chosen by."""
    factor = np.float16(np.sqrt(total / (1 << 20)))
    x = np.full((1, 1 << 20), factor, np.float16)
    assert engine_matmul(x, x.T.copy()).tobytes() == matmul(x, x.T.copy()).tobytes()
