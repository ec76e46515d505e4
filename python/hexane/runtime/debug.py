"""`Model.debug`: the range of every layer, and the first number that overflows, with the products that it sums."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from ml_dtypes import finfo

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array
from hexane.graph.attributes import EpilogueSlot
from hexane.graph.printer import html_table, text_table
from hexane.ops import OPS
from hexane.program import Program, Step
from hexane.runtime.observe import Observation, observe
from hexane.runtime.products import LIMIT, Sum, by_winograd, has_products, kind_of, sum_of

MOST_PRODUCTS = 8
MOST_PARTIAL = 8  # shown values of the accumulator
HEAD = ("layer", "type", "smallest", "largest")


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a step's result: the smallest and largest finite number (None without any), and the number of
    elements that are not finite."""

    where: str
    type: str
    low: float | None
    high: float | None
    not_finite: int


@dataclass(frozen=True, slots=True)
class Factor:
    """A product in an element: the positions and values of its two factors, in the input and in the weight."""

    x_index: tuple[int, ...]
    weight_index: tuple[int, ...]
    x: float
    weight: float
    product: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The first number of a run that is infinite or NaN although all operands are finite. index: in the step's order of
    axes, as `type` shows it. products: the largest ones; path: pairs of a number of products and the accumulator after
    them. `products` and `path` are empty for an op that sums no products."""

    step: int
    where: str
    type: str
    index: tuple[int, ...]
    value: float
    why: str
    products: tuple[Factor, ...] = ()
    path: tuple[tuple[int, float], ...] = ()

    @property
    def lines(self) -> list[str]:
        result = [
            f"step {self.step}, {self.where}: element {list(self.index)} of {self.type} is {self.value}",
            self.why,
        ]
        if self.products:
            result.append("largest products:")
            result += [
                f"  x{list(p.x_index)} * weight{list(p.weight_index)} = {p.x:g} * {p.weight:g} = {p.product:g}"
                for p in self.products
            ]
            path = ", ".join(f"{total:g} after {count}" for count, total in self.path)
            result.append(f"accumulator: {path}")
        return result


@dataclass(frozen=True)
class Debug:
    """The ranges of the layers in execution order, and the stop of the run, None if no finite numbers overflow."""

    device: str
    layers: tuple[Range, ...]
    stop: Stop | None

    @property
    def ok(self) -> bool:
        return self.stop is None

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.stop is not None:
            return (
                f"stopped at {self.stop.where}, layer {len(self.layers)}: element {list(self.stop.index)} is"
                f" {self.stop.value}"
            )
        sizes = [
            (max(abs(r.low), abs(r.high)), r.where) for r in self.layers if r.low is not None and r.high is not None
        ]
        most = max(sizes, default=None)
        largest = "" if most is None else f"; the largest number is {most[0]:g}, in {most[1]}"
        count = f"{len(self.layers)} layer{'' if len(self.layers) == 1 else 's'}"
        if given := next((r for r in self.layers if r.not_finite), None):
            first = f"the first that are infinite or NaN, {given.not_finite} in {given.where}, come from its operands"
            return f"{count}, no finite numbers overflow; {first}{largest}"
        return f"{count}, every number finite{largest}"

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns the rows of the table under HEAD."""
        return [(r.where, r.type, _number(r.low), _number(r.high)) for r in self.layers]

    def record(self) -> dict[str, Any]:
        """Returns the record for JSON. Infinity and NaN are strings."""
        stop = None if self.stop is None else {**asdict(self.stop), "value": str(self.stop.value)}
        return {"device": self.device, "ok": self.ok, "layers": [asdict(r) for r in self.layers], "stop": stop}

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        stop = [] if self.stop is None else ["", *self.stop.lines]
        return "\n".join([self.summary, "", text_table(HEAD, self.rows()), *stop])

    def __repr__(self) -> str:
        return f"<Debug {self.summary}>"

    def _repr_html_(self) -> str:
        stop = "" if self.stop is None else f"<pre>{escape(chr(10).join(self.stop.lines))}</pre>"
        return f"<p><b>{escape(self.summary)}</b></p>{stop}{html_table(HEAD, self.rows())}"


