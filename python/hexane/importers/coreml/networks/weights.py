"""Weights of layers: fp32, fp16, or integers with a scale or a lookup table."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hexane.errors import Error, UnsupportedError
from hexane.graph import Array


def decoded(weights: Any, shape: Sequence[int], what: str, axis: int = 0) -> Array:
    """Returns the fp32 numbers of a WeightParams. axis: the output channels, which may have a scale
    each.

    Raises Error if the number of elements differs from the shape's, and UnsupportedError for weights that quantise
    their input at run time."""
    count = prod(int(d) for d in shape)
    if weights.int8RawValue:
        raise UnsupportedError(f"{what}: got int8 weights that quantise their input at run time, need other weights")
    if weights.rawValue:
        return _integers(weights, [int(d) for d in shape], count, what, axis)
    if weights.float16Value:
        if len(weights.float16Value) % 2:
            raise Error(f"{what}: got {len(weights.float16Value)} bytes of halves, need an even number")
        array = np.frombuffer(weights.float16Value, "<f2").astype(np.float32)
    else:
        array = np.fromiter(weights.floatValue, np.float32, len(weights.floatValue))
    if array.size != count:
        raise Error(f"{what}: got {array.size} numbers, need {count} for the shape {tuple(shape)}")
    return array.reshape([int(d) for d in shape])


def _integers(weights: Any, shape: list[int], count: int, what: str, axis: int) -> Array:
    """Decodes unsigned integers of 1 to 8 bits, packed from the highest bit down."""
    quantized = weights.quantization
    bits = quantized.numberOfBits
    if not 1 <= bits <= 8:
        raise Error(f"{what}: got weights of {bits} bits, need 1 to 8")
    data = np.frombuffer(weights.rawValue, np.uint8)
    if data.size != -(-count * bits // 8):
        raise Error(f"{what}: got {data.size} bytes, need {-(-count * bits // 8)} for {count} weights of {bits} bits")
    each = np.unpackbits(data, count=count * bits).reshape(count, bits)
    numbers = (each @ (1 << np.arange(bits)[::-1])).reshape(shape)
    if quantized.HasField("lookupTableQuantization"):
        table = np.array(quantized.lookupTableQuantization.floatValue, np.float32)
        if table.size != 1 << bits:
            raise Error(f"{what}: got a table of {table.size} numbers, need {1 << bits}")
        return np.ascontiguousarray(table[numbers])
    if not quantized.HasField("linearQuantization"):
        raise Error(f"{what}: got integers without a scale or a table, need one")
    linear = quantized.linearQuantization
    channels = shape[axis] if len(shape) > 1 else 1
    scale, bias = (_of_each(v, channels, len(shape), axis, what) for v in (linear.scale, linear.bias))
    return np.ascontiguousarray((numbers * scale + bias).astype(np.float32))


def _of_each(values: Any, channels: int, rank: int, axis: int, what: str) -> Array:
    array = np.array(values, np.float32)
    if not array.size:
        array = np.zeros(1, np.float32)
    if array.size not in (1, channels):
        raise Error(f"{what}: got {array.size} scales or biases, need 1 or {channels}")
    return array.reshape([-1 if i == axis else 1 for i in range(rank)])


def encoding(weights: Any) -> tuple[str, int]:
    """Returns the name of an encoding and its bytes; "" for weights without one."""
    if weights.rawValue:
        kind = "palette of" if weights.quantization.HasField("lookupTableQuantization") else "scaled"
        return f"{kind} uint{weights.quantization.numberOfBits}", len(weights.rawValue)
    if weights.int8RawValue:
        return "int8", len(weights.int8RawValue)
    if weights.float16Value:
        return "fp16", len(weights.float16Value)
    return ("fp32", 4 * len(weights.floatValue)) if weights.floatValue else ("", 0)
