"""Elementwise ops, reductions, products and compositions of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.coreai.table import ACTIVATIONS, BINARY, GELU, REDUCTIONS, SCAN, STEP_OF_REDUCTION, UNARY, by_number
from hexane.dtypes import BOOL, INT32
from hexane.graph import Value, constant
from hexane.importers.coreai.encoded import is_turned
from hexane.importers.coreai.operations import Operation
from hexane.importers.coreai.registry import HANDLERS, Complex, Context, Found, handles

LOGICAL = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}
OF_GELU = by_number(GELU)
OF_SCAN = by_number(SCAN)
OF_STEP = {step: op for op, step in STEP_OF_REDUCTION.items()}


def _unary(op: str) -> Callable[[Context], Found]:
    def handler(c: Context) -> Found:
        return c.b.apply(op, c.value(0))

    return handler


def _binary(op: str) -> Callable[[Context], Found]:
    def handler(c: Context) -> Found:
        if any(isinstance(item, Complex) for item in c.operands):
            return _complex(c, op)
        x, y = c.value(0), c.value(1)
        if x.dtype is BOOL:
            return _of_bools(c, op, x, y)
        if op == "real_div" and x.node.op == "mul" and x.node.inputs[1] is not None and _is_same(x.node.inputs[1], y):
            mean = x.node.inputs[0]
            if mean is not None and mean.node.op == "avg_pool":
                return mean  # a sum over a window divided by the window's size
        return c.b.apply(op, x, y)

    return handler


def _is_same(x: Value, y: Value) -> bool:
    """True if both values are constants of one element with the same number."""
    a, b = x.node.data, y.node.data
    return a is not None and b is not None and a.size == b.size == 1 and a.item() == b.item()


def _of_bools(c: Context, op: str, x: Value, y: Value) -> Value:
    """Returns an op on truth values: a logical op if there is one, else arithmetic on 0 and 1."""
    if op in LOGICAL or op.startswith("logical") or op in ("equal", "not_equal"):
        return c.b.apply(LOGICAL.get(op, op), x, y)
    return c.b.apply(op, c.b.cast(x, dtype=INT32), c.b.cast(y, dtype=INT32))


def _complex(c: Context, op: str) -> Complex:
    a, z = (item if isinstance(item, Complex) else _real(c, i) for i, item in enumerate(c.operands[:2]))
    b = c.b
    match op:
        case "add" | "sub":
            return Complex(b.apply(op, a.real, z.real), b.apply(op, a.imaginary, z.imaginary))
        case "mul":
            return Complex(
                b.sub(b.mul(a.real, z.real), b.mul(a.imaginary, z.imaginary)),
                b.add(b.mul(a.real, z.imaginary), b.mul(a.imaginary, z.real)),
            )
        case "real_div":
            norm = b.add(b.mul(z.real, z.real), b.mul(z.imaginary, z.imaginary))
            real = b.add(b.mul(a.real, z.real), b.mul(a.imaginary, z.imaginary))
            imaginary = b.sub(b.mul(a.imaginary, z.real), b.mul(a.real, z.imaginary))
            return Complex(b.real_div(real, norm), b.real_div(imaginary, norm))
    c.fail(f"got complex numbers for {op}, which Hexane does not have")


def _real(c: Context, index: int) -> Complex:
    x = c.value(index)
    return Complex(x, c.b.const(np.zeros(x.shape, x.dtype.numpy)))


for _op in UNARY:
    HANDLERS[f"primitive.{_op}"] = _unary(_op)
for _op in ACTIVATIONS:
    HANDLERS[_op] = _unary(_op)
for _op, _name in BINARY.items():
    HANDLERS[f"primitive.{_name}"] = HANDLERS[f"broadcasting_{_name}"] = _binary(_op)


@handles("primitive.not")
def _not(c: Context) -> Found:
    x = c.value(0)
    return c.b.logical_not(x) if x.dtype is BOOL else c.b.bitwise_not(x)


@handles("primitive.where", "broadcasting_where")
def _where(c: Context) -> Found:
    condition, a, z = c.operands
    if not isinstance(a, Complex) and not isinstance(z, Complex):
        return c.b.select(*c.values())
    a, z = (item if isinstance(item, Complex) else _real(c, i + 1) for i, item in enumerate((a, z)))
    return Complex(c.b.select(condition, a.real, z.real), c.b.select(condition, a.imaginary, z.imaginary))


@handles("primitive.gelu")
def _gelu(c: Context) -> Found:
    x, how = c.value(0), c.setting()
    if how in OF_GELU:
        return c.b.apply(OF_GELU[how], x)
    return c.b.mul(x, c.b.sigmoid(c.b.mul(x, 1.702)))


@handles("softmax")
def _softmax(c: Context) -> Found:
    return c.b.softmax(c.value(0), axis=c.integer(1))


@handles("primitive.batch_matmul", "broadcasting_batch_matmul")
def _matmul(c: Context) -> Found:
    """Returns a product. A transposed constant matrix gives a linear layer, so the matrix keeps the file's layout."""
    y = c.operands[1] if len(c.operands) > 1 else None
    if isinstance(y, Value) and is_turned(y.node) and y.dtype is c.value(0).dtype:
        return c.b.linear(c.value(0), y.node.inputs[0], None)
    return c.b.matmul(c.value(0), _once(c, c.value(1)), None)


