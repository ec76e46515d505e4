"""Results as large as the data makes them: capacity and length, from the op to the caller, and what may be done with
them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import hexane as hx
from compare import assert_close
from hexane import _core
from hexane.graph import Array
from hexane.importers.onnx import import_onnx

T = onnx.TensorProto
VALUES = np.array([[3, 0, -1, 2], [0, 0, 5, 0], [1, 7, 0, -2]], np.float32)


def found(x: hx.Tensor) -> hx.Tensor:
    """The elements of x that are not zero."""
    return hx.gather_nd(x, hx.transpose(hx.non_zero(x)[0], perm=(1, 0)))


def onnx_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], opset: int = 21
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info(o) for o in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def const(name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))


# ---- the ops themselves ----


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "u2", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(17,), (3, 5), (2, 3, 1, 7), (4, 0), (1000,)])
def test_non_zero_is_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    indices = hx.non_zero(hx.input("x", shape, x.dtype))[0]
    np.testing.assert_array_equal(hx.compile(indices)(x), np.stack(np.nonzero(x)))


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(1,), (63,), (1000,)])
def test_unique_is_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(-20, 20, shape).astype(dtype)
    if x.dtype.kind == "f":
        x[::7], x[::5] = np.nan, -0.0
    got = hx.compile(list(hx.unique(hx.input("x", shape, x.dtype))[:4]))(x)
    for array, want in zip(got.values(), np.unique(x, True, True, True), strict=True):
        np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unique_slices_are_numpys(axis: int) -> None:
    x = np.random.default_rng(0).integers(0, 2, (4, 9, 2)).astype(np.float32)
    got = hx.compile(list(hx.unique(hx.input("x", x.shape), axis=axis)[:4]))(x)
    for array, want in zip(got.values(), np.unique(x, True, True, True, axis), strict=True):
        np.testing.assert_array_equal(array, want)


def test_unique_without_sorting_keeps_the_order_of_first_appearance() -> None:
    x = np.array([5, 2, 5, 9, 2, 2], np.int32)
    got = list(hx.compile(list(hx.unique(hx.input("x", (6,), "int32"), sorted=False)[:4]))(x).values())
    assert [a.tolist() for a in got] == [[5, 2, 9], [0, 1, 3], [0, 1, 0, 2, 1, 1], [2, 3, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_non_max_suppression_is_that_of_the_onnx_reference(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    batches, classes, count = rng.integers(1, 3), rng.integers(1, 4), rng.integers(1, 40)
    boxes = rng.uniform(0, 1, (batches, count, 4)).astype(np.float32)
    scores = rng.integers(0, 20, (batches, classes, count)).astype(np.float32) / 20  # with ties
    options = np.array([rng.integers(0, 12)]), np.float32([rng.uniform(0, 0.8)]), np.float32([rng.uniform(-0.1, 0.5)])
    names = ["boxes", "scores", "most", "iou", "score"]
    nodes = [
        *(const(name, value) for name, value in zip(names[2:], options, strict=True)),
        helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=int(rng.integers(2))),
    ]
    feeds = {"boxes": boxes, "scores": scores}
    model = onnx_model(nodes, feeds, ["y"])
    np.testing.assert_array_equal(hx.compile(model)(feeds), ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("seed", range(8))
def test_boxes_of_different_kinds_overlap_nothing(seed: int) -> None:
    """Each kind by itself is ONNX's NonMaxSuppression of its boxes."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 40))
    boxes = rng.uniform(0, 1, (2, count, 4)).astype(np.float32)
    scores = rng.permutation(2 * count).astype(np.float32).reshape(2, 1, count)
    kinds = rng.integers(0, 3, (2, count)).astype(np.int32)
    inputs = [hx.input("boxes", boxes.shape), hx.input("scores", scores.shape), hx.input("kinds", kinds.shape, "int32")]
    rows = hx.compile(hx.non_max_suppression(*inputs, max_output=count, iou_threshold=0.3)[0])(boxes, scores, kinds)
    options = np.array([count]), np.float32([0.3])
    want = []
    for batch, kind in np.ndindex(2, 3):
        chosen = np.flatnonzero(kinds[batch] == kind)
        feeds = {"boxes": boxes[batch : batch + 1, chosen], "scores": scores[batch : batch + 1, :, chosen]}
        node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["y"])
        model = onnx_model([*(const(n, v) for n, v in zip(("most", "iou"), options, strict=True)), node], feeds, ["y"])
        found = ReferenceEvaluator(model).run(None, feeds)[0] if chosen.size else np.zeros((0, 3), np.int64)
        want += [(batch, 0, chosen[i]) for i in found[:, 2]]
    want.sort(key=lambda row: (row[0], -scores[row[0], 0, row[2]]))
    np.testing.assert_array_equal(rows, np.array(want))


