"""Gradients of elementwise ops. At a kink, the derivative is PyTorch's; a comment gives its value."""

from collections.abc import Sequence
from math import log, pi, sqrt

from hexane.graph import Node, Value
from hexane.ops.compose import Builder, cast
from hexane.ops.gradients.rule import masked, ones, operand, unary, unbroadcast, zeros

Gradients = Sequence[Value | None]

neg = unary(lambda b, x, y, g: b.neg(g))
abs_ = unary(lambda b, x, y, g: b.mul(g, b.sign(x)))  # 0 at 0
sqrt_ = unary(lambda b, x, y, g: b.real_div(g, b.mul(y, 2.0)))
rsqrt = unary(lambda b, x, y, g: b.mul(g, b.mul(b.mul(y, b.square(y)), -0.5)))
inverse = unary(lambda b, x, y, g: b.neg(b.mul(g, b.square(y))))
square = unary(lambda b, x, y, g: b.mul(g, b.mul(x, 2.0)))
exp = unary(lambda b, x, y, g: b.mul(g, y))
exp2 = unary(lambda b, x, y, g: b.mul(g, b.mul(y, log(2))))
log_ = unary(lambda b, x, y, g: b.real_div(g, x))
erf = unary(lambda b, x, y, g: b.mul(g, b.mul(b.exp(b.neg(b.square(x))), 2 / sqrt(pi))))
sin = unary(lambda b, x, y, g: b.mul(g, b.cos(x)))
cos = unary(lambda b, x, y, g: b.neg(b.mul(g, b.sin(x))))
tan = unary(lambda b, x, y, g: b.mul(g, b.add(b.square(y), 1.0)))
asin = unary(lambda b, x, y, g: b.mul(g, b.rsqrt(b.sub(1.0, b.square(x)))))
acos = unary(lambda b, x, y, g: b.neg(b.mul(g, b.rsqrt(b.sub(1.0, b.square(x))))))
atan = unary(lambda b, x, y, g: b.real_div(g, b.add(b.square(x), 1.0)))
sinh = unary(lambda b, x, y, g: b.mul(g, b.cosh(x)))
cosh = unary(lambda b, x, y, g: b.mul(g, b.sinh(x)))
asinh = unary(lambda b, x, y, g: b.mul(g, b.rsqrt(b.add(b.square(x), 1.0))))
acosh = unary(lambda b, x, y, g: b.mul(g, b.rsqrt(b.sub(b.square(x), 1.0))))
atanh = unary(lambda b, x, y, g: b.real_div(g, b.sub(1.0, b.square(x))))
tanh = unary(lambda b, x, y, g: b.mul(g, b.sub(1.0, b.square(y))))
sigmoid = unary(lambda b, x, y, g: b.mul(g, b.mul(y, b.sub(1.0, y))))
softplus = unary(lambda b, x, y, g: b.mul(g, b.sigmoid(x)))
softsign = unary(lambda b, x, y, g: b.real_div(g, b.square(b.add(b.abs(x), 1.0))))
relu = unary(lambda b, x, y, g: masked(b, b.greater(x, 0.0), g))  # The derivative is 0 at 0.
leaky_relu = unary(lambda b, x, y, g, alpha: b.select(b.greater(x, 0.0), g, b.mul(g, alpha)))  # alpha at 0.
thresholded_relu = unary(lambda b, x, y, g, alpha: masked(b, b.greater(x, alpha), g))  # The derivative is 0 at alpha.
threshold = unary(lambda b, x, y, g, alpha: masked(b, b.greater_equal(x, alpha), g))  # 1 at alpha, as in clamp.
linear_activation = unary(lambda b, x, y, g, alpha, beta: b.mul(g, alpha))


def _strictly_inside(b: Builder, x: Value, low: float, high: float) -> Value:
    return b.logical_and(b.greater(x, low), b.less(x, high))


@unary
def relu6(b: Builder, x: Value, y: Value, g: Value) -> Value:
    """The gradient is 0 at both bounds, as in hardtanh."""
    return masked(b, _strictly_inside(b, x, 0.0, 6.0), g)


@unary
def clip(b: Builder, x: Value, y: Value, g: Value, alpha: float, beta: float) -> Value:
    """The gradient is 1 at both bounds, as in clamp of PyTorch 2.13. PyTorch's hardtanh has the gradient 0 at both
    bounds."""
    return masked(b, b.logical_and(b.greater_equal(x, alpha), b.less_equal(x, beta)), g)


@unary
def sigmoid_hard(b: Builder, x: Value, y: Value, g: Value, alpha: float, beta: float) -> Value:
    """The gradient is 0 at both bounds, as in hardsigmoid."""
    return masked(b, _strictly_inside(b, b.add(b.mul(x, alpha), beta), 0.0, 1.0), b.mul(g, alpha))


@unary
def hard_swish(b: Builder, x: Value, y: Value, g: Value) -> Value:
    """The gradient is 0 at -3 and 1 at 3."""
    middle = b.mul(g, b.add(b.mul(x, 1 / 3), 0.5))
    return masked(b, b.greater(x, -3.0), b.select(b.less(x, 3.0), middle, g))


@unary
def elu(b: Builder, x: Value, y: Value, g: Value, alpha: float) -> Value:
    """The derivative is alpha at 0. e^x is computed only of the negative part, so that nothing overflows."""
    return b.select(b.greater(x, 0.0), g, b.mul(g, b.mul(b.exp(b.minimum(x, 0.0)), alpha)))


@unary
def celu(b: Builder, x: Value, y: Value, g: Value, alpha: float) -> Value:
    """The derivative is 1 at 0."""
    return b.select(b.greater(x, 0.0), g, b.mul(g, b.exp(b.mul(b.minimum(x, 0.0), 1 / alpha))))


