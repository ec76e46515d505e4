"""The packed weights of a plan: the section "packed", which the plan's blocks unpack (csrc/plan/plan.h)."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array

CODEC = "lz4"


_found: dict[bytes, bytes] | None = None


@contextmanager
def packing_once() -> Iterator[None]:
    """Caches packed blocks, because the search for the weights to pack tries the same weights many times."""
    global _found
    if _found is not None:
        yield
        return
    _found = {}
    try:
        yield
    finally:
        _found = None


def pack(data: Any) -> bytes:
    """Packs data to an LZ4 block without a frame. Raises Error if lz4 is not installed."""
    blocks = _found
    if blocks is None:
        return _packed(data)
    key = hashlib.blake2b(data, digest_size=32).digest()
    if key not in blocks:
        blocks[key] = _packed(data)
    return blocks[key]


def _packed(data: Any) -> bytes:
    try:
        import lz4.block
    except ImportError:
        raise Error(
            "[compile] compress: got lz4, which is not installed, need: pip install 'hexane[compress]'"
        ) from None
    # Levels above this one, up to 12, take ten times as long and save 2 % of the bytes.
    packed: bytes = lz4.block.compress(bytes(data), mode="high_compression", compression=9, store_size=False)
    return packed


def unpacked_weights(sections: Mapping[str, Any]) -> Array:
    """Returns all weights of a verified plan, with packed ones unpacked."""
    weights, blocks = sections["weights"], sections["blocks"]
    size = max((int(row["offset"] + row["bytes"]) for row in blocks), default=len(weights))
    all_of = np.zeros(size, np.uint8)
    all_of[: len(weights)] = weights
    for row in blocks:
        begin, packed = int(row["offset"]), int(row["packed"])
        data = sections["packed"][packed : packed + int(row["packed_bytes"])]
        all_of[begin : begin + int(row["bytes"])] = np.frombuffer(_core.lz4_unpack(data, int(row["bytes"])), np.uint8)
    return all_of


def packed_weights(blocks: Array, weights: Array) -> dict[str, Any]:
    """Returns the plan's sections: "blocks", the table of packed blocks; "weights", the weights before the first block;
    and "packed", the packed bytes of the blocks."""
    rows, packed = blocks.copy(), bytearray()
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for row in sorted(range(len(rows)), key=lambda i: int(rows[i]["offset"])):
        begin, size = int(rows[row]["offset"]), int(rows[row]["bytes"])
        if (begin, size) not in places:
            data = pack(weights[begin : begin + size])
            places[begin, size] = len(packed), len(data)
            packed += data
        rows[row]["packed"], rows[row]["packed_bytes"] = places[begin, size]
    plain = min((int(row["offset"]) for row in rows), default=len(weights))
    return {"blocks": rows, "weights": weights[:plain], "packed": bytes(packed)}
