"""Logarithms, softmaxes and sigmoids written with exponentials, in forms without the exponential that overflows fp16.

exp(x) is infinite in fp16 from 11.1 on, and 0 below -17. Reported from devices: coremltools#2687 (softplus is 0 above
10.4), #2690 (logsumexp is 0 from 7.63 on over 32 channels), ultralytics#24944 (boxes of RT-DETR, log(a / b)).
"""

from math import inf, log, prod, sqrt

from hexane.graph import Node, Value
from hexane.ops.match import Found, made_by, op, scalar
from hexane.ops.rewriter import Rewriter
from hexane.passes.repair.ends import ends
from hexane.passes.repair.form import Form
from hexane.passes.repair.squares import at_least, axes_of, factored, is_added_squares, number, squared, sum_of_squares


def log_softmax(m: Found) -> Value | None:
    """log(softmax(%x))  ->  log_softmax(%x)"""
    maker = made_by(m.node.inputs[0], "softmax")
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
            if (known := number(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
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
HIGHEST = 10.0  # For x = 10, softplus(x) - x is 4.5e-5, far below fp16's step of 0.0078.


def held_softplus(b: Rewriter, x: Value) -> Value:
    """Returns max(softplus(min(x, 10)), x), which equals softplus(x) in fp16."""
    return b.maximum(b.softplus(b.clip(x, alpha=-inf, beta=HIGHEST)), x)


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
    if x is None or now is None or _less_its_largest(x):
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
        if (known := number(value)) is not None and known >= 0:
            constant += known
            continue
        inner, factor = factored(value)
        total = made_by(inner, "reduce_sum")
        exp = made_by(inner if total is None else total.inputs[0], "exp")
        x = None if exp is None else exp.inputs[0]
        if x is None or not 0 < factor < inf or len(terms) == MOST_TERMS:
            return None
        terms.append((x, total, factor))
    if all(_less_its_largest(x) or _is_difference(x) for x, _, _ in terms):
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
    inner, low, high = _limited(m.node.inputs[0])
    if inner is None or not 0 < low < HELD_EPSILON or not _is_probability(inner):
        return None
    b = Rewriter(*m.node.sources)
    y = b.maximum(b.log(m.now(inner)), log(low))
    return y if high >= 1 else b.minimum(y, log(high))


def _limited(value: Value | None) -> tuple[Value | None, float, float]:
    """Returns x, a and b if the value is min(max(x, a), b) in any spelling, with 0 or infinity for a missing limit."""
    low, high = 0.0, inf
    while value is not None:
        node = value.node
        if node.op == "clip":
            low, high = max(low, float(node.attrs["alpha"])), min(high, float(node.attrs["beta"]))
            value = node.inputs[0]
        elif (found := _limit_by_ops(node)) is None:
            break
        else:
            value, limit, is_lower = found
            low, high = (max(low, limit), high) if is_lower else (low, min(high, limit))
    return value, low, high


def _limit_by_ops(node: Node) -> tuple[Value | None, float, bool] | None:
    """Returns x, the limit, and true for a lower limit, if the node is a maximum or a minimum, also if written as a
    select such as select(x < c, c, x)."""
    if node.op in ("maximum", "minimum"):
        for x, by in (node.inputs, node.inputs[::-1]):
            if (known := number(by)) is not None and x is not None and x.shape == node.types[0].shape:
                return x, known, node.op == "maximum"
    compared = made_by(node.inputs[0], "less", "greater") if node.op == "select" else None
    if compared is None:
        return None
    chosen, other = node.inputs[1:]
    smaller, larger = compared.inputs if compared.op == "less" else compared.inputs[::-1]
    for x, limit in ((chosen, other), (other, chosen)):
        known = number(limit)
        if known is None or x is None or x.shape != node.types[0].shape:
            continue
        limits = [v for v in (smaller, larger) if number(v) == known]
        if x in (smaller, larger) and len(limits) == 1:
            return x, known, (chosen == x) == (larger == x)
    return None


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
        epsilon = number(by)
        if epsilon is None or not 0 < epsilon < HELD_EPSILON or not _is_probability(p):
            continue
        if p is None or p.shape != m.node.types[0].shape:
            continue
        b = Rewriter(*m.node.sources)
        logarithm = b.log(m.now(p))
        apart = b.abs(b.sub(logarithm, log(epsilon)))
        return b.add(b.maximum(logarithm, log(epsilon)), b.softplus(b.neg(apart)))
    return None


def rest_of_limit(m: Found) -> Value | None:
    """1 - min(max(sigmoid(%x), a), b)  ->  min(max(sigmoid(-%x), 1 - b), 1 - a), for a and 1 - b of 0 or more"""
    one, other = m.node.inputs
    inner, low, high = _limited(other)
    maker = made_by(inner, "sigmoid")
    if scalar(one) != 1 or maker is None or inner == other or inner is None or inner.shape != m.node.types[0].shape:
        return None
    if not 0 <= low < 1 or high <= 0:
        return None
    b = Rewriter(*m.node.sources)
    rest = b.sigmoid(b.neg(m.now(maker.inputs[0])))
    return b.clip(rest, alpha=max(1 - high, 0.0), beta=1 - low)


def rest_of_sigmoid(m: Found) -> Value | None:
    """1 - sigmoid(%x)  ->  sigmoid(-%x)"""
    one, other = m.node.inputs
    maker = made_by(other, "sigmoid")
    if scalar(one) != 1 or maker is None or other is None or other.shape != m.node.types[0].shape:
        return None
    b = Rewriter(*m.node.sources)
    return b.sigmoid(b.neg(m.now(maker.inputs[0])))


def softmax_with_epsilon(m: Found) -> Value | None:
    """exp(%x) / (reduce_sum(exp(%x)) + e)  ->  p / (reduce_sum(p) + e * exp(-max(%x))), p = exp(%x - max(%x))"""
    exp, by = quotient(m.node)
    added = made_by(by, "add")
    maker = made_by(exp, "exp")
    x = None if maker is None else maker.inputs[0]
    if added is None or x is None or _less_its_largest(x):
        return None
    for sums, e in (added.inputs, added.inputs[::-1]):
        total, epsilon = made_by(sums, "reduce_sum", "reduce_l1_norm"), scalar(e)
        if total is None or epsilon is None or epsilon < 0 or total.inputs[0] != exp or not total.attrs["keep_dims"]:
            continue
        b, now = Rewriter(*m.node.sources), m.now(x)
        assert now is not None
        top = b.reduce_max(now, axes=total.attrs["axes"])
        powers = b.exp(b.sub(now, top))
        rest = b.mul(b.exp(b.neg(top)), epsilon)
        return b.real_div(powers, b.add(b.reduce_sum(powers, axes=total.attrs["axes"]), rest))
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


def softmax(m: Found) -> Value | None:
    """exp(%x) / reduce_sum(exp(%x))  ->  softmax(%x)"""
    if m.node.op == "lp_norm":
        return _softmax_by_norm(m)
    exp, by = quotient(m.node)
    total = made_by(by, "reduce_sum", "reduce_l1_norm")
    maker = made_by(exp, "exp")
    if total is None or maker is None or total.inputs[0] != exp or not total.attrs["keep_dims"]:
        return None
    x = maker.inputs[0]
    assert x is not None
    axes = axes_of(total.attrs["axes"], x.type.rank)
    if len(axes) != 1 or _less_its_largest(x):
        return None
    return m.make("softmax", [m.now(x)], axis=axes[0])[0]


def _softmax_by_norm(m: Found) -> Value | None:
    """lp_norm(exp(%x), p=1)  ->  softmax(%x)"""
    maker = made_by(m.node.inputs[0], "exp")
    x = None if maker is None else maker.inputs[0]
    if x is None or m.node.attrs["p"] != 1 or _less_its_largest(x):
        return None
    return m.make("softmax", [m.now(x)], axis=m.node.attrs["axis"])[0]


def quotient(node: Node) -> tuple[Value | None, Value | None]:
    """Returns a and b if the node computes a / b or a * (1 / b), else (None, None)."""
    if node.op == "real_div":
        return node.inputs[0], node.inputs[1]
    for above, inverse in (node.inputs, node.inputs[::-1]):
        maker = made_by(inverse, "inverse", "real_div", "pow")
        if maker is None or above is None or above.shape != node.types[0].shape:
            continue
        if maker.op == "inverse" or (maker.op == "pow" and scalar(maker.inputs[1]) == -1):
            return above, maker.inputs[0]
        if maker.op == "real_div" and scalar(maker.inputs[0]) == 1:
            return above, maker.inputs[1]
    return None, None


def sigmoid(m: Found) -> Value | None:
    """exp(%x) / (exp(%x) + 1)  ->  sigmoid(%x)"""
    above, below = quotient(m.node)
    exp, added = made_by(above, "exp"), made_by(below, "add")
    if (
        exp is None
        or added is None
        or not any(v == above and scalar(one) == 1 for v, one in (added.inputs, added.inputs[::-1]))
    ):
        return None
    return Rewriter(*m.node.sources).sigmoid(m.now(exp.inputs[0]))


def mish_fraction(m: Found) -> Value | None:
    """%x * %n / (%n + 2)  ->  %x * tanh(softplus(%x)), with %n = exp(%x)^2 + 2 * exp(%x)

    Applies also without the factor %x. tanh(log(1 + e)) is ((1 + e)^2 - 1) / ((1 + e)^2 + 1).
    """
    above, below = quotient(m.node)
    added = made_by(below, "add")
    for n, two in () if added is None else (added.inputs, added.inputs[::-1]):
        x = None if n is None or number(two) != 2 else _of_mish(n)
        if x is None or n is None or n.shape != m.node.types[0].shape:
            continue
        b, product, now = Rewriter(*m.node.sources), made_by(above, "mul"), m.now(x)
        assert now is not None
        y = b.tanh(held_softplus(b, now))
        if above == n:
            return y
        if product is not None and n in product.inputs:
            return b.mul(m.now(product.inputs[1 - product.inputs.index(n)]), y)
    return None


def _of_mish(value: Value) -> Value | None:
    """Returns x if the value is exp(x)^2 + 2 * exp(x) or exp(x) * (exp(x) + 2), else None."""
    node = value.node
    for first, second in (node.inputs, node.inputs[::-1]) if node.op in ("add", "mul") else ():
        if node.op == "add":
            exp, factor = factored(second)
            is_it = factor == 2 and squared(first) == exp
        else:
            exp, more = first, made_by(second, "add")
            is_it = more is not None and first in more.inputs and any(number(v) == 2 for v in more.inputs)
        maker = made_by(exp, "exp")
        if is_it and maker is not None:
            return maker.inputs[0]
    return None


def tanh(m: Found) -> Value | None:
    """(exp(%x) - 1) / (exp(%x) + 1)  ->  tanh(%x / 2), and (exp(%x) - exp(-%x)) / (exp(%x) + exp(-%x))  ->  tanh(%x)"""
    above, below = quotient(m.node)
    less, added = made_by(above, "sub"), made_by(below, "add")
    if less is None or added is None:
        return None
    first, second = less.inputs
    exp = made_by(first, "exp")
    if exp is None:
        return None
    b, x = Rewriter(*m.node.sources), exp.inputs[0]
    if scalar(second) == 1:
        is_same = any(v == first and scalar(one) == 1 for v, one in (added.inputs, added.inputs[::-1]))
        return b.tanh(b.mul(m.now(x), 0.5)) if is_same else None
    other = made_by(second, "exp")
    inner, factor = (None, 1.0) if other is None else factored(other.inputs[0])
    negated = made_by(inner, "neg")
    is_negative = (inner == x and factor == -1) or (negated is not None and negated.inputs[0] == x and factor == 1)
    if not is_negative or set(added.inputs) != {first, second}:
        return None
    return b.tanh(m.now(x))


def _less_its_largest(x: Value) -> bool:
    """True if x is %a - max(%a), so that fp16 holds its exponentials."""
    node = made_by(x, "sub")
    return node is not None and made_by(node.inputs[1], "reduce_max") is not None


EXP = "exp is infinite in fp16 from 11.1 on"
FORMS = (
    Form("rest of a sigmoid", op("sub"), rest_of_sigmoid, quiet=True),
    Form("rest of a limited sigmoid", op("sub"), rest_of_limit, quiet=True),
    Form(
        "softmax with an epsilon",
        op("real_div") | op("mul"),
        softmax_with_epsilon,
        f"the largest number is taken off first: {EXP}",
    ),
    Form(
        "softmax",
        op("real_div") | op("mul") | op("lp_norm"),
        softmax,
        f"written as softmax, which takes off the largest number: {EXP}",
    ),
    Form(
        "mish as a fraction",
        op("real_div") | op("mul"),
        mish_fraction,
        f"written with softplus and tanh: {EXP}",
    ),
    Form("sigmoid", op("real_div") | op("mul"), sigmoid, f"written as sigmoid: {EXP}"),
    Form("tanh", op("real_div") | op("mul"), tanh, f"written as tanh: {EXP}"),
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
