"""Recognises roots of sums of squares in all spellings that model files use."""

from dataclasses import dataclass, replace
from math import isclose, isinf, prod, sqrt

from hexane.graph import Node, Value
from hexane.ops.match import made_by
from hexane.ops.predicates import axes_of, scalar, uniform
from hexane.ops.rewriter import Rewriter

MOVES = ("reshape", "expand_dims", "squeeze", "broadcast_to", "identity", "stop_gradient")


@dataclass(frozen=True, slots=True)
class Squares:
    """The value factor * sum(x^2) over these axes."""

    x: Value
    axes: tuple[int, ...]
    keep_dims: bool
    factor: float

    @property
    def count(self) -> int:
        """The number of terms in one sum."""
        return prod(self.x.shape[a] for a in self.axes)

    @property
    def is_mean(self) -> bool:
        return isclose(self.factor * self.count, 1, rel_tol=1e-5)


@dataclass(frozen=True, slots=True)
class Root:
    """The value max(sqrt(max(squares + inside, least_inside)), least) + added, or its inverse if is_inverse."""

    squares: Squares
    inside: float = 0.0
    least_inside: float = 0.0
    least: float = 0.0
    added: float = 0.0
    is_inverse: bool = False

    @property
    def is_plain(self) -> bool:
        """True if no epsilon is added or compared outside the root, and none is a lower limit inside it."""
        return not (self.least_inside or self.least or self.added)

    @property
    def smallest(self) -> float:
        """The value of the root if all numbers are 0."""
        return max(sqrt(max(self.inside, self.least_inside)), self.least) + self.added


def squared(value: Value | None) -> Value | None:
    """Returns x if the value is x^2 in any spelling, else None."""
    if value is None:
        return None
    inputs = value.node.inputs
    if value.node.op == "square" or (value.node.op == "mul" and inputs[0] == inputs[1]):
        return inputs[0]
    if value.node.op == "pow" and scalar(inputs[1]) == 2:
        return inputs[0]
    return None


def factored(value: Value | None) -> tuple[Value | None, float]:
    """Returns the value without all constant factors and divisors, and the product of these constants."""
    factor = 1.0
    while value is not None and (found := _factored_once(value)) is not None:
        value, factor = found[0], factor * found[1]
    return value, factor


def _factored_once(value: Value) -> tuple[Value, float] | None:
    inputs = value.node.inputs
    if value.node.op == "mul":
        for x, by in (inputs, inputs[::-1]):
            if (known := uniform(by)) is not None and x is not None and x.shape == value.shape:
                return x, known
    x = inputs[0] if value.node.op == "real_div" else None
    if x is not None and x.shape == value.shape and (known := uniform(inputs[1])):
        return x, 1 / known
    return None


def squares(value: Value | None) -> Squares | None:
    """Returns the value as a sum or mean of squares, or None."""
    inner, factor = factored(value)
    while inner is not None and inner.node.op == "broadcast_to":
        inner, more = factored(inner.node.inputs[0])
        factor *= more
    if inner is None or inner.dtype.kind != "float" or not factor > 0:
        return None
    node = inner.node
    x = node.inputs[0] if node.inputs else None
    if x is None:
        return None
    if (own := _product_with_itself(node) or _by_weights(node)) is not None:
        return replace(own, factor=factor * own.factor) if own.factor > 0 else None
    if node.op == "square" and x.node.op == "reduce_l2_norm":
        node, x = x.node, x.node.inputs[0]
    elif node.op in ("reduce_mean", "reduce_sum"):
        x = squared(x)
    elif node.op != "reduce_sum_square":
        return None
    if x is None:
        return None
    sums = Squares(x, axes_of(node.attrs["axes"], x.type.rank), node.attrs["keep_dims"], factor)
    return replace(sums, factor=factor / sums.count) if node.op == "reduce_mean" else sums


