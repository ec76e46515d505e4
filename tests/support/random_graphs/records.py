"""Any op of the catalogue, by the cases of its own record: their shapes with other dims, operands that are there
already.

Ops without a step of their own come from here. So an op that is added to the catalogue is drawn without further work.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import hexane as hx
from hexane.build import FUNCTIONS
from hexane.dtypes import dtype
from hexane.graph import Array
from hexane.ops import OPS, Op
from hexane.ops.dtype_rules import floating
from hexane.ops.spec import Case
from random_graphs.elementwise import ROUNDED, WHOLE, within
from random_graphs.graph import DIMS, RandomGraph, Unfit

# Without ops whose results are as large as the data makes them, and without random ones: the oracles know no
# capacities, and draw other numbers.
DRAWN = [
    op for op in OPS.values() if op.level == "user" and op.cases and op.ragged is None and "stream" not in op.inputs
]
EXACT = [op for op in DRAWN if (op.dtype is not floating or op.name in WHOLE) and op.name not in ROUNDED]


def from_record(g: RandomGraph) -> None:
    take(g, g.pick(EXACT if g.exact else DRAWN))


def take(g: RandomGraph, op: Op) -> None:
    """One op: with dims of its own, or, where it does not take them, those of the case."""
    if not op.cases:
        raise Unfit
    case = g.pick([case for case in op.cases if op.name != "quantize" or finite(case.arrays[0])])
    attrs = {name: varied(g, op, name, value) for name, value in (case.attrs or {}).items()}
    attrs = {
        **attrs,
        **{name: varied(g, op, name, spec.default) for name, spec in (op.attrs or {}).items() if name not in attrs},
    }
    if case.arrays:
        return g.keep(FUNCTIONS[op.name](*(g.leaf(converted(g, a)) for a in case.arrays), **attrs))
    first = next(iter(case.shapes), None)
    there = [t for t in g.pool if first is not None and t.dtype.name == dtype_at(g, case, 0) and fits(first, t.shape)]
    dims: dict[int, int] = {}
    x = None
    if there and g.coin(0.6):
        x = g.pick(there[::-1])
        dims.update(zip(first or (), x.shape, strict=True))
    for d in sorted({d for shape in case.shapes for d in shape or ()} - dims.keys()):
        dims[d] = d if d < 2 or g.coin(0.3) else g.pick(DIMS)
    try:
        return g.keep(FUNCTIONS[op.name](*operands(g, case, dims, x), **attrs))
    except hx.Error:
        return g.keep(FUNCTIONS[op.name](*operands(g, case, {}, None), **(case.attrs or {})))


def finite(array: Array) -> bool:
    """Peers convert infinities and NaN to integers in their own ways, so there are none here."""
    return bool(np.isfinite(array).all())


def fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether equal dims of the one are equal in the other, and what is 1 or 0 is."""
    pairs = set(zip(shape, other, strict=False))
    return (
        len(shape) == len(other) and len({a for a, _ in pairs}) == len(pairs) and all(a == b for a, b in pairs if a < 2)
    )


def varied(g: RandomGraph, op: Op, name: str, value: Any) -> Any:
    """Flags and choices are drawn now and then; numbers stay what the case or the default says."""
    spec = (op.attrs or {})[name]
    if spec.kind == "bool" and g.coin(0.3):
        return g.coin()
    return g.pick(spec.choices) if spec.choices and g.coin(0.3) else value


def dtype_at(g: RandomGraph, case: Case, i: int) -> str:
    name = case.dtypes[min(i, len(case.dtypes) - 1)]
    return g.dtype if name == "fp32" else name


def operands(g: RandomGraph, case: Case, dims: Mapping[int, int], x: hx.Tensor | None) -> list[hx.Tensor | None]:
    found: list[hx.Tensor | None] = []
    for i, shape in enumerate(case.shapes):
        if shape is None:
            found.append(None)
        elif i == 0 and x is not None:
            found.append(within(g, x, case))
        else:
            found.append(g.leaf(contents(g, case, i, tuple(dims.get(d, d) for d in shape))))
    return found


def contents(g: RandomGraph, case: Case, i: int, shape: tuple[int, ...]) -> Array:
    kind = dtype(dtype_at(g, case, i))
    if kind.kind == "bool" or g.exact:
        array = g.values(shape, kind.name)
        return np.maximum(array, np.ceil(case.low)).astype(array.dtype) if kind.kind != "bool" else array
    array = np.asarray(g.rng.uniform(case.low, case.high, shape))
    return np.asarray(np.rint(array) if kind.kind != "float" else array).astype(kind.numpy)


def converted(g: RandomGraph, array: Any) -> Array:
    found = np.asarray(array)
    return found.astype(dtype(g.dtype).numpy) if found.dtype == np.float32 else found


STEPS = (from_record,) * 3
