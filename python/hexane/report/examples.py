"""The examples in the op catalogue as arrays and graphs."""

import zlib
from typing import Any

import numpy as np

from hexane.build import FUNCTIONS, const, graph, input
from hexane.dtypes import DTYPES
from hexane.graph import Array, Graph
from hexane.ops import Op
from hexane.ops.spec import Case


def arrays(op: Op, case: Case) -> list[Array | None]:
    """Returns the inputs of a case: its arrays, or random ones seeded by the op's name."""
    if case.arrays:
        return [None if a is None else np.asarray(a) for a in case.arrays]
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    result: list[Array | None] = []
    for i, shape in enumerate(case.shapes):
        if shape is None:
            result.append(None)
            continue
        kind = DTYPES[case.dtypes[min(i, len(case.dtypes) - 1)]]
        values = rng.uniform(case.low, case.high, shape)
        result.append(values > 0 if kind.kind == "bool" else values.astype(kind.numpy))
    return result


def graph_of(op: Op, case: Case, inputs: list[Array | None], swap: tuple[str, str] = ("", "")) -> Graph:
    """Returns a graph of the one op. swap: inputs of the first dtype get the second one."""
    tensors: list[Any] = []
    for i, array in enumerate(inputs):
        if array is None:
            tensors.append(None)
            continue
        kind = const(array).dtype.name
        tensors.append(input(f"x{i}", array.shape, swap[1] if kind == swap[0] else kind))
    results = FUNCTIONS[op.name](*tensors, **dict(case.attrs or {}))
    return graph(list(results) if isinstance(results, tuple) else results)


def feeds(model: Graph, inputs: list[Array | None]) -> dict[str, Array]:
    return {
        str(v.node.attrs["name"]): np.asarray(inputs[int(str(v.node.attrs["name"])[1:])]).astype(v.dtype.numpy)
        for v in model.inputs
    }
