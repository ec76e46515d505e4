"""Gradients of random graphs against torch.autograd, in fp64: the same forward pass, written in PyTorch."""

from collections.abc import Sequence

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Value
from hexane.ops.reference import run_reference
from random_graphs import STEPS
from random_graphs.choices import Seeded
from random_graphs.graph import RandomGraph, Unfit

pytest.importorskip("torch", reason="torch is not installed: pip install torch")
from in_torch import gradients_in_torch, has_torch_form

# torch deprecates parts of itself.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

BLOCKS, PER_BLOCK = 8, 50
TOLERANCE = 1e-4  # relative L2
ROUNDING = 1e-11  # L2: of what cancels, when exact gradients are 0


class DifferentiableGraph(RandomGraph):
    """Of ops that PyTorch has too, in fp64, whose weights are params or inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__(Seeded(seed, 77), "fp32", steps=12, limit=1500)
        self.dtype = "fp64"

    def leaf(self, array: Array) -> hx.Tensor:
        if array.dtype.kind != "f":
            return super().leaf(array)
        t = hx.param(f"w{len(self.arrays)}", array)
        self.arrays[t.value] = self.noisy[t.value] = array
        return t

    def keep(self, result: hx.Tensor | Sequence[hx.Tensor]) -> None:
        several = [result] if isinstance(result, hx.Tensor) else list(result)
        if any(t.dtype.kind == "float" and t.dtype.name != "fp64" for t in several):
            raise Unfit
        for t in several:
            self._check_forms(t.value)
        super().keep(result)

    def _check_forms(self, value: Value) -> None:
        if value in self.arrays:
            return
        if not has_torch_form(value.node) or not all(v.type.size for v in (value, *value.node.inputs) if v is not None):
            raise Unfit  # PyTorch refuses some empty tensors, and gives others another shape
        for v in value.node.inputs:
            if v is not None:
                self._check_forms(v)


def relative(got: Array, want: Array) -> float:
    scale = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got - want)) / scale


def compare(seed: int) -> int:
    """How many gradients were compared."""
    graph, feeds = DifferentiableGraph(seed).grow(STEPS)
    outputs = list(dict.fromkeys(p.value for p in graph.outputs if p.value.dtype.kind == "float"))
    leaves = [n.values[0] for n in graph.nodes if n.op in ("input", "param")]
    leaves = [v for v in leaves if v.dtype.kind == "float" and v.type.size]
    if not outputs or not leaves:
        return 0
    rng = np.random.default_rng(seed)
    seeds = [rng.uniform(0.5, 1.5, v.shape) for v in outputs]
    forward, wanted = gradients_in_torch(outputs, seeds, leaves, feeds)
    ours = run_reference(hx.graph({f"y{i}": hx.Tensor(v) for i, v in enumerate(outputs)}), feeds_of(outputs, feeds))
    for got, want in zip(ours.values(), forward, strict=True):
        assert relative(got, want) < 1e-9, f"seed {seed}: the forward pass"
    compared = 0
    for leaf, want in zip(leaves, wanted, strict=True):
        try:
            gradient = hx.grad([hx.Tensor(v) for v in outputs], hx.Tensor(leaf), seed=seeds)
        except hx.Error as error:
            if "does not depend" not in str(error):
                raise
            assert not want.any(), f"seed {seed}: {leaf.node.where}: torch has a gradient"
            continue
        (got,) = run_reference(hx.graph({"g": gradient}), feeds_of([gradient.value], feeds)).values()
        if np.isfinite(want).all():
            error = float(np.linalg.norm(got - want))
            assert error <= TOLERANCE * np.linalg.norm(want) + ROUNDING, f"seed {seed}: {leaf.node.where}: {error}"
            compared += 1
    return compared


def feeds_of(values: Sequence[Value], feeds: dict[str, Array]) -> dict[str, Array]:
    names = hx.graph({f"y{i}": hx.Tensor(v) for i, v in enumerate(values)}).input_names()
    return {name: feeds[name] for name in names}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_gradients_of_random_graphs_are_those_of_torch(block: int) -> None:
    seeds = range(block * PER_BLOCK, (block + 1) * PER_BLOCK)
    assert sum(map(compare, seeds)) > 2 * PER_BLOCK
