"""Ops of preprocessing: counts of n-grams, and images from the bytes of a file."""

import io
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Value
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op

FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MODES = ("TF", "IDF", "TFIDF")


@onnx_op("TfIdfVectorizer")
def tf_idf_vectorizer(b: Builder, n: OnnxNode) -> Result:
    """x : int[count] or [rows, count]  ->  fp32[columns] or [rows, columns], a column for each n-gram of the pool.

    An n-gram is counted at each position, and for each distance of its items up to max_skip_count + 1. A single item
    has no distance and is counted once.
    """
    x = n.value(0)
    if "pool_strings" in n.attrs:
        raise UnsupportedError("pool_strings: got strings, need numbers (pool_int64s)")
    if x.type.rank not in (1, 2) or x.dtype.kind != "int":
        raise Error(f"got {x.type}, need integers of one or two axes")
    mode, least, most, skips = (
        n.attrs[name] for name in ("mode", "min_gram_length", "max_gram_length", "max_skip_count")
    )
    if mode not in MODES or not 1 <= least <= most or skips < 0:
        raise Error(
            f"got mode={mode!r}, min_gram_length={least}, max_gram_length={most}, max_skip_count={skips}, need one of"
            f" {', '.join(MODES)}, 1 or more, no less than that, and 0 or more"
        )
    grams = _grams(n)
    columns = np.array(n.attrs["ngram_indexes"], np.int64)
    weights = np.array(n.attrs.get("weights") or np.ones(len(columns)), np.float32)
    if len(columns) != sum(map(len, grams)) or len(weights) != len(columns) or not len(columns) or columns.min() < 0:
        raise Error(
            f"got {len(columns)} ngram_indexes and {len(weights)} weights for {sum(map(len, grams))} n-grams, need one"
            " of each, and no negative index"
        )
    rows = x if x.type.rank == 2 else b.reshape(x, shape=(1, *x.shape))
    counts = b.concat(*(_counts(b, rows, pool, least, most, skips) for pool in grams if len(pool)), axis=1)
    if mode == "IDF":
        counts = b.cast(b.greater(counts, np.float32(0)), dtype=FP32)
    if mode != "TF":
        counts = b.mul(counts, weights)
    result = _in_columns(b, counts, columns)
    return result if x.type.rank == 2 else b.reshape(result, shape=(result.shape[1],))


def _grams(n: OnnxNode) -> list[Array]:
    """Returns the pool's n-grams as arrays (number, length), one for each length from 1 on."""
    pool = np.array(n.attrs.get("pool_int64s") or (), np.int64)
    begins = [int(v) for v in n.attrs["ngram_counts"]]
    ends = [*begins, len(pool)]
    grams = []
    for length, (begin, end) in enumerate(pairwise(ends), 1):
        if not 0 <= begin <= end or (end - begin) % length:
            raise Error(
                f"ngram_counts: got {begins} for a pool of {len(pool)}, need the places where each length begins"
            )
        grams.append(pool[begin:end].reshape(-1, length))
    return grams


def _counts(b: Builder, x: Value, pool: Array, least: int, most: int, skips: int) -> Value:
    """Returns the number of occurrences of each n-gram, as fp32 (rows, n-grams)."""
    length = pool.shape[1]
    rows, count = x.shape
    total: Any = None
    if least <= length <= most:
        items = pool.astype(x.dtype.numpy)
        fits = (items == pool).all(1)  # an n-gram that does not fit x's dtype occurs in no row
        for step in range(1, (1 if length == 1 else skips + 1) + 1):
            places = count - (length - 1) * step
            if places < 1:
                break
            same = [
                b.equal(_items(b, x, i * step, places), b.const(items[:, i].reshape(1, -1, 1))) for i in range(length)
            ]
            found = b.reduce_sum(b.cast(reduce(b.logical_and, same), dtype=FP32), axes=(2,), keep_dims=False)
            total = found if total is None else b.add(total, found)
        if total is not None and not fits.all():
            total = b.mul(total, fits.astype(np.float32))
    return b.const(np.zeros((rows, len(pool)), np.float32)) if total is None else total


def _items(b: Builder, x: Value, begin: int, count: int) -> Result:
    """Returns the items from `begin` on as (rows, 1, count)."""
    part = b.slice_by_size(x, begin=(0, begin), size=(x.shape[0], count))
    return b.reshape(part, shape=(x.shape[0], 1, count))


def _in_columns(b: Builder, counts: Value, columns: Array) -> Value:
    """Writes each n-gram's count to its column. Counts of the same column are added."""
    rows, number = counts.shape
    padded = b.concat(counts, b.const(np.zeros((rows, 1), np.float32)), axis=1)
    left = list(range(number))
    total: Any = None
    while left:
        places = np.full(columns.max() + 1, number, np.int64)
        places[columns[left]] = left  # the last n-gram of each column
        taken = set(places.tolist())
        left = [i for i in left if i not in taken]
        part = b.gather(padded, b.const(places), axis=1)
        total = part if total is None else b.add(total, part)
    result: Value = total
    return result


@onnx_op("ImageDecoder", shape_inputs=(0,))
def image_decoder(b: Builder, n: OnnxNode) -> Result:
    """Returns the pixels uint8[height, width, channels] of an image file whose bytes are a constant."""
    data, form = n.array(0), n.attrs["pixel_format"]
    if data.dtype != np.uint8 or data.ndim != 1:
        raise Error(f"got {data.dtype}{list(data.shape)}, need the bytes of a file, uint8 of one axis")
    if form not in ("RGB", "BGR", "Grayscale"):
        raise Error(f"pixel_format: got {form!r}, need RGB, BGR or Grayscale")
    pixels = _decoded(data.tobytes(), "L" if form == "Grayscale" else "RGB")
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return b.const(np.ascontiguousarray(pixels[..., ::-1] if form == "BGR" else pixels))


def _decoded(data: bytes, mode: str) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError("got an image, which needs Pillow: pip install 'hexane[images]'") from None
    try:
        return np.asarray(Image.open(io.BytesIO(data), formats=FORMATS).convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Error(f"got {len(data)} bytes that are no image: {error}, need one of {', '.join(FORMATS)}") from None
