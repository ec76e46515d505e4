"""Finds numbers that leave fp16 before a layer (overflow, NaN, or lost to 0), and whether they change the layer.

Every step of the program is examined, also inside a fused layer. A fault matters if its correction brings the layer
closer to the other target's layer. The correction keeps the faulty elements exact, and rounds everything computed from
them to 11 bits without a limit of size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.graph import Array, Node, Value, topological
from hexane.ops import LEAVES, evaluate_exactly
from hexane.program import Step
from hexane.report.difference import difference
from hexane.runtime.observe import Observation
from hexane.runtime.products import LIMIT, has_products, kind_of
from hexane.targets.activations import TABLE_OF, Activation, activations

LARGEST = 65520.0  # Fp16 rounds numbers from 65520 on to infinity.
SMALLEST_NORMAL = 2.0**-14
FEW_DIGITS = 2.0**-8  # A subnormal result with this relative error counts as vanished.
BITS = 11  # Bits of an fp16's significand.


def table_of(step: Step) -> Activation | None:
    """Returns the table by which the engine computes a step, or an activation fused into it; None without a table."""
    ops = (kind_of(step.node), *(slot.op for slot in step.attrs.get("epilogue", ())))
    return next((table for op in ops if (table := activations().get(TABLE_OF.get(op, op))) is not None), None)


@dataclass(frozen=True, eq=False, slots=True)
class Fault:
    """A step with elements that left fp16. kept: its result with these elements exact in fp64. index: the first of the
    `count` elements; value: its stored value; exact: its value from the step's operands. overflow: the elements
    overflowed; if false, they vanished."""

    step: Step
    index: tuple[int, ...]
    value: float
    exact: float
    count: int
    overflow: bool
    kept: Array

    @property
    def words(self) -> str:
        """The fault in words, without its place in the model."""
        if not self.overflow:
            what = "becomes 0" if self.value == 0 else f"is stored as {self.value:g}"
            why = f": {self.dtype} has no digits for it" if abs(self.exact) < SMALLEST_NORMAL else ""
            return f"{self.exact:g} {what}{why}"
        what = "NaN" if np.isnan(self.value) else "infinite" if np.isinf(self.value) else f"{self.value:g}"
        if abs(self.exact) < LARGEST and has_products(self.step.node) and self.step.numerics.family == "engine":
            return f"{self.exact:g} becomes {what}: the accumulator reaches {LIMIT:g}, from where on it is infinite"
        why = "" if abs(self.exact) < LARGEST else f": it is beyond {self.dtype}"
        return f"{self.exact:g} becomes {what}{why}"

    @property
    def dtype(self) -> str:
        return str(self.step.node.types[0].dtype)

    @property
    def evidence(self) -> str:
        of = self.kept.size
        return f"element {list(self.index)} of {self.step.node.types[0]} is {self.value:g}; {self.count} of {of} are so"


def find_faults(steps: Mapping[int, Step], seen: Observation, layer: Value) -> list[Fault]:
    """Returns the faults before the layer, in the order of the steps. steps: by the id of the node."""
    return list(_faults(steps, seen, layer))


def fault_that_matters(
    faults: Sequence[Fault], seen: Observation, layer: Value, want: Array
) -> tuple[Fault, float] | None:
    """Returns the last fault that, together with later faults, causes at least half of the layer's distance from the
    other target (`want`), and the distance without these faults. Returns None if all faults together cause less than
    half."""
    before = difference(seen[layer], want)

    def near(start: int) -> float | None:
        after = difference(_without(faults[start:], seen, layer), want)
        fewer, same = after.overflows < before.overflows, after.overflows == before.overflows
        return after.distance if fewer or (same and after.distance <= before.distance / 2) else None

    distance = near(0) if faults else None
    if distance is None:
        return None
    low, high = 0, len(faults)  # faults[low:] suffice, faults[high:] do not
    while high - low > 1:
        middle = (low + high) // 2
        if (found := near(middle)) is None:
            high = middle
        else:
            low, distance = middle, found
    return faults[low], distance


def _faults(steps: Mapping[int, Step], seen: Observation, layer: Value) -> Iterator[Fault]:
    for node in topological([layer]):
        step = steps.get(id(node))
        if step is None or node.op in LEAVES or node.types[0].dtype.kind != "float":
            continue
        stored = seen[node.values[0]]
        if not _may_be_faulty(step, stored):
            continue
        exact = _exactly(step.node, [None if v is None else seen[v] for v in node.inputs])
        fault = _fault(step, stored.astype(np.float64), exact[0].astype(np.float64))
        if fault is not None:
            yield fault


def _may_be_faulty(step: Step, stored: Array) -> bool:
    """A cheap test. A product must overflow, or vanish in all elements: its exact sums take long."""
    size = np.abs(stored.astype(np.float64))
    over = not bool((size < LARGEST - 32).all())  # true also for NaN, and for saturated values
    if over or has_products(step.node):
        return over or bool(size.size and size.max() < SMALLEST_NORMAL)
    return bool((size < SMALLEST_NORMAL).any())


def _fault(step: Step, stored: Array, exact: Array) -> Fault | None:
    """Returns the fault of a step; None without one. An infinity that follows from the operands is no fault."""
    half = step.node.types[0].dtype.name == "fp16"
    size = np.abs(exact)
    with np.errstate(invalid="ignore", over="ignore"):
        over = np.isfinite(exact) & (~np.isfinite(stored) | (half & (size >= LARGEST)))
        # Only values with few digits in fp16 count, not values at the end of an activation's table.
        held = exact.astype(np.float16).astype(np.float64) if half else exact
        few = (np.abs(held - exact) > FEW_DIGITS * size) & (np.abs(stored - exact) > FEW_DIGITS * size)
        zeroed = (stored == 0) & (size >= SMALLEST_NORMAL) & (table_of(step) is None)
    vanished = np.isfinite(exact) & (exact != 0) & ((few & (size < SMALLEST_NORMAL)) | zeroed)
    which = over if over.any() else vanished
    if not which.any():
        return None
    zeros = vanished & (stored == 0)
    shown = zeros if zeros.any() and not over.any() else which
    index = tuple(int(i) for i in np.unravel_index(np.flatnonzero(shown)[0], which.shape))
    kept = np.where(over | vanished, exact, stored)
    return Fault(step, index, float(stored[index]), float(exact[index]), int(which.sum()), bool(over.any()), kept)


def _exactly(node: Node, operands: Sequence[Array | None]) -> list[Array]:
    """Returns the node's results in fp64. A cast between floats changes nothing."""
    (x, *_) = operands
    if node.op == "cast" and x is not None and x.dtype.kind == "f" and node.types[0].dtype.kind == "float":
        return [x.astype(np.float64)]
    return evaluate_exactly(node, operands)


def _without(faults: Sequence[Fault], seen: Observation, layer: Value) -> Array:
    """Returns the layer's value if the elements of these faults had the values that follow from their operands."""
    kept = {fault.step.node.values[0]: fault.kept for fault in faults}
    known: dict[Value, Array] = {}
    for node in topological([layer]):
        if any(v in known for v in node.inputs):
            operands = [None if v is None else known[v] if v in known else seen[v] for v in node.inputs]
            results = _exactly(node, operands)
            known.update(zip(node.values, map(_rounded, results), strict=True))
        elif node.values[0] in kept:
            known[node.values[0]] = _rounded(kept[node.values[0]])
    return known.get(layer, seen[layer])


def _rounded(array: Array) -> Array:
    """Returns floats rounded to 11 bits at any size, and integers unchanged."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):
        fraction, exponent = np.frexp(array.astype(np.float64))
    return np.asarray(np.ldexp(np.round(np.ldexp(fraction, BITS)), exponent - BITS))
