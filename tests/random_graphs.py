"""Random graphs from the catalogue, each value known while it is built: what is out of range or ill-conditioned is left out."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import hexane as hx
from hexane.graph import Array, Graph, Value
from hexane.ops import evaluate

DIMS = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
NOISE = 2.0**-22  # what a kernel may be off by, of the largest magnitude
CONDITION = 5e-6  # of the largest magnitude: what that may grow to; half of compare.FP32_RELATIVE
EXACT_LIMIT = 1 << 22  # integers up to here, and sums of their products, are exact in fp32

SMOOTH = (
    "abs", "neg", "square", "erf", "sin", "cos", "atan", "asinh", "tanh", "sigmoid", "relu", "relu6", "leaky_relu", "elu",
    "celu", "selu", "gelu", "gelu_tanh", "silu", "hard_swish", "mish", "softplus", "softsign", "sigmoid_hard", "exp",
    "scaled_tanh", "threshold", "linear_activation", "exp2", "clip", "sinh",
)  # fmt: skip
EXACT = (
    "abs",
    "neg",
    "square",
    "relu",
    "relu6",
    "floor",
    "ceil",
    "round",
    "sign",
    "threshold",
    "thresholded_relu",
    "clip",
)
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")
SMOOTH_REDUCTIONS = (
    "reduce_mean", "reduce_sum_square", "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum_exp", "reduce_prod",
)  # fmt: skip


class Unfit(Exception):
    """The step drawn cannot be taken: there is no such operand, or its result is out of range."""


class RandomGraph:
    """`kind`: "fp32", "fp16", or "exact": fp32 and integers that hold small integers only."""

    def __init__(self, seed: int, kind: str, steps: int = 16, limit: int = 3000) -> None:
        self.rng = np.random.default_rng([seed, {"fp32": 0, "fp16": 1, "exact": 2}[kind]])
        self.kind, self.limit = kind, limit
        self.dtype = "fp16" if kind == "fp16" else "fp32"
        self.feeds: dict[str, Array] = {}
        self.arrays: dict[Value, Array] = {}
        self.noisy: dict[Value, Array] = {}
        self.pool: list[hx.Tensor] = []
        rank = int(self.rng.choice([2, 3, 4, 4, 4, 5]))
        self.input(self.shape(rank, min_spatial=5 if rank < 5 else 3))
        todo = self.steps()
        for _ in range(8 * steps):
            if len(self.pool) > steps:
                break
            try:
                todo[self.rng.integers(len(todo))]()
            except (Unfit, hx.Error):
                continue
        self.graph = hx.graph(self.outputs())
        names = set(self.graph.input_names())
        self.feeds = {k: v for k, v in self.feeds.items() if k in names}

    # ---- drawing ----

    def coin(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def shape(self, rank: int, min_spatial: int = 1) -> tuple[int, ...]:
        for _ in range(50):
            dims = [int(self.pick(DIMS)) for _ in range(rank)]
            dims[0] = int(self.pick((1, 1, 2, 3)))
            dims[2:] = [max(d, min_spatial) for d in dims[2:]]
            if self.coin(0.02):
                dims[int(self.rng.integers(rank))] = 0
            if prod(dims) <= self.limit:
                return tuple(dims)
        return (1,) * rank

    def values(self, shape: tuple[int, ...], dtype: str = "") -> Array:
        dtype = dtype or self.dtype
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        kind = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32, "int64": np.int64}[dtype]
        if self.kind == "exact" or dtype.startswith("int"):
            return np.asarray(self.rng.integers(-3, 4, shape)).astype(kind)
        return np.asarray(self.rng.uniform(-1.5, 1.5, shape)).astype(kind)

    def tensor(self, test: Callable[[hx.Tensor], bool] = lambda t: True, dtype: str = "") -> hx.Tensor:
        """A value there is, the newer the likelier."""
        fit = [t for t in self.pool if t.dtype.name == (dtype or self.dtype) and test(t)]
        if not fit:
            raise Unfit
        return fit[-1 - min(int(self.rng.geometric(0.35)) - 1, len(fit) - 1)]

    def of_rank(self, low: int, high: int) -> hx.Tensor:
        return self.tensor(lambda t: low <= len(t.shape) <= high)

    # ---- values ----

    def input(self, shape: tuple[int, ...], dtype: str = "") -> hx.Tensor:
        array = self.values(shape, dtype)
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        t = hx.input(name, shape, dtype or self.dtype)
        self.arrays[t.value] = self.noisy[t.value] = array
        self.pool.append(t)
        return t

    def weight(self, shape: tuple[int, ...], dtype: str = "", array: Array | None = None) -> hx.Tensor:
        """A constant, mostly; a param or an input now and then. Scaled so that products keep their size."""
        array = self.values(shape, dtype) if array is None else array
        if array.dtype.kind == "f" and self.kind != "exact" and len(shape) > 1:
            array = (array / np.sqrt(max(1, prod(shape[1:])))).astype(array.dtype)
        draw = self.rng.random()
        name = f"w{len(self.arrays)}"
        if draw < 0.8:
            t = hx.const(array)
        elif draw < 0.9:
            t = hx.param(name, array)
        else:
            t = hx.input(
                name, array.shape, {"float32": "fp32", "float16": "fp16"}.get(array.dtype.name, array.dtype.name)
            )
            self.feeds[name] = array
        self.arrays[t.value] = self.noisy[t.value] = array
        return t

    def keep(self, result: hx.Tensor | tuple[hx.Tensor, ...], exact_bound: float = 0.0) -> None:
        """Adds an op's results to the pool, if every value on the way to them is fit for comparing."""
        several = result if isinstance(result, tuple) else (result,)
        if any(t.type.size > self.limit or len(t.shape) > 6 for t in several) or exact_bound > EXACT_LIMIT:
            raise Unfit
        for t in several:
            self._evaluate(t.value)
        self.pool += several

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
        for array in arrays:
            self._check_range(array)
        if self.kind == "fp32":
            self._check_condition(value, arrays)
        self.arrays.update(zip(node.values, arrays, strict=True))

    def _check_range(self, array: Array) -> None:
        if array.size and array.dtype.kind == "f":
            top = np.abs(array.astype(np.float64)).max()
            if not top <= (EXACT_LIMIT if self.kind == "exact" else 200):
                raise Unfit
            if self.kind == "exact" and (array != np.rint(array)).any():
                raise Unfit
        elif array.size and array.dtype.kind in "iu" and int(np.abs(array.astype(np.int64)).max()) > EXACT_LIMIT:
            raise Unfit

    def _check_condition(self, value: Value, arrays: list[Array]) -> None:
        """The op on values that are off by NOISE has to give what is nearly the same."""
        node = value.node
        noisy = evaluate(node, [None if v is None else self.noisy[v] for v in node.inputs])
        for array, other in zip(arrays, noisy, strict=True):
            if array.dtype.kind != "f":
                if not np.array_equal(array, other):
                    raise Unfit
            elif array.size:
                top = np.abs(array.astype(np.float64)).max()
                if np.abs(array.astype(np.float64) - other).max() > CONDITION * top:
                    raise Unfit
        shaken = [
            a + NOISE * np.abs(a).max(initial=0) * np.sign(self.rng.uniform(-1, 1, a.shape))
            if a.dtype.kind == "f"
            else a
            for a in noisy
        ]
        self.noisy.update(
            zip(node.values, [np.asarray(a).astype(b.dtype) for a, b in zip(shaken, arrays, strict=True)], strict=True)
        )

    def top(self, t: hx.Tensor) -> float:
        self._evaluate(t.value)
        return float(np.abs(self.arrays[t.value].astype(np.float64)).max(initial=0))

    def outputs(self) -> list[hx.Tensor]:
        read = {v for t in self.pool for v in t.value.node.inputs}
        ends = [t for t in self.pool if t.value not in read]
        chosen = [self.pool[-1]] + [t for t in ends if self.coin(0.6)]
        for _ in range(int(self.rng.integers(0, 3))):
            chosen.append(self.pick(self.pool))
        if self.coin(0.1):
            chosen.append(self.pick(chosen))
        if self.coin(0.05):
            chosen.append(hx.const(self.values((3, 2))))
        if self.coin(0.1):
            chosen.append(hx.reshape(chosen[0], shape=(prod(chosen[0].shape),)))
        self.rng.shuffle(chosen)  # type: ignore[arg-type]
        return chosen

    # ---- steps ----

    def steps(self) -> list[Callable[[], None]]:
        often = [self.conv, self.conv, self.unary, self.unary, self.binary, self.binary, self.binary, self.concat]
        return [
            *often, self.conv_transpose, self.pool_op, self.norm, self.resize, self.pattern, self.compare, self.reduce,
            self.softmax, self.cumsum, self.transpose, self.reshape, self.slice, self.split, self.stack, self.pad,
            self.tile, self.reverse, self.broadcast, self.blocks, self.matmul, self.matmul, self.linear, self.attention,
            self.rotary, self.gather, self.scatter, self.sort, self.cast, self.another_input, self.integers, self.squeeze,
        ]  # fmt: skip

    def another_input(self) -> None:
        self.input(self.tensor().shape if self.coin() else self.shape(int(self.pick((1, 2, 3, 4, 5)))))

    def window(self, spatial: tuple[int, ...], widest: int = 3) -> tuple[list[int], dict[str, Any]]:
        num = len(spatial)
        kernel = [int(self.rng.integers(1, widest + 1)) for _ in range(num)]
        attrs: dict[str, Any] = {"strides": [int(self.pick((1, 1, 2, 3))) for _ in range(num)]}
        attrs["dilations"] = [int(self.pick((1, 1, 1, 2))) for _ in range(num)]
        if self.coin(0.7):
            attrs["pad"] = [int(self.rng.integers(0, k)) for k in kernel for _ in range(2)]
        return kernel, attrs

    def conv(self) -> None:
        x = self.of_rank(3, 5)
        last = len(x.shape) < 5 and self.coin(0.08)
        channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
        kernel, attrs = self.window(spatial)
        groups = int(self.pick([1, 1, channels, *[g for g in (2, 3, 4) if channels and channels % g == 0]])) or 1
        out = groups * int(self.pick((1, 2, 3, 5))) if groups > 1 else int(self.pick(DIMS))
        weight = self.weight((out, channels // groups, *kernel))
        bias = self.weight((out,)) if self.coin(0.4) else None
        bound = self.top(x) * self.top(weight) * prod(weight.shape[1:])
        padded = x
        if self.coin(0.15):  # a pad for it to fold
            axes = range(1, len(x.shape) - 1) if last else range(2, len(x.shape))
            begin, end = ([int(self.rng.integers(0, 2)) if i in axes else 0 for i in range(len(x.shape))] for _ in "be")
            padded = hx.pad(x, begin=begin, end=end)
        y = hx.conv(padded, weight, bias=bias, groups=groups, layout="nhwc" if last else "nchw", **attrs)
        while self.coin(0.4):  # a bias, a scale, a norm beside it
            y = self.per_channel(y, len(y.shape) - 1 if last else 1)
        self.keep(y, bound if self.kind == "exact" else 0)
        if self.coin(0.2) and x.shape == y.shape:
            self.keep(y + x)

    def per_channel(self, y: hx.Tensor, axis: int) -> hx.Tensor:
        which = self.pick(
            ("add", "add", "sub", "mul") if self.kind == "exact" else ("add", "mul", "sub", "norm", "div")
        )
        c = (y.shape[axis],)
        if which == "norm":
            positive = self.weight(c, array=np.abs(self.values(c)) + np.array(0.5, self.values(()).dtype))
            return hx.batch_norm(y, self.weight(c), positive, self.weight(c), axis=axis)
        other = self.weight(tuple(d if i == axis else 1 for i, d in enumerate(y.shape))[int(self.coin()) :])
        if which == "div":
            return y / (hx.abs(other) + 0.5)
        return getattr(hx, which)(*((y, other) if self.coin(0.7) else (other, y)))  # type: ignore[no-any-return]

    def conv_transpose(self) -> None:
        x = self.of_rank(3, 4)
        channels = x.shape[1]
        kernel, attrs = self.window(x.shape[2:])
        groups = int(self.pick([1, 1, channels, *[g for g in (2, 3) if channels and channels % g == 0]])) or 1
        weight = self.weight((channels, int(self.pick((1, 2, 3, 5))), *kernel))
        attrs["output_padding"] = [int(self.rng.integers(0, s)) for s in attrs["strides"]]
        bound = self.top(x) * self.top(weight) * prod(kernel) * max(channels, 1)
        bias = self.weight((weight.shape[1] * groups,)) if self.coin(0.4) else None
        y = hx.conv_transpose(x, weight, bias=bias, groups=groups, **attrs)
        while self.coin(0.4):
            y = self.per_channel(y, 1)
        self.keep(y, bound if self.kind == "exact" else 0)

    def pool_op(self) -> None:
        x = self.of_rank(3, 5)
        kernel, attrs = self.window(x.shape[2:])
        attrs["ceil_mode"] = self.coin(0.3)
        if self.kind == "exact" or self.coin():
            self.keep(hx.max_pool(x, kernel_sizes=kernel, **attrs))
        else:
            self.keep(hx.avg_pool(x, kernel_sizes=kernel, exclude_padding=self.coin(), **attrs))

    def norm(self) -> None:
        if self.kind == "exact":
            raise Unfit
        which = self.pick(("batch_norm", "batch_norm", "instance_norm", "layer_norm", "rms_norm", "lrn"))
        x = self.of_rank(3, 5) if which == "instance_norm" else self.of_rank(2, 5)
        if 0 in x.shape and which != "batch_norm":
            raise Unfit
        eps = float(self.pick((1e-5, 1e-3, 0.5)))
        if which == "batch_norm":
            axis = 1 if self.coin(0.7) else int(self.rng.integers(len(x.shape)))
            c = (x.shape[axis],)
            positive = self.weight(c, array=np.abs(self.values(c)) + np.array(0.5, self.values(()).dtype))
            affine = [self.weight(c) if self.coin(0.7) else None for _ in range(2)]
            self.keep(hx.batch_norm(x, self.weight(c), positive, *affine, epsilon=eps, axis=axis))
        elif which == "instance_norm":
            c = (x.shape[1],)
            self.keep(hx.instance_norm(x, *[self.weight(c) if self.coin() else None for _ in range(2)], epsilon=eps))
        elif which == "lrn":
            axis = int(self.rng.integers(len(x.shape)))
            self.keep(hx.local_response_norm(x, size=int(self.pick((1, 2, 3, 5))), alpha=0.3, axis=axis))
        else:
            num = int(self.rng.integers(1, len(x.shape) + 1))
            axes = tuple(range(-num, 0))
            c = x.shape[-num:]
            if which == "rms_norm":
                self.keep(hx.rms_norm(x, self.weight(c) if self.coin() else None, axes=axes, epsilon=eps))
            else:
                affine = [self.weight(c) if self.coin() else None for _ in range(2)]
                self.keep(hx.layer_norm(x, *affine, axes=axes, epsilon=eps))

    def resize(self) -> None:
        x = self.of_rank(4, 4)
        height, width = int(self.rng.integers(1, 12)), int(self.rng.integers(1, 12))
        attrs: dict[str, Any] = {
            "height": height,
            "width": width,
            "scale_h": x.shape[2] / height,
            "scale_w": x.shape[3] / width,
        }
        if self.kind == "exact" or self.coin():
            mode = self.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
            self.keep(hx.resize_nearest_neighbor(x, mode=mode, **attrs))
        else:
            self.keep(hx.resize_bilinear(x, offset_h=0.25, offset_w=-0.3, **attrs))

    def unary(self) -> None:
        x = self.tensor()
        name = self.pick(EXACT if self.kind == "exact" else SMOOTH)
        attrs: dict[str, float] = {}
        if name == "clip":
            attrs = self.pick(
                ({"alpha": 0.0, "beta": 6.0}, {"alpha": 0.0}, {"alpha": -1.0, "beta": 2.0}, {"beta": 1.0})
            )
        elif name == "linear_activation":
            attrs = {"alpha": 0.5, "beta": -1.0}
        elif name == "exp" and self.top(x) > 4:
            raise Unfit
        self.keep(getattr(hx, name)(x, **attrs))

    def pattern(self) -> None:
        """What passes look for."""
        x = self.tensor()
        if self.kind == "exact":
            return self.keep(hx.relu(x + self.tensor(lambda t: t.shape == x.shape)))
        which = int(self.rng.integers(4))
        if which == 0:
            y = x * hx.sigmoid(x) if self.coin() else hx.sigmoid(x) * x
        elif which == 1:
            y = 0.5 * (x * (hx.erf(x / 2**0.5) + 1.0)) if self.coin() else x * (1.0 + hx.erf(x * 0.5**0.5)) * 0.5
        elif which == 2:
            y = hx.relu(x + self.tensor(lambda t: t.shape == x.shape))
        else:
            y = hx.tanh(x * self.tensor(lambda t: t.shape == x.shape))
        return self.keep(y)

    def other(self, x: hx.Tensor) -> Any:
        """Something that broadcasts with x: of its shape, of fewer dims, of more, a scalar."""
        draw = self.rng.random()
        if draw < 0.4:
            return self.tensor(lambda t: broadcasts(t.shape, x.shape))
        if draw < 0.5:
            return float(self.rng.integers(-2, 3)) if self.kind == "exact" else float(self.rng.uniform(-2, 2))
        shape = tuple(d if self.coin(0.6) else 1 for d in x.shape)
        if draw < 0.8:
            shape = shape[int(self.rng.integers(len(shape) + 1)) :]
        elif draw < 0.85:
            shape = (2, *shape)
        return self.weight(shape)

    def binary(self) -> None:
        x = self.tensor()
        names = ["add", "add", "sub", "mul", "maximum", "minimum"]
        name = self.pick(names if self.kind == "exact" else [*names, "prelu", "real_div"])
        y = self.other(x)
        if name == "real_div":
            y = hx.abs(y) + 1.0 if isinstance(y, hx.Tensor) else 3.0
        if self.coin(0.3) and isinstance(y, hx.Tensor):
            x, y = y, x
        result = getattr(hx, name)(x, y)
        self.keep(hx.relu(result) if self.coin(0.2) else result)

    def compare(self) -> None:
        x = self.tensor()
        which = self.pick(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
        cond = getattr(hx, which)(x, self.other(x)) if self.coin(0.6) else self.weight(x.shape[-1:], "bool")
        if self.coin(0.3):
            cond = ~cond
        if self.coin(0.2):
            cond = cond & self.weight(cond.shape, "bool")
        a, b = (x, self.other(x)) if self.coin() else (self.other(x), x)
        if not isinstance(a, hx.Tensor) and not isinstance(b, hx.Tensor):
            raise Unfit
        self.keep(hx.select(cond, a, b))
        if self.coin(0.3):
            self.keep(cond)

    def reduce(self) -> None:
        x = self.tensor(lambda t: len(t.shape) > 0)
        name = self.pick(REDUCTIONS if self.kind == "exact" else (*REDUCTIONS, *SMOOTH_REDUCTIONS))
        axes = tuple(i for i in range(len(x.shape)) if self.coin())
        if 0 in x.shape and name not in ("reduce_sum", "reduce_sum_square", "reduce_l1_norm", "reduce_prod"):
            raise Unfit
        bound = self.top(x) * x.type.size
        self.keep(getattr(hx, name)(x, axes=axes, keep_dims=self.coin()), bound if self.kind == "exact" else 0)
        if self.coin(0.2):
            axis = int(self.rng.integers(len(x.shape)))
            self.keep(self.pick((hx.reduce_argmax, hx.reduce_argmin))(x, axis=axis, keep_dims=self.coin()))

    def softmax(self) -> None:
        if self.kind == "exact":
            raise Unfit
        x = self.tensor(lambda t: len(t.shape) > 0)
        self.keep(self.pick((hx.softmax, hx.log_softmax))(x, axis=int(self.rng.integers(len(x.shape)))))

    def cumsum(self) -> None:
        x = self.tensor(lambda t: len(t.shape) > 0)
        axis = int(self.rng.integers(len(x.shape)))
        bound = self.top(x) * x.shape[axis]
        self.keep(
            hx.cumsum(x, axis=axis, exclusive=self.coin(0.3), reverse=self.coin(0.3)),
            bound if self.kind == "exact" else 0,
        )

    # ---- moving elements, of any dtype ----

    def movable(self, low: int = 1, high: int = 5) -> hx.Tensor:
        dtype = self.pick((self.dtype, self.dtype, self.dtype, "int32", "bool", "int64"))
        return self.tensor(lambda t: low <= len(t.shape) <= high, dtype)

    def transpose(self) -> None:
        x = self.movable(2, 6)
        if len(x.shape) == 4 and self.coin():
            perm = self.pick(((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)))
        else:
            perm = tuple(int(p) for p in self.rng.permutation(len(x.shape)))
        self.keep(hx.transpose(x, perm=perm))

    def reshape(self) -> None:
        x = self.movable(0, 6)
        if self.coin(0.4) and len(x.shape) > 2:  # merge neighbours
            at = int(self.rng.integers(len(x.shape) - 1))
            shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
        else:
            rest, dims = x.type.size, []
            for _ in range(int(self.rng.integers(1, 5))):
                factors = [f for f in (1, 2, 3, 4, 5, 7, 8) if rest and rest % f == 0] or [1]
                dims.append(int(self.pick(factors)))
                rest //= dims[-1]
            dims.insert(int(self.rng.integers(len(dims) + 1)), rest)
            shape = tuple(dims)
        self.keep(hx.reshape(x, shape=shape))

    def squeeze(self) -> None:
        x = self.movable(1, 5)
        which = int(self.rng.integers(3))
        if which == 0:
            self.keep(hx.squeeze(x))
        elif which == 1:
            self.keep(hx.expand_dims(x, axes=(int(self.rng.integers(len(x.shape) + 1)),)))
        else:
            self.keep(hx.flatten(x, axis=int(self.rng.integers(len(x.shape) + 1))))

    def slice(self) -> None:
        x = self.movable()
        index = []
        for d in x.shape:
            a, b = sorted(int(v) for v in self.rng.integers(0, d + 1, 2))
            if a == b and not self.coin(0.05):
                a, b = 0, d
            index.append(slice(a, b, int(self.pick((1, 1, 1, 2, 3)))) if self.coin(0.6) else slice(None))
        self.keep(x[tuple(index)])

    def split(self) -> None:
        x = self.movable()
        axis = 1 if len(x.shape) > 2 and self.coin() else int(self.rng.integers(len(x.shape)))
        d = x.shape[axis]
        cut = sorted(int(v) for v in self.rng.integers(0, d + 1, int(self.pick((1, 2)))))
        sizes = [b - a for a, b in zip([0, *cut], [*cut, d], strict=True)]
        self.keep(hx.split(x, axis=axis, split_sizes=sizes))

    def concat(self) -> None:
        x = self.movable()
        axis = 1 if len(x.shape) > 2 and self.coin() else int(self.rng.integers(len(x.shape)))

        def joins(t: hx.Tensor) -> bool:
            same = [a == b for i, (a, b) in enumerate(zip(t.shape, x.shape, strict=False)) if i != axis]
            return len(t.shape) == len(x.shape) and all(same)

        parts = [x]
        for _ in range(int(self.rng.integers(0, 4))):
            if self.coin(0.25) and x.dtype.kind == "float":
                parts.append(self.weight(tuple(2 if i == axis else d for i, d in enumerate(x.shape))))
            else:
                parts.append(self.tensor(joins, x.dtype.name))
        if self.coin(0.3) and x.dtype.kind == "float":  # an operand that nobody else reads
            parts.append(hx.relu(self.pick(parts)))
        self.rng.shuffle(parts)  # type: ignore[arg-type]
        self.keep(hx.concat(*parts, axis=axis))

    def stack(self) -> None:
        x = self.movable(0, 4)
        other = self.tensor(lambda t: t.shape == x.shape, x.dtype.name)
        self.keep(hx.stack(x, other, axis=int(self.rng.integers(len(x.shape) + 1))))

    def pad(self) -> None:
        x = self.movable()
        mode = self.pick(("constant", "constant", "reflect", "edge", "wrap"))
        low = -1 if mode == "constant" else 0
        begin, end = ([int(self.rng.integers(low, 3)) if self.coin() else 0 for _ in x.shape] for _ in range(2))
        self.keep(hx.pad(x, begin=begin, end=end, mode=mode, value=float(self.rng.integers(0, 2))))

    def tile(self) -> None:
        x = self.movable(1, 4)
        self.keep(hx.tile(x, reps=[int(self.pick((1, 1, 2, 3))) for _ in x.shape]))

    def reverse(self) -> None:
        x = self.movable()
        self.keep(hx.reverse(x, axes=[i for i in range(len(x.shape)) if self.coin()]))

    def broadcast(self) -> None:
        x = self.movable(0, 4)
        shape = tuple(int(self.pick((1, 2, 3))) if d == 1 else d for d in x.shape)
        self.keep(hx.broadcast_to(x, shape=(2, *shape) if self.coin() else shape))

    def blocks(self) -> None:
        x = self.movable(4, 4)
        which = int(self.rng.integers(3))
        if which == 0:
            self.keep(hx.space_to_depth(x, block_size=2))
        elif which == 1:
            self.keep(hx.depth_to_space(x, block_size=2, mode=self.pick(("DCR", "CRD"))))
        else:
            self.keep(hx.pixel_shuffle(x, upscale_factor=2))

    # ---- products ----

    def matmul(self) -> None:
        x = self.of_rank(2, 5)
        tx, ty = self.coin(0.2), self.coin(0.3)
        k, m = (x.shape[-2], x.shape[-1]) if tx else (x.shape[-1], x.shape[-2])
        if self.coin(0.4):
            y = self.tensor(lambda t: 2 <= len(t.shape) <= 5 and t.shape[-1 if ty else -2] == k)
        else:
            n = int(self.pick(DIMS))
            batch = tuple(d if self.coin() else 1 for d in x.shape[:-2]) if self.coin(0.3) else ()
            y = self.weight((*batch, n, k) if ty else (*batch, k, n))
        if self.coin(0.3):  # an attention-like transpose before it
            y = hx.transpose(y, perm=(*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2))
            ty = not ty
        bias = self.weight((y.shape[-2] if ty else y.shape[-1],)) if self.coin(0.3) else None
        result = hx.matmul(x, y, bias, transpose_x=tx, transpose_y=ty)
        while self.coin(0.3):
            result = self.per_channel(result, len(result.shape) - 1)
        bound = self.top(x) * self.top(y) * k
        del m
        self.keep(result, bound if self.kind == "exact" else 0)

    def linear(self) -> None:
        x = self.of_rank(1, 4)
        out = int(self.pick((1, 3, 7, 16, 33)))
        weight = self.weight((out, x.shape[-1]))
        y = hx.linear(x, weight, self.weight((out,)) if self.coin() else None)
        if self.coin(0.5):
            y = self.pick((hx.relu,) if self.kind == "exact" else (hx.relu, hx.gelu, hx.tanh, hx.silu))(y)
        self.keep(y, self.top(x) * self.top(weight) * x.shape[-1] if self.kind == "exact" else 0)

    def attention(self) -> None:
        if self.kind == "exact":
            raise Unfit
        q = self.of_rank(2, 4)
        k = self.tensor(
            lambda t: (
                len(t.shape) == len(q.shape) and t.shape[-1] == q.shape[-1] and broadcasts(t.shape[:-2], q.shape[:-2])
            )
        )
        v = k if self.coin() else self.weight((*k.shape[:-1], 5))
        mask = self.weight((q.shape[-2], k.shape[-2])) if self.coin(0.3) else None
        if 0 in q.shape or 0 in k.shape:
            raise Unfit
        self.keep(hx.scaled_dot_product_attention(q, k, v, mask, causal=self.coin(0.3)))

    def rotary(self) -> None:
        x = self.tensor(lambda t: len(t.shape) >= 2 and t.shape[-1] % 2 == 0)
        shape = (x.shape[-2], x.shape[-1] // 2)
        self.keep(hx.rotary_embedding(x, self.weight(shape), self.weight(shape), interleaved=self.coin()))

    # ---- indices ----

    def indices(self, shape: tuple[int, ...], extent: int) -> hx.Tensor:
        if not extent:
            raise Unfit
        dtype = self.pick((np.int32, np.int64))
        return self.weight(shape, array=self.rng.integers(-extent, extent, shape).astype(dtype))

    def gather(self) -> None:
        x = self.movable(1, 4)
        axis = int(self.rng.integers(len(x.shape)))
        if self.coin():
            self.keep(hx.gather(x, self.indices(self.pick(((), (3,), (2, 2))), x.shape[axis]), axis=axis))
        elif self.coin():
            shape = tuple(3 if i == axis else d for i, d in enumerate(x.shape))
            self.keep(hx.gather_along_axis(x, self.indices(shape, x.shape[axis]), axis=axis))
        else:
            self.keep(hx.gather_nd(x, self.indices((3, 1), x.shape[0])))

    def scatter(self) -> None:
        x = self.movable(1, 4)
        if x.dtype.kind == "bool" or 0 in x.shape:
            raise Unfit
        mode = self.pick(("update", "add", "max", "min"))
        at = self.rng.permutation(x.shape[0])[: max(1, x.shape[0] // 2)].astype(np.int64)
        updates = self.weight((len(at), *x.shape[1:]), x.dtype.name)
        self.keep(hx.scatter_nd(x, self.weight((len(at), 1), array=at[:, None]), updates, mode=mode))

    def sort(self) -> None:
        x = self.tensor(lambda t: 1 <= len(t.shape) <= 4)
        axis = int(self.rng.integers(len(x.shape)))
        if self.coin():
            k = int(self.rng.integers(0, x.shape[axis] + 1))
            self.keep(hx.topk(x, k=k, axis=axis, largest=self.coin()))
        else:
            self.keep(hx.argsort(x, axis=axis, descending=self.coin()))

    def cast(self) -> None:
        if self.coin(0.3):
            return self.keep(hx.cast(self.tensor(dtype=self.pick(("bool", "int32", "int64"))), dtype=self.dtype))
        x = self.tensor()
        return self.keep(hx.cast(hx.round(x) if self.coin() else x, dtype=self.pick(("int32", "int64", "bool"))))

    def integers(self) -> None:
        """Integer arithmetic."""
        try:
            x = self.tensor(dtype=self.pick(("int32", "int64")))
        except Unfit:
            x = self.input(self.shape(int(self.pick((1, 2, 3, 4)))), "int32")
        which = int(self.rng.integers(4))
        if which == 0:
            self.keep(self.pick((hx.add, hx.sub, hx.mul, hx.maximum))(x, self.weight(x.shape[-1:], x.dtype.name)))
        elif which == 1:
            self.keep(self.pick((hx.floor_div, hx.mod, hx.fmod, hx.real_div))(x, int(self.pick((2, 3, -2)))))
        elif which == 2 and len(x.shape):
            self.keep(hx.reduce_sum(x, axes=(int(self.rng.integers(len(x.shape))),), keep_dims=self.coin()))
        else:
            self.keep(
                hx.one_hot(x, depth=4, dtype=self.pick(("fp32", "int32", "bool")) if self.dtype == "fp32" else "int32")
            )


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def random_graph(seed: int, kind: str, **sizes: int) -> tuple[Graph, dict[str, Array]]:
    """A graph and its inputs: the same for the same arguments."""
    made = RandomGraph(seed, kind, **sizes)
    return made.graph, made.feeds
