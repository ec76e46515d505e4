"""Graph -> MIL -> graph: the examples of every op, names, and what cannot be written."""

import math
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays
from hexane.build import FUNCTIONS
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.mil import load_mil
from hexane.mil.arguments import parameters
from hexane.mil.forms import READ, WRITE
from hexane.ops import USER_OPS, Op
from hexane.ops.spec import Case
from mil_programs import assert_read_back, program

# Ops without a form in MIL, in any of their examples.
UNWRITTEN = {
    "gather_along_axis",  # its examples index a part of the other axes
    "argsort",  # their examples have indices in int64
    "hardmax",
    "max_pool_with_indices",
    "acosh",
    "asinh",
    "bit_cast",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "col2im",
    "cond",
    "fmod",
    "interleave",
    "lookup",
    "loop",
    "max_pool_gradient",  # has a col2im
    "max_unpool",
    "non_max_suppression",
    "non_zero",
    "one_hot",
    "q31_add",
    "q31_avg_pool",
    "q31_conv",
    "q31_matmul",
    "q31_mean",
    "q31_mul",
    "q31_softmax",
    "quantize_by_range",
    "quantized_add",
    "quantized_conv",
    "quantized_matmul",
    "quantized_mean",
    "random",
    "random_normal",
    "random_uniform",
    "running_sum",
    "scatter_along_axis",
    "scatter_nd",
    "shift_left",
    "shift_right",
    "unique",
    "write_state",
}  # fmt: skip


def graph_of(op: Op, case: Case, constants: bool) -> Graph:
    """A graph of one op, whose inputs but the first are constants if wanted."""
    tensors: list[Any] = []
    for i, array in enumerate(arrays(op, case)):
        if array is None or (constants and i):
            tensors.append(None if array is None else hx.const(array))
        else:
            tensors.append(hx.input(f"x{i}", array.shape, hx.const(array).dtype.name))
    results = FUNCTIONS[op.name](*tensors, **dict(case.attrs or {}))
    return hx.graph(list(results) if isinstance(results, tuple) else results)


def written(op: Op, case: Case) -> list[Any]:
    """The programs of an example, with and without constants; Errors where there is none."""
    found: list[Any] = []
    for constants in (False, True):
        try:
            graph = graph_of(op, case, constants)
        except Error:
            continue  # an input that has to be constant, or must not be
        try:
            found.append(program(graph))
        except Error as error:
            found.append(error)
    return found


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_the_example_of_an_op_is_read_back(op: Op, i: int) -> None:
    for found in written(op, op.cases[i]):
        if isinstance(found, Error):
            assert str(found).startswith("[emit]")
            continue
        assert not re.search(r"\b\w+\(BLOBFILE", found.text)  # the compiler takes no scalar from a file
        assert_read_back(found)


@pytest.mark.parametrize("op", USER_OPS.values(), ids=lambda op: op.name)
def test_all_ops_but_those_listed_are_written(op: Op) -> None:
    programs = [found for case in op.cases for found in written(op, case)]
    refused = all(isinstance(found, Error) for found in programs)
    assert refused == (op.name in UNWRITTEN)


def test_indices_are_written_in_dtypes_that_mil_has() -> None:
    x = hx.input("x", (4, 9), "fp16")
    outputs = {
        "v": hx.topk(x, k=3, largest=False, dtype="uint16")[0],
        "i": hx.topk(x, k=3, largest=False, dtype="uint16")[1],
        "largest": hx.reduce_argmax(x, axis=1, dtype="uint16"),
        "along": hx.gather_along_axis(x, np.zeros((4, 2), np.int64), axis=1),
        "order": hx.argsort(x, axis=0, descending=True, dtype="int32"),
    }
    assert_read_back(program(hx.graph(outputs)))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_that_a_port_cannot_hold_leave_as_uint16(dtype: str) -> None:
    """ONNX's indices are int64, which MIL does not have; int32 is no dtype of the engine's ports."""
    x = hx.input("x", (4, 9), "fp16")
    values, indices = hx.topk(x, k=3, dtype=dtype)
    first = hx.reduce_argmin(x, axis=1, dtype=dtype)
    mil = program(hx.graph({"v": values, "i": indices, "first": first}))
    assert {port.user_name: port.dtype.name for port in mil.outputs} == {"v": "fp16", "i": "uint16", "first": "uint16"}
    assert "cast(" not in mil.text
    assert_read_back(mil)
    with pytest.raises(Error, match="int64"):
        program(hx.graph(hx.gather_along_axis(x, hx.cast(indices, dtype="int64"), axis=1)))


