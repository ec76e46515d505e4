"""Finds operations whose body computes another function than their name says. Apple's reader and this importer ignore
the body."""

from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph, Port, Value, tensor_type, unique
from hexane.importers.coreai.asset import Asset, AssetFunction
from hexane.importers.coreai.attributes import Other, Tensor
from hexane.importers.coreai.numbers import DTYPE_OF
from hexane.importers.coreai.operations import Body, Operation, Result
from hexane.importers.coreai.registry import Complex, Context, Item, Sparse, handled
from hexane.importers.coreai.translate import Translator, base_name, sources_of
from hexane.ops.fold import Folder
from hexane.ops.reference import run_reference

MOST_ELEMENTS = 1 << 16  # most elements of an operand in an evaluation.
TOLERANCE = 1e-2  # Relative to the largest number: a body may sum in another order and dtype.
NO_BODIES = ("controlflow.", "dataflow.", "primitive.", "serialization.")  # Operations whose body defines them.


def bodies_that_disagree(asset: Asset) -> list[str]:
    """Returns a line for each operation whose name and body give different numbers for random operands."""
    lines = []
    for function in asset.functions.values():
        values = _constants(asset, function)
        for operation in function.body.operations:
            if len(operation.bodies) != 1 or operation.name.startswith(NO_BODIES) or not operation.bodies[0].operations:
                continue
            if _disagrees(asset, function, operation, values):
                place = ", ".join(sources_of(operation.location)) or f"{operation.offset} of the file"
                lines.append(f"{base_name(operation.name)} at {place}: its body computes something else")
    return lines


def _constants(asset: Asset, function: AssetFunction) -> dict[Result, Value]:
    """Returns the small constants of a function, such as axes and shapes, which operations need to run on random
    operands."""
    translator, constants = Translator(asset, function), {}
    for operation in function.body.operations:
        if operation.name.startswith("primitive.constant") and _is_small(operation.results[0].type):
            try:
                item = translator.constant(operation, ())
            except Error:
                continue
            if isinstance(item, Value):
                constants[operation.results[0]] = item
    return constants


def _is_small(kind: Any) -> bool:
    """True for a tensor that is cheap to decode, which excludes weights."""
    return isinstance(kind, Tensor) and None not in kind.shape and prod(d or 0 for d in kind.shape) <= MOST_ELEMENTS


def _disagrees(asset: Asset, function: AssetFunction, o: Operation, known: dict[Result, Value]) -> bool:
    operands, feeds = list[Value](), dict[str, Array]()
    for i, operand in enumerate(o.operands):
        if operand in known:
            operands.append(known[operand])
            continue
        kind = operand.type
        if not isinstance(kind, Tensor) or kind.element not in DTYPE_OF:
            return False
        shape = [2 if d is None else d for d in kind.shape]
        if np.prod(shape, dtype=np.int64) > MOST_ELEMENTS:
            return False
        dtype = tensor_type(DTYPE_OF[kind.element], shape)
        operands.append(unique("input", f"x{i}", dtype))
        feeds[f"x{i}"] = _numbers(dtype.dtype.numpy, shape, i)
    try:
        named, written = (_run(asset, function, o, operands, feeds, body) for body in (None, o.bodies[0]))
    except Error:
        return False  # the op or its body cannot be evaluated
    return len(named) != len(written) or any(not _near(a, b) for a, b in zip(named, written, strict=True))


def _numbers(kind: Any, shape: list[int], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if np.dtype(kind).kind == "b":
        return rng.random(shape) < 0.5
    return (rng.standard_normal(shape) * 2 if np.dtype(kind).kind == "f" else rng.integers(1, 5, shape)).astype(kind)


def _run(
    asset: Asset,
    function: AssetFunction,
    o: Operation,
    operands: list[Value],
    feeds: dict[str, Array],
    body: Body | None,
) -> list[Array]:
    """Returns the results of an operation, computed by its name or by its body."""
    translator = Translator(asset, function)
    items: list[Item]
    if body is None:
        result = handled(base_name(o.name), Context(translator, o, tuple(operands), Folder("named")))
        if result is None or isinstance(result, (Complex, Other, Sparse)):
            raise Error("the operation gives no real numbers")
        items = [result] if isinstance(result, Value) else list(result)
    else:
        items = list(translator.inline(body, operands))
        if translator.problems:
            raise Error("the body has operations that are not known")
    ports = [Port(f"y{i}", item) for i, item in enumerate(items) if isinstance(item, Value)]
    inputs = [v for v in operands if v.node.op == "input"]
    with np.errstate(all="ignore"):
        return list(run_reference(Graph(tuple(inputs), tuple(ports)), feeds).values())


def _near(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = max(1.0, float(np.nanmax(np.abs(x), initial=0)))
    return bool(np.allclose(x, y, rtol=0, atol=TOLERANCE * size, equal_nan=True))
