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
from onnx_models import by_onnxruntime

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def model(
    nodes: list[onnx.NodeProto], *constants: tuple[str, Any], output: str = "y", seq: bool = False, opset: int = 17
) -> Any:
    inits = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants]
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    out = (
        helper.make_tensor_sequence_value_info(output, TensorProto.FLOAT, None)
        if seq
        else helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    )
    graph = helper.make_graph(nodes, "g", [kind], [out], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


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


def tensor_info(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None)


def checked(*nodes: onnx.NodeProto, opset: int = 18, **constants: Any) -> None:
    """The nodes give onnxruntime's numbers."""
    proto = model(list(nodes), *constants.items())
    proto.opset_import[0].version, proto.ir_version = opset, 8
    np.testing.assert_allclose(hx.compile(proto)(X), by_onnxruntime(proto, {"x": X})[0], rtol=1e-6, atol=0)


def mapped(outputs: int = 1) -> onnx.GraphProto:
    """A body that reads a tensor of the sequence, a second input, and the surrounding x."""
    nodes = [node("Mul", ["e", "f"], ["p"]), node("Add", ["p", "x"], ["q"]), node("Neg", ["e"], ["r"])]
    return helper.make_graph(
        nodes, "body", [tensor_info("e"), tensor_info("f")], [tensor_info(n) for n in "qr"[:outputs]]
    )


def test_a_map_applies_its_body_to_each_tensor() -> None:
    checked(
        node("Exp", ["x"], ["n"]), node("SequenceConstruct", ["x", "n", "x"], ["s"]),
        node("SequenceMap", ["s", "n"], ["t", "u"], body=mapped(2)), node("SequenceInsert", ["t", "n"], ["v"]),
        node("ConcatFromSequence", ["v"], ["a"], axis=0), node("ConcatFromSequence", ["u"], ["b"], axis=0),
        node("Concat", ["a", "b"], ["y"], axis=0),
    )  # fmt: skip


def test_a_map_reads_further_sequences_in_step() -> None:
    checked(
        node("SplitToSequence", ["x"], ["s"], axis=0), node("Neg", ["x"], ["n"]),
        node("SplitToSequence", ["n"], ["t"], axis=0), node("SequenceMap", ["s", "t"], ["u"], body=mapped()),
        node("ConcatFromSequence", ["u"], ["y"], axis=1),
    )  # fmt: skip


def test_a_map_of_an_empty_sequence_is_empty() -> None:
    checked(
        node("SequenceEmpty", [], ["s"]), node("SequenceMap", ["s", "x"], ["t"], body=mapped()),
        node("SequenceLength", ["t"], ["n"]), node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Add", ["x", "f"], ["y"]),
    )  # fmt: skip


def test_a_map_of_sequences_of_two_lengths_is_refused() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceConstruct", ["x"], ["t"]),
        node("SequenceMap", ["s", "t"], ["u"], body=mapped()), node("ConcatFromSequence", ["u"], ["y"], axis=0),
    ]  # fmt: skip
    with pytest.raises(hx.Error, match="input 1: got a sequence of 1 tensors, need a tensor or a sequence of 2"):
        hx.compile(model(nodes))


FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, None)


def if_present(name: str) -> onnx.NodeProto:
    """y = -name where the optional value has an element, else x."""
    then = [node("OptionalGetElement", [name], ["g"]), node("Neg", ["g"], ["then"])]
    otherwise = [node("Identity", ["x"], ["else"])]
    branches = {
        "then_branch": helper.make_graph(then, "then", [], [tensor_info("then")]),
        "else_branch": helper.make_graph(otherwise, "else", [], [tensor_info("else")]),
    }
    return node("If", ["has"], ["y"], **branches)


@pytest.mark.parametrize("given", ["x", ""])
def test_an_optional_value_decides_a_branch_at_import(given: str) -> None:
    checked(
        node("Optional", [given] if given else [], ["o"], type=FLOATS), node("OptionalHasElement", ["o"], ["has"]),
        if_present("o"),
    )  # fmt: skip


@pytest.mark.parametrize("inputs", [[], [""], ["c"], ["x"]], ids=str)
def test_any_value_may_be_asked_for_its_element(inputs: list[str]) -> None:
    nodes = [
        node("OptionalHasElement", inputs, ["has"]),
        node("Cast", ["has"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["x", "f"], ["y"]),
    ]
    got = hx.compile(model(nodes, ("c", np.float32(3)), opset=18))(X)
    np.testing.assert_array_equal(got, X * (inputs in (["c"], ["x"])))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (node("OptionalGetElement", ["o"], ["y"]), "got an optional value without an element, need one with"),
        (node("Neg", ["o"], ["y"]), "input 0: got an optional value without an element, need a tensor"),
        (node("SequenceLength", ["o"], ["y"]), "input 0: got an optional value without an element, need a sequence"),
        (node("Identity", ["o"], ["y"]), "output 'y', an optional value without an element, need a tensor"),
    ],
)
def test_an_absent_element_cannot_be_read(last: onnx.NodeProto, message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.compile(model([node("Optional", [], ["o"], type=FLOATS), last]))


@pytest.mark.parametrize("large", [False, True])
def test_a_branch_at_run_time_chooses_between_sequences_of_one_length(large: bool) -> None:
    """Also in branches that are large enough for an op of their own."""
    branches = {}
    for name, first in (("then_branch", "Neg"), ("else_branch", "Exp")):
        nodes = [node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceMap", ["s", "x"], [name], body=mapped())]
        chain = [node(first, ["x"], ["c0"]), *(node("Tanh", [f"c{i}"], [f"c{i + 1}"]) for i in range(9 * large))]
        made = [*nodes, *chain, node("SequenceInsert", [name, f"c{9 * large}"], [name + "s"])]
        info = helper.make_tensor_sequence_value_info(name + "s", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(made, name, [], [info])
    checked(
        node("ReduceSum", ["x"], ["total"], keepdims=0), node("Greater", ["total", "zero"], ["c"]),
        node("If", ["c"], ["t"], **branches), node("ConcatFromSequence", ["t"], ["y"], axis=0),
        zero=np.float32(0),
    )  # fmt: skip