def _by_weights(node: Node) -> Squares | None:
    """Returns the sum of squares that is computed by a product with equal weights: matmul(%x^2, c), linear, a 1 x 1
    convolution, or einsum. Returns the mean that is computed by an average over the whole plane. Else None."""
    x = squared(node.inputs[0]) if node.inputs else None
    if x is None:
        return None
    rank, shape = x.type.rank, node.types[0].shape
    if node.op == "avg_pool":
        whole = node.attrs["layout"] == "nchw" and tuple(node.attrs["kernel_sizes"]) == x.shape[2:]
        if not whole or any(node.attrs["pad"]) or set(node.attrs["dilations"]) != {1} or set(shape[2:]) != {1}:
            return None
        return Squares(x, tuple(range(2, rank)), True, 1 / prod(x.shape[2:]))
    if node.op not in ("matmul", "linear", "conv", "einsum") or len(node.inputs) < 2:
        return None
    weight, has_bias = node.inputs[1], any(v is not None for v in node.inputs[2:])
    factor = None if weight is None or has_bias else uniform(weight)
    if factor is None or weight is None:
        return None
    if node.op == "einsum":
        axes = _added_by_vector(node.attrs["equation"], rank)
        return Squares(x, axes, False, factor) if axes else None
    if node.op == "conv":
        one = node.attrs["layout"] == "nchw" and node.attrs["groups"] == 1 and set(node.attrs["strides"]) == {1}
        if not one or any(node.attrs["pad"]) or set(weight.shape[2:]) != {1} or shape[1] not in (1, x.shape[1]):
            return None
        return Squares(x, (1,), True, factor)
    if node.op == "matmul" and (node.attrs["transpose_x"] or weight.type.rank != 2 or rank < 2):
        return None
    return Squares(x, (rank - 1,), True, factor) if shape[-1] in (1, x.shape[-1]) else None


def _added_by_vector(equation: str, rank: int) -> tuple[int, ...]:
    """Returns the axes that an einsum like "ij,j->i" adds if all weights are equal, or () for another equation."""
    terms, _, out = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    if not first.isalpha() or len(set(first)) != len(first) or not set(second) <= set(first) or len(first) != rank:
        return ()
    if out != "".join(letter for letter in first if letter not in second):
        return ()
    return tuple(i for i, letter in enumerate(first) if letter in second)


def fitted(b: Rewriter, y: Value, shape: tuple[int, ...]) -> Value:
    """Reshapes or broadcasts a sum to the result shape of the ops that it replaces."""
    if y.shape == shape:
        return y
    return b.reshape(y, shape=shape) if prod(y.shape) == prod(shape) else b.broadcast_to(y, shape=shape)


def _product_with_itself(node: Node) -> Squares | None:
    """Returns the sum of squares that is einsum(%x, %x) {equation="bij,bij->bi"}, or matmul(%x, transpose(%x)) for one
    row. Else None."""
    x = node.inputs[0]
    if x is None or len(node.inputs) < 2:
        return None
    other = node.inputs[1]
    if node.op == "einsum" and x == other and len(node.inputs) == 2:
        axes = _added_by_einsum(node.attrs["equation"], x.type.rank)
        return Squares(x, axes, False, 1.0) if axes else None
    if node.op != "matmul" or node.inputs[2] is not None or x.type.rank < 2 or node.values[0].shape[-2:] != (1, 1):
        return None
    if node.attrs["transpose_x"] or node.values[0].type.rank != x.type.rank:
        return None
    if not node.attrs["transpose_y"]:
        swapped = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
        mover = made_by(other, "transpose", "reshape")
        if mover is None or (mover.op == "transpose" and tuple(mover.attrs["perm"]) != swapped):
            return None  # a reshape of one row to one column is a transpose
        other = mover.inputs[0]
    return Squares(x, (x.type.rank - 1,), True, 1.0) if other == x and other.shape[:-2] == x.shape[:-2] else None


def _added_by_einsum(equation: str, rank: int) -> tuple[int, ...]:
    """Returns the axes that "bij,bij->bi" and "...d,...d->..." add, or () for another equation."""
    terms, _, out = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    if first != second or first.startswith("...") != out.startswith("..."):
        return ()
    letters, kept = first.removeprefix("..."), out.removeprefix("...")
    if not letters.isalpha() or len(set(letters)) != len(letters):
        return ()
    if kept != "".join(letter for letter in letters if letter in kept):
        return ()
    return tuple(rank - len(letters) + i for i, letter in enumerate(letters) if letter not in kept)


