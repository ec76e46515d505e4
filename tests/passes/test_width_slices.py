"""Several slices that begin inside a row, concatenated: chips before A16 give wrong elements. Forms avoid it, networks
are warned of it."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.passes.retarget import retarget
from hexane.targets.query import chip_names, load_chip
from hexane.validate.width_slices import joins_width_slices

SHAPE = (1, 3, 4, 9)
CHIPS = ("h13", "h13g", "h14", "h15", "h17s")


def x() -> hx.Tensor:
    return hx.input("x", SHAPE)


def sides(mode: str) -> Callable[[], hx.Tensor]:
    return lambda: hx.pad(x(), begin=(0, 0, 0, 3), end=(0, 0, 0, 2), mode=mode)


FORMS: dict[str, Callable[[], hx.Tensor]] = {
    **{mode: sides(mode) for mode in ("edge", "reflect", "wrap")},
    "gather": lambda: hx.gather(x(), np.array([5, 1, 7, 7]), axis=3),
    "gather along the channels": lambda: hx.gather(hx.reshape(x(), shape=(2, 6, 9)), np.array([5, 1]), axis=1),
}


def columns(image: hx.Tensor, first: int, last: int) -> hx.Tensor:
    return hx.slice_by_index(image, begin=(0, 0, 0, first), end=(*SHAPE[:3], last))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", FORMS)
def test_forms_do_not_write_it(name: str, chip: str) -> None:
    graph = hx.graph(FORMS[name]())
    assert not any(map(joins_width_slices, retarget(graph, load_chip(chip)).nodes))
    feed = np.random.default_rng(4).integers(-4, 5, SHAPE).astype(np.float32)
    want = hx.compile(graph, threads=1)(feed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(hx.compile(graph, target=chip, threads=1)(feed), want)


@pytest.mark.parametrize("op", ["concat", "stack"])
def test_a_network_that_has_it_is_warned_of_where_the_chip_does(op: str) -> None:
    image = x()
    joined = hx.graph(getattr(hx, op)(columns(image, 1, 3), columns(image, 4, 6), axis=3 if op == "concat" else 0))
    for chip in chip_names(all=True):
        taken = all(e.verdict.runs for e in hx.preflight(joined, chip).entries if e.op == op)
        struck = taken and bool(load_chip(chip).hazards.width_slice_concat)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hx.compile(joined, target=chip, threads=1)
        told = [w for w in caught if "several slices that begin inside a row" in str(w.message)]
        assert [w.category for w in told] == [hx.HazardWarning] * struck, chip
        reasons = [e.verdict.reason for e in hx.preflight(joined, chip).entries if e.op == op]
        assert any("several slices" in reason for reason in reasons) == struck, chip


def test_one_such_slice_is_no_hazard() -> None:
    image = x()
    graph = hx.graph(hx.concat(columns(image, 0, 3), columns(image, 4, 6), axis=3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hx.compile(graph, target="h13", threads=1)
    assert not [w for w in caught if "several slices" in str(w.message)]


def test_parts_of_a_split_count() -> None:
    first, second, third = hx.split(x(), axis=3, num_splits=3)
    assert joins_width_slices(hx.graph(hx.concat(third, first, second, axis=3)).outputs[0].value.node)
    assert not joins_width_slices(hx.graph(hx.concat(first, second, axis=3)).outputs[0].value.node)
