"""Pieces of which the cases of passes are built."""

from collections.abc import Callable
from typing import Any

import numpy as np

import hexane as hx
from hexane.graph import Graph
from hexane.passes.quantize.fold_qdq import fold_qdq
from hexane.targets import Target, load_target

HOST = load_target("host")
Pass = Callable[[Graph, Target], Graph]
Case = tuple[Pass, Callable[[], hx.Tensor | list[hx.Tensor]]]
_rng = np.random.default_rng(3)


def random() -> np.random.Generator:
    return _rng


def restart() -> None:
    """Makes weights the same in any order of tests."""
    global _rng
    _rng = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return random().standard_normal(shape).astype(np.float32)


def image(channels: int = 3) -> hx.Tensor:
    return hx.input("x", (1, channels, 6, 5))


def conv(x: hx.Tensor, out: int, **attrs: object) -> hx.Tensor:
    return hx.conv(x, normal(out, x.shape[1], 3, 3), pad=1, **attrs)  # type: ignore[arg-type]


def normed(y: hx.Tensor, axis: int = 1) -> hx.Tensor:
    channels = y.shape[axis]
    params = normal(channels), random().uniform(0.5, 2, channels).astype(np.float32), normal(channels), normal(channels)
    return hx.batch_norm(y, *params, axis=axis)


def shared(make: Callable[[hx.Tensor], hx.Tensor]) -> list[hx.Tensor]:
    """The op's operand is read by somebody else too."""
    y = conv(image(), 4)
    return [make(y), hx.exp(y)]


def block(dtype: str = "fp32", name: str = "x") -> hx.Tensor:
    return hx.input(name, (2, 3, 4), dtype)


def grid(scale: float = 0.5, zero: int | None = 3, dtype: str = "int8") -> list[hx.Tensor | None]:
    """A scale and zero point."""
    return [hx.const(np.float32(scale)), None if zero is None else hx.const(np.array(zero, dtype))]


def integers(name: str = "q", shape: tuple[int, ...] = (2, 3, 4), dtype: str = "int8") -> hx.Tensor:
    return hx.input(name, shape, dtype)


def real(name: str = "q", shape: tuple[int, ...] = (2, 3, 4), scale: float = 0.5, **kind: Any) -> hx.Tensor:
    """The real numbers of an int8 input."""
    return hx.dequantize(integers(name, shape), *grid(scale, **kind))


def steps(x: hx.Tensor, scale: float = 0.5, zero: int | None = 3, dtype: str = "int8") -> hx.Tensor:
    return hx.quantize(x, *grid(scale, zero, dtype), dtype=dtype)


def kernel(out: int, inner: int, scale: float = 0.25, zero: int | None = None, dtype: str = "int8") -> hx.Tensor:
    """Quantised weights of a 3x3 convolution."""
    data = random().integers(-128, 128, (out, inner, 3, 3)) + (0 if dtype == "int8" else 128)
    return hx.dequantize(hx.const(data.astype(dtype)), *grid(scale, zero, dtype))


def qdq_conv(x: hx.Tensor, out: int = 4, bias: Any = None, **attrs: Any) -> hx.Tensor:
    return hx.conv(x, kernel(out, x.shape[1]), bias, pad=1, **attrs)


def transposed_weights(
    inner: int = 3, outer: int = 2, size: int = 2, axis: int = 1, zero: bool = False, dtype: str = "int8"
) -> hx.Tensor:
    """Quantised weights of a transposed convolution, a scale and zero point for each index of an axis."""
    n = (inner, outer)[axis]
    data = random().integers(-128, 128, (inner, outer, size, size)) + (0 if dtype == "int8" else 128)
    zeros = np.arange(7, 7 + n).astype(dtype) if zero else None
    return hx.dequantize(hx.const(data.astype(dtype)), 2.0 ** np.arange(n, dtype="f"), zeros, axis=axis)


def widened(x: hx.Tensor, weights: hx.Tensor | None = None, bias: Any = None, **attrs: Any) -> hx.Tensor:
    return hx.conv_transpose(x, transposed_weights() if weights is None else weights, bias, **{"strides": 2, **attrs})


def photo(name: str = "q", channels: int = 3, **kind: Any) -> hx.Tensor:
    return real(name, (1, channels, 6, 5), **kind)


def columns(rows: int = 4, wide: int = 5, axis: int = 1) -> hx.Tensor:
    """Quantised weights of a matrix product, a scale and zero point for each index of an axis."""
    n = (rows, wide)[axis]
    data = random().integers(-128, 128, (rows, wide)).astype(np.int8)
    return hx.dequantize(hx.const(data), 2.0 ** np.arange(n, dtype="f"), np.arange(n, dtype=np.int8), axis=axis)


def fold_qdq_of(outputs: hx.Tensor | list[hx.Tensor]) -> list[hx.Tensor]:
    return [hx.Tensor(port.value) for port in fold_qdq(hx.graph(outputs), HOST).outputs]
