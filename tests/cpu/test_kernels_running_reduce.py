"""running_reduce against the kernels that reduce a whole image, bit for bit, and against its record."""

from typing import Any

import numpy as np
import pytest
from tests.support.kernels import poisoned, run, same_bits

from hexane import _core
from hexane.errors import Error
from hexane.ops import OPS
from hexane.program.attrs import Strings, pack

# One level of partial results, with full blocks at the end and without, two, and three.
SHAPES = [(1, 5, 7, 19), (1, 16, 8, 5), (1, 9, 130), (1, 25, 40, 70), (1, 128, 128, 3), (1, 130, 129, 3), (1, 20000, 2)]
KINDS = ("sum", "mean", "max", "min")


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return (np.random.default_rng(0).standard_normal(shape) * 3 + 1).astype(dtype)


def state_of(x: Any, kind: str) -> tuple[int, ...]:
    return tuple(OPS["cpu.running_reduce"].shape(x.shape, kind=kind))


def run_rows(x: Any, out: Any, kind: str, begin: int, end: int, rings: dict[int, int] | None = None) -> None:
    strings = Strings()
    attrs = pack("kind:s", {"kind": kind}, strings)
    _core.run_part("running_reduce", [x], [out], attrs, strings.tobytes(), 1, begin, end, rings or {})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_last_row_has_the_bits_of_the_whole_image(shape: tuple[int, ...], kind: str, dtype: str) -> None:
    x = numbers(shape, dtype)
    want = poisoned((shape[-1],), dtype)
    run(f"reduce_{kind}", [x], [want], {"axes": tuple(range(len(shape) - 1)), "keep_dims": 0})
    shape = state_of(x, kind)
    for kept in (1, 2, shape[1]):
        out = poisoned((1, kept, *shape[2:]), "float32")
        for begin, end in ((0, 1), (1, 3), (3, 4), (4, shape[1])):
            run_rows(x, out, kind, begin, end, {1: shape[1]} if kept < shape[1] else None)
        last = out[0, (shape[1] - 1) % kept]
        assert same_bits(last[0].astype(dtype), want)
        assert not last[1:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_every_row_has_the_partial_results_of_those_before(shape: tuple[int, ...], kind: str) -> None:
    x = numbers(shape)
    want = OPS["cpu.running_reduce"].ref(x, kind=kind)
    out = poisoned(want.shape, "float32")
    run_rows(x, out, kind, 0, shape[1])
    assert same_bits(out, want)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_and_infinity_go_through(kind: str) -> None:
    x = np.full((1, 4, 3, 20), -np.inf if kind == "max" else np.inf, np.float32)
    x[0, 1, 2, 3] = np.nan
    out = poisoned(state_of(x, kind), "float32")
    run_rows(x, out, kind, 0, 4)
    assert np.isnan(out[0, 3, 0, 3])
    assert np.isinf(np.delete(out[0, 3, 0], 3)).all()


@pytest.mark.parametrize(
    ("shape", "out", "kind", "message"),
    [
        ((1, 4, 3, 2), (1, 4, 1, 2), "prod", "kind: got 'prod', need 'sum', 'mean', 'max' or 'min'"),
        ((2, 4, 3, 2), (2, 4, 1, 2), "sum", r"input: got \(2, 4, 3, 2\), need \(1, H, W, C\)"),
        ((1, 0, 3, 2), (1, 0, 1, 2), "sum", r"input: got \(1, 0, 3, 2\), need .* with elements"),
        ((1, 40, 4, 2), (1, 40, 1, 2), "sum", r"output: got \(1, 40, 1, 2\), need \(1, 40, 2, 2\)"),
        ((1, 40, 4, 2), (1, 40, 2, 2), "max", r"output: got \(1, 40, 2, 2\), need \(1, 40, 1, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(shape: Any, out: Any, kind: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        run_rows(np.zeros(shape, "f"), np.zeros(out, "f"), kind, 0, shape[1])
