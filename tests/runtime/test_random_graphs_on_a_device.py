"""Random graphs, and every op by itself, on a device that runs the MIL it gets: beside the CPU's program of the same
pieces.

The bits are equal, for one reason less: the CPU rounds once where the chip has one layer, and MIL has no op for some of
these. It says

* SEVERAL in several ops, each of which rounds to fp16, for the reason beside each;
* a layer with a param as its bias or gain, which is an input of the program, as a layer and an elementwise op;
* a product of quantised tensors and its bias in two ops, so that a number may be quantised to the next step.
"""

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, feeds, graph_of
from engines import in_the_same_pieces, plan_engine
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.ops import Op
from hexane.runtime.model import Model
from random_graphs import KINDS, random_graph

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
SEVERAL = {
    "batch_norm": "MIL's takes constants",
    "celu": "MIL has elu alone, which is celu where alpha is 1",
    "instance_norm": "MIL's takes constants",
    "l2_norm": "MIL's goes over the last three axes",
    "rms_norm": "MIL has none",
}
ROUNDINGS = 2.0**-8  # of the largest number: eight roundings to fp16
FOUND = (90, 105, 134, 246, 309, 355)  # seeds of graphs that could not be compiled once


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        only = metafunc.config.getoption("--seed")
        more = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20)]
        metafunc.parametrize("seed", [*range(5), *FOUND, *more] if only is None else [only])


def check(
    graph: Graph, cpu: Model, given: dict[str, Array], rounds_once: bool, quantised: bool, patch: pytest.MonkeyPatch
) -> None:
    device = plan_engine()
    patch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    net = hx.compile(graph, target="h13", device="ane")
    got, want = net(given), cpu(given)  # type: ignore[operator]
    if not isinstance(want, dict):
        got, want = {"y": got}, {"y": want}
    assert got.keys() == want.keys()
    for name, expected in want.items():
        if rounds_once or expected.dtype.kind not in "fiu" or expected.size == 0:
            np.testing.assert_array_equal(got[name], expected, err_msg=name)
            continue
        whole = expected.astype(np.float64)
        most = np.abs(whole[np.isfinite(whole)]).max(initial=0.0)
        allowed = max(1.0 if expected.dtype.kind in "iu" else 0.0, most * (0.05 if quantised else ROUNDINGS))
        np.testing.assert_allclose(got[name].astype(np.float64), whole, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, given = random_graph(seed, kind, steps=6)
    ops = {node.op for node in graph.nodes}
    quantised = kind.startswith("quantized")
    inputs = {str(v.node.attrs["name"]) for v in graph.inputs}
    once = not quantised and not ops & SEVERAL.keys() and "param" not in ops
    cpu, given = in_the_same_pieces(graph), {name: a for name, a in given.items() if name in inputs}
    check(graph, cpu, given, once, quantised, monkeypatch)


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_every_op(op: Op, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = arrays(op, op.cases[index])
    graph = graph_of(op, op.cases[index], inputs)
    try:
        cpu = in_the_same_pieces(graph)
    except Error as error:
        print(error)
        pytest.skip("the CPU does not compile it for a chip")
    check(graph, cpu, feeds(graph, inputs), op.name not in SEVERAL, op.name.startswith("quant"), monkeypatch)
