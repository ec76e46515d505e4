"""Logarithms of exponentials, quotients and squares, and softplus, in forms that do not overflow fp16.

exp(x) is infinite in fp16 from 11.1 on, and 0 below -17. Reported from devices: coremltools#2687 (softplus is 0 above
10.4), #2690 (logsumexp is 0 from 7.63 on over 32 channels), ultralytics#24944 (boxes of RT-DETR, log(a / b)).
"""

from math import inf, log, prod, sqrt

from hexane.bounds.any_input import ends
from hexane.graph import Node, Value
from hexane.ops.match import Found, made_by, op
from hexane.ops.predicates import axes_of, scalar, uniform
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.exponentials import EXP, HIGHEST, complement, held_softplus, less_its_largest, limited
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import at_least, factored, is_added_squares, squared, sum_of_squares


def log_softmax(m: Found) -> Value | None:
    """log(softmax(%x))  ->  log_softmax(%x), also with 0 added: an epsilon of 1e-45 that was rounded to fp16"""
    value = m.node.inputs[0]
    while (added := made_by(value, "add")) is not None and uniform(added.inputs[1]) == 0:
        value = added.inputs[0]
    maker = made_by(value, "softmax")
    if maker is None:
        return None
    return m.make("log_softmax", [m.now(v) for v in maker.inputs], **maker.attrs)[0]


def log_sum_exp(m: Found) -> Value | None:
    """log(reduce_sum(exp(%x)) * c)  ->  reduce_log_sum_exp(%x) + log(c), also for a mean, which has the factor 1 / n"""
    factor = 1.0
    if m.node.op == "log":
        total, factor = factored(m.node.inputs[0])
        maker = made_by(total, "reduce_sum", "reduce_mean")
        inner = None if maker is None else maker.inputs[0]
    else:
        maker, inner = m.node, m.node.inputs[0]
    exp = made_by(inner, "exp")
    if maker is None or exp is None or inner is None or not 0 < factor < inf:
        return None
    x = m.now(exp.inputs[0])
    assert x is not None
    if maker.op == "reduce_mean":
        factor /= prod(inner.shape[a] for a in axes_of(maker.attrs["axes"], inner.type.rank))
    y = held_log_sum_exp(x, m.node.sources, maker)
    return y if factor == 1 else Rewriter(*m.node.sources).add(y, log(factor))


def log_of_squares(m: Found) -> Value | None:
    """log(max(%x^2, e))  ->  2 * log(max(|%x|, sqrt(e)))

    The logarithm of a sum of squares becomes twice the logarithm of the sum's root. If the squares have a factor, its
    logarithm is added.
    """
    value, least = m.node.inputs[0], 0.0
    if value is not None and (limited := at_least(value)) is not None:
        value, least = limited
    b, now = Rewriter(*m.node.sources), m.now(value)
    if (y := _of_factored_squares(m, b, value, least)) is not None:
        return y
    if value is None or now is None:
        return None
    if (x := squared(value)) is not None:
        own = m.now(x)
        assert own is not None
        size = b.abs(own)
    elif sum_of_squares(value) is not None or is_added_squares(value):
        size = b.sqrt(now)
    else:
        return None
    return b.mul(b.log(b.maximum(size, sqrt(least)) if least else size), 2.0)


LARGEST_INSIDE = 2.0**30  # a number whose root is half of fp16's range


def _of_factored_squares(m: Found, b: Rewriter, value: Value | None, least: float) -> Value | None:
    """log(max((%a^2 + %b^2) * c + e, l))  ->  2 * log(max(sqrt(%a^2 + %b^2 + e / c), sqrt(l / c))) + log(c)"""
    inside = 0.0
    if value is not None and value.node.op == "add":
        for x, by in (value.node.inputs, value.node.inputs[::-1]):
            if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                value, inside = x, known
                break
    power, factor = factored(value)
    is_power = squared(power) is not None or is_added_squares(power)
    if power is None or not is_power or factor == 1 or not factor > 0 or max(inside, least) / factor > LARGEST_INSIDE:
        return None
    now = m.now(power)
    assert now is not None
    root = b.sqrt(b.add(now, inside / factor) if inside else now)
    root = b.maximum(root, sqrt(least / factor)) if least else root
    if max(inside, least) > NEAR_1:
        return b.mul(b.log(b.mul(root, sqrt(factor))), 2.0)
    return b.add(b.mul(b.log(root), 2.0), log(factor))


NEAR_1 = 0.5  # log(p + 1) may be near 0, where a sum of two logarithms loses its digits.


