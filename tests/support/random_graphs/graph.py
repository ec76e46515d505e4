"""A graph that grows by random steps, each value known while it is built: what is out of range or ill-conditioned is
left out."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import log, prod
from typing import Any, NamedTuple

import numpy as np

import hexane as hx
from hexane.dtypes import dtype as dtype_of
from hexane.graph import Array, Graph, Node, Value
from hexane.ops import evaluate
from random_graphs.choices import Choices
from random_graphs.exact import LIMIT, Span, span, spanned

DIMS = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
TINY = 2.0**-60  # below, what is relative to the largest magnitude meets denormals
NOISE = 2.0**-22  # what a kernel may be off by, of the largest magnitude
CONDITION = 5e-6  # of the largest magnitude: what that may grow to; half of compare.FP32_RELATIVE

STEPPED = ("quantize", "round", "floor", "ceil", "sign")


class Unfit(Exception):
    """The step drawn cannot be taken: there is no such operand, or its result is out of range."""


class Grid(NamedTuple):
    """The real numbers of a quantised tensor: (q - zero) * scale, with one scale or one for each index of an axis."""

    scale: hx.Tensor
    zero: hx.Tensor | None
    axis: int = 0


class RandomGraph:
    """`kind`: "fp32", "fp16", "exact": fp32 and integers that hold small integers only, "quantized": fp32 and much of 8
    bits, or "quantized exact": the same with scales that are powers of two, so that nothing but `quantize` rounds."""

    def __init__(self, choices: Choices, kind: str, steps: int = 16, limit: int = 3000, rank: int = 0) -> None:
        """rank: of the first input; 0 draws it."""
        self.choices, self.rank = choices, rank
        self.kind, self.num_steps, self.limit = kind, steps, limit
        self.exact, self.quantized = kind.endswith("exact"), kind.startswith("quantized")
        self.dtype = "fp16" if kind == "fp16" else "fp32"
        self.feeds: dict[str, Array] = {}
        self.arrays: dict[Value, Array] = {}
        self.noisy: dict[Value, Array] = {}
        self.spans: dict[Value, Span] = {}
        self.grids: dict[Value, Grid] = {}
        self.pool: list[hx.Tensor] = []
        self.rng = np.random.default_rng(self.integer(0, 1 << 16))  # of contents, which hold no decisions

    def grow(self, steps: Sequence[Callable[["RandomGraph"], None]]) -> tuple[Graph, dict[str, Array]]:
        """Takes steps until there are enough; the graph and its inputs."""
        self.take_steps(steps)
        return self.finish()

    def take_steps(self, steps: Sequence[Callable[["RandomGraph"], None]]) -> None:

        def step() -> None:
            with suppress(Unfit, hx.Error):
                self.pick(steps)(self)

        rank = self.rank or self.pick((4, 4, 4, 2, 3, 5))
        self.input(self.shape(rank, min_spatial=5 if rank < 5 else 3))
        for _ in range(8 * self.num_steps):
            if len(self.pool) > self.num_steps:
                break
            self.choices.together(step)

    def finish(self) -> tuple[Graph, dict[str, Array]]:
        graph = hx.graph(self.outputs())
        return graph, {name: self.feeds[name] for name in graph.input_names()}

    # ---- drawing ----

    def coin(self, p: float = 0.5) -> bool:
        return self.choices.below(1000) >= 1000 * (1 - p)

    def pick(self, options: Any) -> Any:
        return options[self.choices.below(len(options))]

    def integer(self, low: int, high: int) -> int:
        """low .. high - 1."""
        if high <= low:
            raise Unfit
        return low + self.choices.below(high - low)

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        left = list(items)
        return [left.pop(self.choices.below(len(left))) for _ in items]

    def shape(self, rank: int, min_spatial: int = 1) -> tuple[int, ...]:
        for _ in range(50):
            dims = [self.pick(DIMS) for _ in range(rank)]
            dims[:1] = [self.pick((1, 1, 2, 3))] * min(rank, 1)
            dims[2:] = [max(d, min_spatial) for d in dims[2:]]
            if rank and self.coin(0.02):
                dims[self.integer(0, rank)] = 0
            if prod(dims) <= self.limit:
                return tuple(dims)
        return (1,) * rank

    def values(self, shape: tuple[int, ...], dtype: str = "", low: float = -1.5, high: float = 1.5) -> Array:
        """Contents: small integers in an exact graph, and where the dtype is one."""
        kind = dtype_of(dtype or self.dtype)
        if kind.kind == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if self.exact or kind.kind != "float":
            first = 0 if kind.kind == "uint" else -3
            return np.asarray(self.rng.integers(first, first + 7, shape)).astype(kind.numpy)
        return np.asarray(self.rng.uniform(low, high, shape)).astype(kind.numpy)

    def tensor(self, test: Callable[[hx.Tensor], bool] = lambda t: True, dtype: str = "") -> hx.Tensor:
        """A value there is, the newer the likelier."""
        fit = [t for t in self.pool if t.dtype.name == (dtype or self.dtype) and test(t)]
        if not fit:
            raise Unfit
        back = int(log(1 - self.choices.below(1000) / 1000) / log(0.65))
        return fit[-1 - min(back, len(fit) - 1)]

    def of_rank(self, low: int, high: int) -> hx.Tensor:
        return self.tensor(lambda t: low <= len(t.shape) <= high)

    # ---- values ----

    def input(self, shape: tuple[int, ...], dtype: str = "") -> hx.Tensor:
        return self.input_of(self.values(shape, dtype))

    def input_of(self, array: Array) -> hx.Tensor:
        t = self._named_input(array)
        self.pool.append(t)
        return t

    def weight(self, shape: tuple[int, ...], dtype: str = "", array: Array | None = None) -> hx.Tensor:
        """A constant, mostly; a param or an input now and then. Scaled so that products keep their size."""
        array = self.values(shape, dtype) if array is None else array
        if array.dtype.kind == "f" and not self.exact and len(shape) > 1:
            array = (array / np.sqrt(max(1, prod(shape[1:])))).astype(array.dtype)
        return self.leaf(array)

    def leaf(self, array: Array) -> hx.Tensor:
        """The array as a constant, a param or an input."""
        array = np.asarray(array)
        kind = self.pick(("const",) * 8 + ("param", "input"))
        if kind == "input":
            return self._named_input(array)
        t = hx.const(array) if kind == "const" else hx.param(f"w{len(self.arrays)}", array)
        self.arrays[t.value] = self.noisy[t.value] = array
        return t

    def _named_input(self, array: Array) -> hx.Tensor:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        t = hx.input(name, array.shape, array.dtype)
        self.arrays[t.value] = self.noisy[t.value] = array
        return t

    def keep(self, result: hx.Tensor | Sequence[hx.Tensor]) -> None:
        """Adds an op's results to the pool, if every value on the way to them is fit for comparing."""
        several = [result] if isinstance(result, hx.Tensor) else list(result)
        if any(t.type.size > self.limit or len(t.shape) > 6 for t in several):
            raise Unfit
        for t in several:
            self._evaluate(t.value)
        self.pool += several

    def array(self, t: hx.Tensor) -> Array:
        """Its contents; Unfit where they cannot be compared."""
        self._evaluate(t.value)
        return self.arrays[t.value]

    def _evaluate(self, value: Value) -> None:
        if value in self.arrays:
            return
        for operand in value.node.inputs:
            if operand is not None:
                self._evaluate(operand)
        node = value.node
        if node.op == "const":
            assert node.data is not None
            self.arrays[value] = self.noisy[value] = node.data
            return
        arrays = evaluate(node, [None if v is None else self.arrays[v] for v in node.inputs])
        if node.op != "cast":  # sums of integers become real numbers before they are scaled
            for array in arrays:
                self._check_range(array)
        if self.exact:
            self._check_span(value, arrays)
        elif self.dtype == "fp32":
            self._check_condition(value, arrays)
        self.arrays.update(zip(node.values, arrays, strict=True))

    def _check_range(self, array: Array) -> None:
        if array.size and array.dtype.kind == "f":
            top = np.abs(array.astype(np.float64)).max()
            if not top <= (LIMIT if self.exact else 200) or 0 < top < TINY:
                raise Unfit
        elif array.size and array.dtype.kind in "iu" and int(np.abs(array.astype(np.int64)).max()) > LIMIT:
            raise Unfit

    def _check_span(self, value: Value, arrays: list[Array]) -> None:
        """No op on the way to the results may round, in any order of adding terms."""
        for v in value.node.inputs:
            if v is not None and v not in self.spans:
                self.spans[v] = span(self.arrays[v])
        spans = [None if v is None else self.spans[v] for v in value.node.inputs]
        for result, array in zip(value.node.values, arrays, strict=True):
            found = spanned(value.node, spans, array)
            if found is None:
                raise Unfit
            self.spans[result] = found

    def _check_condition(self, value: Value, arrays: list[Array]) -> None:
        """The op on values that are off by NOISE has to give what is nearly the same."""
        node = value.node
        inputs = [None if v is None else self.noisy[v] for v in node.inputs]
        noisy = evaluate(node, inputs)
        for array, other in zip(arrays, noisy, strict=True):
            if array.dtype.kind != "f":
                if not np.array_equal(array, other):
                    raise Unfit
            elif array.size:
                top = np.abs(array.astype(np.float64)).max()
                if np.abs(array.astype(np.float64) - other).max() > CONDITION * top:
                    raise Unfit
        if self.quantized:
            self._check_ties(node, inputs, arrays)
        shaken = [self._shaken(a, NOISE) for a in noisy]
        self.noisy.update(
            zip(node.values, [np.asarray(a).astype(b.dtype) for a, b in zip(shaken, arrays, strict=True)], strict=True)
        )

    def _check_ties(self, node: Node, inputs: list[Array | None], arrays: list[Array]) -> None:
        """Tensors that were quantised meet ties often: nothing may depend on which way they go."""
        if node.op in STEPPED:
            x, *grid = inputs
            assert x is not None
            off = 4 * NOISE * np.abs(x).max(initial=0)
            others = [[x + d, *grid] for d in (-off, off)]
        elif any(a.dtype.kind != "f" for a in arrays):
            others = [[a if a is None else self._shaken(a, 4 * NOISE) for a in inputs] for _ in range(6)]
        else:
            return
        for other in others:
            for a, b in zip(arrays, evaluate(node, other), strict=True):
                if not np.array_equal(a, b) and (a.dtype.kind != "f" or node.op in STEPPED):
                    raise Unfit

    def _shaken(self, array: Array, noise: float) -> Array:
        if array.dtype.kind != "f":
            return array
        signs = np.sign(self.rng.uniform(-1, 1, array.shape))
        return np.asarray(array + noise * np.abs(array).max(initial=0) * signs)

    # ---- outputs ----

    def outputs(self) -> list[hx.Tensor]:
        """The newest, most dead ends, some that others read, now and then one twice, a constant, a view."""
        read = {v for t in self.pool for v in t.value.node.inputs}
        ends = [t for t in self.pool if t.value not in read]
        chosen = [self.pool[-1]] + [t for t in ends if self.coin(0.6)]
        for _ in range(self.integer(0, 3)):
            chosen.append(self.pick(self.pool))
        if self.coin(0.1):
            chosen.append(self.pick(chosen))
        if self.coin(0.05):
            chosen.append(hx.const(self.values((3, 2))))
        if self.coin(0.1):
            chosen.append(hx.reshape(chosen[0], shape=(prod(chosen[0].shape),)))
        return self.shuffled(chosen)


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True