def test_kinds_are_one_for_each_box() -> None:
    inputs = [hx.input("boxes", (1, 3, 4)), hx.input("scores", (1, 1, 3)), hx.input("kinds", (3,), "int32")]
    with pytest.raises(hx.Error, match=r"got kinds \(3,\), need \(1, 3\)"):
        hx.non_max_suppression(*inputs, max_output=2)


def test_a_kernel_fills_what_is_not_valid_with_zeros() -> None:
    call = hx.compile(hx.non_zero(hx.input("x", (3, 4)))[0]).bind(x=VALUES)
    call.outputs["non_zero"][...] = -1
    call()
    length = int(call.outputs["non_zero.length"])
    np.testing.assert_array_equal(call.outputs["non_zero"][:, :length], np.stack(np.nonzero(VALUES)))
    assert not call.outputs["non_zero"][:, length:].any()


# ---- how they reach the caller ----


def test_a_port_says_its_capacity_and_a_call_gives_what_is_valid() -> None:
    net = hx.compile({"y": found(hx.input("x", (3, 4)))})
    assert [str(p) for p in net.outputs] == ["y: fp32[<=12]"]
    for x in (VALUES, np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)):
        got = net(x)
        np.testing.assert_array_equal(got, x[x != 0])
        assert got.base is None  # it does not keep the memory of the capacity


def test_outputs_of_one_length_share_it() -> None:
    x = hx.input("x", (3, 4))
    net = hx.compile({"at": hx.non_zero(x)[0], "y": found(x), "n": hx.non_zero(x)[1]})
    assert [p.length for p in net.outputs] == ["at.length", "at.length", ""]
    got = net(VALUES)
    assert list(got) == ["at", "y", "n"]
    assert got["n"] == got["y"].size == got["at"].shape[1] == 7


def test_a_buffer_of_the_capacity_is_bound_and_its_length_is_an_output() -> None:
    net = hx.compile({"y": found(hx.input("x", (3, 4)))})
    x, y, n = VALUES.copy(), np.empty(12, np.float32), np.empty((), np.int64)
    call = net.bind(x=x, y=y, **{"y.length": n})
    for _ in range(3):
        call()
        np.testing.assert_array_equal(y[:n], x[x != 0])
        x[1] = 0
        x[0] += 1


def test_a_saved_plan_keeps_lengths(tmp_path: Path) -> None:
    net = hx.compile({"at": hx.non_zero(hx.input("x", (3, 4)))[0]})
    net.save(tmp_path / "net.hxp")
    loaded = hx.load(tmp_path / "net.hxp")
    assert loaded.outputs == net.outputs
    np.testing.assert_array_equal(loaded(VALUES), np.stack(np.nonzero(VALUES)))


def test_a_graph_with_lengths_prints_and_reads_back() -> None:
    graph = hx.graph({"y": found(hx.input("x", (3, 4)))})
    assert "y=%" in str(graph)
    assert '[0: "y.length"]' in str(graph)
    again = hx.parse(str(graph), graph.constants())
    assert str(again) == str(graph)
    np.testing.assert_array_equal(hx.compile(again)(VALUES), VALUES[VALUES != 0])


def test_the_name_of_a_length_gives_way_to_the_models_own() -> None:
    x = hx.input("x", (3, 4))
    net = hx.compile({"y": found(x), "y.length": x + 1})
    assert [p.length for p in net.outputs] == ["y.length_", ""]
    assert net(VALUES)["y"].size == 7


@pytest.mark.parametrize("length", [-1, 13])
def test_a_length_outside_of_the_capacity_is_an_error(length: int) -> None:
    x, n = hx.input("x", (12,)), hx.input("n", (), "int64")
    graph = hx.graph({"y": hx.relu(x), "y.length": n + 0})
    ports = (graph.outputs[0]._replace(length="y.length"), graph.outputs[1])
    net = hx.compile(type(graph)(graph.inputs, ports))
    with pytest.raises(hx.Error, match=rf"got the length {length}, need 0\.\.12"):
        net(x=np.ones(12, "f"), n=np.array(length))