def native_softplus(m: Found) -> Value | None:
    """softplus(%x)  ->  max(softplus(min(%x, 10)), %x)"""
    (x,) = m.node.inputs
    now = m.now(x)
    if now is None or x is None or ends(x)[1] <= HIGHEST:
        return None
    return held_softplus(Rewriter(*m.node.sources), now)


def mish(m: Found) -> Value | None:
    """mish(%x)  ->  %x * tanh(softplus(min(%x, 10)))"""
    x, b = m.now(m.node.inputs[0]), Rewriter(*m.node.sources)
    assert x is not None
    return b.mul(x, b.tanh(b.softplus(b.clip(x, alpha=-inf, beta=HIGHEST))))


def native_log_sum_exp(m: Found) -> Value | None:
    """reduce_log_sum_exp(%x)  ->  reduce_log_sum_exp(%x - max(%x)) + max(%x)"""
    x = m.node.inputs[0]
    now = m.now(x)
    if x is None or now is None or less_its_largest(x):
        return None
    return held_log_sum_exp(now, m.node.sources, m.node)


def held_log_sum_exp(x: Value, sources: tuple[str, ...], total: Node) -> Value:
    """Returns the logsumexp of x with its largest number subtracted first. total: the node of the sum, for its axes and
    result shape."""
    b, axes = Rewriter(*sources), total.attrs["axes"]
    top = b.reduce_max(x, axes=axes)
    y = b.add(b.reduce_log_sum_exp(b.sub(x, top), axes=axes), top)
    return y if total.attrs["keep_dims"] else b.reshape(y, shape=total.types[0].shape)


def softplus(m: Found) -> Value | None:
    """log(1 + exp(%x))  ->  softplus(%x)"""
    total = made_by(m.node.inputs[0], "add")
    if total is None:
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        exp = made_by(other, "exp")
        if scalar(one) == 1 and exp is not None and other is not None and other.shape == m.node.types[0].shape:
            x = m.now(exp.inputs[0])
            assert x is not None
            return held_softplus(Rewriter(*m.node.sources), x)
    return None


def log_cosh(m: Found) -> Value | None:
    """log(cosh(%x))  ->  |%x| + softplus(-2 |%x|) - log(2)"""
    maker = made_by(m.node.inputs[0], "cosh")
    if maker is None:
        return None
    b = Rewriter(*m.node.sources)
    size = b.abs(m.now(maker.inputs[0]))
    return b.sub(b.add(size, b.softplus(b.mul(size, -2.0))), log(2))


def odds(m: Found) -> Value | None:
    """log(1 / %p - 1)  ->  log(1 - %p) - log(%p), for a positive %p"""
    less = made_by(m.node.inputs[0], "sub")
    if less is None or uniform(less.inputs[1]) != 1:
        return None
    maker = made_by(less.inputs[0], "inverse", "real_div")
    if maker is None or (maker.op == "real_div" and uniform(maker.inputs[0]) != 1):
        return None
    p = maker.inputs[-1]
    if p is None or p.shape != m.node.types[0].shape or not is_positive(p):
        return None
    b, (inner, low, high) = Rewriter(*m.node.sources), limited(p)
    sigmoid = made_by(inner, "sigmoid")
    if sigmoid is None and high >= 1:
        return None
    now = m.now(inner)
    rest = b.sub(1.0, now) if sigmoid is None else b.sigmoid(b.neg(m.now(sigmoid.inputs[0])))
    if (low, high) != (0.0, inf):
        rest = b.clip(rest, alpha=max(1 - high, 0.0), beta=1 - low)
    return b.sub(b.log(rest), b.log(m.now(p)))


MOST_TERMS = 8


def log_of_added(m: Found) -> Value | None:
    """log(exp(%a) + exp(%b) + e)  ->  log(exp(%a - t) + exp(%b - t) + exp(log(e) - t)) + t, with t the largest exponent

    The result is equal because exp(t) is a factor of every term. A term may have a factor, or be a sum of exponentials.
    """
    waiting, terms, constant = [m.node.inputs[0]], list[tuple[Value, Node | None, float]](), 0.0
    if made_by(m.node.inputs[0], "add") is None:
        return None
    while waiting:
        value = waiting.pop()
        if (added := made_by(value, "add")) is not None:
            waiting += added.inputs
            continue
        if (known := uniform(value)) is not None and known >= 0:
            constant += known
            continue
        inner, factor = factored(value)
        total = made_by(inner, "reduce_sum")
        exp = made_by(inner if total is None else total.inputs[0], "exp")
        x = None if exp is None else exp.inputs[0]
        if x is None or not 0 < factor < inf or len(terms) == MOST_TERMS:
            return None
        terms.append((x, total, factor))
    if all(less_its_largest(x) or _is_difference(x) for x, _, _ in terms):
        return None
    b, exponents = Rewriter(*m.node.sources), list[Value]()
    for x, total, factor in terms[::-1]:
        now = m.now(x)
        assert now is not None
        now = now if total is None else held_log_sum_exp(now, m.node.sources, total)
        exponents.append(now if factor == 1 else b.add(now, log(factor)))
    top = exponents[0]
    for x in exponents[1:]:
        top = b.maximum(top, x)
    top = b.maximum(top, log(constant)) if constant else top
    y = b.exp(b.sub(exponents[0], top))
    for x in exponents[1:]:
        y = b.add(y, b.exp(b.sub(x, top)))
    y = b.add(y, b.exp(b.sub(log(constant), top))) if constant else y
    return b.add(b.log(y), top)