def debug(core: _core.Program, program: Program | None, feeds: Mapping[str, Array], device: str) -> Debug:
    """Runs the program until a number overflows. States are restored afterwards."""
    if program is None:
        raise Error(
            "[debug] got a model without its graph (loaded, kept for one of several shapes, or freed with its initial"
            " states), need one just compiled"
        )
    numbers = {id(step.node): i for i, step in enumerate(program.steps) if step.kernel != "copy"}
    layers: list[Range] = []
    stops: list[Stop] = []

    def look(step: Step, seen: Observation) -> None:
        array, node = seen[step.node.values[0]], step.node
        layers.append(range_of(node.where, str(node.types[0]), array))
        operands = [None if v is None else seen[v] for v in node.inputs]
        stop = stop_at(numbers[id(node)], step, array, operands) if layers[-1].not_finite else None
        if stop is not None:
            stops.append(stop)
            raise _Stopped

    with suppress(_Stopped):
        observe(core, program, feeds, look)
    return Debug(device, tuple(layers), stops[0] if stops else None)


class _Stopped(Exception):
    """Raised by `look` to end a run."""


def range_of(where: str, kind: str, array: Array) -> Range:
    finite = array if _finite(array) else array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
    return Range(where, kind, low, high, array.size - finite.size)


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def stop_at(number: int, step: Step, array: Array, operands: list[Array | None]) -> Stop | None:
    """Returns the first element of a step's result that overflows; None without one, or if an operand is not finite."""
    if _finite(array) or not all(_finite(a) for a in operands if a is not None):
        return None
    node = step.node
    index = tuple(int(i) for i in np.unravel_index(np.flatnonzero(~np.isfinite(array))[0], array.shape))
    place = (number, node.where, str(node.types[0]), index, float(array[index]))
    if not has_products(node):
        return Stop(*place, _operands_at(step, index, array.shape, operands))
    total = sum_of(node, index, operands)
    shown = tuple(
        Factor(*total.pairs[i], float(total.x[i]), float(total.weight[i]), float(total.products[i]))
        for i in total.largest(MOST_PRODUCTS)
    )
    return Stop(*place, why_too_large(step, total), shown, _path(total, step.numerics.family == "engine"))


def why_too_large(step: Step, total: Sum) -> str:
    """Returns why a sum of products is not finite, by the arithmetic of its step."""
    count = len(total.products)
    engine = step.numerics.family == "engine"
    if engine and total.overflow is not None:
        at = "its bias alone" if total.overflow < 0 else f"with product {total.overflow + 1} of {count} the sum"
        return f"the accumulator overflows: {at} reaches {LIMIT:g}, from where on it is infinite"
    if engine and by_winograd(step):
        return (
            f"the sum of {count} products is {total.exact:g}; Winograd's transforms, by which the chip computes it, are"
            " larger"
        )
    dtype = step.node.types[0].dtype
    fused = [slot.op for slot in step.attrs.get("epilogue") or ()]
    limit = float(finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    if fused and abs(total.exact) <= limit:
        return f"the sum of {count} products is {total.exact:g}; {' and '.join(fused)} of it is more than {dtype} holds"
    return f"the sum of {count} products is {total.exact:g}, which {dtype} does not hold"


def _path(total: Sum, engine: bool) -> tuple[tuple[int, float], ...]:
    """Returns the accumulator after some products, evenly spaced, and around an overflow of an engine's accumulator."""
    count = len(total.products)
    totals = total.partial if engine else total.bias + np.cumsum(total.products)
    places = set(np.linspace(1, count, min(MOST_PARTIAL, count)).astype(int).tolist()) if count else set()
    if engine and total.overflow is not None and total.overflow >= 0:
        places = {p for p in places if p <= total.overflow} | {total.overflow, total.overflow + 1} - {0}
    return tuple((p, float(totals[p - 1])) for p in sorted(places))


def _operands_at(step: Step, index: tuple[int, ...], shape: tuple[int, ...], operands: list[Array | None]) -> str:
    kind = kind_of(step.node)
    if not OPS[step.node.op].elementwise:
        given = [f"{float(a.min()):g} to {float(a.max()):g}" for a in operands if a is not None and a.size]
        return (f"{kind} of numbers from {', '.join(given)}" if given else kind) + _then(step)
    given = [f"{float(np.broadcast_to(a, shape)[index]):g}" for a in operands if a is not None]
    return f"{kind} of {', '.join(given)}{_then(step)}"


def _then(step: Step) -> str:
    """Names the ops that the step applies to its result, such as ", then exp"."""
    slots = step.attrs.get("epilogue") or ()
    assert isinstance(slots, tuple)
    return "".join(f", then {slot.op.rpartition('.')[2]}" for slot in slots if isinstance(slot, EpilogueSlot))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
