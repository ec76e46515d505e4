"""Loops and branches in packages that Hexane writes: taken by Apple's own tools, and the same bits when read back."""

import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import hexane as hx
from hexane.emit.coreml.package import save_model, write_model
from hexane.emit.coreml.prepare import in_precision
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.coreml.model import open_model
from hexane.importers.onnx import import_onnx

W = np.random.default_rng(5).normal(size=(8, 8)).astype(np.float32) / 3


@pytest.fixture(scope="module")
def accepted() -> Callable[[Path], Any]:
    """Rebuilds a package with coremltools, which checks the types of every op, those of blocks too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apple = pytest.importorskip("coremltools", reason="coremltools is not installed")
    from coremltools.converters.mil.frontend.milproto.load import load

    logging.getLogger("coremltools").setLevel(logging.CRITICAL)

    def rebuild(path: Path) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec = apple.models.MLModel(str(path), skip_model_load=True).get_spec()
        return load(spec, spec.specificationVersion, file_weights_dir=os.fspath(path / "Data/com.apple.CoreML/weights"))

    return rebuild


def info(name: str, dtype: int, shape: list[int]) -> Any:
    return h.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] | None = None) -> bytes:
    graph = h.make_graph(nodes, "g", inputs, outputs, constants or [])
    result = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    result.ir_version = 10
    return bytes(result.SerializeToString())


def written(graph: Graph, folder: Path, compute: str = "fp32", system: int | None = None) -> Path:
    path = folder / "net.mlpackage"
    save_model(write_model({"main": graph}, compute=compute, system=system), path)
    return path


def results(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    given = {n: np.asarray(feeds[n]).astype(v.dtype.numpy).reshape(v.shape)
             for n, v in zip(graph.input_names(), graph.inputs, strict=True)}  # fmt: skip
    got = hx.compile(graph)(**given)
    return dict(got) if isinstance(got, dict) else {graph.outputs[0].name: np.asarray(got)}


def ops(block: Any) -> list[str]:
    """The ops of a block that coremltools rebuilt, with those of blocks in it."""
    return [name for op in block.operations for name in (op.op_type, *(n for inner in op.blocks for n in ops(inner)))]


def check(
    data: bytes, feeds: dict[str, Array], folder: Path, accepted: Callable[[Path], Any], compute: str = "fp32",
    system: int | None = None,
) -> list[str]:  # fmt: skip
    """The package has the bits of the graph and onnxruntime's numbers. Results are the ops that coremltools finds."""
    graph = import_onnx(data)
    path = written(graph, folder, compute, system)
    again = results(open_model(path).graph("main", {}, {}), feeds)
    direct = results(in_precision(graph, compute), feeds)
    wanted = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    close = {"rtol": 1e-5, "atol": 1e-5} if compute == "fp32" else {"rtol": 2e-2, "atol": 2e-2}
    for name, want in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_array_equal(again[name.name], direct[name.name])
        np.testing.assert_allclose(again[name.name].reshape(want.shape), want, **close)
    return ops(accepted(path).functions["main"])


