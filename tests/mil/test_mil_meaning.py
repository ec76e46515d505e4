"""What MIL's ops mean: each example of an op is written, its statements are computed by Core ML's tools, and the graph
that is read gives the same numbers."""

import logging
import warnings
from typing import Any

import numpy as np
import pytest
from test_mil_round_trip import graph_of

from cases import CASES, IDS
from hexane import _core
from hexane.errors import Error
from hexane.importers.mil import load_mil
from hexane.mil.text import parse_program
from hexane.mil.tree import BlobFile, Literal, Name
from hexane.ops import Op
from hexane.ops.reference import run_reference
from mil_programs import program

# Ops that Core ML's tools do not compute, or not as the text says.
NOT_COMPUTED = {
    "cumsum",
    "affine", "avg_pool", "conv", "conv_transpose", "dequantize", "max_pool", "pixel_unshuffle", "resize_bilinear", "batch_norm", "crop",
    "resize_nearest_neighbor", "upsample_nearest_neighbor", "upsample_bilinear", "instance_norm", "local_response_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def builder() -> Any:
    logging.disable(logging.CRITICAL)
    try:
        tools = pytest.importorskip("coremltools", reason="coremltools is not installed")
        from coremltools.converters.mil.mil import Builder

        yield tools, Builder
    finally:
        logging.disable(logging.NOTSET)


def by_core_ml(builder: Any, text: str, feeds: dict[str, Any], weights: bytes) -> dict[str, Any] | None:
    """The outputs of a program of constants; None where the tools leave one to the device."""
    tools, make = builder
    function = parse_program(text)
    values: dict[str, Any] = dict(feeds)

    def value(argument: Any) -> Any:
        if isinstance(argument, Name):
            return values[argument.name]
        if not isinstance(argument, Literal):
            return tuple(map(value, argument))
        dtype, shape = argument.type
        if isinstance(argument.value, BlobFile):
            return _core.blob_read(weights, argument.value.offset)[1].view(numpy(dtype)).reshape(shape or ())
        plain = shape is None and dtype in ("string", "bool", "int32")
        return argument.value if plain else np.array(argument.value, numpy(dtype))

    class Left(Exception):
        """To the device."""

    def program() -> Any:
        for statement in function.statements:
            (name,) = (name for _, name in statement.results[:1])
            if statement.op == "const":
                values[name] = value(statement.attributes["val"])
                continue
            made = getattr(make, statement.op)(**{k: value(v) for k, v in statement.arguments.items()})
            made = made if isinstance(made, (tuple, list)) else (made,)
            for (_, result), var in zip(statement.results, made, strict=True):
                if var.val is None:
                    raise Left
                values[result] = var.val
        return make.const(val=np.float32(0))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            make.program(input_specs=[], opset_version=tools.target.iOS18)(program)
        except Left:
            return None
    return {output.name: values[output.name] for output in function.outputs}


def numpy(dtype: str) -> Any:
    return {"fp16": np.float16, "fp32": np.float32, "bool": np.bool_}.get(dtype, dtype)


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_core_ml_computes_the_same(builder: Any, op: Op, i: int) -> None:
    try:
        mil = program(graph_of(op, op.cases[i], constants=True))
    except Error:
        pytest.skip("it is not written")
    statements = {s.op for s in parse_program(mil.text).statements}
    if statements & NOT_COMPUTED or any(p.dtype.name in ("int64", "fp64") or 0 in p.shape for p in mil.inputs):
        pytest.skip("Core ML's tools do not compute it")
    if any(
        t.dtype.name == "int32" or 0 in t.shape for node in mil.graph.nodes for t in node.types if node.op != "const"
    ):
        pytest.skip("the engine does not compute it")
    rng = np.random.default_rng(0)
    case = op.cases[i]
    feeds = {
        p.name: (
            (
                rng.uniform(case.low, case.high, p.shape) if p.dtype.kind == "float" else rng.integers(0, 2, p.shape)
            ).astype(p.dtype.numpy)
        )
        for p in mil.inputs
    }
    theirs = by_core_ml(builder, mil.text, feeds, mil.weights)
    if theirs is None:
        pytest.skip("Core ML's tools leave it to the device")
    ours = run_reference(load_mil(mil.text, mil.weights), feeds)
    for name, array in ours.items():
        assert np.shape(theirs[name]) == array.shape
        np.testing.assert_allclose(np.asarray(theirs[name], np.float64), array.astype(np.float64), rtol=2e-2, atol=4e-3)
