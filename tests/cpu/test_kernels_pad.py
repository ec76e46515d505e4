"""pad against numpy.pad, bit for bit."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits


def padded(x: Array, begin: Any, end: Any, mode: str, value: float) -> Array:
    """numpy.pad, then negative pads crop."""
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    constant = {"constant_values": np.array(value).astype(x.dtype)} if mode == "constant" else {}
    y = np.pad(x, widths, mode=mode, **constant)  # type: ignore[call-overload]
    return y[tuple(slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begin, end, y.shape, strict=True))]


def pad(x: Array, begin: Any, end: Any, mode: str = "constant", value: float = 0.0) -> Array:
    shape = [b + n + e for b, n, e in zip(begin, x.shape, end, strict=True)]
    out = poisoned(shape, x.dtype)
    run_every_cut("pad", [x], [out], begin=begin, end=end, mode=mode, value=value)
    return out


CASES = [
    ((9,), (3,), (2,)),
    ((4, 5), (1, 2), (3, 0)),
    ((2, 5, 6, 3), (0, 1, 2, 0), (0, 2, 1, 0)),
    ((1, 4, 4, 17), (0, 1, 1, 0), (0, 1, 1, 0)),
    ((3, 4, 5), (0, -1, 0), (0, 2, -2)),
    ((3, 4, 5), (1, 0, 0), (2, 0, 0)),
    ((2, 3), (0, 0), (0, 0)),
    ((2, 2, 3, 2, 3), (1, 0, 1, 0, 2), (0, 1, 1, 1, 0)),
]


@pytest.mark.parametrize(("shape", "begin", "end"), CASES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
def test_pad_agrees_with_numpy(shape: Any, begin: Any, end: Any, mode: str, dtype: str) -> None:
    if mode == "reflect":
        begin, end = ([min(p, n - 1) for p, n in zip(pads, shape, strict=True)] for pads in (begin, end))
    x = np.random.default_rng(9).integers(-100, 100, shape).astype(dtype)
    assert same_bits(pad(x, begin, end, mode, 7.0), np.ascontiguousarray(padded(x, begin, end, mode, 7.0)))


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_pad_reads_and_writes_strided_operands(mode: str) -> None:
    x = np.arange(60, dtype=np.int32).reshape(3, 4, 5)[:, ::2, 1:4].transpose(2, 0, 1)
    out = poisoned((5, 7, 4), np.int32).transpose(1, 2, 0)
    run_every_cut("pad", [x], [out], begin=(2, 1, 0), end=(2, 0, 3), mode=mode, value=-1.0)
    assert (out == padded(x, (2, 1, 0), (2, 0, 3), mode, -1.0)).all()


def test_reflect_pads_further_than_the_axis_is_long() -> None:
    x = np.arange(3, dtype=np.float32)
    assert same_bits(pad(x, (7,), (8,), "reflect"), np.pad(x, (7, 8), mode="reflect"))
    assert same_bits(pad(x[:1], (2,), (3,), "reflect"), np.pad(x[:1], (2, 3), mode="reflect"))


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", -np.inf), ("float16", 0.1), ("float32", np.nan), ("uint8", 255.0), ("bool", 1.0),
     ("int16", -2.0**15), ("uint16", 65535.0), ("uint32", 2.0**32 - 1), ("uint64", 2.0**63), ("float64", 0.1)]
)  # fmt: skip
def test_pad_converts_its_value(dtype: str, value: float) -> None:
    x = np.zeros((2, 3), dtype)
    assert same_bits(pad(x, (1, 1), (1, 1), value=value), padded(x, (1, 1), (1, 1), "constant", value))


def test_pad_fills_what_has_no_input() -> None:
    assert same_bits(pad(np.zeros((0, 2), np.float32), (2, 0), (1, 0), value=3.0), np.full((3, 2), 3, np.float32))


def test_pad_refuses_what_does_not_fit() -> None:
    x, out = np.zeros((2, 3), np.int8), np.zeros((4, 3), np.int8)
    good = {"begin": (1, 0), "end": (1, 0), "mode": "constant", "value": 0.0}
    run("pad", [x], [out], good)
    for change, message in [
        ({"begin": (1,)}, "numbers"),
        ({"begin": (2, 0)}, "axis 0"),
        ({"begin": (1 << 62, 0), "end": (1 << 62, 0)}, "axis 0"),
        ({"mode": "mirror"}, "mode"),
        ({"value": 300.0}, "value"),
        ({"value": np.nan}, "value"),
    ]:
        with pytest.raises(Error, match=message):
            run("pad", [x], [out], {**good, **change})
    with pytest.raises(Error, match="no elements"):
        run("pad", [x[:0]], [out[:2]], {**good, "mode": "edge"})
    with pytest.raises(Error, match="int8->uint16"):
        run("pad", [x], [out.astype(np.uint16)], good)