@unary
def selu(b: Builder, x: Value, y: Value, g: Value, alpha: float, beta: float) -> Value:
    """The derivative is alpha * beta at 0."""
    return b.select(b.greater(x, 0.0), b.mul(g, beta), b.mul(g, b.mul(b.exp(b.minimum(x, 0.0)), alpha * beta)))


@unary
def gelu(b: Builder, x: Value, y: Value, g: Value) -> Value:
    """The derivative is Phi(x) + x * phi(x), by the normal distribution."""
    below = b.mul(b.add(b.erf(b.mul(x, 1 / sqrt(2))), 1.0), 0.5)
    density = b.mul(b.exp(b.mul(b.square(x), -0.5)), 1 / sqrt(2 * pi))
    return b.mul(g, b.add(below, b.mul(x, density)))


@unary
def gelu_tanh(b: Builder, x: Value, y: Value, g: Value) -> Value:
    """The derivative is (1 + t) / 2 + x * (1 - t^2) / 2 * du/dx, for t = tanh(u) and u = c * (x + 0.044715 * x^3)."""
    c, squared = sqrt(2 / pi), b.square(x)
    t = b.tanh(b.mul(x, b.add(b.mul(squared, 0.044715 * c), c)))
    slope = b.add(b.mul(squared, 3 * 0.044715 * c), c)
    rising = b.mul(b.mul(x, b.mul(b.sub(1.0, b.square(t)), slope)), 0.5)
    return b.mul(g, b.add(b.mul(b.add(t, 1.0), 0.5), rising))


@unary
def silu(b: Builder, x: Value, y: Value, g: Value) -> Value:
    s = b.sigmoid(x)
    return b.mul(g, b.mul(s, b.add(b.mul(x, b.sub(1.0, s)), 1.0)))


@unary
def scaled_tanh(b: Builder, x: Value, y: Value, g: Value, alpha: float, beta: float) -> Value:
    return b.mul(g, b.mul(b.sub(1.0, b.square(b.tanh(b.mul(x, beta)))), alpha * beta))


# ---- ops of two operands ----


def _both(b: Builder, node: Node, dx: Value, dy: Value) -> Gradients:
    return unbroadcast(b, dx, operand(node, 0)), unbroadcast(b, dy, operand(node, 1))


def add(b: Builder, node: Node, g: Value) -> Gradients:
    return _both(b, node, g, g)


def sub(b: Builder, node: Node, g: Value) -> Gradients:
    return _both(b, node, g, b.neg(g))


def mul(b: Builder, node: Node, g: Value) -> Gradients:
    return _both(b, node, b.mul(g, operand(node, 1)), b.mul(g, operand(node, 0)))


def real_div(b: Builder, node: Node, g: Value) -> Gradients:
    y = operand(node, 1)
    dx = b.real_div(g, y)
    return _both(b, node, dx, b.neg(b.mul(dx, node.values[0])))


def mod(b: Builder, node: Node, g: Value) -> Gradients:
    """The derivative of x - y * floor(x / y), with floor as a constant."""
    return _both(b, node, g, b.neg(b.mul(g, b.floor_div(operand(node, 0), operand(node, 1)))))


def fmod(b: Builder, node: Node, g: Value) -> Gradients:
    """The derivative of x - y * trunc(x / y), with the quotient as a constant."""
    x, y = operand(node, 0), operand(node, 1)
    whole = b.mul(b.floor(b.abs(b.real_div(x, y))), b.sign(b.real_div(x, y)))
    return _both(b, node, g, b.neg(b.mul(g, whole)))


def _chosen(b: Builder, node: Node, g: Value, first: Value) -> Gradients:
    """Returns g for the chosen operand, or half of g for each of two equal operands, as in PyTorch."""
    x, y = operand(node, 0), operand(node, 1)
    half = b.mul(g, 0.5)
    equal = b.equal(x, y)
    dx = b.select(equal, half, masked(b, first, g))
    return _both(b, node, dx, b.sub(g, dx))


def maximum(b: Builder, node: Node, g: Value) -> Gradients:
    return _chosen(b, node, g, b.greater(operand(node, 0), operand(node, 1)))


def minimum(b: Builder, node: Node, g: Value) -> Gradients:
    return _chosen(b, node, g, b.less(operand(node, 0), operand(node, 1)))


def pow_(b: Builder, node: Node, g: Value) -> Gradients:
    """The gradient of x is 0 for an exponent of 0. The gradient of y is 0 for x <= 0, where the logarithm is not
    finite."""
    x, y = operand(node, 0), operand(node, 1)
    slope = b.mul(y, b.pow(x, b.sub(y, 1.0)))
    dx = b.mul(g, b.select(b.equal(y, 0.0), zeros(b, y), slope))
    rising = b.mul(node.values[0], b.log(b.select(b.greater(x, 0.0), x, ones(b, x))))
    return _both(b, node, dx, b.mul(g, rising))


def prelu(b: Builder, node: Node, g: Value) -> Gradients:
    """The derivative is the slope at 0."""
    x, slope = operand(node, 0), operand(node, 1)
    positive = b.greater(x, 0.0)
    return _both(b, node, b.select(positive, g, b.mul(g, slope)), masked(b, b.less_equal(x, 0.0), b.mul(g, x)))


def select(b: Builder, node: Node, g: Value) -> Gradients:
    condition, left, right = (operand(node, i) for i in range(3))
    return (
        None,
        unbroadcast(b, masked(b, condition, g), left),
        unbroadcast(b, masked(b, b.logical_not(condition), g), right),
    )


def cast_(b: Builder, node: Node, g: Value) -> Gradients:
    """Integers and bools have no gradient."""
    x = operand(node, 0)
    return (cast(b, g, x.dtype) if x.dtype.kind == "float" else None,)