def test_lengths_survive_every_pass() -> None:
    """Among convolutions, which move to channels last, and in fp16."""
    image = hx.input("image", (1, 3, 8, 8))
    rng = np.random.default_rng(0)
    x = hx.relu(hx.conv(image, rng.standard_normal((4, 3, 3, 3)).astype(np.float32)))
    data = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    dense = hx.compile(x)(data)
    np.testing.assert_array_equal(hx.compile({"at": hx.non_zero(x)[0]})(data), np.stack(np.nonzero(dense)))
    got = hx.compile({"at": hx.transpose(hx.non_zero(x)[0], perm=(1, 0))}, trim_output_transpose=True)
    np.testing.assert_array_equal(got(data), np.stack(np.nonzero(dense)))
    half = hx.compile({"y": found(x), "at": hx.non_zero(x)[0]}, dtype="fp16")(data)
    assert half["y"].size == half["at"].shape[1] > 0


def test_suppression_runs_beside_fp16() -> None:
    boxes, scores = hx.input("boxes", (1, 9, 4)), hx.input("scores", (1, 2, 9))
    rng = np.random.default_rng(0)
    feeds = {"boxes": rng.uniform(0, 1, (1, 9, 4)).astype("f"), "scores": rng.uniform(0, 1, (1, 2, 9)).astype("f")}
    selected = hx.non_max_suppression(boxes, scores, max_output=3, iou_threshold=0.5)[0]
    assert hx.compile(selected, dtype="fp16")(feeds).shape == hx.compile(selected)(feeds).shape == (6, 3)


# ---- ops behind them ----

CARRIED: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], Callable[[Array], Array]]] = {
    "elementwise": (lambda y: hx.exp(y) * 2 + 1, lambda y: np.exp(y) * 2 + 1),
    "broadcast": (
        lambda y: hx.expand_dims(y, axes=(1,)) * np.ones((1, 3), "f"),
        lambda y: y[:, None] * np.ones((1, 3), "f"),
    ),
    "both": (lambda y: y * hx.exp(y), lambda y: y * np.exp(y)),
    "reshape": (lambda y: hx.reshape(y, shape=(1, -1, 1)), lambda y: y.reshape(1, -1, 1)),
    "cast": (lambda y: hx.cast(y, dtype="int32"), lambda y: y.astype(np.int32)),
    "slice": (lambda y: y[2:5], lambda y: y[2:5]),
    "slice_past": (lambda y: y[5:], lambda y: y[5:]),
    "concat": (
        lambda y: hx.concat(hx.expand_dims(y, axes=(0,)), hx.expand_dims(-y, axes=(0,)), axis=0),
        lambda y: np.stack([y, -y]),
    ),
    "sum": (lambda y: hx.reduce_sum(hx.exp(y), axes=(0,)), lambda y: np.exp(y).sum(keepdims=True)),
    "rows": (
        lambda y: hx.expand_dims(y, axes=(1,)) @ np.full((1, 3), 2, "f"),
        lambda y: y[:, None] @ np.full((1, 3), 2, "f"),
    ),
    "merged": (
        lambda y: hx.reshape(hx.concat(*[hx.expand_dims(y, axes=(1,))] * 3, axis=1), shape=(-1,)),
        lambda y: np.repeat(y, 3),
    ),
    "softmax": (
        lambda y: hx.softmax(hx.concat(*[hx.expand_dims(y, axes=(1,))] * 2, axis=1), axis=1),
        lambda y: np.full((len(y), 2), 0.5, "f"),
    ),
    "cumsum": (lambda y: hx.reduce_max(hx.expand_dims(y, axes=(1,)), axes=(1,), keep_dims=False), lambda y: y),
}


@pytest.mark.parametrize("name", CARRIED)
def test_an_op_that_leaves_the_axis_alone_keeps_to_what_is_valid(name: str) -> None:
    build, numpy = CARRIED[name]
    net = hx.compile(build(found(hx.input("x", (3, 4)))))
    for x in (VALUES, VALUES * [[1], [0], [0]], VALUES * 0, VALUES + 10):
        x = x.astype(np.float32)
        assert_close(net(x), numpy(x[x != 0]).astype(net.outputs[0].dtype.numpy))


