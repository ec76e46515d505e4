"""The block formats of GGUF tensors: the bytes of a block, and its numbers.

Each formula is for one block. d and m are fp16, q is an unsigned integer of the given bits. The low bits of a group of
bytes hold the first half of the group's numbers q, the high bits hold the second half. Source: ggml's block
definitions (ggml-common.h).

    Q4_0  d, 32 q of 4 bits             d * (q - 8)         Q4_K  d, m, 8 pairs (s, t) of 6 bits, 256 q of 4 bits
    Q4_1  d, m, 32 q of 4 bits          d * q + m                 d * s * q - m * t, a pair for 32 numbers
    Q5_0  d, 32 high bits, 32 q of 4    d * (q - 16)        Q5_K  as Q4_K, with 256 high bits before the q
    Q5_1  d, m, 32 high bits, 32 q      d * q + m           Q6_K  128 bytes of low and 64 of high bits, 16 s of
    Q8_0  d, 32 signed integers         d * q                     int8, d: d * s * (q - 32), one s for 16 numbers
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hexane.graph import Array


@dataclass(frozen=True, slots=True)
class Blocks:
    """Numbers as int8 integers and fp32 scales: number = scale * integer. A scale is shared by `len(integers) /
    len(scales)` consecutive integers."""

    integers: Array
    scales: Array


@dataclass(frozen=True, slots=True)
class Kind:
    """A block format. numbers, bytes: of a block. decode(blocks): uint8 (count, bytes) -> fp32 (count, numbers).
    split(blocks): the numbers as integers and scales; None for a format with an offset. dtype: of a format of single
    numbers, else None."""

    name: str
    numbers: int
    bytes: int
    decode: Callable[[Array], Array]
    split: Callable[[Array], Blocks] | None = None
    dtype: np.dtype[Any] | None = None


def _half(blocks: Array, at: int) -> Array:
    """Returns the fp16 number at byte `at` of each block, as (count, 1) fp32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(bytes_: Array, run: int) -> Array:
    """Unpacks groups of `run` bytes to `run` low nibbles followed by `run` high nibbles: (count, 2 * bytes) uint8."""
    parts = bytes_.reshape(len(bytes_), -1, 1, run) >> np.array([[0], [4]], np.uint8)
    return np.asarray((parts & 15).reshape(len(bytes_), -1))


def _bits(bytes_: Array) -> Array:
    """Unpacks bits to (count, 8 * bytes) uint8, from the lowest bit of each byte up."""
    return np.unpackbits(bytes_, axis=1, bitorder="little")


def _from_blocks(split: Callable[[Array], Blocks]) -> Callable[[Array], Array]:
    def decode(blocks: Array) -> Array:
        parts = split(blocks)
        count = len(parts.scales)
        return np.asarray((parts.integers.reshape(count, -1) * parts.scales[:, None]).reshape(len(blocks), -1))

    return decode


def _blocks(integers: Array, scales: Array) -> Blocks:
    return Blocks(integers.astype(np.int8).reshape(-1), scales.astype(np.float32).reshape(-1))


def _q4_0(blocks: Array) -> Blocks:
    return _blocks(_nibbles(blocks[:, 2:], 16).astype(np.int8) - 8, _half(blocks, 0))


def _q5_0(blocks: Array) -> Blocks:
    q = _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4
    return _blocks(q.astype(np.int8) - 16, _half(blocks, 0))


def _q8_0(blocks: Array) -> Blocks:
    return _blocks(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def _q6_k(blocks: Array) -> Blocks:
    low = _nibbles(blocks[:, :128], 64)
    high = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    q = low | (high & 3).reshape(len(blocks), -1) << 4
    return _blocks(q.astype(np.int8) - 32, _half(blocks, 208) * blocks[:, 192:208].view(np.int8))


def _q4_1(blocks: Array) -> Array:
    return np.asarray(_half(blocks, 0) * _nibbles(blocks[:, 4:], 16) + _half(blocks, 2))


def _q5_1(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return np.asarray(_half(blocks, 0) * q + _half(blocks, 2))


def _pairs(bytes_: Array) -> tuple[Array, Array]:
    """Unpacks 8 scales and 8 offset factors of 6 bits each from 12 bytes. The first four scales and the first four
    factors are the low bits of bytes 0 to 3 and 4 to 7. The last four scales and factors have 4 bits in bytes 8 to 11,
    and 2 bits at the top of bytes 0 to 7."""
    a, b, c = bytes_[:, :4], bytes_[:, 4:8], bytes_[:, 8:]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], 1)
    offsets = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], 1)
    return scales.astype(np.float32), offsets.astype(np.float32)


def _with_pairs(blocks: Array, q: Array) -> Array:
    s, t = _pairs(blocks[:, 4:16])
    scales, offsets = _half(blocks, 0) * s, _half(blocks, 2) * t
    numbers = scales[:, :, None] * q.reshape(len(blocks), 8, 32) - offsets[:, :, None]
    return np.asarray(numbers.reshape(len(blocks), 256))


def _q4_k(blocks: Array) -> Array:
    return _with_pairs(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Array) -> Array:
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _with_pairs(blocks, _nibbles(blocks[:, 48:], 32) | high.reshape(len(blocks), 256) << 4)


def _f32(blocks: Array) -> Array:
    return blocks.view("<f4").astype(np.float32, copy=False)


def _f16(blocks: Array) -> Array:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Array) -> Array:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


# Block formats by their number in the file.
KINDS = {
    0: Kind("F32", 1, 4, _f32, dtype=np.dtype("<f4")),
    1: Kind("F16", 1, 2, _f16, dtype=np.dtype("<f2")),
    2: Kind("Q4_0", 32, 18, _from_blocks(_q4_0), _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    6: Kind("Q5_0", 32, 22, _from_blocks(_q5_0), _q5_0),
    7: Kind("Q5_1", 32, 24, _q5_1),
    8: Kind("Q8_0", 32, 34, _from_blocks(_q8_0), _q8_0),
    12: Kind("Q4_K", 256, 144, _q4_k),
    13: Kind("Q5_K", 256, 176, _q5_k),
    14: Kind("Q6_K", 256, 210, _from_blocks(_q6_k), _q6_k),
    30: Kind("BF16", 1, 2, _bf16, dtype=np.dtype(ml_dtypes.bfloat16)),
}