def _once(c: Context, matrices: Value) -> Value:
    """Returns one matrix for a constant batch of equal matrices: converters repeat the weights of a batched product."""
    data = matrices.node.data
    if data is None or data.ndim < 3 or not data.size or data.size == data.shape[-1] * data.shape[-2]:
        return matrices
    batch = data.reshape(-1, *data.shape[-2:]).view(f"u{data.dtype.itemsize}")
    front = c.value(0).shape[:-2]
    if np.broadcast_shapes(front, data.shape[:-2]) != front:
        return matrices  # x does not have the matrices' batch axes
    if not all(np.array_equal(batch[0], other) for other in batch[1:]):
        return matrices
    return constant(data.reshape(-1, *data.shape[-2:])[0], matrices.node.sources, matrices.dtype)


# ---- reductions: a reduced axis keeps extent 1 ----


def _reduction(op: str) -> Callable[[Context], Found]:
    def handler(c: Context) -> Found:
        x = c.value(0)
        return _reduced(c, op, x, c.integers(1))

    return handler


def _reduced(c: Context, op: str, x: Value, axes: tuple[int, ...]) -> Value:
    if not axes or x.type.rank == 0:
        return x
    x = c.b.cast(x, dtype=INT32) if x.dtype is BOOL else x
    return c.b.apply(op, x, axes=axes, keep_dims=True)


for _op, _name in REDUCTIONS.items():
    HANDLERS[f"reduce_{_name}"] = _reduction(_op)


@handles("any", "all")
def _any_all(c: Context) -> Found:
    x = c.value(0)
    if x.dtype is not BOOL:
        x = c.b.not_equal(x, c.b.const(np.zeros((), x.dtype.numpy)))
    op = "reduce_max" if c.operation.name.startswith("any") else "reduce_min"
    return c.b.cast(_reduced(c, op, x, c.integers(1)), dtype=BOOL)


@handles("primitive.reduce")
def _reduce(c: Context) -> Found:
    """Returns a reduction. The operation's body combines two numbers; it must be one op, such as an addition, for which
    the catalogue has a reduction."""
    steps = _steps(c.operation)
    if len(steps) != 1 or steps[0] not in OF_STEP:
        c.fail(f"got the step {', '.join(steps) or 'none'}, need one of {', '.join(OF_STEP)}")
    return c.b.apply(steps[0], _reduced(c, OF_STEP[steps[0]], c.value(0), c.integers(1)), c.value(2))


def _steps(operation: Operation) -> list[str]:
    """Returns the names of a body's operations without casts, constants and the terminator."""
    names = [inner.name.rpartition("_v")[0] for body in operation.bodies for inner in body.operations]
    names = [n.removeprefix("primitive.").removeprefix("broadcasting_") for n in names]
    return [n for n in names if n not in ("cast", "dataflow.yield", "constant")]


@handles("primitive.reduce_index", "argmax")
def _reduce_index(c: Context) -> Found:
    """Returns the index of the largest or smallest element, after the element itself if the operation has two results.
    Of equal elements the first one's index is returned."""
    op = "reduce_argmax"
    if c.operation.name.startswith("primitive"):
        op = _extreme(c)
    x = c.value(0)
    x = c.b.cast(x, dtype=INT32) if x.dtype is BOOL else x
    places: Any = c.b.apply(op, x, axis=c.integer(1), keep_dims=True)
    return (c.b.gather_along_axis(x, places, axis=c.integer(1)), places) if len(c.results) == 2 else places


def _extreme(c: Context) -> str:
    """Returns reduce_argmax or reduce_argmin, by the body's comparison of the best element so far with a new one."""
    for body in c.operation.bodies:
        for inner in body.operations:
            if inner.name.startswith("primitive.greater") and len(body.arguments) > 1:
                return "reduce_argmin" if inner.operands[0] is body.arguments[0] else "reduce_argmax"
    c.fail("got a body without a comparison, need one that keeps the largest or the smallest element")


@handles("primitive.scan")
def _scan(c: Context) -> Found:
    if c.setting() not in OF_SCAN:
        c.fail("got a running minimum or maximum, which Hexane does not have")
    return c.b.apply(OF_SCAN[c.setting()], c.value(0), axis=c.integer(1), reverse=bool(c.array(2).item()))


# ---- complex numbers as two real tensors ----


@handles("primitive.create_complex")
def _create_complex(c: Context) -> Found:
    return Complex(c.value(0), c.value(1))


@handles("primitive.real_part", "primitive.imaginary_part")
def _part(c: Context) -> Found:
    is_real = c.operation.name.startswith("primitive.real")
    x = c.operands[0]
    if isinstance(x, Complex):
        return x.real if is_real else x.imaginary
    return c.value(0) if is_real else c.b.const(np.zeros(c.value(0).shape, c.value(0).dtype.numpy))
