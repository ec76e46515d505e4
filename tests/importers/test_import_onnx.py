"""ONNX models become graphs: free dims, control flow, functions, constants; what is refused, and how."""

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import hexane as hx
from compare import assert_matches
from hexane.errors import Error
from hexane.importers.onnx import ReadModel, SpecialisationNeeded, import_onnx, signature
from hexane.importers.onnx.handlers import constants
from hexane.importers.onnx.tensors import read_tensor
from onnx_models import by_onnxruntime, ints, model, node, rand, run

NEWEST = onnx.defs.onnx_opset_version()


def free(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)


def test_free_dims_are_asked_for_all_at_once():
    proto = model([node("Add", "x y", "z")], {"x": free("x", "n", 3), "y": free("y", None, 3)}, ["z"])
    with pytest.raises(SpecialisationNeeded, match="--input-shape x:1x3") as error:
        import_onnx(proto)
    assert error.value.names == ("x", "y")
    assert run(import_onnx(proto, shapes={"x": (2, 3), "y": (1, 3)}), rand(2, 3), rand(1, 3))["z"].shape == (2, 3)


def test_dims_of_one_name_are_given_once():
    proto = model([node("Add", "x y", "z")], {"x": free("x", "n", 3), "y": free("y", "n", 3)}, ["z"])
    assert import_onnx(proto, shapes={"x": (5, 3)}).inputs[1].shape == (5, 3)
    with pytest.raises(Error, match=r"'y': got the shape 4x3, need 5x3"):
        import_onnx(proto, shapes={"x": (5, 3), "y": (4, 3)})


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 1), (-1, 3)], ids=str)
def test_a_shape_that_contradicts_the_model_is_refused(shape):
    with pytest.raises(Error, match=r"\[import\] input 'x'"):
        import_onnx(model([node("Relu", "x", "y")], {"x": free("x", "n", 3)}, ["y"]), shapes={"x": shape})


def test_an_input_nobody_knows_is_refused():
    with pytest.raises(Error, match="got the input 'z', need one of x"):
        import_onnx(model([node("Relu", "x", "y")], {"x": rand(3)}, ["y"]), shapes={"z": (1,)})


def test_a_value_computed_from_an_input_asks_for_that_input():
    proto = model(
        [node("Cast", "n", "m", to=7), node("Concat", "m two", "shape", axis=0), node("Reshape", "x shape", "y")],
        {"x": rand(2, 3), "n": np.int32([3])},
        ["y"],
        {"two": ints(2)},
    )
    assert [(i.name, i.free, i.shape_input) for i in signature(proto).specialisation] == [("n", False, True)]
    graph = import_onnx(proto, values={"n": np.int32([3])})
    assert graph.input_names() == ["x"]
    assert run(graph, rand(2, 3))["y"].shape == (3, 2)