def _is_difference(x: Value) -> bool:
    """True if fp16 holds exp(x): x is %a minus a maximum, or x is at most 10."""
    node = made_by(x, "sub")
    return ends(x)[1] <= HIGHEST or (node is not None and made_by(node.inputs[1], "maximum") is not None)


def log_sigmoid(m: Found) -> Value | None:
    """log(sigmoid(%x))  ->  -softplus(-%x)"""
    maker = made_by(m.node.inputs[0], "sigmoid")
    if maker is None:
        return None
    b = Rewriter(*m.node.sources)
    return b.neg(held_softplus(b, b.neg(m.now(maker.inputs[0]))))


def log_of_limit(m: Found) -> Value | None:
    """log(max(%p, e))  ->  max(log(%p), log(e)), for a sigmoid or softmax %p; an upper limit is kept too"""
    inner, low, high = limited(m.node.inputs[0])
    if inner is None or not 0 < low < HELD_EPSILON or not _is_probability(inner):
        return None
    b = Rewriter(*m.node.sources)
    y = b.maximum(b.log(m.now(inner)), log(low))
    return y if high >= 1 else b.minimum(y, log(high))


HELD_EPSILON = 2.0**-13  # fp16 has all digits of a larger epsilon


def _is_probability(value: Value | None) -> bool:
    """True if the logarithm of the value is written without an exponential by the forms below."""
    if value is not None and value.node.op == "mul":
        return all(_is_probability(v) and v is not None and v.shape == value.shape for v in value.node.inputs)
    return value is not None and value.node.op in ("sigmoid", "softmax")


def log_of_product(m: Found) -> Value | None:
    """log(%p * %q)  ->  log(%p) + log(%q), for sigmoids and softmaxes"""
    product = m.node.inputs[0]
    if made_by(product, "mul") is None or product is None or not _is_probability(product):
        return None
    b = Rewriter(*m.node.sources)
    return b.add(*(b.log(m.now(v)) for v in product.node.inputs))


def log_with_epsilon(m: Found) -> Value | None:
    """log(%p + e)  ->  max(%l, log(e)) + softplus(-|%l - log(e)|), with %l = log(%p), for a sigmoid or softmax %p

    The result is the logarithm of exp(%l) + exp(log(e)), with the larger exponent as a summand. e and %p are not
    rounded to fp16.
    """
    added = made_by(m.node.inputs[0], "add")
    for p, by in () if added is None else (added.inputs, added.inputs[::-1]):
        epsilon = uniform(by)
        if epsilon is None or not 0 < epsilon < HELD_EPSILON or not _is_probability(p):
            continue
        if p is None or p.shape != m.node.types[0].shape:
            continue
        b = Rewriter(*m.node.sources)
        logarithm = b.log(m.now(p))
        apart = b.abs(b.sub(logarithm, log(epsilon)))
        return b.add(b.maximum(logarithm, log(epsilon)), b.softplus(b.neg(apart)))
    return None


def log_of_quotient(m: Found) -> Value | None:
    """log(%a / %b)  ->  log(%a) - log(%b), where %b is positive and %a positive or 0

    For sums of squares %a and %b, the result is 2 * log(sqrt(%a) / sqrt(%b)), which does not cancel digits.
    """
    maker = made_by(m.node.inputs[0], "real_div")
    if maker is None:
        return None
    b = Rewriter(*m.node.sources)
    if all(sum_of_squares(v) is not None for v in maker.inputs):
        return b.mul(b.log(b.real_div(*(b.sqrt(m.now(v)) for v in maker.inputs))), 2.0)
    if not all(v is not None and is_positive(v, i == 0) for i, v in enumerate(maker.inputs)):
        return None
    return b.sub(*(b.log(m.now(v)) for v in maker.inputs))


