"""The table of arguments against Core ML's own registry of ops, in the opset that programs are written for."""

import logging
from typing import Any

import numpy as np
import pytest

from hexane.mil.arguments import Parameter, parameters


@pytest.fixture(scope="module")
def registry() -> Any:
    """The class of an op by its name, in ios18."""
    logging.disable(logging.CRITICAL)  # on Linux it says what it cannot run
    try:
        coremltools = pytest.importorskip("coremltools", reason="coremltools is not installed")
        from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
    finally:
        logging.disable(logging.NOTSET)
    newest = coremltools.target.iOS18
    return {
        name: max((opset, op) for opset, op in versions.items() if opset <= newest)[1]
        for name, versions in SSAOpRegistry.core_ops.items()
    }


@pytest.mark.parametrize("op", parameters())
def test_names_are_those_of_the_registry(registry: Any, op: str) -> None:
    assert {p.name for p in parameters()[op]} == set(registry[op].input_spec.input_types)


# Tensors in the registry, which may be computed there; the engine's programs have fixed shapes.
FIXED_SHAPES = {"shape", "begin", "end", "size", "stride", "begin_mask", "end_mask", "squeeze_mask", "pad", "reps"}


@pytest.mark.parametrize(
    ("op", "p"), [(op, p) for op, row in parameters().items() for p in row], ids=lambda v: getattr(v, "name", v)
)
def test_an_argument_is_what_the_registry_says(registry: Any, op: str, p: Parameter) -> None:
    theirs = registry[op].input_spec.input_types[p.name]
    assert theirs.optional == (p.optional or p.insisted)
    assert theirs.const or p.kind in ("", "values") or p.name in FIXED_SHAPES, "a constant here, and not there"
    assert not theirs.const or p.kind not in ("", "values")


@pytest.mark.parametrize("op", [op for op, row in parameters().items() if any(p.default is not None for p in row)])
def test_defaults_are_those_of_the_registry(registry: Any, op: str) -> None:
    theirs = defaults(registry[op])
    for p in parameters()[op]:
        if p.default is not None and p.name != "output_indices_dtype":  # int32, which topk says elsewhere
            assert str(p.default) == str(theirs[p.name]) or np.isclose(float(p.default), float(theirs[p.name]))


def defaults(op: Any) -> dict[str, Any]:
    """What the op fills in, which some look up in their inputs."""

    class Input:
        rank, shape, dtype, val, name = 4, (1, 2, 3, 4), None, None, "x"

    filled = object.__new__(op)
    for name in op.input_spec.input_types:
        setattr(filled, name, Input())
    return dict(filled.default_inputs().items())