def test_truths_pass_as_numbers() -> None:
    mask, x = hx.input("mask", (4, 9), "bool"), hx.input("x", (4, 9), "fp16")
    mil = program(hx.graph({"y": hx.select(mask, x, 0.0), "less": hx.less(x, 1.0), "mask_again": mask}))
    assert {p.user_name: p.dtype.name for p in (*mil.inputs, *mil.outputs)} == dict.fromkeys(
        ("mask", "x", "y", "less", "mask_again"), "fp16"
    )
    assert_read_back(mil)


def test_every_form_has_its_row_of_arguments() -> None:
    assert READ.keys() == parameters().keys()
    assert WRITE.keys() <= USER_OPS.keys()


def test_ports_are_sorted_by_names_that_mil_has() -> None:
    x, y = hx.input("z/in put:0", (1, 4), "fp16"), hx.input("9", (1, 4), "fp16")
    mil = program(hx.graph({"relu": hx.relu(x), "Ü": hx.add(x, y), "add": hx.abs(y), "fp16": hx.neg(x)}))
    assert [(p.name, p.user_name) for p in mil.inputs] == [("_9", "9"), ("z_in_put_0", "z/in put:0")]
    assert [(p.name, p.user_name) for p in mil.outputs] == [
        ("_", "Ü"),
        ("add_0", "add"),
        ("fp16_0", "fp16"),
        ("relu_0", "relu"),
    ]
    assert "-> (_, add_0, fp16_0, relu_0);" in mil.text
    assert_read_back(mil)


def test_names_that_become_equal_are_told_apart() -> None:
    inputs = [hx.input(name, (2,), "fp16") for name in ("a b", "a_b", "a.b", "a_b_1")]
    mil = program(hx.graph({"y": hx.concat(*inputs, axis=0)}))
    assert len({p.name for p in mil.inputs}) == 4
    assert_read_back(mil)


def test_an_output_that_is_an_input_or_another_output_is_computed() -> None:
    x = hx.input("x", (1, 4), "fp16")
    y = hx.relu(x)
    mil = program(hx.graph({"same": x, "y": y, "again": y, "once_more": y}))
    assert len({p.value for p in mil.graph.outputs} - set(mil.graph.inputs)) == 4
    assert_read_back(mil)


def test_numbers_that_text_cannot_say_are_in_the_file() -> None:
    x = hx.input("x", (1, 4), "fp16")
    odd = np.array([np.inf, -np.inf, np.nan, -0.0], np.float16)
    mil = program(hx.graph({"y": hx.maximum(x, odd), "z": hx.minimum(x, np.float16(np.inf))}))
    assert "inf" not in mil.text
    assert "nan" not in mil.text
    assert_read_back(mil)


def test_weights_of_ten_elements_are_in_the_text_and_more_are_in_the_file() -> None:
    x = hx.input("x", (1, 11), "fp16")
    few, many = np.arange(1, 11, dtype=np.float16), np.arange(11, dtype=np.float16)
    mil = program(hx.graph({"y": hx.add(x, many), "z": hx.concat(x, few[None], axis=1)}))
    assert mil.text.count("BLOBFILE") == 1
    assert len(mil.weights) == 64 + 64 + 22


def test_equal_constants_are_one() -> None:
    x, w = hx.input("x", (1, 8, 1, 16), "fp16"), np.ones((8, 8, 1, 1), np.float16)
    mil = program(hx.graph({"y": hx.conv(hx.relu(hx.conv(x, w)), w.copy())}))
    assert mil.text.count("BLOBFILE") == 1
    assert mil.text.count("= const()") == mil.text.count('string("const_0")') + 4  # strides, pad_type, pad, groups


def test_a_state_is_refused() -> None:
    state = hx.state("cache", (4, 2), "fp16")
    with pytest.raises(Error, match="state 'cache': got a state"):
        program(hx.graph({"y": hx.relu(state)}))


def test_params_are_constants() -> None:
    x = hx.input("x", (1, 4), "fp16")
    mil = program(hx.graph({"y": hx.add(x, hx.param("p", np.arange(4, dtype=np.float16)))}))
    assert [node.op for node in mil.graph.nodes] == ["input", "const", "add"]
    assert_read_back(mil)


@pytest.mark.parametrize(("dtype", "ends"), [("uint8", (-1, 5)), ("uint8", (3, 300)), ("int8", (-200.5, 200))])
def test_ends_of_a_clip_beyond_its_integers_are_read_back(dtype: str, ends: tuple[float, float]) -> None:
    x = hx.input("x", (7,), dtype)
    mil = program(hx.graph({"y": hx.clip(x, alpha=ends[0], beta=ends[1])}))
    again = load_mil(mil.text, mil.weights)
    given = np.array([0, 1, 3, 4, 5, 100, 127], dtype)
    got = hx.compile(again)(given)
    np.testing.assert_array_equal(got, np.clip(given.astype(np.float64), *ends).astype(dtype))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("op", ["equal", "greater", "reduce_argmax"])
