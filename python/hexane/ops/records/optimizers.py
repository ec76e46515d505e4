"""Steps of optimisers: they return a param and its moments after one update.

`rates` are fp32 numbers of the step: 0 the learning rate; 1 and 2 the corrections of Adam's moments, 1 / (1 - beta1^t)
and 1 / sqrt(1 - beta2^t); 3 the factor of the gradient; 4 is 1 for an update and 0 for none. A step without an update
returns the old values, even if the gradient is NaN.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.ops.attributes import finite, flag, number
from hexane.ops.compose import Builder, cast, part
from hexane.ops.dtype_rules import floating
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any
RATES = 5
WHY = "an update of a param is not differentiated"
HOST = "fp16 holds neither the small steps of a param nor the squares of gradients"


def _shapes(*shapes: Shape, **_: Any) -> Any:
    *same, rates = shapes
    if any(s != same[0] for s in same) or rates != (RATES,):
        raise Error(f"got the shapes {', '.join(map(str, shapes))}, need one for all but rates, which have ({RATES},)")
    return [same[0]] * (len(same) - 1) if len(same) > 2 else same[0]


def _dtypes(*dtypes: Any, **_: Any) -> Any:
    if dtypes[-1] is not FP32:
        raise Error(f"rates: got {dtypes[-1]}, need fp32")
    return floating(*dtypes[:-1])


def _numbers(b: Builder, rates: Value, like: Value) -> list[Value]:
    return [cast(b, b.reshape(part(b, rates, 0, i, i + 1), shape=()), like.dtype) for i in range(RATES)]


Step = Callable[..., list[Any]]


def _expansion(step: Step) -> Callable[..., list[Value] | Value]:
    """Returns the expansion of a step, with the old values if there is no update."""

    def expand(b: Builder, w: Value, g: Value, *rest: Value, **attrs: Any) -> list[Value] | Value:
        *moments, rates = rest
        lr, first, second, scale, apply = _numbers(b, rates, w)
        new = step(b, w, b.mul(g, scale), *moments, lr, first, second, **attrs)
        changes = b.greater(apply, 0.5)
        kept = [b.select(changes, n, old) for n, old in zip(new, (w, *moments), strict=True)]
        return kept if moments else kept[0]

    return expand


class _Numpy:
    """A builder's ops on arrays, for the reference definitions."""

    add, sub, mul, real_div = np.add, np.subtract, np.multiply, np.divide
    sqrt, square, sign = np.sqrt, np.square, np.sign


def _definition(step: Step) -> Callable[..., Any]:
    def ref(w: Array, g: Array, *rest: Array, **attrs: Any) -> Any:
        *moments, rates = rest
        if rates[4] <= 0.5:
            return [w, *moments] if moments else w
        new = step(_Numpy, w, g * rates[3], *moments, *rates[:3], **attrs)
        return [np.asarray(n) for n in new] if moments else new[0]

    return ref


def _adam(
    b: Any, w: Any, g: Any, m: Any, v: Any, lr: Any, first: Any, second: Any, beta1: float, beta2: float,
    epsilon: float, decay: float, decoupled: bool,
) -> list[Any]:  # fmt: skip
    """Computes a step of Adam. decoupled: the decay shrinks w directly (AdamW), in place of a term of the gradient."""
    if decay and not decoupled:
        g = b.add(g, b.mul(w, decay))
    m = b.add(m, b.mul(b.sub(g, m), 1 - beta1))
    v = b.add(b.mul(v, beta2), b.mul(b.square(g), 1 - beta2))
    if decay and decoupled:
        w = b.sub(w, b.mul(w, b.mul(lr, decay)))
    deviation = b.add(b.mul(b.sqrt(v), second), epsilon)
    return [b.sub(w, b.real_div(b.mul(m, b.mul(lr, first)), deviation)), m, v]


def _lion(
    b: Any, w: Any, g: Any, m: Any, lr: Any, first: Any, second: Any, beta1: float, beta2: float, decay: float
) -> list[Any]:
    way = b.sign(b.add(b.mul(m, beta1), b.mul(g, 1 - beta1)))
    if decay:
        w = b.sub(w, b.mul(w, b.mul(lr, decay)))
    return [b.sub(w, b.mul(way, lr)), b.add(b.mul(m, beta2), b.mul(g, 1 - beta2))]


def _momentum(
    b: Any, w: Any, g: Any, m: Any, lr: Any, first: Any, second: Any, momentum: float, nesterov: bool, decay: float
) -> list[Any]:
    if decay:
        g = b.add(g, b.mul(w, decay))
    m = b.add(b.mul(m, momentum), g)
    way = b.add(g, b.mul(m, momentum)) if nesterov else m
    return [b.sub(w, b.mul(way, lr)), m]


def _sgd(b: Any, w: Any, g: Any, lr: Any, first: Any, second: Any, decay: float) -> list[Any]:
    if decay:
        g = b.add(g, b.mul(w, decay))
    return [b.sub(w, b.mul(g, lr))]


_RATES = np.array([0.01, 1.5, 1.2, 0.5, 1], np.float32)
_REST = np.array([0.01, 1.5, 1.2, 0.5, 0], np.float32)


def _case(num_moments: int, rates: Array, **attrs: Any) -> Case:
    rng = np.random.default_rng(num_moments)
    w, g, m, v = (rng.standard_normal((3, 5)).astype(np.float32) for _ in range(4))
    return Case(arrays=(*(w, g, m, np.abs(v))[: 2 + num_moments], rates), attrs=attrs)


