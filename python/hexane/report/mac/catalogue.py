"""Runs every example of the op catalogue on the engine, and on the CPU in the engine's arithmetic: the error, and where
the ops ran."""

import warnings
from functools import partial

import numpy as np

from hexane.graph import Array
from hexane.ops import USER_OPS, Op
from hexane.ops.spec import Case
from hexane.options import Device
from hexane.report.examples import arrays, feeds, graph_of
from hexane.report.mac.probe import Context, Probe, Values
from hexane.runtime import Model, compile
from hexane.targets.query import load_chip
from hexane.validate import judge

PER_PROCESS = 30  # programs compiled per process


def engine_against_cpu(op: Op, example: Case, context: Context) -> Values:
    """Runs an example of an op on the engine and on the CPU, and returns their difference."""
    given = arrays(op, example)
    graph = graph_of(op, example, given)
    chip = load_chip(context.target)
    values = feeds(graph, given)
    verdicts = sorted({judge(node, chip).verdict for node in graph.nodes if node.inputs})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu = compile(graph, target=context.target, device="cpu")
        record: Values = {"verdicts": verdicts}
        engine = compile(graph, target=context.target, device=Device("ane", cache=False))
    assert isinstance(cpu, Model)  # compile() returns a Model for fixed shapes
    assert isinstance(engine, Model)
    steps = engine.program.steps if engine.program is not None else ()
    record |= {"programs": sum(step.kernel == "program" for step in steps), "host_steps": 0}
    record["host_steps"] = len(steps) - record["programs"]
    return record | distance(_all(engine(**values)), _all(cpu(**values)))


def _all(results: object) -> list[Array]:
    if isinstance(results, dict):
        return list(results.values())
    return list(results) if isinstance(results, (list, tuple)) else [np.asarray(results)]


def distance(got: list[Array], want: list[Array]) -> Values:
    """Returns the error: the norm of the difference over the norm of the result, the largest of all outputs; infinite
    if shapes, infinities, NaNs or the number of outputs differ."""
    equal = len(got) == len(want)
    worst = 0.0 if equal else float("inf")
    for a, b in zip(got, want, strict=False):
        equal = equal and _same_bits(a, b)
        ours, theirs = (np.where(np.isfinite(v), 0, v) for v in (a, b))
        if a.shape != b.shape or not np.array_equal(ours, theirs, equal_nan=a.dtype.kind == "f"):
            worst = float("inf")
            continue
        x, y = (np.where(np.isfinite(v), v, 0).astype(np.float64) for v in (a, b))
        largest = max(float(np.abs(v).max(initial=0)) for v in (x, y)) or 1.0  # divisor so that squares do not overflow
        norm = float(np.linalg.norm(y / largest))
        worst = max(worst, float(np.linalg.norm(x / largest - y / largest)) / (norm or 1.0))
    return {"error": worst if np.isfinite(worst) else "infinite", "same_bits": bool(equal)}


def _same_bits(a: Array, b: Array) -> bool:
    """True if the arrays have the same bits. All NaNs count as equal."""
    if a.dtype != b.dtype or a.dtype.kind != "f":
        return a.dtype == b.dtype and np.array_equal(a, b)
    ours, theirs = (np.signbit(v) & ~np.isnan(v) for v in (a, b))
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(ours, theirs)


CATALOGUE = Probe(
    "catalogue",
    "How far is each op on the engine from the engine's arithmetic on the CPU, and where does it run?",
    {
        f"{op.name} {i}": partial(engine_against_cpu, op, example)
        for op in USER_OPS.values()
        for i, example in enumerate(op.cases)
    },
    per_process=PER_PROCESS,
)
