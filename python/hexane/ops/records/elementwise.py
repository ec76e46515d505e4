"""Elementwise ops: arithmetic, activations, comparison, logic, select, cast."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, DType, integer_range
from hexane.graph import Value
from hexane.ops.attributes import Attr, element_type, flag, no_attrs, number
from hexane.ops.compose import Builder
from hexane.ops.dtype_rules import boolean, compare, dtype_of_cases, floating, integral, numeric, same_bits
from hexane.ops.element_functions import clipped, converted, erf, is_infinite, power, real_div, sigmoid, softplus
from hexane.ops.gradients import elementwise as grads
from hexane.ops.gradients.rule import zero
from hexane.ops.shape_rules import broadcast, same
from hexane.ops.spec import Case, Op, op_error

Array = Any


def _unary(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    attrs: Mapping[str, Attr] | None = None,
    dtype: Callable[..., Any] = floating,
    onnx: tuple[str, ...] = (),
    low: float = -3.0,
    high: float = 3.0,
    cases: tuple[Case, ...] = (),
    **traits: Any,
) -> Op:
    dtypes = ("bool",) if dtype is boolean else ("fp32",)
    shown = (Case(((2, 3, 17),), dtypes=dtypes, low=low, high=high), Case(((0, 3),), dtypes=dtypes), *cases)
    if dtype is numeric:
        shown = (*shown, Case(((5,),), dtypes=("int32",), low=-9, high=9))
    return Op(
        name=name, doc=doc, inputs=("x",), attrs=attrs, shape=same, dtype=dtype, kernel=name, elementwise=True,
        ref=ref, onnx=onnx, cases=shown, **traits,
    )  # fmt: skip


def _binary(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    dtype: Callable[..., Any] = numeric,
    onnx: tuple[str, ...] = (),
    low: float = -3.0,
    high: float = 3.0,
    cases: tuple[Case, ...] = (),
    **traits: Any,
) -> Op:
    dtypes = ("bool",) if dtype is boolean else ("fp32",)
    shown = [
        Case(((2, 3, 17), (2, 3, 17)), dtypes=dtypes, low=low, high=high),
        Case(((2, 1, 5), (3, 1)), dtypes=dtypes, low=low, high=high),
        Case(((4, 6), ()), dtypes=dtypes, low=low, high=high),
    ]
    if dtype is numeric:
        shown.append(Case(((5,), (5,)), dtypes=("int32",), low=1, high=9))
    return Op(
        name=name, doc=doc, inputs=("x", "y"), shape=broadcast, dtype=dtype, kernel=name, elementwise=True,
        ref=ref, onnx=onnx, cases=(*shown, *cases), **traits,
    )  # fmt: skip


def _accepts_any(*dtypes: Any, **attrs: Any) -> Any:
    return attrs["dtype"]


def _ordered(types: Any, attrs: Mapping[str, Any]) -> None:
    if attrs["alpha"] > attrs["beta"] or math.isnan(attrs["alpha"]) or math.isnan(attrs["beta"]):
        raise op_error("clip", f"got alpha {attrs['alpha']} and beta {attrs['beta']}, need alpha <= beta")


def _clip_attrs(types: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes. For integers the bounds are rounded inwards, within the range of the dtype."""
    if types[0].dtype.kind not in ("int", "uint") or attrs["alpha"] > attrs["beta"]:
        return dict(attrs)
    low, high = (_whole(types[0].dtype, *end) for end in ((attrs["alpha"], math.ceil), (attrs["beta"], math.floor)))
    if low > high:
        raise op_error("clip", f"got alpha {attrs['alpha']} and beta {attrs['beta']}, need an integer between them")
    return {**attrs, "alpha": low, "beta": high}


def _whole(dtype: DType, end: float, step: Callable[[float], int]) -> float:
    least, most = integer_range(dtype.numpy)
    return float(min(max(step(end), least), most)) if math.isfinite(end) else end


def _select_shape(*shapes: Any, **_: Any) -> Any:
    return broadcast(*shapes)


def _tested(x: Any, **_: Any) -> Any:
    floating(x)
    return BOOL


