"""Integers in graphs for chips, which compute in fp16: what the chip does not take runs on the host, with NumPy's
values, and no dtype ends a command."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

import hexane as hx
from cases import arrays, graph_of
from hexane.graph import Array
from hexane.ops import USER_OPS, Op

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")

CHIPS = ("h12", "h13", "h16g", "h17s")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def ends(dtype: str) -> Array:
    """Lines with the least and the largest numbers in other places, and once the same twice."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([[3, low, 5, high], [high, high - 1, low + 1, low], [low + 2, 4, 4, low + 2]], dtype)


OPS: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], Callable[[Array], Array]]] = {
    "reduce_argmin": (lambda x: hx.reduce_argmin(x, axis=1), lambda x: np.argmin(x, 1)),
    "reduce_argmax": (lambda x: hx.reduce_argmax(x, axis=1), lambda x: np.argmax(x, 1)),
    "neg": (hx.neg, np.negative),
    "clip": (lambda x: hx.clip(x, alpha=-1.0, beta=2.0), lambda x: np.clip(x, -1 if x.dtype.kind == "i" else 0, 2)),
    "clip_wide": (lambda x: hx.clip(x, alpha=1.0, beta=1e30), lambda x: np.maximum(x, 1).astype(x.dtype)),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", OPS)
def test_integers_on_a_chip_are_numpys(name: str, dtype: str, chip: str):
    build, wanted = OPS[name]
    x = ends(dtype)
    graph = hx.graph({"y": build(hx.input("x", x.shape, dtype))})
    hx.preflight(graph, chip)
    if dtype == "uint64" and not name.startswith("reduce_arg"):  # for which the host has no kernels of these ops
        with pytest.raises(hx.Error, match="got uint64"):
            hx.compile(graph, target=chip, device="cpu", threads=1)(x)
        return
    found = hx.compile(graph, target=chip, device="cpu", threads=1)(x)
    np.testing.assert_array_equal(found, wanted(x))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", [op for op in USER_OPS.values() if op.cases], ids=lambda op: op.name)
def test_an_op_of_integers_is_refused_as_an_error_or_compiles(op: Op, dtype: str):
    inputs = arrays(op, op.cases[0])
    first = next((hx.const(a).dtype.name for a in inputs if a is not None), dtype)
    try:
        graph = graph_of(op, op.cases[0], inputs, (first, dtype))
    except hx.Error:
        return  # its record does not take it
    for chip in CHIPS:
        with suppress(hx.Error):
            hx.preflight(graph, chip)
        with suppress(hx.Error):
            hx.compile(graph, target=chip, device="cpu", threads=1)
