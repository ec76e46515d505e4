"""Finds the layer that breaks the outputs of a chip's program, by replacing results with exact values, layer by layer.

In a trial run, layers up to some layer have exact values, and the program computes later layers as the chip does. The
outputs are wrong if the culprit is a later layer, and right if its result is exact. A binary search finds the culprit
in few runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from hexane.graph import Array, Node, Value, topological
from hexane.ops import LEAVES, OPS, evaluate_exactly
from hexane.report.difference import difference
from hexane.runtime.observe import Observation

FAR = 0.03  # A layer further than this from the exact result, as relative L2, is wrong.
TINY = 2.0**-14  # The smallest normal number of fp16.
REORDERS = ("transpose", "anec.transpose")  # Ops that only change the order of elements.
REVERSIBLE = ("cast", "reshape", "expand_dims", "squeeze", "identity", "anec.cast", "anec.reshape", *REORDERS)
Watched = tuple[Observation, Mapping[str, Array]]  # The observed values, and the outputs by name.


@dataclass(frozen=True, slots=True)
class Culprit:
    """The layer that breaks the outputs. number: of the layer. seen: the run with exact values before the layer.
    before, after: the relative L2 error of the outputs with exact values before the layer, and with its result exact
    too."""

    number: int
    seen: Observation
    before: float
    after: float

    @property
    def breaks(self) -> bool:
        """True if the layer alone causes more than half of the distance."""
        return self.before == inf or self.before > 2 * self.after


def find_culprit(
    layers: Mapping[int, Value],
    exact: Mapping[int, Array],
    outputs: Mapping[str, Array],
    seen: Observation,
    watch: Callable[[Mapping[Value, Array]], Watched],
    tolerance: float,
) -> Culprit | None:
    """Finds the layer that breaks the outputs. Returns None if exact values in all layers do not bring
    the outputs within the tolerance, or to a quarter of their error.

    layers: the user's values that the program has, by number, in execution order. exact: their exact values. outputs:
    the outputs of the exact run. seen: a run of the program. watch: runs the program with some results replaced."""
    places = {number: place for number, value in layers.items() if (place := _place(seen, value)) is not None}
    numbers = [number for number in layers if number in places and number in exact]
    runs: dict[int, tuple[Observation, float]] = {}

    def run(count: int) -> tuple[Observation, float]:
        """Returns the run, and its error, with exact values in the first `count` layers."""
        if count not in runs:
            instead = {places[n].value: places[n].stored(exact[n]) for n in numbers[:count]}
            observed, results = watch(instead)
            runs[count] = observed, max((_apart(results[name], outputs[name]) for name in outputs), default=0.0)
        return runs[count]

    whole = run(0)[1]
    limit = max(tolerance, whole / 4) if whole < inf else tolerance
    if not numbers or run(len(numbers))[1] > limit:
        return None
    wrong, right = 0, len(numbers)
    while right - wrong > 1:
        middle = (wrong + right) // 2
        wrong, right = (middle, right) if run(middle)[1] > limit else (wrong, middle)
    return Culprit(numbers[right - 1], run(right - 1)[0], run(right - 1)[1], run(right)[1])


def _apart(got: Array, want: Array) -> float:
    d = difference(got, want)
    return inf if d.overflows or difference(want, got).overflows else d.distance


@dataclass(frozen=True, slots=True)
class _Place:
    """The step result that stores a layer's value, and the nodes between this result and the value, the last first."""

    value: Value
    chain: tuple[Node, ...]

    def stored(self, array: Array) -> Array:
        """Returns the layer's numbers in the shape and dtype of the step's result."""
        for node in self.chain:
            source = node.inputs[0]
            assert source is not None
            if node.op in REORDERS:
                array = array.transpose(np.argsort(node.attrs["perm"]))
            elif node.op not in ("cast", "anec.cast"):
                array = array.reshape(source.shape)
        kind = self.value.type
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(array.reshape(kind.shape)).astype(kind.dtype.numpy)


def _place(seen: Observation, value: Value) -> _Place | None:
    """Returns where a layer's numbers are stored; None if the step's result has further numbers."""
    chain: list[Node] = []
    while seen.passes(value.node):
        (source, *others) = value.node.inputs
        if value.node.op not in REVERSIBLE or source is None or any(v is not None for v in others):
            return None
        chain.append(value.node)
        value = source
    return _Place(value, tuple(chain)) if value.node.inputs else None


def in_order(layers: Mapping[int, Value], order: Sequence[Node], seen: Observation) -> dict[int, Value]:
    """Returns the layers in the order of the steps that compute them. order: the nodes of the steps."""
    at = {node: i for i, node in enumerate(order)}
    known = {number: at[source] for number, value in layers.items() if (source := seen.source(value).node) in at}
    return {number: layers[number] for number in sorted(known, key=lambda n: (known[n], n))}


# ---- which op, if the program computes several as one layer ----

MOST_NODES = 48  # The most nodes of the user's graph that are examined before a layer.
LARGEST = 65520.0  # Fp16 rounds numbers from 65520 on to infinity.
BITS = 11  # Bits of an fp16's significand.
FEW = 2.0**-8  # The relative error of a number that has lost its digits.


@dataclass(frozen=True, eq=False, slots=True)
class Blame:
    """The op whose result fp16 does not hold. kind: overflow, vanished or cancelled. index: the first element that left
    fp16, or the worst; exact, stored: its value, and its value in fp16. before, after: the layer's relative L2 error
    with the op's result rounded, and with it exact."""

    node: Node
    kind: str
    index: tuple[int, ...]
    exact: float
    stored: float
    before: float
    after: float


