"""What tests of retargeting share: chips of small extents, and that a retargeted graph is sound, final, and computes
the same."""

from dataclasses import replace
from typing import Any

import numpy as np

import hexane as hx
from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.ops import LEAVES
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes.retarget import retarget
from hexane.pipeline import compile_graph
from hexane.targets import Chip, load_target
from hexane.targets.query import load_chip
from hexane.validate import judge

HOST = load_target("host")


def small(name: str = "h13", **extents: int) -> Chip:
    """A chip but for some of its extents."""
    chip = load_chip(name)
    return replace(chip, extents=replace(chip.extents, **extents))


def whole_numbers(graph: Graph) -> dict[str, Array]:
    """Inputs between -3 and 3, so that sums of products are exact in fp32; few for integers, which may be indices."""
    rng = np.random.default_rng(7)
    return {
        str(v.node.attrs["name"]): rng.integers(0, 2, v.shape).astype(v.dtype.numpy)
        if v.dtype.kind != "float"
        else rng.integers(-3, 4, v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    }


def run(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    program = _core.Program(emit_plan(compile_graph(graph, HOST)), 1)
    return dict(zip([p["name"] for p in program.outputs], program.run(feeds), strict=True))


def assert_retargeted(graph: Graph, chip: Chip, exact: bool = True, feeds: dict[str, Array] | None = None) -> Graph:
    """The graph for the chip: sound, of the same results, and the same when it is retargeted again."""
    after = retarget(graph, chip)
    verify(after, "user", chip)
    feeds = whole_numbers(graph) if feeds is None else feeds
    want = run_reference(graph, feeds)
    for got in (run_reference(after, feeds), run(after, feeds)):
        for name, array in want.items():
            if exact:
                np.testing.assert_array_equal(got[name], array)
            else:
                assert_close(got[name], array)
    assert str(retarget(after, chip)) == str(after)
    assert_decided(after, chip)
    return after


def assert_decided(after: Graph, chip: Chip) -> None:
    """What does not run as it is on the chip has a Decision that says why it is still there."""
    told = [decision.node for decision in after.decisions]
    for node in after.nodes:
        if node.op not in LEAVES and judge(node, chip).verdict != "native":
            # A node that merged with another since comes from more places.
            mine = [place for place in told if place.startswith(node.op) and any(s in place for s in node.sources)]
            assert mine or not node.sources, f"nothing was decided about {node.where}"


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op not in LEAVES]


def x(*shape: int, name: str = "x", dtype: str = "fp32") -> hx.Tensor:
    return hx.input(name, shape, dtype)


def w(*shape: int) -> Any:
    """Weights of small whole numbers."""
    return np.random.default_rng(3).integers(-2, 3, shape).astype(np.float32)
