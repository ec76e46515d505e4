"""Ops that draw random numbers, each node from its own stream: a seed and a call number.

A stream is a state that counts calls (`hexane.build.stream`). So each call draws other numbers, and a reloaded model
repeats the numbers of the first call. Two random nodes never merge, because their streams differ. All ops of this file
use the op `random`, a counter-based generator whose bits NumPy can compute as well as the kernel.
"""

from math import pi, prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.ops.attributes import element_type, flag, integer, integers, number
from hexane.ops.compose import Builder, cast, part
from hexane.ops.gradients.rule import operand, zeros
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op

Array = Any
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: Array, call: int, key: int) -> Array:
    """Computes Philox4x32-10: four 32-bit words for each element of `counter`, on a last axis."""
    half = np.uint64(32)
    c0, c1 = counter & _LOW, counter >> half
    c2, c3 = np.full_like(c0, call & 0xFFFFFFFF), np.full_like(c0, call >> 32)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ np.uint64(k0), b & _LOW, (a >> half) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1)


def _random(stream: Array, shape: Shape) -> Array:
    seed, call = (int(v) % 2**64 for v in stream)
    size = prod(shape)
    words = philox(np.arange(-(-size // 4), dtype=np.uint64), call, seed).reshape(-1)[:size]
    return ((words >> np.uint64(8)).astype(np.float64) * 2.0**-24).reshape(shape)


def _stream_shape(stream: Shape, shape: Shape, **_: Any) -> Shape:
    if stream != (2,):
        raise Error(f"got a stream of shape {stream}, need (2,): a seed and the number of the call (hx.stream)")
    return shape


def _drawn(*inputs: DType | None, dtype: DType = FP32, **_: Any) -> DType:
    if inputs[-1] is not INT64:
        raise Error(f"got a stream of dtype {inputs[-1]}, need int64 (hx.stream)")
    return dtype


def _float_drawn(stream: DType, dtype: DType, **_: Any) -> DType:
    if dtype.kind != "float":
        raise Error(f"dtype: got {dtype}, need a float")
    return _drawn(stream, dtype=dtype)


def _from_floats(x: DType, stream: DType, dtype: DType, **_: Any) -> DType:
    if x.kind != "float":
        raise Error(f"got the dtype {x}, need a float")
    return _drawn(stream, dtype=dtype)


def _uniform(b: Builder, stream: Value, shape: Shape, low: float, high: float, dtype: DType) -> Value:
    x = b.mul(b.random(stream, shape=shape), high - low)
    return cast(b, b.add(x, low) if low else x, dtype)


def _normal(b: Builder, stream: Value, shape: Shape, mean: float, scale: float, dtype: DType) -> Value:
    """Draws by the Box-Muller method: a distance, and the cosine of a random angle. The distance uses a number in (0,
    1]."""
    pair = b.random(stream, shape=(2, prod(shape)))
    radius, angle = (b.reshape(part(b, pair, 0, i, i + 1), shape=shape) for i in (0, 1))
    distance = b.sqrt(b.mul(b.log(b.sub(1.0, radius)), -2.0))
    normal = b.mul(distance, b.cos(b.mul(angle, 2 * pi)))
    return cast(b, b.add(b.mul(normal, scale), mean), dtype)


def _normal_ref(stream: Array, shape: Shape, mean: float, scale: float, dtype: DType) -> Array:
    radius, angle = _random(stream, (2, prod(shape)))
    return (mean + scale * np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * pi * angle)).reshape(shape)


def _bernoulli(b: Builder, p: Value, stream: Value, dtype: DType) -> Value:
    return b.cast(b.less(b.random(stream, shape=p.shape), cast(b, p, FP32)), dtype=dtype)


def _probability(types: Any, attrs: Any) -> None:
    if not 0 <= attrs["p"] < 1:
        raise Error(f"p: got {attrs['p']}, need 0 or more, and less than 1")


def _dropout(b: Builder, x: Value, stream: Value, p: float, again: bool) -> Value:
    kept = b.greater_equal(b.random(stream, shape=x.shape), p)
    return b.select(kept, b.mul(x, 1 / (1 - p)), zeros(b, x))


def _dropout_gradient(b: Builder, node: Node, g: Value) -> tuple[Value | None, ...]:
    """The gradient passes where elements were kept, by a second draw of the same numbers."""
    return b.dropout(g, operand(node, 1), p=node.attrs["p"], again=True), None


def _dropout_ref(x: Array, stream: Array, p: float, again: bool) -> Array:
    return np.where(_random(stream, x.shape) >= np.float32(p), x / (1 - p), 0)


def _multinomial_shape(logits: Shape, stream: Shape, sample_size: int, **_: Any) -> Shape:
    if len(logits) != 2 or not logits[1] or sample_size < 0:
        raise Error(f"got logits {logits} and sample_size {sample_size}, need (batches, classes) and a number")
    return _stream_shape(stream, (logits[0], sample_size))


def _multinomial(b: Builder, logits: Value, stream: Value, sample_size: int, dtype: DType) -> Value:
    """Draws classes: the class whose interval in the cumulative probabilities contains a random number."""
    batches, classes = logits.shape
    x = cast(b, logits, FP32)
    sums = b.cumsum(b.exp(b.sub(x, b.reduce_max(x, axes=(1,), keep_dims=True))), axis=1)
    drawn = b.mul(b.random(stream, shape=(batches, sample_size)), part(b, sums, 1, classes - 1, classes))
    below = b.greater_equal(
        b.reshape(drawn, shape=(batches, sample_size, 1)),
        b.reshape(part(b, sums, 1, 0, classes - 1), shape=(batches, 1, classes - 1)),
    )
    return cast(b, b.reduce_sum(b.cast(below, dtype=INT32), axes=(2,), keep_dims=False), dtype)


def _multinomial_ref(logits: Array, stream: Array, sample_size: int, dtype: DType) -> Array:
    sums = np.cumsum(np.exp(logits - logits.max(1, keepdims=True)), 1)
    drawn = _random(stream, (len(logits), sample_size)) * sums[:, -1:]
    return (drawn[:, :, None] >= sums[:, None, :-1]).sum(-1)


_STREAM = np.array([7, 3])
_SHAPE = {"shape": integers()}
_DTYPE = {"dtype": element_type("fp32")}

OPS = (
    Op(
        name="random", doc="Uniform fp32 numbers in [0, 1), multiples of 2^-24.", inputs=("stream",), attrs=_SHAPE,
        shape=_stream_shape, dtype=_drawn, kernel="random", ref=_random,
        cases=(Case(arrays=(_STREAM,), attrs={"shape": (3, 17)}), Case(arrays=(_STREAM,), attrs={"shape": ()}),
               Case(arrays=(np.array([-1, 2**40]),), attrs={"shape": (1, 1000)})),
    ),
    Op(
        name="random_uniform", doc="Uniform random numbers from low to high.", inputs=("stream",),
        attrs={**_SHAPE, "low": number(0.0), "high": number(1.0), **_DTYPE}, shape=_stream_shape, dtype=_float_drawn,
        expand=_uniform, ref=lambda stream, shape, low, high, dtype: low + (high - low) * _random(stream, shape),
        cases=(Case(arrays=(_STREAM,), attrs={"shape": (3, 17), "low": -2.0, "high": 3.0}),),
    ),
    Op(
        name="random_normal", doc="Random numbers of the normal distribution; scale is its standard deviation.",
        inputs=("stream",), attrs={**_SHAPE, "mean": number(0.0), "scale": number(1.0), **_DTYPE}, shape=_stream_shape,
        dtype=_float_drawn, expand=_normal, ref=_normal_ref,
        cases=(Case(arrays=(_STREAM,), attrs={"shape": (5, 7), "mean": 1.0, "scale": 2.0}),
               Case(arrays=(_STREAM,), attrs={"shape": ()})),
    ),
    Op(
        name="bernoulli", doc="1 with the probability p, else 0.", inputs=("p", "stream"), attrs=_DTYPE,
        shape=lambda p, stream, **_: _stream_shape(stream, p), dtype=_from_floats, expand=_bernoulli,
        ref=lambda p, stream, dtype: _random(stream, p.shape) < p,
        cases=(Case(arrays=(np.linspace(0, 1, 51, dtype=np.float32).reshape(3, 17), _STREAM)),),
    ),
    Op(
        name="dropout",
        doc="0 with the probability p, else x / (1 - p). again: keeps the same elements as another dropout of the "
            "stream. hx.train.evaluating removes the op.",
        inputs=("x", "stream"), attrs={"p": number(0.5), "again": flag(False)},
        shape=lambda x, stream, **_: _stream_shape(stream, x), dtype=lambda x, stream, **_: _from_floats(x, stream, x),
        check=(_probability,), expand=_dropout, grad=_dropout_gradient, ref=_dropout_ref,
        cases=(Case(arrays=(np.linspace(-2, 2, 51, dtype=np.float32).reshape(3, 17), _STREAM)),
               Case(arrays=(np.linspace(1, 2, 40, dtype=np.float32).reshape(2, 4, 5), _STREAM), attrs={"p": 0.25, "again": True})),
    ),
    Op(
        name="multinomial", doc="Classes drawn for each row, with probabilities proportional to e^logits.",
        inputs=("logits", "stream"), attrs={"sample_size": integer(1), "dtype": element_type("int32")},
        shape=_multinomial_shape, dtype=_from_floats, expand=_multinomial, ref=_multinomial_ref,
        cases=(Case(arrays=(np.log(np.array([[1, 2, 3, 0.5], [5, 1, 1, 1]], np.float32)), _STREAM),
                    attrs={"sample_size": 20}),),
    ),
)  # fmt: skip
