"""Gradient rules against finite differences: every case of every record, in fp64."""

import zlib
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays
from hexane.build import FUNCTIONS
from hexane.graph import Array
from hexane.ops import USER_OPS, Op
from hexane.ops.reference import run_reference

STEP = 1e-5
Tensors = list[hx.Tensor | None]


def is_float(array: Array | None) -> bool:
    return array is not None and array.dtype.kind == "f"


def widened(array: Array | None) -> Array | None:
    return array.astype(np.float64) if is_float(array) and array is not None else array


class Problem:
    """An op on inputs of its own: the sum of its results of floats, each times a fixed random number."""

    def __init__(self, op: Op, number: int) -> None:
        case = op.cases[number]
        self.arrays = [widened(a) for a in arrays(op, case)]
        attrs = {k: ("fp64" if k == "dtype" and v in ("fp16", "fp32") else v) for k, v in (case.attrs or {}).items()}
        self.inputs: Tensors = [
            None if a is None else hx.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(self.arrays)
        ]
        results = FUNCTIONS[op.name](*self.inputs, **attrs)
        self.outputs = list(results) if isinstance(results, tuple | list) else [results]
        self.floats = [t for t, a in zip(self.inputs, self.arrays, strict=True) if t is not None and is_float(a)]
        self.rng = np.random.default_rng(zlib.crc32(f"{op.name} {number}".encode()))
        self.results = [t for t in self.outputs if t.dtype.kind == "float"]
        self.seeds = [self.rng.uniform(0.5, 1.5, t.shape).astype(t.dtype.numpy) for t in self.results]

    def feeds(self, tensors: list[hx.Tensor], moved: dict[str, Array]) -> dict[str, Array]:
        wanted = set(hx.graph({f"y{i}": t for i, t in enumerate(tensors)}).input_names())
        known = {f"x{i}": a for i, a in enumerate(self.arrays) if a is not None}
        return {name: moved.get(name, array) for name, array in known.items() if name in wanted}

    def run(self, tensors: list[hx.Tensor], moved: dict[str, Array] | None = None) -> list[Array]:
        graph = hx.graph({f"y{i}": t for i, t in enumerate(tensors)})
        return list(run_reference(graph, self.feeds(tensors, moved or {})).values())

    def value(self, moved: dict[str, Array]) -> float:
        return sum(float((s * r).sum()) for s, r in zip(self.seeds, self.run(self.results, moved), strict=True))


def has_gradient(op: Op) -> bool:
    return op.grad is not None or op.expand is not None


# Their results of floats come from integers, or from numbers drawn at random.
NOT_OF_FLOATS = ("one_hot", "random", "random_normal", "random_uniform", "lookup")


@pytest.mark.parametrize(("op", "number"), CASES, ids=IDS)
def test_gradients_are_those_of_finite_differences(op: Op, number: int) -> None:
    if op.no_grad or op.name in (*NOT_OF_FLOATS, "stop_gradient"):
        pytest.skip("has no gradient")
    try:
        problem = Problem(op, number)
    except hx.Error:
        pytest.skip("does not take fp64")
    if not problem.floats or not problem.results:
        pytest.skip("no floats in or out")
    found: list[tuple[hx.Tensor, hx.Tensor | None]] = []
    for t in problem.floats:
        try:
            found.append((t, hx.grad(problem.results, t, seed=problem.seeds)))
        except hx.Error as error:
            if "does not depend" not in str(error):
                raise
            found.append((t, None))
    known = problem.run([g for _, g in found if g is not None]) if any(g is not None for _, g in found) else []
    given = iter(known)
    for t, gradient in found:
        name, array = str(t.value.node.attrs["name"]), problem.arrays[int(str(t.value.node.attrs["name"])[1:])]
        assert array is not None
        got = np.zeros(array.shape) if gradient is None else next(given)
        assert got.shape == array.shape
        for _ in range(3):
            way = problem.rng.standard_normal(array.shape)
            high, low = (problem.value({name: np.asarray(array + s * STEP * way)}) for s in (1, -1))
            want = (high - low) / (2 * STEP)
            scale = max(1.0, float(np.abs(got).max(initial=0)) * np.sqrt(max(array.size, 1)))
            assert abs(float((got * way).sum()) - want) < 2e-6 * scale, f"{name}: {(got * way).sum()} {want}"


def test_every_op_with_results_of_floats_has_a_gradient_or_says_why_not() -> None:
    for op in USER_OPS.values():
        if has_gradient(op) or op.no_grad or op.name in NOT_OF_FLOATS:
            assert not (op.grad is not None and op.no_grad), op.name
            continue
        for i in range(len(op.cases)):
            problem: Any = None
            try:
                problem = Problem(op, i)
            except hx.Error:
                continue
            assert not (problem.results and problem.floats), op.name
