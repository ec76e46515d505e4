"""Ops that draw random numbers, each node from its own stream, which starts at the node's seed."""

import os
from collections.abc import Sequence

import numpy as np

from hexane.dtypes import DTYPES, FP32, DType
from hexane.errors import Error
from hexane.graph import Value, tensor_type, unique
from hexane.graph.names import free_name
from hexane.importers.bodies import MOST_STEPS
from hexane.importers.onnx.node import Builder, Captured, Counter, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type
from hexane.ops.compose import part


def stream(b: Builder, n: OnnxNode) -> Value:
    """Returns the stream of a node. Without a seed attribute, the operating system provides the seed. In ONNX, seeds
    are floats. The bits of a fractional seed are used as an integer. In a Loop or Scan, each step derives its own seed
    from the node's seed, so that each step draws other numbers. With a seed attribute, a loop draws the same numbers
    whether it is unrolled or not."""
    if "seed" not in n.attrs:
        seed = int.from_bytes(os.urandom(8), "little", signed=True)
    else:
        given = np.float32(n.attrs["seed"])
        whole = np.isfinite(given) and float(given).is_integer() and abs(given) < 2**63
        seed = int(given) if whole else int(given.view(np.int32))
    counters = [step for step in n.steps if isinstance(step, Counter)]
    if len(counters) > 1:
        raise Error(
            "got random numbers in two nested loops with trip counts known only at run time, need one: give others as"
            " constants (input_values=)"
        )
    if "seed" in n.attrs and n.steps and not counters:
        seed = _derived(seed, n.steps)
    name = free_name(f"{', '.join(b.sources)}.stream", n.states)  # several nodes may share a name
    n.states.add(name)
    state: Value = unique("state", name, tensor_type("int64", (2,)), np.array([seed, 0]), b.sources)
    if not n.bodies:
        return state
    # A body has no states: it reads the state of the surrounding graph, which counts the calls.
    after = b.add(state, np.array([0, 1]))
    n.updates.append(b.write_state(state, after, np.array(0)))
    inner = _inward(state, n.bodies)
    return _of_step(b, n, inner, seed, counters[0]) if counters else inner


def _derived(seed: int, steps: Sequence[int | Counter], counted: int = 0) -> int:
    """Returns the seed of a step. counted: the number of the step in the loop that is not unrolled."""
    key = [step if isinstance(step, int) else counted for step in steps]
    sequence = np.random.SeedSequence(seed % 2**64, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64).view(np.int64)[0])


def _of_step(b: Builder, n: OnnxNode, state: Value, seed: int, counter: Counter) -> Value:
    """Returns the stream of a loop's step. Each of the first MOST_STEPS steps has a seed of its own, as if unrolled.
    Later steps use the same seeds again, with larger numbers of calls."""
    step = _inward(counter.value, n.bodies[counter.depth :])
    seeds = [_derived(seed, n.steps, i) for i in range(MOST_STEPS)]
    most = np.array(MOST_STEPS)
    own = b.gather(b.const(np.array(seeds)), b.mod(step, most), axis=0)
    call = b.add(part(b, state, 0, 1, 2), b.mul(b.floor_div(step, most), np.array(1 << 32)))
    result: Value = b.concat(b.reshape(own, shape=(1,)), call, axis=0)
    return result


def _inward(value: Value, bodies: Sequence[Captured]) -> Value:
    """Returns the input of the innermost body for a value of the surrounding graph."""
    for captured in bodies:
        inner = captured(value)
        assert isinstance(inner, Value)
        value = inner
    return value


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
