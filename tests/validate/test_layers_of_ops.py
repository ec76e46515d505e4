"""The layers that an op becomes are the ones whose rules decide what a chip does with it."""

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane.dtypes import FP16
from hexane.lowering.one_node import lower_node
from hexane.ops import LEAVES, OPS, Op
from hexane.targets.floors import layers

X = hx.input("x", (2, 8, 6, 4))
GRID = hx.input("grid", (2, 5, 7, 2))


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_a_layer_is_called_as_its_rules_know_it(op: Op, index: int) -> None:
    """Each layer of an op that stands alone has a kind of the netplists, and operands of fp16 or integers."""
    graph = graph_of(op, op.cases[index], arrays(op, op.cases[index]))
    for node in graph.nodes:
        if node.op in LEAVES:
            continue
        try:
            made = lower_node(node, [False] * len(node.inputs))
        except hx.Error:
            continue
        for layer in made:
            record = OPS[layer.op]
            assert record.level == "engine"
            if record.call is not None:
                call = record.call(layer)
                assert call.layer in layers()
                assert not [t for t in call.types if t.dtype.kind == "float" and t.dtype is not FP16]


def test_a_norm_over_the_batch_is_no_norm_layer() -> None:
    """The validator: "L2 norm does not support batch axis"."""
    (node,) = [n for n in hx.graph(hx.l2_norm(X, axes=0)).nodes if n.op == "l2_norm"]
    assert "anec.l2_norm" not in {layer.op for layer in lower_node(node, [False])}
    data = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    want = data / np.sqrt((data**2).sum(0, keepdims=True) + 1e-6)
    got = hx.compile(hx.l2_norm(X, axes=0), target="h14", device="cpu")({"x": data})
    assert np.abs(got - want).max() < 4e-3


def test_what_no_layer_samples_is_not_native() -> None:
    verdict = hx.preflight(hx.grid_sample(X, GRID, mode="nearest"), "h14").entries[0].verdict
    assert verdict.verdict == "rejected"
    assert verdict.reject == "Background padding with NearestNeighbor is not supported for Resample on this chip"
    assert hx.preflight(hx.grid_sample(X, GRID, mode="nearest", padding_mode="border"), "h14").ok