NOT_NEGATIVE = ("relu", "relu6", "abs", "square", "sqrt", "reduce_l1_norm", "reduce_l2_norm", "reduce_sum_square")


def is_positive(value: Value, least: bool = False) -> bool:
    """True if the ops that compute the value guarantee that it is > 0, or >= 0 with `least`."""
    node, inputs = value.node, value.node.inputs
    if (known := scalar(value)) is not None:
        return known >= 0 if least else known > 0
    if node.op in ("sigmoid", "exp", "softmax", "softplus"):
        return True
    if node.op == "clip":
        return bool(node.attrs["alpha"] >= 0 if least else node.attrs["alpha"] > 0)
    if node.op == "maximum":
        return any(v is not None and is_positive(v, least) for v in inputs)
    if least and squared(value) is not None:
        return True
    if (rest := complement(node)) is not None:
        return limited(rest)[2] < 1
    if node.op == "select":
        return all(v is not None and is_positive(v, least) for v in inputs[1:])
    if node.op in ("minimum", "mul", "real_div"):
        return all(v is not None and is_positive(v, least) for v in inputs)
    if node.op == "add":
        zero = all(v is not None and is_positive(v, True) for v in inputs)
        return zero and (least or any(v is not None and is_positive(v) for v in inputs))
    if node.op in ("reshape", "transpose", "slice_by_size", "expand_dims", "squeeze", "identity", "gather"):
        return inputs[0] is not None and is_positive(inputs[0], least)
    if node.op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        return inputs[0] is not None and is_positive(inputs[0], least)
    return least and node.op in NOT_NEGATIVE


FORMS = (
    Form("log of cosh", op("log"), log_cosh, f"written with softplus: {EXP}"),
    Form(
        "log of odds",
        op("log"),
        odds,
        "written as the difference of two logarithms: 1 / p loses the digits of a p near 1",
    ),
    Form(
        "log of a quotient",
        op("log"),
        log_of_quotient,
        "written as the difference of two logarithms, or with a quotient of roots: the quotient leaves fp16's range",
        "ultralytics#24944, reported from devices",
    ),
    Form(
        "log of a limited probability",
        op("log"),
        log_of_limit,
        "the limit is applied to the logarithm: a probability below 6e-5 has few digits in fp16",
    ),
    Form(
        "log of a probability and an epsilon",
        op("log"),
        log_with_epsilon,
        "written with the logarithms of both terms: a probability below 6e-5 has few digits in fp16",
    ),
    Form(
        "log of a product of probabilities",
        op("log"),
        log_of_product,
        "written as a sum of logarithms: a product below 6e-5 has few digits in fp16",
    ),
    Form(
        "log_softmax",
        op("log"),
        log_softmax,
        "written as log_softmax: a probability below 3e-8 is 0 in fp16, and its logarithm is -infinity",
    ),
    Form(
        "logsumexp",
        op("log") | op("reduce_log_sum"),
        log_sum_exp,
        f"written as reduce_log_sum_exp, which takes off the largest number: {EXP}",
        "coremltools#2690, reported from a device",
    ),
    Form(
        "softplus of the chip",
        op("softplus"),
        native_softplus,
        "the operand is limited to 10, and larger operands are returned as they are: chips return 0 above 10.394",
        "coremltools#2687, reported from M3 Max and M4",
    ),
    Form(
        "mish",
        op("mish"),
        mish,
        "written with a softplus of at most 10: chips return 0 above 10.394",
        "coremltools#2687, reported from M3 Max and M4",
    ),
    Form(
        "logsumexp of the chip",
        op("reduce_log_sum_exp"),
        native_log_sum_exp,
        "the largest number is taken off first: chips return 0 where the sum of exponentials is beyond fp16",
        "coremltools#2690, reported from M3 Max",
    ),
    Form("softplus", op("log"), softplus, f"written as softplus: {EXP}", "coremltools#2687, reported from devices"),
    Form(
        "log of exponentials",
        op("log"),
        log_of_added,
        f"the largest exponent is taken off first: {EXP}",
        "coremltools#2690, reported from a device",
    ),
    Form(
        "log_sigmoid",
        op("log"),
        log_sigmoid,
        "written with softplus: a probability below 3e-8 is 0 in fp16, and its logarithm is -infinity",
    ),
    Form(
        "log of squares",
        op("log"),
        log_of_squares,
        "written as twice the logarithm of the root: squares of numbers beyond 256 are infinite in fp16, those of"
        " numbers below 0.0002 are 0",
    ),
)