def _op(name: str, doc: str, step: Step, num_moments: int, attrs: dict[str, Any], *cases: dict[str, Any]) -> Op:
    moments = ("m", "v")[:num_moments]
    decays = tuple(k for k, a in attrs.items() if a.kind == "float")
    return Op(
        name=name, doc=doc, inputs=("w", "g", *moments, "rates"), outputs=("w", *moments) if moments else ("w",), attrs=attrs,
        shape=_shapes, dtype=_dtypes, check=(finite(*decays),), kernel=name, updates=("w", *moments), expand=_expansion(step), ref=_definition(step), no_grad=WHY, host=HOST,
        cases=(*(_case(num_moments, _RATES, **c) for c in cases), _case(num_moments, _REST, **cases[0])),
    )  # fmt: skip


def _sum_shape(s: Shape, g: Shape, first: Shape) -> Shape:
    if s != g or first != (1,):
        raise Error(f"got the shapes {s}, {g} and {first}, need one for both and (1,)")
    return s


def _sum_dtype(s: Any, g: Any, first: Any) -> Any:
    if first is not BOOL:
        raise Error(f"first: got {first}, need bool")
    return floating(s, g)


def _sum_case(*, first: bool, shape: Shape = (3, 5)) -> Case:
    rng = np.random.default_rng(6)
    s, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    return Case(arrays=(s, g, np.array([first])))


def _restart_case(*, first: bool) -> Case:
    return Case(arrays=(np.arange(15, dtype=np.float32).reshape(3, 5), np.array([first])))


def _square_shape(x: Shape, when: Shape | None) -> Shape:
    if when not in (None, (1,)):
        raise Error(f"when: got the shape {when}, need (1,)")
    return ()


def _square_dtype(x: Any, when: Any) -> Any:
    if when not in (None, BOOL):
        raise Error(f"when: got {when}, need bool")
    return floating(x)


def _squares(b: Builder, x: Value, when: Value | None) -> Value:
    total = b.reduce_sum_square(x, keep_dims=False) if x.type.rank else b.square(x)
    return total if when is None else b.select(b.reshape(when, shape=()), total, 0.0)


def _square_case(*, when: bool) -> Case:
    return Case(arrays=(np.arange(15, dtype=np.float32).reshape(3, 5), np.array([when])))


OPS = (
    Op(
        name="accumulate_step", doc="The sum of the gradients of several batches: g if `first`, a bool of shape (1,), "
                                    "is true, else s + g.",
        inputs=("s", "g", "first"), outputs=("s",), attrs={}, shape=_sum_shape, dtype=_sum_dtype, kernel="accumulate_step", updates=("s",),
        expand=lambda b, s, g, first: b.select(b.reshape(first, shape=()), g, b.add(s, g)),
        ref=lambda s, g, first: g if first[0] else s + g, no_grad=WHY, host=HOST,
        cases=(_sum_case(first=True), _sum_case(first=False), _sum_case(first=False, shape=())),
    ),
    Op(
        name="restart_sum", doc="The sum of the gradients of several batches, before another gradient is added in "
                                "place: 0 if `first`, a bool of shape (1,), is true, else s.",
        inputs=("s", "first"), outputs=("s",), attrs={}, shape=lambda s, first: _sum_shape(s, s, first),
        dtype=lambda s, first: _sum_dtype(s, s, first), updates=("s",),
        expand=lambda b, s, first: b.select(b.reshape(first, shape=()), 0.0, s),
        ref=lambda s, first: np.zeros_like(s) if first[0] else s, no_grad=WHY, host=HOST,
        cases=(_restart_case(first=True), _restart_case(first=False)),
    ),
    Op(
        name="squared_norm", doc="The sum of the squares of all elements, which the rates of an optimiser use; 0 if "
                                 "`when`, a bool of shape (1,), is false.",
        inputs=("x", "when?"), outputs=("y",), attrs={}, shape=_square_shape, dtype=_square_dtype, kernel="squared_norm", expand=_squares,
        ref=lambda x, when: np.sum(np.square(x)) if when is None or when[0] else np.zeros((), x.dtype), host=HOST,
        cases=(Case(((3, 5),)), Case(((7,),)), Case(((),)), _square_case(when=True), _square_case(when=False)),
    ),
    _op("adam_step", "Adam, or AdamW if the decay is decoupled: w, m and v after a step.", _adam, 2,
        {"beta1": number(0.9), "beta2": number(0.999), "epsilon": number(1e-8), "decay": number(0.0), "decoupled": flag(True)},
        {}, {"decay": 0.1}, {"decay": 0.1, "decoupled": False, "beta1": 0.8}),
    _op("lion_step", "Lion: w moves by the learning rate against the sign of the mixed momentum and gradient.", _lion, 1,
        {"beta1": number(0.9), "beta2": number(0.99), "decay": number(0.0)}, {}, {"decay": 0.1}),
    _op("momentum_step", "Gradient descent with momentum, Nesterov's if asked for: w and the momentum after a step.", _momentum, 1,
        {"momentum": number(0.9), "nesterov": flag(False), "decay": number(0.0)}, {}, {"nesterov": True, "decay": 0.1}),
    _op("sgd_step", "Gradient descent: w after a step.", _sgd, 0, {"decay": number(0.0)}, {}, {"decay": 0.1}),
)  # fmt: skip
