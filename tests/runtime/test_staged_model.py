"""Models whose shapes depend on what they compute, as speech synthesisers have them, next to onnxruntime."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from command import in_this_process
from onnx_models import by_onnxruntime

RNG = np.random.default_rng(11)
WORDS, WIDTH = 30, 8


def build(nodes: list[Any], constants: dict[str, Any], inputs: list[Any], outputs: list[str]) -> onnx.ModelProto:
    """Nodes are (op, inputs, output, attributes)."""
    made = [helper.make_node(op, i.split(), o.split(), **a) for op, i, o, a in nodes]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    ports = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(made, "g", [helper.make_tensor_value_info(*i) for i in inputs], ports, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def synthesiser(*dims: int | str) -> onnx.ModelProto:
    """Each token lasts as many frames as a projection of its embedding says: a VITS in small, with its alignment."""
    f32 = np.float32
    constants = {
        "table": RNG.standard_normal((WORDS, WIDTH)).astype(f32),
        "w": (RNG.standard_normal((WIDTH, 1)) / 2).astype(f32),
        "k": RNG.standard_normal((WIDTH, 4, 8)).astype(f32),
        "zero": np.int64(0), "one": np.int64(1), "last": np.array([-1]), "first": np.array([1]), "least": f32(1),
        "at0": np.array([0]), "at1": np.array([1]), "at2": np.array([2]), "minus": np.array([-1]),
    }  # fmt: skip
    nodes = [
        ("Gather", "table ids", "h", {}),
        ("MatMul", "h w", "d", {}), ("Exp", "d", "e", {}), ("Ceil", "e", "c", {}), ("Max", "c least", "m", {}),
        ("Squeeze", "m last", "frames", {}),
        ("CumSum", "frames one", "ends", {}),
        ("ReduceSum", "frames first", "lengths", {"keepdims": 0}),
        ("Cast", "lengths", "counts", {"to": TensorProto.INT64}),
        ("ReduceMax", "counts", "most", {"keepdims": 0}),
        ("Range", "zero most one", "times", {}),
        ("Cast", "times", "t", {"to": TensorProto.FLOAT}), ("Unsqueeze", "t at0", "tr", {}), ("Unsqueeze", "tr at0", "trr", {}),
        ("Unsqueeze", "ends at2", "er", {}), ("Less", "trr er", "before", {}), ("Cast", "before", "b", {"to": 1}),
        ("Slice", "b at0 minus at1", "prior", {}), ("Pad", "prior pads", "p", {}), ("Sub", "b p", "path", {}),
        ("Transpose", "path", "pt", {"perm": [0, 2, 1]}), ("MatMul", "pt h", "aligned", {}),
        ("Transpose", "aligned", "at", {"perm": [0, 2, 1]}),
        ("ConvTranspose", "at k", "u", {"strides": [4], "pads": [2, 2]}), ("Tanh", "u", "wave", {}),
    ]  # fmt: skip
    constants["pads"] = np.array([0, 1, 0, 0, 0, 0])
    return build(nodes, constants, [("ids", TensorProto.INT64, list(dims))], ["wave", "counts"])


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    return dict(zip([output.name for output in model.graph.output], by_onnxruntime(model, feeds), strict=True))


def check_call(net: Any, model: onnx.ModelProto, **feeds: Any) -> Any:
    got, need = net(**feeds), reference(model, feeds)
    for name, array in need.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape, name
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    return got


def tokens(rows: int, length: int) -> Any:
    return RNG.integers(0, WORDS, (rows, length))


@pytest.mark.parametrize("dims", [(1, 7), (1, "t"), ("b", "t")])
def test_speech_is_as_long_as_its_durations(dims: tuple[int | str, ...]) -> None:
    model = synthesiser(*dims)
    net = hx.compile(model)
    assert isinstance(net, hx.StagedModel)
    assert net.output_names == ("wave", "counts")
    assert [str(port) for port in net.inputs] == [f"ids: int64[{', '.join(map(str, dims))}]"]
    lengths = set()
    for length in (7, 7, 7, 7) if dims[1] == 7 else (3, 7, 1, 7):
        got = check_call(net, model, ids=tokens(2 if dims[0] == "b" else 1, length))
        lengths.add(got["wave"].shape)
    assert len(lengths) > 1
    assert net.memory["weights"] > 0
    assert "counts" not in repr(net.inputs)


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_a_chip_synthesises_the_same_number_of_samples() -> None:
    model, x = synthesiser(1, "t"), tokens(1, 9)
    need = reference(model, {"ids": x})
    got: Any = hx.compile(model, target="M4")(ids=x)
    np.testing.assert_array_equal(got["counts"], need["counts"])
    np.testing.assert_allclose(got["wave"], need["wave"], atol=0.02)


def chosen() -> onnx.ModelProto:
    """The features above 0 are padded, summed up in windows of 2, and their number decides a range: two cuts."""
    nodes = [
        ("MatMul", "x w", "h", {}),
        ("Greater", "h zero", "is", {}), ("NonZero", "is", "where", {}), ("Transpose", "where", "places", {"perm": [1, 0]}),
        ("GatherND", "h places", "positive", {}),
        ("Pad", "positive pads", "padded", {}),
        ("Unsqueeze", "padded axes", "image", {}), ("Conv", "image k", "pairs", {}),
        ("ReduceSum", "pairs", "total", {"keepdims": 0}), ("Abs", "total", "a", {}), ("Ceil", "a", "n", {}),
        ("Cast", "n", "count", {"to": TensorProto.INT64}), ("Range", "from count step", "steps", {}),
    ]  # fmt: skip
    constants = {
        "w": RNG.standard_normal((5, 6)).astype(np.float32), "zero": np.float32(0), "pads": np.array([1, 1]),
        "axes": np.array([0, 1]), "k": np.full((1, 1, 2), 0.5, np.float32), "from": np.int64(0), "step": np.int64(1),
    }  # fmt: skip
    return build(nodes, constants, [("x", TensorProto.FLOAT, ["n", 5])], ["pairs", "steps", "positive"])


def test_parts_of_parts_are_compiled_for_what_they_get() -> None:
    model = chosen()
    net = hx.compile(model)
    assert isinstance(net, hx.StagedModel)
    for rows in (4, 2, 6, 4, 4):
        check_call(net, model, x=RNG.standard_normal((rows, 5)).astype(np.float32) * 3)


def test_both_parts_see_the_same_draw() -> None:
    nodes = [
        ("RandomNormal", "", "r", {"shape": [6], "seed": 3.0}),
        ("Add", "x r", "y", {}), ("MatMul", "y w", "d", {}), ("Exp", "d", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Add", "n one", "most", {}), ("Range", "zero most one", "s", {}),
        ("Cast", "s", "f", {"to": 1}), ("Unsqueeze", "f at1", "column", {}), ("Add", "column r", "shifted", {}),
    ]  # fmt: skip
    constants = {"w": np.full(6, 0.2, np.float32), "one": np.int64(1), "zero": np.int64(0), "at1": np.array([1])}
    net: Any = hx.compile(build(nodes, constants, [("x", TensorProto.FLOAT, [6])], ["r", "shifted"]))
    draws = []
    for _ in range(3):
        got = net(np.zeros(6, np.float32))
        count = int(np.exp(0.2 * got["r"].sum())) + 1
        np.testing.assert_array_equal(got["shifted"], np.arange(count, dtype=np.float32)[:, None] + got["r"])
        draws.append(got["r"].tobytes())
    assert len(set(draws)) == 3


def test_the_second_part_draws_on_over_all_lengths() -> None:
    nodes = [
        ("Ceil", "x", "n", {}), ("Cast", "n", "most", {"to": TensorProto.INT64}), ("Range", "zero most one", "s", {}),
        ("Cast", "s", "f", {"to": 1}), ("Unsqueeze", "f at1", "column", {}),
        ("RandomNormal", "", "r", {"shape": [2], "seed": 3.0}), ("Add", "column r", "y", {}),
    ]  # fmt: skip
    constants = {"one": np.int64(1), "zero": np.int64(0), "at1": np.array([1])}
    net: Any = hx.compile(build(nodes, constants, [("x", TensorProto.FLOAT, [])], ["y"]))
    draws = [net(np.float32(length))[0] for length in (2, 3, 2, 4)]
    assert len({draw.tobytes() for draw in draws}) == 4
    net.reset_state()
    np.testing.assert_array_equal(net(np.float32(3))[0], draws[0])


def drawing(nodes: list[Any], **constants: Any) -> onnx.ModelProto:
    """Nodes that draw `r`, three numbers of no input: their sum decides the rows of an output, to which they are
    added."""
    nodes = [
        *nodes,
        ("Add", "x r", "y", {}), ("MatMul", "y w", "d", {}), ("Exp", "d", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Add", "n one", "most", {}), ("Range", "zero most one", "s", {}),
        ("Cast", "s", "f", {"to": 1}), ("Unsqueeze", "f at1", "column", {}), ("Add", "column r", "shifted", {}),
    ]  # fmt: skip
    constants |= {"w": np.full(3, 0.2, np.float32), "one": np.int64(1), "zero": np.int64(0), "at1": np.array([1])}
    return build(nodes, constants, [("x", TensorProto.FLOAT, [3])], ["shifted"])


def subgraph(inputs: str, outputs: str, *nodes: Any) -> onnx.GraphProto:
    """Names are tensors of three floats, or of one number where they begin with i (int64) or c (bool)."""
    kinds = {"i": (TensorProto.INT64, []), "c": (TensorProto.BOOL, [])}

    def ports(names: str) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, *kinds.get(name[0], (TensorProto.FLOAT, [3]))) for name in names.split()
        ]

    made = [helper.make_node(op, i.split(), o.split(), **a) for op, i, o, a in nodes]
    return helper.make_graph(made, "body", ports(inputs), ports(outputs))


@pytest.mark.parametrize("place", ["If", "Loop", "Dropout"])
def test_both_parts_see_the_same_draw_of_a_subgraph(place: str) -> None:
    draw = ("RandomNormal", "", "drawn", {"shape": [3]})
    if place == "If":
        branches = {"then_branch": subgraph("", "drawn", draw), "else_branch": subgraph("", "drawn", draw)}
        model = drawing([("If", "yes", "r", branches)], yes=np.array(True))
    elif place == "Loop":
        body = subgraph("i c sum", "c2 sum2", draw, ("Add", "sum drawn", "sum2", {}), ("Identity", "c", "c2", {}))
        model = drawing(
            [("Loop", "trips yes start", "r", {"body": body})],
            trips=np.int64(2), yes=np.array(True), start=np.zeros(3, np.float32),
        )  # fmt: skip
    else:
        ones = np.array([1, 2, 4], np.float32)
        model = drawing([("Dropout", "ones half yes", "r", {})], ones=ones, half=np.float32(0.5), yes=np.array(True))
    net: Any = hx.compile(model)
    assert isinstance(net, hx.StagedModel)
    rows = set()
    for _ in range(8):
        got = net(np.zeros(3, np.float32))
        assert len(got) == int(np.exp(0.2 * got[0].astype(np.float64).sum())) + 1
        rows.add(got[0].tobytes())
    assert len(rows) > 1


def scaled(*dims: int | str) -> onnx.ModelProto:
    """A count that the network computes, times an input with a default, which the count depends on too."""
    nodes = [
        ("Mul", "x scale", "s", {}), ("MatMul", "s w", "h", {}), ("ReduceMax", "h", "m", {"keepdims": 0}), ("Exp", "m", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Range", "zero n one", "r", {}), ("Cast", "r", "f", {"to": 1}),
        ("Mul", "f scale", "y", {}),
    ]  # fmt: skip
    constants = {"w": np.full((4, 3), 0.5, np.float32), "scale": np.float32(1), "zero": np.int64(0), "one": np.int64(1)}
    inputs = [("x", TensorProto.FLOAT, list(dims)), ("scale", TensorProto.FLOAT, [])]
    return build(nodes, constants, inputs, ["y"])


@pytest.mark.parametrize("dims", [(2, 4), ("n", 4)])
def test_inputs_with_defaults_reach_both_parts(dims: tuple[int | str, ...]) -> None:
    model, x, scale = scaled(*dims), np.full((2, 4), 0.8, np.float32), np.array(2, np.float32)
    plain, need = reference(model, {"x": x})["y"], reference(model, {"x": x, "scale": scale})["y"]
    assert len(plain) != len(need)
    net: Any = hx.compile(model)
    assert isinstance(net, hx.StagedModel)
    for _ in range(2):
        np.testing.assert_array_equal(net(x), plain)
        np.testing.assert_array_equal(net(x, scale=scale), need)
    fixed: Any = hx.compile(model, input_values={"scale": scale})
    np.testing.assert_array_equal(fixed(x), need)
    required: Any = hx.compile(model, input_shapes={"scale": ()})
    assert [port.name for port in required.inputs] == ["x", "scale"]
    np.testing.assert_array_equal(required(x, scale), need)


def test_a_length_of_defaults_alone_is_refused() -> None:
    nodes = [("Exp", "scale", "e", {}), ("Cast", "e", "n", {"to": TensorProto.INT64}), ("ReduceMax", "n", "m", {"keepdims": 0}),
             ("Range", "zero m one", "r", {}), ("Cast", "r", "f", {"to": 1}), ("Add", "f x", "y", {})]  # fmt: skip
    constants = {"scale": np.ones((2, 2), np.float32), "zero": np.int64(0), "one": np.int64(1)}
    inputs = [("x", TensorProto.FLOAT, [1]), ("scale", TensorProto.FLOAT, [2, 2])]
    net: Any = hx.compile(build(nodes, constants, inputs, ["y"]))
    x = np.zeros(1, np.float32)
    np.testing.assert_array_equal(net(x), [0, 1])
    with pytest.raises(hx.UnsupportedError, match="depends on inputs with defaults only, need those as input_values"):
        net(x, scale=np.full((2, 2), 2, np.float32))


def test_an_open_model_goes_on_in_parts_when_a_call_finds_computed_shapes() -> None:
    nodes = [
        ("Reshape", "x shape", "h", {}), ("Mul", "h h", "q", {}), ("ReduceMax", "q", "m", {"keepdims": 0}),
        ("Cast", "m", "n", {"to": TensorProto.INT64}), ("Range", "zero n one", "y", {}),
    ]  # fmt: skip
    constants = {"zero": np.int64(0), "one": np.int64(1)}
    inputs = [("x", TensorProto.FLOAT, ["n", 2]), ("shape", TensorProto.INT64, [2])]
    model = build(nodes, constants, inputs, ["y", "h"])
    net: Any = hx.compile(model)
    for rows, shape in ((3, [2, 3]), (4, [-1, 1]), (3, [2, 3]), (1, [1, 2])):
        x = RNG.standard_normal((rows, 2)).astype(np.float32) * 3
        check_call(net, model, x=x, shape=np.array(shape))
    assert net.device.startswith("cpu")
    assert net.memory["weights"] > 0
    with pytest.raises(hx.UnsupportedError, match="need as many"):
        net(x, np.array([7, 7]))


def test_a_first_call_that_fails_leaves_later_calls_alone() -> None:
    nodes = [
        ("MatMul", "x w", "h", {}), ("ReduceMax", "h", "m", {"keepdims": 0}), ("Exp", "m", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Range", "zero n one", "r", {}), ("Cast", "r", "f", {"to": 1}),
        ("Unsqueeze", "f at1", "c", {}), ("Add", "c q", "cq", {}), ("MatMul", "cq k", "g", {}),
        ("ReduceMax", "g", "most", {"keepdims": 0}), ("Cast", "most", "l", {"to": TensorProto.INT64}),
        ("Range", "zero l one", "y", {}),
    ]  # fmt: skip
    constants = {
        "w": np.full((4, 3), 0.5, np.float32), "k": np.full((2, 2), 0.7, np.float32),
        "zero": np.int64(0), "one": np.int64(1), "at1": np.array([1]),
    }  # fmt: skip
    inputs = [("x", TensorProto.FLOAT, [1, 4]), ("q", TensorProto.FLOAT, ["a", "b"])]
    model = build(nodes, constants, inputs, ["y", "g"])
    net: Any = hx.compile(model)
    x = np.ones((1, 4), np.float32)
    with pytest.raises(hx.UnsupportedError, match="got 5 and 2"):
        net(x, np.ones((1, 5), np.float32))
    check_call(net, model, x=x, q=np.ones((1, 2), np.float32))


def test_both_parts_make_a_sequence_of_its_tensors() -> None:
    nodes = [
        ("MatMul", "x w", "h", {}), ("SplitToSequence", "h", "rows", {"axis": 0, "keepdims": 0}),
        ("SequenceAt", "rows zero", "a", {}), ("ReduceMax", "a", "m", {"keepdims": 0}), ("Exp", "m", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Range", "zero n one", "y", {}), ("SequenceAt", "rows one", "b", {}),
    ]  # fmt: skip
    constants = {"w": np.full((4, 3), 0.5, np.float32), "zero": np.int64(0), "one": np.int64(1)}
    model = build(nodes, constants, [("x", TensorProto.FLOAT, [2, 4])], ["y", "b"])
    check_call(hx.compile(model), model, x=np.ones((2, 4), np.float32))


def test_a_branch_that_reads_a_computed_length_is_in_the_second_part() -> None:
    sides = {
        "then_branch": subgraph("", "t", ("Add", "f m", "t", {})),
        "else_branch": subgraph("", "t", ("Mul", "f m", "t", {})),
    }
    for graph in sides.values():
        graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    nodes = [
        ("MatMul", "x w", "h", {}), ("ReduceMax", "h", "m", {"keepdims": 0}), ("Exp", "m", "e", {}),
        ("Cast", "e", "n", {"to": TensorProto.INT64}), ("Range", "zero n one", "r", {}), ("Cast", "r", "f", {"to": 1}),
        ("Greater", "m half", "c", {}), ("If", "c", "y", sides), ("Neg", "h", "z", {}),
    ]  # fmt: skip
    constants = {"w": np.full((4, 3), 0.5, np.float32), "zero": np.int64(0), "one": np.int64(1), "half": np.float32(1)}
    model = build(nodes, constants, [("x", TensorProto.FLOAT, [1, 4])], ["y", "z"])
    net = hx.compile(model)
    for level in (1, 0.2, 0.9):
        check_call(net, model, x=np.full((1, 4), level, np.float32))


@pytest.mark.parametrize("target", ["host", "M1"])
@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_ports_in_fp16_leave_the_values_between_the_parts_their_range(target: str) -> None:
    model, x = scaled(1, 4), np.full((1, 4), 0.9, np.float16)
    nodes = [
        ("Mul", "m large", "wide", {}), ("Div", "wide large", "back", {}), ("Div", "wide large", "again", {}),
        ("Add", "f again", "z", {}),
    ]  # fmt: skip
    (exp,) = [node for node in model.graph.node if node.op_type == "Exp"]
    exp.input[0] = "back"
    model.graph.node.extend(helper.make_node(op, i.split(), [o]) for op, i, o, _ in nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e6), "large"))
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, ("z", "wide")))
    need = reference(model, {"x": x.astype(np.float32)})
    net: Any = hx.compile(model, io="fp16", target=target)
    assert [str(port) for port in (*net.inputs, *net.optional_inputs)] == ["x: fp16[1, 4]", "scale: fp16[]"]
    for given in (x, x.astype(np.float32)):
        got = net(given)
        assert {array.dtype for array in got.values()} == {np.dtype(np.float16)}
        np.testing.assert_allclose(got["y"], need["y"], rtol=2e-3)
        if target == "host":
            np.testing.assert_allclose(got["z"], need["z"], rtol=2e-3)
            assert np.isinf(got["wide"])
    with pytest.raises(hx.InputError, match="need float32"):
        net(x.astype(np.float64))


def test_threads_call_one_staged_model() -> None:
    model = synthesiser(1, "t")
    net: Any = hx.compile(model)
    inputs = [tokens(1, 2 + i % 5) for i in range(24)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda x: net(ids=x), inputs))
    for x, got in zip(inputs, results, strict=True):
        np.testing.assert_allclose(got["wave"], reference(model, {"ids": x})["wave"], rtol=1e-5, atol=1e-5)
    assert net.submit(ids=inputs[0]).result()["counts"] == results[0]["counts"]


def test_given_shapes_and_values_reach_their_parts() -> None:
    model = synthesiser("b", "t")
    net: Any = hx.compile(model, input_shapes={"ids": (2, 4)})
    check_call(net, model, ids=tokens(2, 4))
    with pytest.raises(hx.InputError, match="need"):
        net(ids=tokens(2, 5))
    with pytest.raises(hx.InputError, match=r"\[call\] inputs: got 2, need 1"):
        net(tokens(1, 4), tokens(1, 4))


def test_what_needs_one_program_is_refused() -> None:
    net: Any = hx.compile(synthesiser(1, "t"))
    with pytest.raises(hx.UnsupportedError, match=r"\[save\] got a model that computes its shapes"):
        net.save("net.hxp")
    with pytest.raises(hx.UnsupportedError, match=r"\[pickle\] got a model that computes its shapes"):
        pickle.dumps(net)


def test_an_unknown_op_is_reported_before_any_part_is_compiled() -> None:
    model = synthesiser(1, 4)
    model.graph.node[-1].op_type = "SoftmaxCrossEntropyLossX"
    with pytest.raises(hx.UnsupportedError, match="2 nodes cannot be imported"):
        hx.compile(model)


def test_commands_run_a_model_in_parts_and_say_why_others_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli, path = in_this_process(capsys), tmp_path / "speech.onnx"
    path.write_bytes(synthesiser(1, "t").SerializeToString())
    ended = cli("run", path, "--input-shape", "ids:1x5", "--output", tmp_path)
    assert ended.code == 0, ended.err
    assert np.load(tmp_path / "wave.npy").ndim == 3
    assert cli("info", path).code == 0
    for command, words in (
        (("run", path, "--input-shape", "ids:1x5", "--profile"), "computes its shapes"),
        (("compile", path, "-o", tmp_path / "s.hxp"), "a plan is one program"),
        (("check", path, "--input-shape", "ids:1x5", "--target", "M4"), "run` take such a model in parts"),
    ):
        ended = cli(*command)
        assert ended.code == 1, ended
        assert words in " ".join(ended.err.split())


def test_weights_that_are_computed_are_no_shapes() -> None:
    """Such a model would be compiled again in each call."""
    nodes = [
        ("MatMul", "w x", "h", {}), ("Squeeze", "h", "scales", {}),
        ("MatMulNBits", "x codes scales", "y", {"K": 16, "N": 4, "bits": 4, "block_size": 16, "domain": "com.microsoft"}),
    ]  # fmt: skip
    constants = {"w": np.ones((4, 6), np.float32), "codes": np.ones((4, 1, 8), np.uint8)}
    model = build(nodes, constants, [("x", TensorProto.FLOAT, [6, 16])], ["y"])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(hx.UnsupportedError, match=r"input 2 is computed at run time .* need a constant$"):
        hx.compile(model)


def test_a_pad_with_a_computed_number() -> None:
    nodes = [("ReduceMax", "x", "most", {"keepdims": 0}), ("Pad", "x pads most", "y", {})]
    model = build(nodes, {"pads": np.array([1, 0, 0, 2])}, [("x", TensorProto.FLOAT, [2, 3])], ["y"])
    net = hx.compile(model)
    for _ in range(2):
        x = RNG.standard_normal((2, 3)).astype(np.float32)
        np.testing.assert_array_equal(net(x), reference(model, {"x": x})["y"])


def in_a_function(model: onnx.ModelProto, collide: bool = False) -> onnx.ModelProto:
    """The model as one node, whose function has the nodes. collide: an initializer has a name like the inliner's."""
    graph = model.graph
    inputs = [*(port.name for port in graph.input), *(tensor.name for tensor in graph.initializer)]
    outputs = [port.name for port in graph.output]
    function = helper.make_function("own", "Whole", inputs, outputs, graph.node, [helper.make_opsetid("", 17)])
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.append(helper.make_node("Whole", inputs, outputs, domain="own"))
    result.functions.append(function)
    result.opset_import.append(helper.make_opsetid("own", 1))
    if collide:
        for suffix in ("h", "most", "h__0", "most__0", "h__1", "most__1"):
            result.graph.initializer.append(numpy_helper.from_array(np.float32(0), suffix))
    return result


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("dims", [(1, 6), (1, "n")])
def test_a_shape_that_is_computed_in_a_function_splits_the_model_too(dims: Any, collide: bool, tmp_path: Path) -> None:
    whole = synthesiser(*dims)
    model = in_a_function(whole, collide)
    onnx.save(model, tmp_path / "m.onnx")
    for source in (model, tmp_path / "m.onnx"):
        net = hx.compile(source)
        for seed in range(3):
            ids = np.random.default_rng(seed).integers(0, WORDS, (1, 6))
            found = net(ids=ids)
            for name, want in reference(whole, {"ids": ids}).items():
                np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-5)