def while_loop() -> bytes:
    """Until the largest element is 1.2 or n steps are done. b is of the graph around it; k sums numbers of steps."""
    body = h.make_graph(
        [
            h.make_node("MatMul", ["s", "W"], ["m"]),
            h.make_node("Tanh", ["m"], ["t"]),
            h.make_node("Add", ["t", "b"], ["s2"]),
            h.make_node("ReduceMax", ["s2"], ["largest"], keepdims=0),
            h.make_node("Less", ["largest", "end"], ["c2"]),
            h.make_node("Add", ["k", "i"], ["k2"]),
            h.make_node("Not", ["odd"], ["odd2"]),
        ],
        "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [2, 8]), info("k", T.INT64, []),
         info("odd", T.BOOL, [])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [2, 8]), info("k2", T.INT64, []), info("odd2", T.BOOL, [])],
        [tensor("W", W), tensor("end", np.float32(1.2))],
    )  # fmt: skip
    loop = h.make_node("Loop", ["n", "go", "x", "k0", "odd0"], ["y", "k", "odd"], body=body)
    return model(
        [h.make_node("Mul", ["x", "tenth"], ["b"]), loop],
        [info("x", T.FLOAT, [2, 8]), info("n", T.INT64, []), info("go", T.BOOL, [])],
        [info("y", T.FLOAT, [2, 8]), info("k", T.INT64, []), info("odd", T.BOOL, [])],
        [tensor("tenth", np.float32(0.1)), tensor("k0", np.int64(0)), tensor("odd0", np.array(False))],
    )


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize(("steps", "go"), [(0, True), (1, True), (7, True), (100, True), (7, False)])
def test_a_loop_with_a_limit_and_a_condition(
    steps: int, go: bool, compute: str, tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    x = np.random.default_rng(steps).normal(size=(2, 8)).astype(np.float32)
    feeds = {"x": x, "n": np.array(steps), "go": np.array(go)}
    found = check(while_loop(), feeds, tmp_path, accepted, compute)
    assert found.count("while_loop") == 1
    assert found.count("cast") <= 5  # those of the ports
    assert {"identity", "matmul", "logical_and"} <= set(found)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_a_scan_is_a_loop_that_carries_its_rows(compute: str, tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    """Rows of floats, and of bools, which no scatter takes."""
    body = h.make_graph(
        [
            h.make_node("MatMul", ["s", "W"], ["m"]),
            h.make_node("Add", ["m", "piece"], ["a"]),
            h.make_node("Tanh", ["a"], ["s2"]),
            h.make_node("Neg", ["s2"], ["row"]),
            h.make_node("Less", ["piece", "a"], ["less"]),
        ],
        "body",
        [info("s", T.FLOAT, [1, 8]), info("piece", T.FLOAT, [1, 8])],
        [info("s2", T.FLOAT, [1, 8]), info("row", T.FLOAT, [1, 8]), info("less", T.BOOL, [1, 8])],
        [tensor("W", W)],
    )
    node = h.make_node(
        "Scan", ["s0", "x"], ["y", "rows", "less"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_output_axes=[-1, 0],
    )  # fmt: skip
    data = model(
        [node], [info("x", T.FLOAT, [1, 512, 8])],
        [info("y", T.FLOAT, [1, 8]), info("rows", T.FLOAT, [1, 8, 512]), info("less", T.BOOL, [512, 1, 8])],
        [tensor("s0", np.zeros((1, 8), np.float32))],
    )  # fmt: skip
    # Steps of a half, whose comparisons fp16 has exactly.
    x = np.random.default_rng(1).integers(-4, 5, (1, 512, 8)).astype(np.float32) / 2
    graph = import_onnx(data)
    assert graph.ops >= {"loop"}
    path = written(graph, tmp_path, compute)
    again, direct = open_model(path).graph("main", {}, {}), in_precision(graph, compute)
    assert again.ops >= {"loop"}
    for name, want in results(direct, {"x": x}).items():
        np.testing.assert_array_equal(results(again, {"x": x})[name], want)
    if compute == "fp32":
        assert "scatter_nd" in check(data, {"x": x}, tmp_path, accepted)
    assert ops(accepted(path).functions["main"]).count("while_loop") == 1


def nested() -> bytes:
    """A loop in a branch in a loop. Both graphs around are read, and one matrix in all three."""
    inner = h.make_graph(
        [h.make_node("MatMul", ["z", "W"], ["p"]), h.make_node("Add", ["p", "s"], ["q"]), h.make_node("Tanh", ["q"], ["z2"]),
         h.make_node("Identity", ["d"], ["d2"])],
        "inner", [info("j", T.INT64, []), info("d", T.BOOL, []), info("z", T.FLOAT, [4, 8])],
        [info("d2", T.BOOL, []), info("z2", T.FLOAT, [4, 8])],
    )  # fmt: skip
    then = h.make_graph(
        [h.make_node("Loop", ["i", "", "s"], ["t"], body=inner)], "then", [], [info("t", T.FLOAT, [4, 8])]
    )
    other = h.make_graph(
        [h.make_node("Softmax", ["s"], ["u0"]), h.make_node("MatMul", ["u0", "W"], ["u"])], "other", [],
        [info("u", T.FLOAT, [4, 8])],
    )  # fmt: skip
    outer = h.make_graph(
        [h.make_node("Mod", ["i", "two"], ["rest"]), h.make_node("Equal", ["rest", "one"], ["is_odd"]),
         h.make_node("If", ["is_odd"], ["s2"], then_branch=then, else_branch=other), h.make_node("Identity", ["c"], ["c2"])],
        "outer", [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [4, 8])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [4, 8])],
    )  # fmt: skip
    return model(
        [h.make_node("Loop", ["n", "", "x"], ["y0"], body=outer), h.make_node("MatMul", ["y0", "W"], ["y"])],
        [info("x", T.FLOAT, [4, 8]), info("n", T.INT64, [])], [info("y", T.FLOAT, [4, 8])],
        [tensor("W", W), tensor("two", np.int64(2)), tensor("one", np.int64(1))],
    )  # fmt: skip


@pytest.mark.parametrize("system", [None, 18])
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_loop_in_a_branch_in_a_loop(
    steps: int, system: int | None, tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    feeds = {"x": np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32), "n": np.array(steps)}
    found = check(nested(), feeds, tmp_path, accepted, system=system)
    # Each block that reads the matrix names it; the file has it once.
    assert open_model(tmp_path / "net.mlpackage").encodings() == [("fp32", 1, W.nbytes)]
    assert (tmp_path / "net.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size < 2 * W.nbytes
    assert (found.count("while_loop"), found.count("cond")) == (2, 1)


@pytest.mark.parametrize("system", [15, 18])
@pytest.mark.parametrize("index", [5, -2, 99])
def test_only_the_chosen_branch_is_computed(
    index: int, system: int, tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    """The other one would read an index out of range. From iOS 17 on a negative index is counted from the start."""
    then = h.make_graph([h.make_node("Gather", ["W", "index"], ["a"])], "then", [], [info("a", T.FLOAT, [8])])
    other = h.make_graph(
        [h.make_node("ReduceMax", ["x"], ["b"], axes=[0], keepdims=0)], "else", [], [info("b", T.FLOAT, [8])]
    )
    data = model(
        [h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), h.make_node("Greater", ["sum", "zero"], ["c"]),
         h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("x", T.FLOAT, [2, 8]), info("index", T.INT64, [])], [info("y", T.FLOAT, [8])],
        [tensor("zero", np.float32(0)), tensor("W", W)],
    )  # fmt: skip
    x = np.random.default_rng(3).uniform(0.5, 1, (2, 8)).astype(np.float32) * (1 if index < 99 else -1)
    found = check(data, {"x": x, "index": np.array(index)}, tmp_path, accepted, system=system)
    assert found.count("cond") == 1
    assert ("select" in found) == (system == 18)


def test_a_loop_without_an_end_of_its_own_and_values_that_stay() -> None:
    """What a block gives is a value of its own: an input, a constant, and one value twice go through identity."""
    body = h.make_graph(
        [h.make_node("Add", ["s", "u"], ["s2"]), h.make_node("ReduceSum", ["s2"], ["m"], keepdims=0),
         h.make_node("Less", ["m", "end"], ["c2"]), h.make_node("Identity", ["s"], ["u2"]),
         h.make_node("Identity", ["s2"], ["v2"])],
        "body", [info("i", T.INT64, []), info("c", T.BOOL, []), *(info(n, T.FLOAT, [3]) for n in "suv")],
        [info("c2", T.BOOL, []), *(info(f"{n}2", T.FLOAT, [3]) for n in "suv")],
    )  # fmt: skip
    data = model(
        [h.make_node("Loop", ["", "", "x", "x", "x"], ["s", "u", "v"], body=body)], [info("x", T.FLOAT, [3])],
        [info(n, T.FLOAT, [3]) for n in "suv"], [tensor("end", np.float32(50))],
    )  # fmt: skip
    graph = import_onnx(data)
    spec = write_model({"main": graph}, compute="fp32").spec
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    (loop,) = (o for o in block.operations if o.type == "while_loop")
    # There is no counter.
    assert len(loop.inputs["loop_vars"].arguments) == len(loop.outputs) == len(loop.blocks[1].outputs) == 4
    given = {name.name for name in loop.blocks[1].inputs}
    assert not given & {*loop.blocks[1].outputs}
    assert len(set(loop.blocks[1].outputs)) == 4


def test_rows_whose_number_the_data_decide_are_refused(tmp_path: Path) -> None:
    body = h.make_graph(
        [h.make_node("Add", ["s", "s"], ["s2"]), h.make_node("ReduceSum", ["s2"], ["m"], keepdims=0),
         h.make_node("Less", ["m", "end"], ["c2"]), h.make_node("Identity", ["s2"], ["r"])],
        "body", [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [2])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [2]), info("r", T.FLOAT, [2])], [tensor("end", np.float32(50))],
    )  # fmt: skip
    data = model(
        [h.make_node("Loop", ["n", "", "x"], ["y", "rows"], body=body)], [info("x", T.FLOAT, [2])],
        [info("y", T.FLOAT, [2]), info("rows", T.FLOAT, [None, 2])], [tensor("n", np.int64(9))],
    )  # fmt: skip
    with pytest.raises(Error, match="an extent known only at run time"):
        written(import_onnx(data), tmp_path)


