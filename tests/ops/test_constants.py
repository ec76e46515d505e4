"""Constants are folded into what the same numbers give as inputs: folding and running have one domain and one range."""

import math
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays
from compare import assert_close
from hexane.build import FUNCTIONS
from hexane.graph import Array
from hexane.ops import OPS, USER_OPS, Op

INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")
ELEMENTWISE = [op for op in USER_OPS.values() if op.elementwise and op.kernel and op.cases]


def results_of(op: Op, operands: list[Any], attrs: Any) -> dict[str, hx.Tensor]:
    made = FUNCTIONS[op.name](*operands, **dict(attrs or {}))
    return {f"y{i}": y for i, y in enumerate(made if isinstance(made, tuple) else [made])}


def run(op: Op, inputs: list[Array | None], attrs: Any, constant: bool) -> dict[str, Array]:
    """Of these inputs, as constants or not."""
    names = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    operands = [
        None if x is None else hx.const(x) if constant else hx.input(f"x{i}", x.shape, hx.const(x).dtype)
        for i, x in enumerate(inputs)
    ]
    net = hx.compile(hx.graph(results_of(op, operands, attrs)), target="host", threads=1)
    call = net.bind(**({} if constant else names))
    call()
    return {name: array.copy() for name, array in call.outputs.items()}


def assert_one_domain(op: Op, inputs: list[Array | None], attrs: Any) -> None:
    try:
        want = run(op, inputs, attrs, constant=False)
    except hx.Error as error:
        if not str(error).startswith("[kernel]"):  # there is none for the dtype: then folding may still do it
            with pytest.raises(hx.Error):
                run(op, inputs, attrs, constant=True)
        return
    found = run(op, inputs, attrs, constant=True)
    assert found.keys() == want.keys()
    for name, array in want.items():
        assert_close(found[name], array)


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_an_op_of_constants_gives_what_it_gives_of_inputs(op: Op, i: int):
    assert_one_domain(op, arrays(op, op.cases[i]), op.cases[i].attrs)


def edges(dtype: str) -> Array:
    limits = np.iinfo(dtype)
    values = {limits.min, limits.min + 1, -3, -1, 0, 1, 2, 3, limits.bits - 1, limits.max - 1, limits.max}
    return np.array(sorted(v for v in values if limits.min <= v <= limits.max), dtype)


def pairs(values: Array, count: int) -> list[Array | None]:
    """As many operands, of which each element meets each of the others."""
    grid = np.meshgrid(*[values] * count, indexing="ij")
    return [np.ascontiguousarray(x.reshape(-1)) for x in grid]


def as_case_has_them(op: Op, values: Array) -> list[Array | None]:
    """For ops that select: their conditions stay bools."""
    case = op.cases[0]
    kinds = [case.dtypes[min(i, len(case.dtypes) - 1)] for i in range(len(op.inputs))]
    found = pairs(values, len(op.inputs))
    return [x if x is None or kind != "bool" else x > 0 for x, kind in zip(found, kinds, strict=True)]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_integers_at_the_ends_of_their_range_fold_as_they_run(op: Op, dtype: str):
    assert_one_domain(op, as_case_has_them(op, edges(dtype)), op.cases[0].attrs)


SPECIAL = np.array([-np.inf, -3, -1, -0.5, -0.0, 0, 0.25, 1, 2, 88, 60000, np.inf, np.nan])


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_floats_beyond_all_numbers_fold_as_they_run(op: Op, dtype: str):
    values = SPECIAL.astype("f4" if dtype == "fp32" else "f2")
    assert_one_domain(op, as_case_has_them(op, values), op.cases[0].attrs)


LINES = [
    [1, np.inf, 2, 3],
    [np.nan, 1, 2],
    [1, -np.inf, np.inf, 2],
    [1e8, 1, 1, 1],
    [0.1, 1e9, 0.5],
    [0.0, -0.0, 2],
    [5.0],
]
ALONG_A_LINE = [
    op for op in USER_OPS.values() if len(op.inputs) == 1 and {"axis", "axes"} & set(op.attrs or {}) and op.kernel
]


@pytest.mark.parametrize("line", LINES, ids=str)
@pytest.mark.parametrize(
    "options", [{"exclusive": e, "reverse": r} for e in (False, True) for r in (False, True)], ids=str
)
def test_running_sums_and_products_of_constants(line: list[float], options: dict[str, bool]):
    for name in ("cumsum", "cumprod"):
        assert_one_domain(OPS[name], [np.array(line, np.float32)], {"axis": 0, **options})
    x = np.array(line, np.float64)
    wanted = [math.nan if np.isnan(x[:i]).any() else sum(x[:i].tolist()) for i in range(len(x))]
    found = run(OPS["cumsum"], [x.astype(np.float32)], {"axis": 0, "exclusive": True, "reverse": False}, constant=True)
    np.testing.assert_array_equal(found["y0"], np.array(wanted, np.float32))


@pytest.mark.parametrize("line", LINES, ids=str)
@pytest.mark.parametrize("op", ALONG_A_LINE, ids=lambda op: op.name)
def test_lines_with_infinities_fold_as_they_run(op: Op, line: list[float]):
    attrs = {**(op.cases[0].attrs or {}), **({"axis": 0} if "axis" in (op.attrs or {}) else {"axes": (0,)})}
    assert_one_domain(op, [np.array(line, np.float32)], attrs)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_scalar_of_constants_is_gathered(batch: int):
    """As Shape -> GatherND has it: coordinates of one element."""
    x = np.array([[10, 20, 30]] if batch else [10, 20, 30], np.int64)
    at = np.array([[1]] if batch else [1], np.int64)
    found = run(OPS["gather_nd"], [x, at], {"batch_dims": batch}, constant=True)
    np.testing.assert_array_equal(found["y0"], np.array([20] if batch else 20))


def test_a_negative_power_of_integers_is_truncated():
    """As C truncates a quotient; of 0 by the rule of docs/ops.md."""
    x = np.array([2, -3, 1, -1, -1, 0, 7], np.int64)
    y = np.array([-1, 2, -5, -2, -3, -1, 0], np.int64)
    found = run(OPS["pow"], [x, y], {}, constant=True)
    np.testing.assert_array_equal(found["y0"], [0, 9, 1, 1, -1, 0, 1])