def test_gathering_by_what_was_found_does_not_trip_over_the_rest() -> None:
    """Indices behind the valid ones would be out of range: 0 - 4 for 3 rows."""
    x, table = hx.input("x", (6,)), np.arange(6, dtype=np.float32).reshape(3, 2)
    at = hx.reshape(hx.non_zero(x)[0], shape=(6,)) - 4
    got = hx.compile(hx.gather(hx.const(table), at))(np.float32([0, 0, 0, 0, 1, 1]))
    np.testing.assert_array_equal(got, table[[0, 1]])


REFUSED: dict[str, tuple[Callable[[hx.Tensor], Any], str]] = {
    "reduce": (lambda y: hx.reduce_max(y), "reduces along that axis"),
    "mean": (lambda y: hx.reduce_mean(y), "reduces along that axis"),
    "softmax": (lambda y: hx.softmax(y), "works along axis 0"),
    "cumsum": (lambda y: hx.cumsum(y), "works along axis 0"),
    "topk": (lambda y: hx.topk(y, k=2), "works along axis 0"),
    "reverse": (lambda y: y[::-1], "works along axes"),
    "other": (lambda y: y + np.ones(12, "f"), "need an extent of 1 there, or the same length"),
    "others_length": (lambda y: y + found(hx.input("z", (3, 4))), "different lengths, or along different axes"),
    "reshape": (lambda y: hx.reshape(y, shape=(3, 4)), "mixes that axis with others"),
    "index": (lambda y: y[3], "mixes that axis with others"),
    "squeeze": (lambda y: hx.squeeze(y[3:4], axes=(0,)), "removes that axis, which may have length 0"),
    "negative": (lambda y: y[:-1], "whose length is known only at run time, need bounds counted from its start"),
    "steps": (lambda y: y[::2], "in steps of 2"),
    "concat": (lambda y: hx.concat(y, y, axis=0), "would leave gaps between the inputs"),
    "concat_other": (lambda y: hx.concat(y, np.ones(3, "f"), axis=0), "need all inputs with the same length"),
    "gather": (lambda y: hx.gather(y, np.array([0])), "may lie past the length"),
    "matmul": (lambda y: hx.expand_dims(y, axes=(0,)) @ np.ones((12, 2), "f"), "need that axis as the rows of the left operand"),
    "matmul_right": (lambda y: np.ones((2, 1), "f") @ hx.expand_dims(y, axes=(0,)), "need fixed lengths in input 1"),
    "pad": (lambda y: hx.pad(y, begin=(1,), end=(1,)), "not supported for such an input, need a fixed length"),
    "tile": (lambda y: hx.tile(y, reps=(2,)), "not supported for such an input, need a fixed length"),
    "again": (lambda y: hx.non_zero(y), "not supported for such an input, need a fixed length"),
    "scatter": (lambda y: hx.scatter_nd(y, np.array([[0]]), np.ones(1, "f")), "not supported for such an input, need a fixed length"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_op_that_would_mix_in_what_is_not_valid_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(hx.Error, match=rf"^\[\w+ at test_dynamic\.py:\d+\].*{re.escape(message)}"):
        build(found(hx.input("x", (3, 4))))


# ---- ONNX ----


def test_the_coordinates_of_an_onnx_model_gather_what_they_found() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Transpose", ["at"], ["t"]),
        helper.make_node("GatherND", ["x", "t"], ["y"]),
        helper.make_node("Size", ["y"], ["n"]),
        helper.make_node("Shape", ["at"], ["s"]),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]
    model = onnx_model(nodes, {"x": VALUES}, ["at", "y", "n", "s", "sum"])
    got = hx.compile(model)(VALUES)
    for array, want in zip(got.values(), ReferenceEvaluator(model).run(None, {"x": VALUES}), strict=True):
        assert_close(array, np.asarray(want))


@pytest.mark.parametrize("num", [30, 1])
def test_a_detection_head_gathers_the_boxes_it_selected(num: int) -> None:
    """Gather of a column, squeeze, gather of rows: what exporters write behind NonMaxSuppression."""
    rng = np.random.default_rng(0)
    feeds = {"boxes": rng.uniform(0, 1, (1, num, 4)).astype("f"), "scores": rng.uniform(0, 1, (1, 2, num)).astype("f")}
    nodes = [
        const("most", np.array([5])), const("iou", np.float32([0.3])), const("score", np.float32([0.2])),
        const("two", np.array([2])), const("shape", np.array([-1, 4])), const("one", np.array([1])),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["selected"]),
        helper.make_node("Gather", ["selected", "two"], ["column"], axis=1),
        helper.make_node("Squeeze", ["column", "one"], ["index"]),
        helper.make_node("Reshape", ["boxes", "shape"], ["rows"]),
        helper.make_node("Gather", ["rows", "index"], ["chosen"], axis=0),
        helper.make_node("Cast", ["selected"], ["floats"], to=T.FLOAT),
        helper.make_node("Concat", ["floats", "chosen"], ["y"], axis=1),
    ]  # fmt: skip
    model = onnx_model(nodes, feeds, ["y"])
    net = hx.compile(model)
    assert str(net.outputs[0]) == f"y: fp32[<={2 * min(num, 5)}, 7]"
    np.testing.assert_array_equal(net(feeds), ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_compress_takes_a_condition_that_is_computed(axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    feeds = {"x": VALUES, "c": np.array([True, False, True, True])[: 3 if axis == 0 else 4]}
    nodes = [helper.make_node("Not", ["c"], ["d"]), helper.make_node("Compress", ["x", "d"], ["y"], **attrs)]
    model = onnx_model(nodes, feeds, ["y"])
    np.testing.assert_array_equal(hx.compile(model)(feeds), ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize(
    "op", ["NonZero", "Unique"],
)  # fmt: skip
def test_what_is_found_in_a_constant_is_a_constant(op: str) -> None:
    nodes = [const("c", VALUES), helper.make_node(op, ["c"], ["at"]), helper.make_node("Shape", ["at"], ["s"]),
             helper.make_node("Expand", ["x", "s"], ["y"])]  # fmt: skip
    model = onnx_model(nodes, {"x": np.ones(1, "f")}, ["y"])
    assert all(node.op not in ("non_zero", "unique") for node in import_onnx(model).nodes)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Expand", ["x", "s"], ["y"]), "computed at run time"),
        (helper.make_node("ConstantOfShape", ["s"], ["y"]), "computed at run time"),
        (helper.make_node("Range", ["zero", "n", "one"], ["y"]), "computed at run time"),
        (helper.make_node("EyeLike", ["at"], ["y"]), "need a shape that is known at import"),
        (helper.make_node("Resize", ["at", "", "", "s"], ["y"]), "need a shape that is known at import"),
        (helper.make_node("Dropout", ["at"], ["y"]), "need a shape that is known at import"),
        (
            helper.make_node("ReduceMax", ["at"], ["y"]),
            "axis 1 whose length is known only at run time; the op reduces along that axis",
        ),
        (
            helper.make_node("Slice", ["at", "zero1", "minus", "one1"], ["y"]),
            "whose length is known only at run time, need bounds counted from its start",
        ),
        (helper.make_node("ScatterND", ["z", "t", "z"], ["y"]), "need a shape that is known at import"),
    ],
    ids=lambda x: getattr(x, "op_type", ""),
)
def test_what_would_need_the_extent_at_import_is_refused_by_name(node: onnx.NodeProto, message: str) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Transpose", ["at"], ["t"]),
        helper.make_node("Shape", ["at"], ["s"]), helper.make_node("Size", ["at"], ["n"]),
        const("zero", np.array(0)), const("one", np.array(1)), const("zero1", np.array([0])), const("one1", np.array([1])),
        const("minus", np.array([-1])), const("z", np.zeros((12, 2), "f")), node,
    ]  # fmt: skip
    with pytest.raises(hx.Error, match=rf"#\d+: {node.op_type} .*{message}"):
        import_onnx(onnx_model(nodes, {"x": VALUES}, ["y"]))


def test_the_mean_of_integers_of_which_some_are_valid_is_refused() -> None:
    mean = helper.make_node("ReduceMean", ["at", "one"], ["y"])
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), const("one", np.array([1])), mean]
    with pytest.raises(hx.Error, match=r"ReduceMean .*a mean of integers of which only so many are valid along axis 1"):
        import_onnx(onnx_model(nodes, {"x": VALUES}, ["y"]))


def test_the_core_gives_the_capacity_and_where_the_length_is() -> None:
    core = hx.compile({"y": found(hx.input("x", (3, 4)))})._core
    assert [(p["name"], p["shape"], p["length"], p["axis"]) for p in core.outputs] == [
        ("y", (12,), 2, 0),
        ("y.length", (), 0, 0),
    ]
    assert isinstance(core, _core.Program)