def root(value: Value | None) -> Root | None:
    """Returns the value as the root of a sum of squares, or as its inverse, or None."""
    if value is None or value.dtype.kind != "float":
        return None
    node, inputs = value.node, value.node.inputs
    first = inputs[0] if inputs else None
    if node.op == "inverse" or (node.op == "pow" and scalar(inputs[1]) == -1):
        return _inverted(root(first))
    if node.op == "real_div" and scalar(first) == 1:
        return _inverted(root(inputs[1]))
    if node.op == "rsqrt" or (node.op == "pow" and scalar(inputs[1]) == -0.5):
        return _inverted(sum_of_squares(first))
    if node.op == "sqrt" or (node.op == "pow" and scalar(inputs[1]) == 0.5):
        return sum_of_squares(first)
    if node.op == "reduce_l2_norm" and first is not None:
        return Root(Squares(first, axes_of(node.attrs["axes"], first.type.rank), node.attrs["keep_dims"], 1.0))
    if (limited := at_least(value)) is not None:
        norm = root(limited[0])
        plain = norm is not None and not norm.is_inverse and not norm.added
        return replace(norm, least=limited[1]) if norm is not None and plain and not norm.least else None
    if (more := _plus(value)) is not None:
        norm = root(more[0])
        return replace(norm, added=more[1]) if norm is not None and not (norm.is_inverse or norm.added) else None
    factor = factored(value)
    if factor[0] != value and (norm := root(factor[0])) is not None and norm.is_plain and factor[1] > 0:
        by = factor[1] ** (-2 if norm.is_inverse else 2)
        return replace(norm, squares=replace(norm.squares, factor=norm.squares.factor * by), inside=norm.inside * by)
    return None


def _inverted(norm: Root | None) -> Root | None:
    return None if norm is None or norm.is_inverse else replace(norm, is_inverse=True)


def sum_of_squares(value: Value | None) -> Root | None:
    """Returns the Root that sqrt(value) is, or None if the value is no sum of squares."""
    inside = least = 0.0
    if value is not None and (limited := at_least(value)) is not None:
        value, least = limited
    if value is not None and (more := _plus(value)) is not None:
        value, inside = more
    if value is not None and not least and (limited := at_least(value)) is not None:
        value, least = limited[0], limited[1] + inside  # max(s, a) + e is max(s + e, a + e)
    sums = squares(value)
    return None if sums is None else Root(sums, inside, least)


def is_added_squares(value: Value | None) -> bool:
    """True if the value is an elementwise sum of squares and nonnegative numbers."""
    if value is None or value.node.op != "add":
        return False
    terms = value.node.inputs
    known = [squared(v) is not None or is_added_squares(v) for v in terms]
    return any(known) and all(is_it or (uniform(v) or -1.0) >= 0 for is_it, v in zip(known, terms, strict=True))


def at_least(value: Value) -> tuple[Value | None, float] | None:
    """Returns x and e if the value is max(x, e) with constant e >= 0, else None."""
    node, inputs = value.node, value.node.inputs
    if node.op == "relu":
        return inputs[0], 0.0
    if node.op == "clip" and node.attrs["alpha"] >= 0 and (isinf(node.attrs["beta"]) or node.attrs["beta"] > 3e38):
        return inputs[0], float(node.attrs["alpha"])
    if node.op == "maximum":
        for x, by in (inputs, inputs[::-1]):
            if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
                return x, known
    return None


def _plus(value: Value) -> tuple[Value | None, float] | None:
    """Returns x and e if the value is x + e with constant e >= 0, else None. e may be added in parts, because
    MIL's rsqrt adds an epsilon of its own to the model's."""
    if value.node.op != "add":
        return None
    for x, by in (value.node.inputs, value.node.inputs[::-1]):
        if (known := uniform(by)) is not None and known >= 0 and x is not None and x.shape == value.shape:
            inner, more = _plus(x) or (x, 0.0)
            return inner, known + more
    return None


def epsilon_of_l2(norm: Root) -> float | None:
    """Returns the epsilon with which l2_norm(x) equals x over this root for any x in fp16, or None. A lower limit below
    fp16's smallest number matters for zeros only."""
    if not isclose(norm.squares.factor, 1, rel_tol=1e-6) or norm.added:
        return None
    least = max(norm.least, sqrt(norm.least_inside))
    if least:
        return least**2 if least < 2.0**-24 and norm.inside == 0 else None
    return norm.inside or None


def centred(value: Value, axes: tuple[int, ...]) -> Value | None:
    """Returns x if the value is x - mean(x) over these axes, else None."""
    node = made_by(value, "sub")
    x, mean = (None, None) if node is None else node.inputs
    maker = made_by(mean, "reduce_mean")
    while maker is None and mean is not None and mean.node.op in ("identity", "stop_gradient"):
        mean = mean.node.inputs[0]
        maker = made_by(mean, "reduce_mean")
    if x is None or maker is None or maker.inputs[0] != x or not maker.attrs["keep_dims"]:
        return None
    return x if axes_of(maker.attrs["axes"], x.type.rank) == axes else None
