"""Logarithms and softmaxes that are written out, in forms without the exponential that leaves fp16.

exp(x) is infinite in fp16 from 11.1 on, and 0 below -17. Reported from devices: coremltools#2687 (softplus is 0 above
10.4), #2690 (logsumexp is 0 from 7.63 on over 32 channels), ultralytics#24944 (boxes of RT-DETR, log(a / b)).
"""

from hexane.graph import Value
from hexane.match import Found, made_by, op, scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import axes_of


def log_softmax(m: Found) -> Value | None:
    """log(softmax(%x))  ->  log_softmax(%x)"""
    maker = made_by(m.node.inputs[0], "softmax")
    if maker is None:
        return None
    return m.make("log_softmax", [m.now(v) for v in maker.inputs], **maker.attrs)[0]


def log_sum_exp(m: Found) -> Value | None:
    """log(reduce_sum(exp(%x)))  ->  reduce_log_sum_exp(%x)"""
    if m.node.op == "log":
        maker = made_by(m.node.inputs[0], "reduce_sum")
        inner = None if maker is None else maker.inputs[0]
    else:
        maker, inner = m.node, m.node.inputs[0]
    exp = made_by(inner, "exp")
    if maker is None or exp is None:
        return None
    return m.make("reduce_log_sum_exp", [m.now(exp.inputs[0])], **maker.attrs)[0]


def softplus(m: Found) -> Value | None:
    """log(1 + exp(%x))  ->  softplus(%x)"""
    total = made_by(m.node.inputs[0], "add")
    if total is None:
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        exp = made_by(other, "exp")
        if scalar(one) == 1 and exp is not None and other is not None and other.shape == m.node.types[0].shape:
            return m.make("softplus", [m.now(exp.inputs[0])])[0]
    return None


def log_sigmoid(m: Found) -> Value | None:
    """log(sigmoid(%x))  ->  -softplus(-%x)"""
    maker = made_by(m.node.inputs[0], "sigmoid")
    if maker is None:
        return None
    b = Rewriter(*m.node.sources)
    return b.neg(b.softplus(b.neg(m.now(maker.inputs[0]))))


def log_of_quotient(m: Found) -> Value | None:
    """log(%a / %b)  ->  log(%a) - log(%b), where both are positive"""
    maker = made_by(m.node.inputs[0], "real_div")
    if maker is None or not all(v is not None and is_positive(v) for v in maker.inputs):
        return None
    b = Rewriter(*m.node.sources)
    return b.sub(*(b.log(m.now(v)) for v in maker.inputs))


def is_positive(value: Value, least: bool = False) -> bool:
    """Whether the maker of a value promises that it is above 0; least: or 0."""
    node, inputs = value.node, value.node.inputs
    if (known := scalar(value)) is not None:
        return known >= 0 if least else known > 0
    if node.op in ("sigmoid", "exp", "softmax", "softplus"):
        return True
    if node.op == "clip":
        return bool(node.attrs["alpha"] >= 0 if least else node.attrs["alpha"] > 0)
    if node.op == "maximum":
        return any(v is not None and is_positive(v, least) for v in inputs)
    if node.op in ("minimum", "mul", "real_div"):
        return all(v is not None and is_positive(v, least) for v in inputs)
    if node.op == "add":
        zero = all(v is not None and is_positive(v, True) for v in inputs)
        return zero and (least or any(v is not None and is_positive(v) for v in inputs))
    if node.op in ("reshape", "transpose", "slice_by_size", "expand_dims", "squeeze", "identity", "gather"):
        return inputs[0] is not None and is_positive(inputs[0], least)
    return least and node.op in ("relu", "relu6", "abs", "square", "sqrt")


def softmax(m: Found) -> Value | None:
    """exp(%x) / reduce_sum(exp(%x))  ->  softmax(%x)"""
    exp, by = m.node.inputs
    total = made_by(by, "reduce_sum")
    maker = made_by(exp, "exp")
    if total is None or maker is None or total.inputs[0] != exp or not total.attrs["keep_dims"]:
        return None
    x = maker.inputs[0]
    assert x is not None
    axes = axes_of(total.attrs["axes"], x.type.rank)
    if len(axes) != 1 or _less_its_largest(x):
        return None
    return m.make("softmax", [m.now(x)], axis=axes[0])[0]


def _less_its_largest(x: Value) -> bool:
    """Whether x is %a - max(%a): fp16 holds its exponentials."""
    node = made_by(x, "sub")
    return node is not None and made_by(node.inputs[1], "reduce_max") is not None


EXP = "exp is infinite in fp16 from 11.1 on"
FORMS = (
    Form("softmax", op("real_div"), softmax, f"written as softmax, which takes off the largest number: {EXP}"),
    Form(
        "log_softmax",
        op("log"),
        log_softmax,
        "written as log_softmax: fp16 has no number below 6e-8 to take the logarithm of",
    ),
    Form(
        "logsumexp",
        op("log") | op("reduce_log_sum"),
        log_sum_exp,
        f"written as reduce_log_sum_exp, which takes off the largest number: {EXP}",
        "coremltools#2690, reported from a device",
    ),
    Form("softplus", op("log"), softplus, f"written as softplus: {EXP}", "coremltools#2687, reported from devices"),
    Form(
        "log_sigmoid",
        op("log"),
        log_sigmoid,
        "written with softplus: fp16 has no number below 6e-8 to take the logarithm of",
    ),
    Form(
        "log of a quotient",
        op("log"),
        log_of_quotient,
        "written as the difference of two logarithms: the quotient leaves fp16",
        "ultralytics#24944, reported from devices",
    ),
)