def test_shapes_computed_from_shapes_vanish():
    """The view(x.size(0), -1) of exporters: Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n zeros", "n1"),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    proto = model(nodes, {"x": free("x", "n", 3, 4)}, ["y"], {"zero": np.int64(0), "zeros": ints(0), "rest": ints(-1)})
    graph = import_onnx(proto, shapes={"x": (2, 3, 4)})
    assert [n.op for n in graph.nodes] == ["input", "reshape"]


def test_int64_stays_int64():
    proto = model([node("Add", "x c", "y")], {"x": ints(1)}, ["y"], {"c": ints(2**40)})
    assert run(import_onnx(proto), ints(1))["y"].tolist() == [2**40 + 1]


def test_declared_inner_and_output_shapes_are_not_believed():
    proto = model([node("Relu", "x", "y")], {"x": rand(2, 3)}, ["y"])
    proto.graph.output[0].CopyFrom(free("y", 7, 7, 7))
    assert import_onnx(proto).outputs[0].value.shape == (2, 3)


def test_an_initializer_that_is_also_an_input_is_a_constant():
    proto = model([node("Add", "x c", "y")], {"x": rand(3), "c": rand(3)}, ["y"], {"c": rand(3)})
    assert import_onnx(proto).input_names() == ["x"]


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("free_dim", [False, True])
def test_an_input_with_an_initializer_may_be_given_by_name(ir_version: int, free_dim: bool) -> None:
    x, default, other = rand(3), rand(3), np.float32([5, 6, 7])
    inputs = {"c": rand(3), "x": free("x", "n") if free_dim else x}
    proto = model([node("Add", "x c", "y")], inputs, ["y"], {"c": default})
    proto.ir_version = ir_version
    net = hx.compile(proto, threads=1)
    assert [p.name for p in net.inputs] == ["x"]
    assert [p.name for p in net.optional_inputs] == ["c"]
    assert not getattr(net, "value_inputs", ())
    for given, want in (((x,), x + default), (({"x": x, "c": other},), x + other)):
        np.testing.assert_array_equal(net(*given), want)
    np.testing.assert_array_equal(net(x, c=other), x + other)
    np.testing.assert_array_equal(net(x=x, c=-other), x - other)
    bound = net.bind(x=x, c=other)
    bound()
    np.testing.assert_array_equal(bound.outputs["y"], x + other)
    with pytest.raises(Error, match="input 'c'"):
        net(x, c=np.float32([1, 2]))
    with pytest.raises(Error, match="got the inputs x, d, need x"):
        net(x, d=other)


def test_an_input_with_an_initializer_is_another_constant_where_its_value_is_given() -> None:
    proto = model([node("Add", "x c", "y")], {"x": rand(3), "c": rand(3)}, ["y"], {"c": rand(3)})
    net = hx.compile(proto, input_values={"c": np.float32([1, 2, 3])})
    np.testing.assert_array_equal(net(rand(3)), rand(3) + np.float32([1, 2, 3]))
    assert not net.optional_inputs
    assert import_onnx(proto, shapes={"c": (3,)}).input_names() == ["x", "c"]
    with pytest.raises(Error, match="got a value of int64, need fp32"):
        import_onnx(proto, values={"c": ints(1, 2, 3)})


def test_an_input_with_an_initializer_that_decides_shapes_is_given_by_its_value() -> None:
    proto = model([node("Reshape", "x s", "y")], {"x": rand(2, 3), "s": ints(3, 2)}, ["y"], {"s": ints(3, 2)})
    net = hx.compile(proto)
    assert [net(rand(2, 3), **given).shape for given in ({}, {"s": ints(-1, 1)}, {"s": ints(6, 1)})] == [
        (3, 2),
        (6, 1),
        (6, 1),
    ]


def test_an_output_may_be_an_input_or_a_constant():
    found = run(import_onnx(model([], {"x": rand(2)}, ["x", "c"], {"c": np.arange(3.0)})), rand(2))
    np.testing.assert_array_equal(found["x"], rand(2))
    assert found["c"].tolist() == [0, 1, 2]


def test_nodes_may_come_in_any_order():
    proto = model([node("Neg", "y", "z"), node("Relu", "x", "y")], {"x": rand(5)}, ["z"])
    np.testing.assert_array_equal(run(import_onnx(proto), rand(5))["z"], -np.maximum(rand(5), 0))


def test_a_node_keeps_its_name_as_source():
    proto = model([node("Relu", "x", "y", name="first"), node("Neg", "y", "z")], {"x": rand(5)}, ["z"])
    assert [n.source for n in import_onnx(proto).nodes] == ["x", "first", "Neg#1"]


def test_unsupported_nodes_are_reported_all_at_once():
    nodes = [
        node("StringNormalizer", "x", "a", name="places"),
        node("Neg", "a", "b"),
        node("Secret", "x", "c", domain="my.ops"),
        node("MaxPool", "x", "d indices", kernel_shape=[2] * 3, storage_order=1, name="pool"),
    ]
    with pytest.raises(Error) as error:
        import_onnx(model(nodes, {"x": rand(1, 3, 3, 3, 3)}, ["b", "c", "d", "indices"]))
    assert str(error.value).splitlines() == [
        "[import] 3 nodes cannot be imported:",
        "  places: StringNormalizer (opset 17): Hexane has no such op yet",
        (
            "  Secret#2: my.ops.Secret (opset ?): got an op of the domain 'my.ops', need standard ONNX ops; export the"
            " model again with ops of ONNX, or with a function of this name in the file"
        ),
        (
            "  pool: MaxPool (opset 17): got the output Indices for fp32[1, 3, 3, 3, 3] with storage_order 1, need"
            " floats, of two axes for 1"
        ),
    ]


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_chooses_its_branch(condition):
    """Branches see the names around them."""
    then_branch, else_branch = (
        helper.make_graph([node(op, "x", f"{op}_out")], op, [], [helper.make_empty_tensor_value_info(f"{op}_out")])
        for op in ("Neg", "Exp")
    )
    proto = model(
        [node("If", "c", "y", then_branch=then_branch, else_branch=else_branch)],
        {"x": rand(4)},
        ["y"],
        {"c": np.array(condition)},
    )
    assert_matches(run(import_onnx(proto), rand(4))["y"], -rand(4) if condition else np.exp(rand(4)))


def body(nodes: Sequence[onnx.NodeProto], inputs: str, outputs: str) -> onnx.GraphProto:
    ports = [[helper.make_empty_tensor_value_info(name) for name in names.split()] for names in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *ports)


@pytest.mark.parametrize(("count", "most", "steps"), [(3, 9.0, 3), (9, 4.0, 4)])
def test_a_loop_of_known_length_is_unrolled(count: int, most: float, steps: int) -> None:
    """Until the trip count, or until a condition that is known says stop; the body sees the names around it."""
    inner = body(
        [node("Mul", "v scale", "w"), node("Add", "i one", "j"), node("Cast", "j", "k", to=1), node("Less", "k most", "on"),
         node("Identity", "w", "out")],
        "i go v", "on w out",
    )  # fmt: skip
    constants = {
        "n": ints(count),
        "go": np.array(True),
        "scale": np.float32(0.5),
        "one": np.int64(1),
        "most": np.float32(most),
    }
    proto = model([node("Loop", "n go x", "y ys", body=inner)], {"x": rand(3)}, ["y", "ys"], constants)
    found = run(import_onnx(proto), rand(3))
    assert_matches(found["y"], rand(3) * np.float32(0.5**steps))
    assert_matches(found["ys"], np.stack([rand(3) * np.float32(0.5 ** (i + 1)) for i in range(steps)]))


@pytest.mark.parametrize("shape", [(2, 3), (3,), ()])
def test_a_computed_condition_selects_between_both_branches(shape: tuple[int, ...]) -> None:
    then = helper.make_graph([node("Neg", "x", "t")], "then", [], [helper.make_empty_tensor_value_info("t")])
    other = helper.make_graph([node("Exp", "x", "e")], "else", [], [helper.make_empty_tensor_value_info("e")])
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s zero", "c"),
             node("If", "c", "y", then_branch=then, else_branch=other)]  # fmt: skip
    proto = model(nodes, {"x": rand(*shape)}, ["y"], {"zero": np.float32(0)})
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.Model)
    for sign in (1, -1):
        x = np.asarray(sign * np.abs(rand(*shape)), np.float32)
        assert_matches(net(x), by_onnxruntime(proto, {"x": x})[0])


def test_branches_of_two_shapes_need_a_condition_that_is_known():
    branches = {
        f"{name}_branch": helper.make_graph(
            [node("Flatten", "x", "t", axis=axis)], name, [], [helper.make_empty_tensor_value_info("t")]
        )
        for name, axis in (("then", 0), ("else", 1))
    }
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Cast", "s", "c", to=9), node("If", "c", "y", **branches)]
    with pytest.raises(Error, match=r"branches of fp32\[1, 6\] and fp32\[2, 3\] for a condition that is computed"):
        import_onnx(model(nodes, {"x": rand(2, 3)}, ["y"]))


def test_a_loop_whose_condition_is_computed_is_one_op():
    inner = body(
        [node("Neg", "v", "w"), node("ReduceSum", "v", "s", keepdims=0), node("Cast", "s", "on", to=9)],
        "i go v",
        "on w",
    )
    proto = model([node("Loop", " go x", "y", body=inner)], {"x": rand(3)}, ["y"], {"go": np.array(True)})
    proto.graph.node[0].input[:] = ["", "go", "x"]
    assert "loop" in import_onnx(proto).ops


def test_nested_loops_without_nodes_stay_finite():
    graph = body([], "i2 go2", "go2")
    for _ in range(3):
        graph = body([helper.make_node("Loop", ["n", "go"], [], body=graph)], "i go1", "go1")
    proto = model(
        [helper.make_node("Loop", ["n", "go"], [], body=graph)],
        {"x": rand(3)},
        ["x"],
        {"n": ints(4000), "go": np.array(True)},
    )
    assert import_onnx(proto).nodes


@pytest.mark.parametrize("back", [0, 1])
def test_scan_reads_slices_and_stacks_results(back: int) -> None:
    inner = body([node("Add", "s v", "t"), node("Mul", "t t", "out")], "s v", "t out")
    attrs = {
        "scan_input_axes": [1],
        "scan_input_directions": [back],
        "scan_output_axes": [1],
        "scan_output_directions": [back],
    }
    proto = model([node("Scan", "start x", "last ys", body=inner, num_scan_inputs=1, **attrs)], {"x": rand(3, 4)}, ["last", "ys"],
                  {"start": np.zeros(3, np.float32)})  # fmt: skip
    found = run(import_onnx(proto), rand(3, 4))
    x = rand(3, 4)[:, ::-1] if back else rand(3, 4)
    squares = np.cumsum(x, 1) ** 2
    assert_matches(found["last"], rand(3, 4).sum(1))
    assert_matches(found["ys"], squares[:, ::-1] if back else squares)


@pytest.mark.parametrize(
    ("shape", "axis", "aligned"), [((3,), 1, (3, 1)), ((4,), None, (4,)), ((2, 3), 0, (2, 3, 1))], ids=str
)
def test_opset_6_broadcasts_from_an_axis(shape, axis, aligned):
    attrs = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    proto = model([node("Add", "x y", "z", **attrs)], {"x": rand(2, 3, 4), "y": rand(*shape)}, ["z"], opset=6)
    found = run(import_onnx(proto), rand(2, 3, 4), rand(*shape))
    np.testing.assert_array_equal(found["z"], rand(2, 3, 4) + rand(*shape).reshape(aligned))


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "message"),
    [
        ("Add", {}, [rand(2, 3), rand(3)], "without broadcast, need equal ones"),
        ("Add", {"broadcast": 1}, [rand(3), rand(2, 3)], "need the second inside the first"),
        ("Dropout", {}, [rand(2, 3)], "is_test: got 0, need inference"),
        ("AveragePool", {"kernel_shape": [2], "pads": [1, 1]}, [rand(1, 1, 5)], "does not say how to count"),
        ("PRelu", {}, [rand(1, 2, 3), rand(3)], "need one for each channel"),
        ("LSTM", {}, [rand(2, 1, 3), rand(1, 8, 3), rand(1, 8, 2)], "need opset 7 or newer"),
    ],
)  # fmt: skip
def test_opset_6_is_refused_where_it_is_vague(op, attrs, inputs, message):
    feeds = {f"i{k}": array for k, array in enumerate(inputs)}
    proto = model([node(op, " ".join(feeds), "y", **attrs)], feeds, ["y"], opset=6)
    with pytest.raises(Error, match=message):
        import_onnx(proto)


def affine(alpha: float | None, calls: Sequence[onnx.NodeProto] = ()) -> onnx.FunctionProto:
    """y = alpha * x + 1, alpha an attribute (5 unless given)."""
    constant = helper.make_node("Constant", [], ["a"])
    constant.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    one = node("Constant", "", "one", value_float=1.0)
    return helper.make_function(
        "mine", "affine", ["x"], ["y"], [constant, one, node("Mul", "x a", "ax"), node("Add", "ax one", "y"), *calls],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
        attribute_protos=[helper.make_attribute("alpha", 5.0)],
    )  # fmt: skip


@pytest.mark.parametrize("attrs", [{}, {"alpha": 2.0}], ids=str)
def test_functions_of_the_model_are_inlined(attrs):
    proto = model([node("affine", "x", "y", domain="mine", **attrs)], {"x": rand(4)}, ["y"], functions=[affine(None)])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert_matches(run(import_onnx(proto), rand(4))["y"], rand(4) * np.float32(attrs.get("alpha", 5.0)) + 1)


def test_a_function_that_calls_itself_is_refused():
    function = affine(None, [node("affine", "y", "again", domain="mine")])
    proto = model([node("affine", "x", "y", domain="mine")], {"x": rand(4)}, ["y"], functions=[function])
    with pytest.raises(Error, match="calls itself"):
        import_onnx(proto)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint4", "bool", "uint16", "float64"]
)
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_initializers_of_every_dtype_keep_their_bits(dtype, raw):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    array = np.array([0, 1, 1, 0, 1], np.int8).astype(kind)
    code = helper.np_dtype_to_tensor_dtype(kind)
    if raw:
        tensor = numpy_helper.from_array(array, "c")
    else:
        tensor = helper.make_tensor("c", code, array.shape, array.astype(np.float32).tolist())
    proto = model([], {"x": rand(1)}, ["c"])
    proto.graph.initializer.append(tensor)
    (port,) = import_onnx(proto).outputs
    assert port.value.node.data.tobytes() == array.tobytes()


def test_a_broadcast_scalar_is_not_materialised():
    proto = model(
        [node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")], {"x": rand(1)}, ["y"], {"s": ints(1 << 26)}
    )
    assert "broadcast_to" in [n.op for n in import_onnx(proto).nodes]


@pytest.mark.parametrize("opset", [0, NEWEST + 1])
def test_an_opset_outside_the_supported_range_is_refused(opset):
    with pytest.raises(Error, match=f"got opset {opset}, need 6 to {NEWEST}"):
        import_onnx(model([], {"x": rand(1)}, ["x"], opset=opset))


def test_an_attribute_that_nothing_reads_is_refused():
    proto = model([node("Transpose", "x", "y", perm=[0], sideways=1)], {"x": rand(1)}, ["y"])
    with pytest.raises(Error, match="got the attribute 'sideways', need one of perm"):
        import_onnx(proto)


def every_kind_of_node() -> onnx.ModelProto:
    """Attributes with and without defaults, a branch, a function of ONNX's own, nodes out of order; any length."""
    then = helper.make_graph([helper.make_node("Neg", ["p"], ["t"], name="then/neg")], "then", [], [empty("t")])
    other = helper.make_graph([helper.make_node("Elu", ["p"], ["e"], alpha=0.5)], "else", [], [empty("e")])
    nodes = [
        helper.make_node("If", ["yes"], ["y"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Transpose", ["x"], ["q"], perm=[1, 0]),
        helper.make_node("Celu", ["q"], ["p"], alpha=2.0),
        helper.make_node("LeakyRelu", ["x"], ["z"]),
    ]
    kinds = [free("x", "n", 3)]
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = helper.make_graph(nodes, "g", kinds, [empty("y"), empty("z")], [yes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def empty(name: str) -> onnx.ValueInfoProto:
    return helper.make_empty_tensor_value_info(name)


def test_a_kept_model_gives_the_graphs_of_one_that_is_read_each_time() -> None:
    model = every_kind_of_node()
    kept = ReadModel(model).kept()
    for length in (4, 1, 7, 4):
        shapes = {"x": (length, 3)}
        assert str(kept.graph(shapes, {})) == str(import_onnx(model, shapes=shapes))


def test_a_kept_model_computes_its_constants_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in Constant nodes, as Paddle's exporter writes them, and what is computed from them."""
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["back"], perm=[1, 0]),
        helper.make_node("Shape", ["x"], ["s"]),  # another constant for each length
        helper.make_node("Cast", ["s"], ["f"], to=1),
        helper.make_node("MatMul", ["x", "back"], ["y"]),
        helper.make_node("Add", ["y", "f"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", [free("x", "n", 3)], [empty("z")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    kept, want = ReadModel(model).kept(), [str(ReadModel(model).kept().graph({"x": (n, 3)}, {})) for n in (4, 9, 4)]
    reads: list[str] = []

    def counted(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
        reads.append(tensor.name)
        return read_tensor(tensor, folder)

    monkeypatch.setattr(constants, "read_tensor", counted)
    assert [str(kept.graph({"x": (n, 3)}, {})) for n in (4, 9, 4)] == want
    assert reads == ["w"]


def test_a_kept_model_keeps_no_constants_of_a_shape() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["mask"]),  # as large as the input
        helper.make_node("Trilu", ["mask"], ["lower"], upper=0),
        helper.make_node("Add", ["x", "lower"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [free("x", "n", 3)], [empty("y")])
    kept = ReadModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).kept()
    kept.graph({"x": (1000, 3)}, {})
    assert kept._nodes is not None
    assert [node.constants for node in kept._nodes] == [None] * 4


def test_a_kept_model_reports_its_problems_again() -> None:
    model = every_kind_of_node()
    model.graph.node[3].attribute.append(helper.make_attribute("slope", 1.0))
    kept, told = ReadModel(model).kept(), []
    for length in (4, 5):
        with pytest.raises(hx.UnsupportedError, match="got the attribute 'slope', need one of alpha") as error:
            kept.graph({"x": (length, 3)}, {})
        told.append(str(error.value))
    assert told[0] == told[1]
