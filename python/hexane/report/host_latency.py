"""Measures the latency of a network on this CPU by a short run."""

import time
from collections.abc import Mapping

import numpy as np

from hexane.cost import Estimate
from hexane.cost.estimate import Memory
from hexane.graph import Array, Graph
from hexane.runtime import Model, PortType, compile
from hexane.runtime.random_arrays import random_arrays

THIS_CPU = "this CPU"
MOST_RUNS = 100
MOST_SECONDS = 0.3
SEED = 0


def host_latency(graph: Graph, given: Mapping[str, Array] | None = None) -> Estimate:
    """Measures some runs: latency_us is their median, p10_us and p90_us their quantiles, and host_us the median again.
    The result has no layers. given: inputs to use in place of random ones."""
    net = compile(graph, target="host")
    assert isinstance(net, Model)
    ports = [PortType(str(v.node.attrs["name"]), v.shape, v.dtype) for v in graph.inputs]
    arrays = random_arrays(ports, SEED) | {p.name: given[p.name] for p in ports if given and p.name in given}
    call = net.bind(**{name: np.asarray(array, order="C") for name, array in arrays.items()})
    call()
    runs: list[int] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(runs) < MOST_RUNS and (not runs or time.perf_counter() < end):
        start = time.perf_counter_ns()
        call()
        runs.append(time.perf_counter_ns() - start)
    low, middle, high = (float(us) for us in np.percentile(runs, (10, 50, 90)) / 1000)
    weights = sum(node.types[0].bytes for node in graph.nodes if node.op in ("const", "param"))
    surfaces = sum(v.type.bytes for v in (*graph.inputs, *(port.value for port in graph.outputs)))
    return Estimate(
        "host",
        middle,
        low,
        high,
        "measured",
        THIS_CPU,
        extrapolated=False,
        source=f"{len(runs)} calls on {'given' if given else 'random'} inputs",
        status="measured",
        submissions=0,
        floor_us=0.0,
        copies_us=0.0,
        engine_us=0.0,
        host_us=middle,
        batched_us=None,
        border_us=0.0,
        layers=(),
        memory=Memory(weights, surfaces, 0, 0),
    )
