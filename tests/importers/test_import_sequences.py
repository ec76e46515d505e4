"""Sequences of tensors in ONNX models: they exist at import only."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from hexane.graph import Array
from hexane.importers.onnx import import_onnx

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def model(nodes: list[onnx.NodeProto], *constants: tuple[str, Any], output: str = "y", seq: bool = False) -> Any:
    inits = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants]
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    out = (
        helper.make_tensor_sequence_value_info(output, TensorProto.FLOAT, None)
        if seq
        else helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    )
    graph = helper.make_graph(nodes, "g", [kind], [out], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def run(*nodes: onnx.NodeProto, **constants: Any) -> Any:
    return hx.compile(model(list(nodes), *constants.items()))(X)


node = helper.make_node


@pytest.mark.parametrize(
    ("attrs", "split", "want"),
    [
        ({"axis": 0}, None, lambda: X.reshape(4, 1, 6)),
        ({"axis": 1, "keepdims": 0}, None, lambda: X.T),
        ({"axis": -1}, np.int64(4), None),
        ({"axis": 0}, np.int64([1, 3]), None),
    ],
)
def test_a_split_sequence_concatenates_to_what_it_was(attrs: dict[str, Any], split: Any, want: Any) -> None:
    inputs, constants = (["x"], {}) if split is None else (["x", "split"], {"split": split})
    join = {"axis": 0, "new_axis": 1} if want else {"axis": attrs["axis"]}
    got = run(
        node("SplitToSequence", inputs, ["s"], **attrs), node("ConcatFromSequence", ["s"], ["y"], **join), **constants
    )
    np.testing.assert_array_equal(got, want() if want else X)


def test_what_is_inserted_and_erased_is_found_at_its_position() -> None:
    got = run(
        node("Neg", ["x"], ["n"]),
        node("Abs", ["n"], ["a"]),
        node("SequenceConstruct", ["x", "a"], ["s"]),
        node("SequenceInsert", ["s", "n", "one"], ["t"]),  # x n a
        node("SequenceErase", ["t", "zero"], ["u"]),  # n a
        node("Identity", ["u"], ["v"]),
        node("SequenceAt", ["v", "last"], ["w"]),
        node("SequenceAt", ["v", "zero"], ["z"]),
        node("Sub", ["w", "z"], ["y"]),
        one=np.int64(1), zero=np.int64(0), last=np.int64(-1),
    )  # fmt: skip
    np.testing.assert_array_equal(got, 2 * X)


@pytest.mark.parametrize(("at", "want"), [(-2, "nxa"), (-1, "xna"), (0, "nxa"), (1, "xna"), (2, "xan")])
def test_a_position_to_insert_at_counts_the_tensors_before(at: int, want: str) -> None:
    got = run(
        node("Neg", ["x"], ["n"]),
        node("Abs", ["x"], ["a"]),
        node("SequenceConstruct", ["x", "a"], ["s"]),
        node("SequenceInsert", ["s", "n", "at"], ["t"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=0),
        at=np.int64(at),
    )
    np.testing.assert_array_equal(got, np.concatenate([{"x": X, "a": X, "n": -X}[name] for name in want]))


def test_a_length_is_a_constant() -> None:
    got = run(
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("SequenceLength", ["s"], ["n"]),
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["x", "f"], ["y"]),
    )
    np.testing.assert_array_equal(got, 4 * X)


def test_a_loop_carries_a_sequence() -> None:
    body = helper.make_graph(
        [node("SequenceInsert", ["s_in", "x"], ["s_out"]), node("Identity", ["cond_in"], ["cond"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("cond_in", TensorProto.BOOL, ()),
            helper.make_tensor_sequence_value_info("s_in", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("cond", TensorProto.BOOL, ()),
            helper.make_tensor_sequence_value_info("s_out", TensorProto.FLOAT, None),
        ],
    )
    got = run(
        node("SequenceEmpty", [], ["e"]),
        node("Loop", ["count", "", "e"], ["s"], body=body),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
        count=np.int64(3),
    )
    np.testing.assert_array_equal(got, np.concatenate([X, X, X]))


def test_an_optional_tensor_is_the_tensor() -> None:
    got = run(
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["has"]),
        node("OptionalGetElement", ["o"], ["g"]),
        node("Neg", ["g"], ["n"]),
        node("Where", ["has", "n", "g"], ["y"]),
    )
    np.testing.assert_array_equal(got, -X)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (lambda: [node("SequenceConstruct", ["x"], ["s"]), node("Relu", ["s"], ["y"])], "input 0: got a sequence of 1"),
        (lambda: [node("SequenceAt", ["x", "p"], ["y"])], "got a tensor, need a sequence"),
        (lambda: [node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "p"], ["y"])], "got 5, need -1..0"),
        (lambda: [node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)], "empty sequence"),
        (lambda: [node("SequenceEmpty", [], ["s"]), node("SequenceErase", ["s"], ["t"]), node("SequenceAt", ["t", "p"], ["y"])],
         "empty sequence"),
        (lambda: [node("SplitToSequence", ["x", "p"], ["s"], axis=0, keepdims=0), node("SequenceAt", ["s", "p"], ["y"])],
         "got 5, need -1..0"),
        (lambda: [node("SequenceConstruct", ["x"], ["s"]), node("LayerNormalization", ["s", "x"], ["y"])], "sequence"),
    ],
)  # fmt: skip
def test_a_sequence_in_the_wrong_place_is_named(nodes: Callable[[], list[onnx.NodeProto]], message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.compile(model(nodes(), ("p", np.int64(5))))


def test_an_output_that_is_a_sequence_is_refused() -> None:
    with pytest.raises(hx.Error, match=r"output 's', a sequence of 2 tensors, need a tensor"):
        hx.compile(model([node("SequenceConstruct", ["x", "x"], ["s"])], output="s", seq=True))


def test_sequences_leave_nothing_in_the_graph() -> None:
    pieces: list[Array] = [X[:2], X[2:]]
    graph = import_onnx(
        model(
            [node("SplitToSequence", ["x", "sizes"], ["s"], axis=0), node("SequenceAt", ["s", "p"], ["y"])],
            ("sizes", np.int64([2, 2])), ("p", np.int64(1)),
        )
    )  # fmt: skip
    assert [n.op for n in graph.nodes if n.op not in ("input", "const")] == ["slice_by_index"]
    np.testing.assert_array_equal(hx.compile(graph)(X), pieces[1])
