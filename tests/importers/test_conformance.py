"""The cases of tests/conformance/passing.txt still pass; `make conformance` writes that list."""

from itertools import groupby
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from conformance.suite import PASSING, Case, judge, load_cases

NAMES = {op: list(names) for op, names in groupby(PASSING.read_text().splitlines(), lambda line: line.split()[0])}


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {str(case): case for case in load_cases()}


@pytest.mark.parametrize("op", NAMES)
def test_onnx_backend_cases_that_passed_still_pass(op: str, cases: dict[str, Case]) -> None:
    found = {name: judge(cases[name]) for name in NAMES[op]}
    assert {name: outcome for name, outcome in found.items() if outcome.verdict != "pass"} == {}


def has_sequences(case: Case) -> bool:
    ports = (*case.model.graph.input, *case.model.graph.output)
    return any(port.type.WhichOneof("value") in ("sequence_type", "optional_type") for port in ports)


def of_tensors(case: Case) -> tuple[onnx.ModelProto, dict[str, Any], list[Any]]:
    """The case with a tensor for each element of a sequence port, its inputs, and its outputs."""
    inputs, outputs = case.data[0]
    feeds: dict[str, Any] = {}
    wanted, before, after, results = [], [], [], []
    for port, value in zip(case.model.graph.input, inputs, strict=True):
        if isinstance(value, list):
            names = [f"{port.name}_{i}" for i in range(len(value))]
            feeds.update(zip(names, map(np.asarray, value), strict=True))
            before.append(helper.make_node("SequenceConstruct" if value else "SequenceEmpty", names, [port.name]))
        elif value is None:
            absent = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            before.append(helper.make_node("Optional", [], [port.name], type=absent))
        else:
            feeds[port.name] = np.asarray(value)
    for port, value in zip(case.model.graph.output, outputs, strict=True):
        elements = value if isinstance(value, list) else [value]
        wanted += elements
        if value is not elements:
            results.append(port.name)
            continue
        for i in range(len(elements)):
            place, name = f"{port.name}_at_{i}", f"{port.name}_{i}"
            after.append(helper.make_node("Constant", [], [place], value=numpy_helper.from_array(np.array(i))))
            after.append(helper.make_node("SequenceAt", [port.name, place], [name]))
            results.append(name)
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    nodes = [*before, *case.model.graph.node, *after]
    outs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph(nodes, "test", ports, outs, list(case.model.graph.initializer))
    model = helper.make_model(graph, opset_imports=case.model.opset_import, ir_version=case.model.ir_version)
    model.functions.extend(case.model.functions)
    return model, feeds, wanted


def test_cases_of_sequences_pass_if_their_ports_are_tensors(cases: dict[str, Case]) -> None:
    """A port cannot be a sequence or an optional value, but the ops between can."""
    chosen = [case for case in cases.values() if has_sequences(case)]
    assert len(chosen) > 20
    for case in chosen:
        model, feeds, wanted = of_tensors(case)
        found = hx.compile(model)(**feeds)
        for got, want in zip(found.values() if isinstance(found, dict) else [found], wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=0, err_msg=str(case))
            assert got.dtype == np.asarray(want).dtype