def blamed(layer: Node, known: Callable[[Value], Array | None], is_layer: Callable[[Value], bool]) -> Blame | None:
    """Finds the op that breaks a layer. All ops before the layer are computed exactly, then rounded to fp16; from the
    first op on, exact results replace rounded ones until the layer is right. Returns None if rounding does not break
    the layer, or if a matrix product is in the way. known: exact values. is_layer: true for values that the chip's
    program has as layers; the search stops at layers that fp16 holds."""
    region = _region(layer, lambda value: is_layer(value) and _is_held(known(value)))
    exact: dict[Value, Array] = {}
    for node in region:
        operands = [None if v is None else exact[v] if v in exact else _leaf(v, known) for v in node.inputs]
        if any(v is not None and array is None for v, array in zip(node.inputs, operands, strict=True)):
            return None
        exact.update(zip(node.values, evaluate_exactly(node, operands), strict=True))
    want = exact[layer.values[0]]

    def off(count: int) -> tuple[float, dict[Value, Array]]:
        """Returns the layer's error, and all values, with exact results in the first `count` ops."""
        halves: dict[Value, Array] = {v: exact[v] for node in region[:count] for v in node.values}
        for node in region[count:]:
            operands = [
                None if v is None else halves[v] if v in halves else _half(_leaf(v, known), v) for v in node.inputs
            ]
            results = evaluate_exactly(node, operands)
            halves.update({v: _rounded(a, v) for v, a in zip(node.values, results, strict=True)})
        return _apart(halves[layer.values[0]], want), halves

    whole, halves = off(0)
    if whole <= FAR:
        return None
    errors = [whole, *(off(i)[0] for i in range(1, len(region) + 1))]
    limit = max(FAR, whole / 4) if whole < inf else FAR
    count = next(i for i, e in enumerate(errors) if e <= limit and all(later <= limit for later in errors[i:]))
    node = _first(region[count - 1], region, exact, halves)
    kind, index = _kind(halves[node.values[0]], exact[node.values[0]])
    value, stored = float(exact[node.values[0]][index]), float(halves[node.values[0]][index])
    return Blame(node, kind, index, value, stored, errors[count - 1], errors[count])


def _first(node: Node, region: Sequence[Node], exact: Mapping[Value, Array], halves: Mapping[Value, Array]) -> Node:
    """Returns the earliest producer of this op whose result left fp16 by the same kind of fault."""
    kind = _kind(halves[node.values[0]], exact[node.values[0]])[0]

    def leaves(n: Node) -> bool:
        stored, value = halves[n.values[0]], exact[n.values[0]]
        return _kind(stored, value)[0] == kind and _apart(stored, value) > FEW

    while kind != "cancelled":
        producers = (v.node for v in node.inputs if v is not None and v.node in region)
        if (before := next(filter(leaves, producers), None)) is None:
            break
        node = before
    return node


def _is_held(array: Array | None) -> bool:
    """True if fp16 holds these numbers: none overflows, and at most a tenth are too small."""
    if array is None or array.dtype.kind != "f":
        return array is not None
    size = np.abs(array.astype(np.float64))
    return bool((size < LARGEST).all()) and float((size < TINY).mean()) < 0.1


def _region(layer: Node, ends: Callable[[Value], bool]) -> list[Node]:
    """Returns the nodes before a layer, operands first. The search stops at matrix products and where `ends` is
    true."""
    region, waiting = {layer}, [layer]
    while waiting:
        for value in waiting.pop(0).inputs:
            if value is None or value.node in region or len(region) == MOST_NODES:
                continue
            node = value.node
            if ends(value):
                continue
            if node.op not in LEAVES and OPS[node.op].product is None and _float(node):
                region.add(node)
                waiting.append(node)
    return [node for node in topological([layer.values[0]]) if node in region]


def _float(node: Node) -> bool:
    return all(kind.dtype.kind == "float" for kind in node.types)


def _leaf(value: Value | None, known: Callable[[Value], Array | None]) -> Array | None:
    return None if value is None else value.node.data if value.node.data is not None else known(value)


def _half(array: Array | None, value: Value) -> Array | None:
    """Returns an operand rounded to fp16. A constant keeps 11 bits at any size: compilers write 1e8 as two factors."""
    if array is None or value.node.op != "const" or array.dtype.kind != "f":
        return None if array is None else _rounded(array, value)
    fraction, exponent = np.frexp(array.astype(np.float64))
    return np.asarray(np.ldexp(np.round(np.ldexp(fraction, BITS)), exponent - BITS))


def _rounded(array: Array, value: Value) -> Array:
    """Returns floats as fp16 stores them, and other arrays unchanged."""
    if value.dtype.kind != "float":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float16).astype(np.float64)


def _kind(stored: Array, exact: Array) -> tuple[str, tuple[int, ...]]:
    size = np.abs(exact)
    over = np.isfinite(exact) & ((size >= LARGEST) | ~np.isfinite(stored))
    tiny = (exact != 0) & (size < TINY) & (np.abs(stored - exact) > FEW * size)
    which = over if over.any() else tiny if tiny.any() else None
    kind = "overflow" if over.any() else "vanished" if which is not None else "cancelled"
    if which is None:
        with np.errstate(invalid="ignore"):
            which = np.nan_to_num(np.abs(stored - exact), nan=inf)
    index = np.unravel_index(int(np.argmax(which)), exact.shape)
    return kind, tuple(int(i) for i in index)
