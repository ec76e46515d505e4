"""Elementwise ops as their records list them, with operands that broadcast; comparing, selecting, casting."""

from typing import Any

import hexane as hx
from hexane.build import FUNCTIONS
from hexane.ops import OPS, USER_OPS
from hexane.ops.dtype_rules import compare as comparison
from hexane.ops.dtype_rules import floating, numeric
from hexane.ops.spec import Case
from random_graphs.graph import RandomGraph, Unfit, broadcasts

ROUNDED = ("pow", "real_div")  # ops that take integers and are not exact in fp32
WHOLE = ("floor", "ceil", "round", "relu6", "threshold", "thresholded_relu", "clip")  # exact, though for floats only
CLIPS = ({"alpha": 0.0, "beta": 6.0}, {"alpha": 0.0}, {"alpha": -1.0, "beta": 2.0}, {"beta": 1.0})
OFTEN = ("add", "add", "sub", "mul")

_of_one, _of_two, COMPARISONS = [], [], []
for op in USER_OPS.values():
    if op.elementwise and op.kernel and op.dtype in (floating, numeric):
        (_of_one if len(op.inputs) == 1 else _of_two).append(op.name)
    elif op.dtype is comparison:
        COMPARISONS.append(op.name)
UNARY = {"exact": [n for n in _of_one if OPS[n].dtype is numeric or n in WHOLE], "any": _of_one}
BINARY = {"exact": [n for n in _of_two if OPS[n].dtype is numeric and n not in ROUNDED], "any": _of_two}


def names(table: dict[str, list[str]], g: RandomGraph) -> list[str]:
    return table["exact" if g.exact else "any"]


def within(g: RandomGraph, x: hx.Tensor, case: Case) -> hx.Tensor:
    """x brought to where the op is defined, and not too steep, by the bounds of its case's contents."""
    if g.exact or x.dtype.kind != "float" or case.low <= -2:
        return x
    return hx.clip(x, alpha=0.9 * case.low, beta=0.9 * case.high) if case.high < 2 else hx.abs(x) + (case.low + 0.25)


def unary(g: RandomGraph) -> None:
    name = g.pick(names(UNARY, g))
    x = within(g, g.tensor(), OPS[name].cases[0])
    attrs: dict[str, float] = {}
    if name == "clip":
        attrs = g.pick(CLIPS)
    elif name == "linear_activation" and not g.exact:
        attrs = {"alpha": 0.5, "beta": -1.0}
    g.keep(FUNCTIONS[name](x, **attrs))


def other(g: RandomGraph, x: hx.Tensor) -> Any:
    """Something that broadcasts with x: of its shape, of fewer dims, of more, a scalar."""
    match g.pick("tttts=fffm"):
        case "t":
            return g.tensor(lambda t: broadcasts(t.shape, x.shape), x.dtype.name)
        case "s":
            return float(g.integer(-2, 3)) if g.exact else g.integer(-20, 21) / 10
        case draw:
            shape = tuple(d if g.coin(0.6) else 1 for d in x.shape)
            if draw == "f":
                shape = shape[g.integer(0, len(shape) + 1) :]
            return g.weight((2, *shape) if draw == "m" else shape, x.dtype.name)


def binary(g: RandomGraph) -> None:
    x = g.tensor()
    name = g.pick((*OFTEN, *names(BINARY, g)))
    y = other(g, x)
    if g.coin(0.3) and isinstance(y, hx.Tensor):
        x, y = y, x
    if OPS[name].cases[0].low > -3:
        y = hx.abs(y) + 1.0 if isinstance(y, hx.Tensor) else 3.0
    if name == "pow":
        x, y = hx.abs(x) + 0.5, hx.minimum(y, 3.0) if isinstance(y, hx.Tensor) else 2.0
    result = FUNCTIONS[name](x, y)
    g.keep(hx.relu(result) if g.coin(0.2) else result)


def pattern(g: RandomGraph) -> None:
    """Patterns that passes look for."""
    x = g.tensor()
    if g.exact:
        return g.keep(hx.relu(x + g.tensor(lambda t: t.shape == x.shape)))
    match g.integer(0, 4):
        case 0:
            y = hx.relu(x + g.tensor(lambda t: t.shape == x.shape))
        case 1:
            y = hx.tanh(x * g.tensor(lambda t: t.shape == x.shape))
        case 2:
            y = x * hx.sigmoid(x) if g.coin() else hx.sigmoid(x) * x
        case _:
            y = 0.5 * (x * (hx.erf(x / 2**0.5) + 1.0)) if g.coin() else x * (1.0 + hx.erf(x * 0.5**0.5)) * 0.5
    return g.keep(y)


def compare(g: RandomGraph) -> None:
    x = g.tensor()
    cond = FUNCTIONS[g.pick(COMPARISONS)](x, other(g, x)) if g.coin(0.6) else g.weight(x.shape[-1:], "bool")
    if g.coin(0.3):
        cond = ~cond
    if g.coin(0.2):
        cond = g.pick((hx.logical_and, hx.logical_or, hx.logical_xor))(cond, g.weight(cond.shape, "bool"))
    a, b = (x, other(g, x)) if g.coin() else (other(g, x), x)
    if not isinstance(a, hx.Tensor) and not isinstance(b, hx.Tensor):
        raise Unfit
    g.keep(hx.select(cond, a, b))
    if g.coin(0.3):
        g.keep(cond)


def integers(g: RandomGraph) -> None:
    """Integer arithmetic."""
    try:
        x = g.tensor(dtype=g.pick(("int32", "int64")))
    except Unfit:
        x = g.input(g.shape(g.pick((1, 2, 3, 4))), "int32")
    match g.integer(0, 4):
        case 0:
            g.keep(g.pick((hx.add, hx.sub, hx.mul, hx.maximum, hx.minimum))(x, other_integers(g, x)))
        case 1:
            g.keep(g.pick((hx.floor_div, hx.mod, hx.fmod, hx.real_div))(x, g.pick((2, 3, -2))))
        case 2 if len(x.shape):
            g.keep(hx.reduce_sum(x, axes=(g.integer(0, len(x.shape)),), keep_dims=g.coin()))
        case _:
            kind = g.pick(("fp32", "int32", "bool")) if g.dtype == "fp32" else "int32"
            g.keep(hx.one_hot(x, depth=4, dtype=kind))


def other_integers(g: RandomGraph, x: hx.Tensor) -> hx.Tensor:
    shape = tuple(d if g.coin(0.6) else 1 for d in x.shape)
    return g.weight(shape[g.integer(0, len(shape) + 1) :], x.dtype.name)


def cast(g: RandomGraph) -> None:
    if g.coin(0.3):
        return g.keep(hx.cast(g.tensor(dtype=g.pick(("bool", "int32", "int64"))), dtype=g.dtype))
    x = g.tensor()
    return g.keep(hx.cast(hx.round(x) if g.coin() else x, dtype=g.pick(("int32", "int64", "bool"))))


STEPS = (unary, unary, binary, binary, binary, pattern, compare, integers, cast)
