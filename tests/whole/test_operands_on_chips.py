"""Every case of the records on chips, with its operands constant and computed: what a chip's program computes is what
the record means."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays
from hexane.build import FUNCTIONS
from hexane.dtypes import DTYPES
from hexane.graph import Array, Graph
from hexane.ops import Op
from hexane.ops.reference import run_reference
from hexane.targets.query import chip_names
from turns import share

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
FEW = ("h12", "h13", "h15", "h17s")
ARITHMETICS = ("ieee", "engine")
CLOSE = 2.0**-6  # of the largest number, or of each number, if that is more: several layers, each rounded to fp16
# Ops that jump between neighbours: a number that fp16 rounds across the jump has another result.
JUMPS = {"round", "floor", "ceil", "floor_div", "mod", "sign", "equal", "not_equal", "is_nan", "is_inf", "cast"}
NO_NAN = {"is_nan", "is_inf"}  # the engine reads a NaN as infinity (docs/numerics.md)
AS_LONG_AS_THE_DATA = {
    "non_zero",
    "unique",
    "non_max_suppression",
}  # the reference gives the longest result there may be
DRAWN = {"bernoulli", "multinomial", "random", "random_normal", "random_uniform"}


def variants(op: Op, index: int) -> list[tuple[str, set[int]]]:
    """Which inputs are constant: none, all but the first, and each alone."""
    given = [i for i, a in enumerate(arrays(op, op.cases[index])) if a is not None]
    found: dict[str, set[int]] = {"all computed": set(), "first computed": set(given[1:])}
    found |= {f"input {i} constant": {i} for i in given} if len(given) > 1 else {}
    return list(found.items())


def graph_of(op: Op, index: int, constant: set[int]) -> tuple[Graph, dict[str, Array]] | None:
    """The op of inputs and constants. None where an input has to be constant, or may not be."""
    tensors: list[object] = []
    feeds: dict[str, Array] = {}
    for i, array in enumerate(arrays(op, op.cases[index])):
        if array is None or i in constant:
            tensors.append(array)
            continue
        if array.dtype.kind == "f":
            array = array.astype(np.float16).astype(array.dtype)  # as it passes to the engine
        kind = hx.const(array).dtype.name
        feeds[f"x{i}"] = array.astype(DTYPES[kind].numpy)
        tensors.append(hx.input(f"x{i}", array.shape, kind))
    if not feeds:
        return None
    try:
        results = FUNCTIONS[op.name](*tensors, **dict(op.cases[index].attrs or {}))
    except hx.Error:
        return None
    outputs = list(results) if isinstance(results, tuple) else [results]
    return hx.graph(outputs), feeds


Choice = tuple[str, str]  # a chip and an arithmetic


def everywhere(chips: Iterable[str]) -> Callable[[int], list[Choice]]:
    """Both arithmetics on each chip."""
    return lambda place: [(chip, numerics) for chip in chips for numerics in ARITHMETICS]


def in_turn(index: int) -> Callable[[int], list[Choice]]:
    """The first two choices of constants, in which all or no inputs but the first are constant, on each of FEW in one
    arithmetic after the other; the inputs that are constant alone each on one of them."""

    def choices(place: int) -> list[Choice]:
        turn = place + index
        chips = FEW if place < 2 else FEW[turn % len(FEW) :][:1]
        return [(chip, ARITHMETICS[(turn + i) % 2]) for i, chip in enumerate(chips)]

    return choices


def assert_means_the_record(op: Op, index: int, choices: Callable[[int], list[Choice]]) -> None:
    for place, (name, constant) in enumerate(variants(op, index)):
        made = graph_of(op, index, constant)
        if made is None:
            continue
        graph, feeds = made
        want = run_reference(graph, feeds)
        for chip, numerics in choices(place):
            if numerics == "engine" and op.name in NO_NAN:
                continue
            got = hx.compile(graph, target=chip, numerics=numerics, threads=1)(feeds)
            results = got if isinstance(got, dict) else {graph.outputs[0].name: got}
            for port, array in results.items():
                assert_near(array, want[port], op.name in JUMPS, f"{name}, {chip}, {numerics}, {port}")


def assert_near(got: Array, want: Array, jumps: bool, where: str) -> None:
    assert got.shape == want.shape, where
    if want.size == 0:
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    held = np.isfinite(b) & (np.abs(b) < 65504)
    if (want.dtype.kind in "biu" and want.dtype.name not in ("int8", "uint8")) or jumps:
        wrong = (a != b) & held
        assert wrong.mean() <= 0.1, f"{where}: {int(wrong.sum())} of {wrong.size} differ"
        return
    largest = np.abs(b[held]).max(initial=0.0)
    limit = 1.0 if want.dtype.kind in "iu" else CLOSE * np.maximum(largest, np.abs(b)) + 1e-4
    with np.errstate(invalid="ignore"):
        far = held & ~(np.abs(a - b) <= limit)
    assert not far.any(), f"{where}: {a[far][:4]} for {b[far][:4]}, of {largest}"


LEFT_OUT = DRAWN | AS_LONG_AS_THE_DATA
SOME = [(op, i) for op, i in CASES if op.name not in LEFT_OUT]
NAMES = [name for name, (op, _) in zip(IDS, CASES, strict=True) if op.name not in LEFT_OUT]


@pytest.mark.parametrize(("op", "index"), SOME, ids=NAMES)
def test_a_case_means_the_same_with_constant_and_computed_operands(op: Op, index: int) -> None:
    assert_means_the_record(op, index, in_turn(index))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), SOME, ids=NAMES)
def test_a_case_means_the_same_on_every_chip(op: Op, index: int) -> None:
    others = share([name for name in chip_names(all=True) if name not in FEW])
    assert_means_the_record(op, index, everywhere([*FEW, *others]))