def test_ops_of_blocks_that_core_ml_lacks_are_named_with_the_others(tmp_path: Path) -> None:
    body = h.make_graph(
        [h.make_node("Reshape", ["s", "six"], ["r"]), h.make_node("Transpose", ["r"], ["t"], perm=[5, 1, 2, 3, 0, 4]),
         h.make_node("Reshape", ["t", "flat"], ["s2"]), h.make_node("Identity", ["c"], ["c2"])],
        "body", [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [64])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [64])], [tensor("six", [2] * 6), tensor("flat", [64])],
    )  # fmt: skip
    data = model(
        [h.make_node("Loop", ["n", "", "x"], ["y"], body=body), h.make_node("Reshape", ["x", "six"], ["a"]),
         h.make_node("Softmax", ["a"], ["z"], axis=1)],
        [info("x", T.FLOAT, [64]), info("n", T.INT64, [])],
        [info("y", T.FLOAT, [64]), info("z", T.FLOAT, [2] * 6)], [tensor("six", [2] * 6)],
    )  # fmt: skip
    with pytest.raises(Error, match=r"kinds of ops cannot be written for Core ML:(\n.*)*transpose(.*\n)*.*softmax"):
        written(import_onnx(data), tmp_path)


def test_a_loop_whose_block_depends_on_the_shape_takes_one_shape(tmp_path: Path) -> None:
    def doubled(count: int) -> Graph:
        body = h.make_graph(
            [h.make_node("Add", ["s", "s"], ["s2"]), h.make_node("ReduceSum", ["s2"], ["m"], keepdims=0),
             h.make_node("Less", ["m", "end"], ["c2"])],
            "body", [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [1, count])],
            [info("c2", T.BOOL, []), info("s2", T.FLOAT, [1, count])], [tensor("end", np.float32(50))],
        )  # fmt: skip
        data = model(
            [h.make_node("Loop", ["", "", "x"], ["y"], body=body)], [info("x", T.FLOAT, [1, count])],
            [info("y", T.FLOAT, [1, count])],
        )  # fmt: skip
        return import_onnx(data)

    with pytest.raises(Error, match=r"got numbers that depend on the shape.* a block of while_loop"):
        write_model({"main": doubled(4)}, compute="fp32", listed=[doubled(8)])
