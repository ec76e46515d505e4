"""Ops that draw random numbers, each node from its own stream, which starts at the node's seed."""

import os

import numpy as np

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error
from hexane.graph import Value, tensor_type, unique
from hexane.graph.names import free_name
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type


def stream(b: Builder, n: OnnxNode) -> Value:
    """Returns the state of a node's random stream. Without a seed attribute, the operating system provides the seed. In
    ONNX, seeds are floats. A fractional seed is used by its bits. In a Loop or Scan, each step derives its own seed
    from the node's, so that steps draw different numbers as at run time."""
    if "seed" not in n.attrs:
        seed = int.from_bytes(os.urandom(8), "little", signed=True)
    else:
        given = np.float32(n.attrs["seed"])
        whole = np.isfinite(given) and float(given).is_integer() and abs(given) < 2**63
        seed = int(given) if whole else int(given.view(np.int32))
        if n.steps:
            sequence = np.random.SeedSequence(seed % 2**64, spawn_key=n.steps)
            seed = int(sequence.generate_state(1, np.uint64).view(np.int64)[0])
    name = free_name(f"{', '.join(b.sources)}.stream", n.states)  # several nodes may share a name
    n.states.add(name)
    return unique("state", name, tensor_type("int64", (2,)), np.array([seed, 0]), b.sources)


def _dtype(n: OnnxNode, otherwise: DType) -> DType:
    return element_type(n.attrs["dtype"]) if "dtype" in n.attrs else otherwise


@onnx_op("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(b: Builder, n: OnnxNode) -> Result:
    like = n.value(0).type if n.op.endswith("Like") else tensor_type(FP32, n.attrs["shape"])
    options = {"shape": like.shape, "dtype": _dtype(n, like.dtype)}
    if n.op.startswith("RandomNormal"):
        return b.random_normal(stream(b, n), mean=n.attrs["mean"], scale=n.attrs["scale"], **options)
    return b.random_uniform(stream(b, n), low=n.attrs["low"], high=n.attrs["high"], **options)


@onnx_op("Bernoulli")
def bernoulli(b: Builder, n: OnnxNode) -> Result:
    p = n.value(0)
    kind = _dtype(n, p.dtype)
    return b.bernoulli(p if p.dtype is not DTYPES["fp64"] else b.cast(p, dtype=FP32), stream(b, n), dtype=kind)


@onnx_op("Multinomial")
def multinomial(b: Builder, n: OnnxNode) -> Result:
    kind = element_type(n.attrs["dtype"])
    if kind.kind not in ("int", "uint"):
        raise Error(f"dtype: got {kind}, need an integer")
    return b.multinomial(n.value(0), stream(b, n), sample_size=n.attrs["sample_size"], dtype=kind)
