"""Products and sums with weights as models store them: whole, sparse, as integers with a scale, as indices of a table."""

from collections.abc import Iterable, Iterator

import numpy as np

import hexane as hx
from hexane.graph import Array, Graph, Value
from hexane.ops.encodings import encoding_of

SHAPE = 16, 16, 3, 3
ENTRIES = 2, 5, 16, 100, 256, 300  # of tables


def stored_weights() -> Iterator[tuple[str, Graph]]:
    """Graphs by name. Each weight also appears in another shape and where it is no weight."""
    image, rows, at = hx.input("image", (1, 16, 8, 8)), hx.input("rows", (5, 144)), hx.input("at", (3,), "int32")
    for name, weight in _weights(SHAPE).items():
        flat = hx.reshape(weight, shape=(16, 144))
        yield f"conv-of-{name}", hx.graph(hx.conv(image, weight, pad=1))
        yield f"linear-of-reshaped-{name}", hx.graph(hx.linear(rows, flat))
        yield f"sum-of-{name}", hx.graph(hx.conv(image, weight + 1.0, pad=1) + hx.reduce_sum(weight))
    for name, weight in _weights((16, 144)).items():
        yield f"linear-of-{name}", hx.graph(hx.linear(rows, weight))
        yield f"product-of-{name}", hx.graph(hx.matmul(rows, weight, transpose_y=True))
        yield f"gather-of-{name}", hx.graph(hx.gather(weight, at, axis=0))


def _weights(shape: tuple[int, ...]) -> dict[str, hx.Tensor]:
    rng = np.random.default_rng(35)
    whole = rng.standard_normal(shape).astype(np.float32)
    scales = rng.uniform(0.01, 0.1, 16).astype(np.float32)
    codes = rng.integers(-100, 100, shape).astype(np.int8)
    shifted = (codes.astype(np.int16) + 100).astype(np.uint8)
    found = {
        "whole": hx.const(whole),
        "sparse": hx.const(np.where(rng.random(shape) < 0.75, np.float32(0), whole)),
        "int8": hx.dequantize(hx.const(codes), scales, axis=0),
        "int8-whole": hx.dequantize(hx.const(codes), np.float32(0.03)),
        "int4": hx.dequantize(hx.const(codes // 16), scales, axis=0),
        "int8-tiny": hx.dequantize(hx.const(codes), np.float32(1e-9)),
        "uint8-zero": hx.dequantize(hx.const(shifted), scales, np.full(16, 100, np.uint8), axis=0),
    }
    for entries in ENTRIES:
        table = rng.standard_normal(entries).astype(np.float32)
        indices = rng.integers(0, entries, shape).astype(np.int32)
        found[f"palette-{entries}"] = hx.gather(hx.const(table), hx.const(indices), axis=0)
    return found


def numbers(weight: Value) -> Array:
    """What a stored weight decodes to."""
    data = encoding_of(weight).decode().node.data
    assert data is not None
    return data


def with_whole(graph: Graph, weights: Iterable[Value]) -> Graph:
    """The network with these weights decoded."""
    table = {v: hx.const(numbers(v)).value for v in weights}
    return Graph(graph.inputs, graph.rewrite(lambda node, inputs: None, became=table).outputs)


def pruned(shape: tuple[int, ...], zeros: float = 0.0, dtype: str = "float32") -> Array:
    """A weight of which about so large a part is 0."""
    rng = np.random.default_rng(7)
    made: Array = np.where(rng.random(shape) < zeros, 0, rng.standard_normal(shape) * 0.1).astype(dtype)
    return made


def pruned_network(zeros: float = 0.0, dtype: str = "float32") -> Graph:
    """A convolution and a product with such weights."""
    x = hx.relu(hx.conv(hx.input("x", (1, 16, 8, 8), dtype), pruned((32, 16, 3, 3), zeros, dtype), pad=1))
    y = hx.reduce_mean(x, axes=(2, 3), keep_dims=False)
    return hx.graph(hx.matmul(y, pruned((32, 160), zeros, dtype)))