def test_ports_in_dtypes_that_mil_lacks_are_refused_by_name(op: str, dtype: str) -> None:
    """Results of comparisons are bool, and positions uint16, so that the result alone does not tell."""
    x = hx.input("x", (3, 5), dtype)
    y = hx.reduce_argmax(x, axis=1, dtype="uint16") if op == "reduce_argmax" else FUNCTIONS[op](x, 3)
    with pytest.raises(Error, match=rf"\[emit\] {op}"):
        program(hx.graph(y))


@pytest.mark.parametrize("op", USER_OPS.values(), ids=lambda op: op.name)
def test_the_examples_in_wide_dtypes_are_read_back_or_refused(op: Op) -> None:
    for case, dtype in product(op.cases, ("int64", "uint64", "uint32", "fp64", "bf16")):
        shapes = case.shapes or [None if a is None else np.shape(a) for a in case.arrays]
        tensors = [None if s is None else hx.input(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
        try:
            results = FUNCTIONS[op.name](*tensors, **dict(case.attrs or {}))
            graph = hx.graph(list(results) if isinstance(results, tuple) else results)
        except Error:
            continue  # not of this dtype
        try:
            assert_read_back(program(graph))
        except Error as error:
            found = str(error)
        else:
            found = "[emit]"
        assert found.startswith("[emit]")


@pytest.mark.parametrize("ends", [(0.5, 2.5), (-1.5, 2.5), (-2.5, -0.5), (-300.0, -200.0)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_a_clip_of_integers_is_one_everywhere(dtype: str, ends: tuple[float, float]) -> None:
    """Folded, the ends were truncated; on the host they were rounded inwards, and of uint32 a negative end wrapped."""
    limits = np.iinfo(dtype)
    low, high = (min(max(n, limits.min), limits.max) for n in (math.ceil(ends[0]), math.floor(ends[1])))
    given = np.arange(8).astype(dtype) if limits.min == 0 else np.arange(-4, 4).astype(dtype)
    want = [min(max(int(n), low), high) for n in given]
    x = hx.input("x", (8,), dtype)
    graph = hx.graph({"y": hx.clip(x, alpha=ends[0], beta=ends[1])})
    assert hx.compile(graph)(given).tolist() == want
    assert hx.compile(hx.graph({"y": hx.clip(hx.const(given), alpha=ends[0], beta=ends[1])}))().tolist() == want
    if dtype in ("int8", "uint8", "int32"):
        mil = program(graph)
        assert_read_back(mil)
        assert hx.compile(load_mil(mil.text, mil.weights))(given).tolist() == want


@pytest.mark.parametrize("ends", [(0.5, 0.5), (1.0, 1.00001)])
def test_a_clip_whose_ends_are_one_number_is_a_maximum_and_a_minimum(ends: tuple[float, float]) -> None:
    """MIL's own clip needs alpha < beta: coremltools refuses a package with another one."""
    x = hx.input("x", (1, 4))
    mil = program(hx.graph({"y": hx.clip(x, alpha=ends[0], beta=ends[1])}))
    assert " clip(" not in mil.text
    given = np.float32([[-2, 0.5, 1, 7]])
    np.testing.assert_array_equal(hx.compile(load_mil(mil.text, mil.weights))(given), np.clip(given, *np.float16(ends)))


def test_a_clip_of_constants_keeps_integers_beyond_2_to_53() -> None:
    given = np.array([2**53 + 1, -(2**53) - 1, 7])
    made = hx.compile(hx.graph({"y": hx.clip(hx.const(given), alpha=-(2.0**60), beta=2.0**60)}))
    assert made().tolist() == given.tolist()


def test_a_clip_between_two_integers_is_refused() -> None:
    with pytest.raises(Error, match=r"clip.*got alpha 0.2 and beta 0.8, need an integer between them"):
        hx.clip(hx.input("x", (4,), "int32"), alpha=0.2, beta=0.8)


def test_depth_to_space_of_int64_is_refused_by_name() -> None:
    x = hx.input("x", (1, 4, 2, 2), "int64")
    with pytest.raises(Error, match=r"\[emit\] depth_to_space: got int64\[1, 4, 2, 2\]"):
        program(hx.graph(hx.depth_to_space(x, block_size=2)))