def _expand_is_inf(b: Builder, x: Value, detect_negative: bool, detect_positive: bool) -> Value:
    if detect_negative == detect_positive:
        # The comparison with -inf is always false, because no magnitude is -inf. A constant False would be folded,
        # which would change the verdicts of later ops on a chip.
        return b.equal(b.abs(x), math.inf if detect_positive else -math.inf)
    return b.equal(x, math.inf if detect_positive else -math.inf)


def _expand_shrink(b: Builder, x: Value, bias: float, lambd: float) -> Value:
    inner = b.select(b.greater(x, lambd), b.sub(x, bias), b.const(np.zeros((), x.dtype.numpy)))
    return b.select(b.less(x, -lambd), b.add(x, bias), inner)


_ALPHA = {"alpha": number(0.01)}
_SPECIAL = np.array([1, -math.inf, math.nan, 0, math.inf], np.float32)

OPS = (
    _unary("abs", "The absolute value.", np.abs, dtype=numeric, onnx=("Abs",), not_negative=True, grad=grads.abs_),
    _unary("neg", "The negative.", np.negative, dtype=numeric, onnx=("Neg",), grad=grads.neg),
    _unary("ceil", "The smallest integer not below x.", np.ceil, onnx=("Ceil",), grad=zero),
    _unary("floor", "The largest integer not above x.", np.floor, onnx=("Floor",), grad=zero),
    _unary("round", "The nearest integer, halves to even.", np.rint, onnx=("Round",), grad=zero),
    _unary("sign", "-1, 0 or 1.", np.sign, dtype=numeric, onnx=("Sign",), grad=zero),
    _unary("sqrt", "The square root.", np.sqrt, onnx=("Sqrt",), low=0.0, grad=grads.sqrt_),
    _unary("rsqrt", "1 / sqrt(x).", lambda x: 1 / np.sqrt(x), low=0.1, grad=grads.rsqrt),
    _unary("inverse", "1 / x.", lambda x: 1 / x, onnx=("Reciprocal",), low=0.1, grad=grads.inverse),
    _unary("square", "x * x.", np.square, dtype=numeric, grad=grads.square),
    _unary("exp", "e to the x.", np.exp, onnx=("Exp",), not_negative=True, grad=grads.exp),
    _unary("exp2", "2 to the x.", np.exp2, not_negative=True, grad=grads.exp2),
    _unary("log", "The natural logarithm.", np.log, onnx=("Log",), low=0.1, grad=grads.log_),
    _unary("erf", "The error function.", erf, onnx=("Erf",), cases=(Case(((),)),), grad=grads.erf),
    _unary("sin", "The sine.", np.sin, onnx=("Sin",), grad=grads.sin),
    _unary("cos", "The cosine.", np.cos, onnx=("Cos",), grad=grads.cos),
    _unary("tan", "The tangent.", np.tan, onnx=("Tan",), low=-1.2, high=1.2, grad=grads.tan),
    _unary("asin", "The inverse sine.", np.arcsin, onnx=("Asin",), low=-1.0, high=1.0, grad=grads.asin),
    _unary("acos", "The inverse cosine.", np.arccos, onnx=("Acos",), low=-1.0, high=1.0, grad=grads.acos),
    _unary("atan", "The inverse tangent.", np.arctan, onnx=("Atan",), grad=grads.atan),
    _unary("sinh", "The hyperbolic sine.", np.sinh, onnx=("Sinh",), grad=grads.sinh),
    _unary("cosh", "The hyperbolic cosine.", np.cosh, onnx=("Cosh",), grad=grads.cosh),
    _unary("asinh", "The inverse hyperbolic sine.", np.arcsinh, onnx=("Asinh",), grad=grads.asinh),
    _unary("acosh", "The inverse hyperbolic cosine.", np.arccosh, onnx=("Acosh",), low=1.0, grad=grads.acosh),
    _unary("atanh", "The inverse hyperbolic tangent.", np.arctanh, onnx=("Atanh",), low=-0.9, high=0.9, grad=grads.atanh),
    _unary("tanh", "The hyperbolic tangent.", np.tanh, onnx=("Tanh",), grad=grads.tanh),
    _unary("sigmoid", "1 / (1 + e^-x).", sigmoid, onnx=("Sigmoid",), not_negative=True, grad=grads.sigmoid),
    _unary("relu", "x where positive, else 0.", lambda x: np.maximum(x, 0), dtype=numeric, onnx=("Relu",),
           not_negative=True, grad=grads.relu),
    _unary("relu6", "x clipped to 0..6.", lambda x: np.clip(x, 0, 6), high=9.0, not_negative=True, grad=grads.relu6),
    _unary("leaky_relu", "x where positive, else alpha * x.", lambda x, alpha: np.where(x < 0, alpha * x, x), _ALPHA,
           onnx=("LeakyRelu",), grad=grads.leaky_relu),
    _unary("elu", "x where positive, else alpha * (e^x - 1).",
           lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), {"alpha": number(1.0)},
           onnx=("Elu",), grad=grads.elu),
    _unary("celu", "max(0, x) + min(0, alpha * (e^(x / alpha) - 1)).",
           lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)), {"alpha": number(1.0)},
           onnx=("Celu",), cases=(Case(((2, 3, 17),), {"alpha": 0.6}),), grad=grads.celu),
    _unary("selu", "beta * x where positive, else beta * alpha * (e^x - 1).",
           lambda x, alpha, beta: np.where(x > 0, beta * x, beta * alpha * np.expm1(np.minimum(x, 0))),
           {"alpha": number(1.67326319217681884765625), "beta": number(1.05070102214813232421875)}, grad=grads.selu),
    _unary("gelu", "x * (1 + erf(x / sqrt 2)) / 2.", lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), grad=grads.gelu),
    _unary("gelu_tanh", "The tanh approximation of gelu.",
           lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), grad=grads.gelu_tanh),
    _unary("silu", "x * sigmoid(x).", lambda x: x * sigmoid(x), onnx=("Swish",), grad=grads.silu),
    _unary("hard_swish", "x * clip(x / 6 + 1/2, 0, 1).", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), onnx=("HardSwish",),
           low=-5.0, high=5.0, grad=grads.hard_swish),
    _unary("mish", "x * tanh(softplus(x)).", lambda x: x * np.tanh(softplus(x)), onnx=("Mish",),
           expand=lambda b, x: b.mul(x, b.tanh(b.softplus(x)))),
    _unary("softplus", "log(1 + e^x).", softplus, onnx=("Softplus",), grad=grads.softplus),
    _unary("softsign", "x / (1 + |x|).", lambda x: x / (1 + np.abs(x)), onnx=("Softsign",), grad=grads.softsign),
    _unary("sigmoid_hard", "clip(alpha * x + beta, 0, 1).",
           lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), {"alpha": number(0.2), "beta": number(0.5)},
           onnx=("HardSigmoid",), not_negative=True, grad=grads.sigmoid_hard),
    Op(
        name="clip", doc="x clamped to alpha..beta; NaN stays NaN. For integers the bounds are rounded to integers "
                         "between them.", inputs=("x",),
        attrs={"alpha": number(-math.inf), "beta": number(math.inf)}, shape=same, dtype=numeric, check=(_ordered,),
        canonical=_clip_attrs, kernel="clip", elementwise=True, results=("alpha", "beta"), ref=clipped,
        cases=(Case(((2, 3, 17),), {"alpha": -1.0, "beta": 0.5}), Case(((7,),), {"beta": 1.0}),
               Case(((9,),), {"alpha": 2, "beta": 5}, dtypes=("int32",), low=0, high=9)), grad=grads.clip,
    ),
    _unary("scaled_tanh", "alpha * tanh(beta * x).", lambda x, alpha, beta: alpha * np.tanh(beta * x),
           {"alpha": number(1.0), "beta": number(1.0)}, grad=grads.scaled_tanh),
    _unary("thresholded_relu", "x where above alpha, else 0.", lambda x, alpha: np.where(x > alpha, x, 0),
           {"alpha": number(1.0)}, onnx=("ThresholdedRelu",), grad=grads.thresholded_relu),
    _unary("threshold", "max(x, alpha).", lambda x, alpha: np.maximum(x, alpha), {"alpha": number(1.0)},
           results=("alpha",), grad=grads.threshold),
    _unary("linear_activation", "alpha * x + beta.", lambda x, alpha, beta: alpha * x + beta,
           {"alpha": number(1.0), "beta": number(0.0)}, grad=grads.linear_activation),
    _unary("logical_not", "True where x is False.", np.logical_not, dtype=boolean, onnx=("Not",)),
    _binary("add", "x + y, broadcast.", np.add, onnx=("Add",), epilogue=True, commutative=True, grad=grads.add),
    _binary("sub", "x - y, broadcast.", np.subtract, onnx=("Sub",), epilogue=True, grad=grads.sub),
    _binary("mul", "x * y, broadcast.", np.multiply, onnx=("Mul",), epilogue=True, commutative=True, grad=grads.mul),
    _binary("real_div", "x / y, broadcast; integers truncate toward zero.", real_div, onnx=("Div",), low=0.5,
            epilogue=True, grad=grads.real_div),
    _binary("floor_div", "floor(x / y), broadcast.", np.floor_divide, low=0.5, grad=zero),
    _binary("mod", "x - y * floor(x / y), the remainder with the sign of y, broadcast.", np.mod, low=0.5, grad=grads.mod),
    _binary("fmod", "The remainder of x / y with the sign of x, broadcast.", np.fmod, low=0.5, grad=grads.fmod),
    _binary("maximum", "The larger of x and y, broadcast; NaN if either is.", np.maximum, commutative=True, grad=grads.maximum),
    _binary("minimum", "The smaller of x and y, broadcast; NaN if either is.", np.minimum, commutative=True, grad=grads.minimum),
    _binary("pow", "x to the power y, broadcast.", power, low=0.1, grad=grads.pow_),
    _binary("prelu", "x where positive, else x * y, broadcast: slopes (C, 1, 1) for an image.", lambda x, y: np.where(x < 0, x * y, x), dtype=floating, grad=grads.prelu),
    _binary("equal", "x == y.", np.equal, dtype=compare, onnx=("Equal",), commutative=True),
    _binary("not_equal", "x != y.", np.not_equal, dtype=compare, commutative=True),
    _binary("greater", "x > y.", np.greater, dtype=compare, onnx=("Greater",)),
    _binary("greater_equal", "x >= y.", np.greater_equal, dtype=compare, onnx=("GreaterOrEqual",)),
    _binary("less", "x < y.", np.less, dtype=compare, onnx=("Less",)),
    _binary("less_equal", "x <= y.", np.less_equal, dtype=compare, onnx=("LessOrEqual",)),
    _binary("logical_and", "True where x and y "
                           "are both True.", np.logical_and, dtype=boolean, onnx=("And",), commutative=True),
    _binary("logical_or", "True where x or y is True.", np.logical_or, dtype=boolean, onnx=("Or",), commutative=True),
    _binary("logical_xor", "True where exactly one of x and "
                           "y is True.", np.logical_xor, dtype=boolean, onnx=("Xor",), commutative=True),
    *(
        Op(
            name=name, doc=doc, inputs=("x", "y"), shape=broadcast, dtype=integral, kernel=name, elementwise=True,
            commutative=name.startswith("bitwise"), ref=ref, onnx=onnx,
            cases=(Case(((5, 7), (5, 7)), dtypes=("uint8",), low=0, high=200 if onnx else 9),
                   Case(((2, 1, 5), (3, 1)), dtypes=("uint32",), low=0, high=40)),
        )
        for name, doc, ref, onnx in (
            ("bitwise_and", "The bits set in both x and y, broadcast.", np.bitwise_and, ("BitwiseAnd",)),
            ("bitwise_or", "The bits set in x, in y or in both, broadcast.", np.bitwise_or, ("BitwiseOr",)),
            ("bitwise_xor", "The bits set in exactly one of x and y, broadcast.", np.bitwise_xor, ("BitwiseXor",)),
            ("shift_left", "The bits of x moved up by y, broadcast.", np.left_shift, ()),
            ("shift_right", "The bits of x moved down by y and filled with copies of the sign bit, broadcast.", np.right_shift, ()),
        )
    ),
    Op(
        name="bit_cast", doc="The bits of x as another dtype of the same size.", inputs=("x",),
        attrs={"dtype": element_type()}, shape=same, dtype=same_bits, kernel="copy",
        kernel_attrs=no_attrs, elementwise=True, moves=("x",), ref=lambda x, dtype: x.view(dtype.numpy),
        cases=(Case(((3, 5),), {"dtype": "int32"}), Case(((9,),), {"dtype": "int8"}, dtypes=("uint8",), low=0, high=255)), no_grad="the bits are read as numbers of another dtype",
    ),
    Op(
        name="select", doc="a where cond (bool) is True, else b, all broadcast.", inputs=("cond", "a", "b"), shape=_select_shape,
        dtype=dtype_of_cases, kernel="select", elementwise=True, moves=("a", "b"), ref=np.where, onnx=("Where",),
        cases=(Case(((3, 5), (3, 5), (5,)), dtypes=("bool", "fp32", "fp32")),
               Case(((1, 7), (), (4, 1)), dtypes=("bool", "int32", "int32"))), grad=grads.select,
    ),
    Op(
        name="cast", doc="x as another dtype; floats truncate to integers, saturating, NaN to 0.", inputs=("x",),
        attrs={"dtype": element_type()}, shape=same, dtype=_accepts_any, kernel="cast",
        kernel_attrs=no_attrs, elementwise=True, ref=converted,
        cases=(Case(((3, 5),), {"dtype": "fp16"}), Case(((9,),), {"dtype": "int32"}, low=-9.0, high=9.0),
               Case(((9,),), {"dtype": "fp32"}, dtypes=("int8",), low=-9, high=9)), grad=grads.cast_,
    ),
    Op(
        name="bitwise_not", doc="An integer with every bit inverted.", inputs=("x",), shape=same, dtype=integral,
        expand=lambda b, x: b.bitwise_xor(x, b.const(np.invert(np.zeros((), x.dtype.numpy)))), elementwise=True, ref=np.invert,
        onnx=("BitwiseNot",), cases=(Case(((5, 7),), dtypes=("uint8",), low=0, high=200), Case(((9,),), dtypes=("int32",))),
    ),
    Op(
        name="is_nan", doc="True where x is not a number.", inputs=("x",), shape=same, dtype=_tested,
        expand=lambda b, x: b.not_equal(x, x), elementwise=True, ref=np.isnan, onnx=("IsNaN",), cases=(Case(arrays=(_SPECIAL,)),),
    ),
    Op(
        name="is_inf", doc="True where x is infinite; detect_negative and detect_positive: which infinities count.",
        inputs=("x",), attrs={"detect_negative": flag(True), "detect_positive": flag(True)}, shape=same, dtype=_tested,
        expand=_expand_is_inf, elementwise=True, ref=is_infinite, onnx=("IsInf",),
        cases=tuple(Case(arrays=(_SPECIAL,), attrs={"detect_negative": n, "detect_positive": p})
                    for n, p in ((True, True), (True, False), (False, False))),
    ),
    Op(
        name="clamped_relu", doc="x where positive, else alpha * x; at most beta.", inputs=("x",),
        attrs={"alpha": number(), "beta": number()}, shape=same, dtype=floating,
        expand=lambda b, x, alpha, beta: b.minimum(b.leaky_relu(x, alpha=alpha), beta),
        elementwise=True, ref=lambda x, alpha, beta: np.minimum(np.where(x >= 0, x, alpha * x), beta),
        cases=(Case(((2, 3, 17),), {"alpha": 0.1, "beta": 1.0}),),
    ),
    Op(
        name="shrink", doc="x - bias above lambd, x + bias below -lambd, 0 between them.", inputs=("x",),
        attrs={"bias": number(0.0), "lambd": number(0.5)}, shape=same, dtype=floating, expand=_expand_shrink,
        elementwise=True, ref=lambda x, bias, lambd: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)), onnx=("Shrink",),
        cases=(Case(((2, 3, 17),)), Case(((9,),), {"bias": 1.5, "lambd": 1.5})),
    ),
)  # fmt: skip
