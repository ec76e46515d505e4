"""Compressed weights in an ONNX file: onnxruntime and Hexane compute what the decompressed weights give."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from command import Cli
from hexane.importers.onnx import import_onnx
from hexane.ops.encodings import encoding_of, is_encoded
from onnx_models import skipped_where_aged

pytestmark = pytest.mark.filterwarnings("ignore")

CLOSE = 1e-5
MODES = (
    "int8",
    "int4",
    "palette1",
    "palette2",
    "palette3",
    "palette6",
    "palette8",
    "palette4:g16",
    "palette2:g8",
    "palette4:int8",
    "palette2:g8:int8",
    "palette4:v2",
    "palette6:v4",
    "blockwise",
    "blockwise8:b32",
    "blockwise4:b48",
    "sparse",
    "sparse:0.5",
    "sparse:0.5+palette4",
    "sparse:0.6+palette2:g16",
    "auto",
)
INDICES = np.array([[1, 5, 7], [0, 2, 63]])
# node, shapes of x and of the weight
LAYERS = {
    "conv": (helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), (1, 32, 6, 6), (48, 32, 3, 3)),
    "grouped": (helper.make_node("Conv", ["x", "w"], ["y"], group=2), (1, 128, 4, 4), (96, 64, 1, 1)),
    "transposed": (helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]), (1, 32, 4, 4), (32, 48, 3, 3)),
    "matmul": (helper.make_node("MatMul", ["x", "w"], ["y"]), (3, 96), (96, 64)),
    "batched": (helper.make_node("MatMul", ["x", "w"], ["y"]), (2, 3, 64), (2, 64, 48)),
    "gemm": (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (3, 64), (96, 64)),
    "embedding": (helper.make_node("Gather", ["w", "x"], ["y"]), None, (64, 96)),
}


def numbers(*shape: int) -> np.ndarray:
    return (np.random.default_rng(5).standard_normal(shape) * 0.1).astype(np.float32)


def model_of(layer: str, opset: int = 21, dtype=np.float32, zeros: bool = False) -> onnx.ModelProto:
    node, x, shape = LAYERS[layer]
    weight = numbers(*shape)
    if zeros:
        weight[np.abs(weight) < 0.08] = 0
    return one_node(node, x, weight.astype(dtype), opset)


def one_node(node, x, weight, opset: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    given = helper.make_tensor_value_info(
        "x", TensorProto.INT64 if x is None else kind, INDICES.shape if x is None else x
    )
    rank = INDICES.ndim + weight.ndim - 1 if x is None else len(x)
    made = helper.make_tensor_value_info("y", kind, [None] * rank)
    graph = helper.make_graph([node], "g", [given], [made], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feed_of(layer: str, dtype=np.float32) -> np.ndarray:
    shape = LAYERS[layer][1]
    return INDICES if shape is None else np.random.default_rng(3).standard_normal(shape).astype(dtype)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def by_onnxruntime(path: Path, x: np.ndarray) -> np.ndarray:
    """In its default session, whose graph it optimises."""
    onnx.checker.check_model(onnx.load(path))
    with skipped_where_aged():
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def distance(got: np.ndarray, want: np.ndarray) -> float:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64)))


def compressed(cli: Cli, model: onnx.ModelProto, folder: Path, mode: str, *args: str) -> tuple[Path, Path]:
    """The model's file, and the compressed one."""
    model_path, output = saved(model, folder / "net.onnx"), folder / "small.onnx"
    ended = cli("compress", model_path, "--mode", mode, "--force", "-o", output, *args)
    assert ended.code == 0, ended.err
    return model_path, output


# Every mode for one layer, and every layer in a mode of each kind; the others in a long run.
KINDS = ("int8", "palette4:g16", "palette4:v2", "blockwise", "sparse:0.5+palette4")
PAIRS = [
    pytest.param(layer, mode, marks=[] if layer == "conv" or mode in KINDS else [pytest.mark.slow])
    for layer in LAYERS
    for mode in MODES
]


@pytest.mark.parametrize(("layer", "mode"), PAIRS)
def test_onnxruntime_computes_what_the_decompressed_weights_give(
    cli: Cli, tmp_path: Path, layer: str, mode: str
) -> None:
    model, output = compressed(cli, model_of(layer, zeros=mode == "sparse"), tmp_path, mode)
    x = feed_of(layer)
    want = hx.compile(model, compress=mode)(x)
    assert distance(by_onnxruntime(output, x), want) < CLOSE
    assert distance(hx.compile(output)(x), want) < CLOSE


@pytest.mark.parametrize(
    "mode",
    ["int8", "int4", "palette1", "palette3", "palette4:g16", "palette4:v2", "blockwise", "sparse:0.6+palette2"],
)
@pytest.mark.parametrize("layer", ["conv", "gemm"])
def test_a_model_of_an_older_opset_keeps_it_where_it_can(cli: Cli, tmp_path: Path, layer: str, mode: str) -> None:
    model, output = compressed(cli, model_of(layer, opset=13), tmp_path, mode)
    x = feed_of(layer)
    want = hx.compile(model, compress=mode)(x)
    assert distance(by_onnxruntime(output, x), want) < CLOSE
    assert onnx.load(output).opset_import[0].version == (21 if mode == "blockwise" else 13)


@pytest.mark.parametrize("mode", ["int8", "palette4", "blockwise"])
@pytest.mark.parametrize("layer", ["conv", "matmul", "embedding"])
def test_weights_in_fp16_are_decoded_in_fp16(cli: Cli, tmp_path: Path, layer: str, mode: str) -> None:
    """One layer's sum differs by the order of its terms, in fp16 by its last bit."""
    model, output = compressed(cli, model_of(layer, dtype=np.float16), tmp_path, mode)
    x = feed_of(layer, np.float16)
    want = hx.compile(model, compress=mode)(x)
    assert distance(by_onnxruntime(output, x), want) < 1e-3
    assert distance(hx.compile(output)(x), want) < 1e-3


BITS = {
    "int8": 8,
    "palette1": 1,
    "palette2": 2,
    "palette3": 4,  # ONNX has no 3 bits, and none of 6
    "palette4": 4,
    "palette6": 8,
    "palette8": 8,
    "palette4:g16": 4,
    "blockwise4:b32": 5,  # with a scale of 32 bits for each 32 weights
    "blockwise8:b32": 9,
}


@pytest.mark.parametrize(("mode", "bits"), BITS.items())
def test_the_file_is_as_small_as_the_encoding(cli: Cli, tmp_path: Path, mode: str, bits: int) -> None:
    model = one_node(helper.make_node("MatMul", ["x", "w"], ["y"]), (1, 512), numbers(512, 256), 21)
    path, output = compressed(cli, model, tmp_path, mode)
    most = 512 * 256 * bits // 8 + 4500  # tables, scales, and the nodes
    assert output.stat().st_size < most < path.stat().st_size
    weight = import_onnx(output).outputs[0].value.node.inputs[1]
    assert weight is not None
    if ":g" not in mode and mode not in ("palette1", "palette2"):  # several indices in an integer are decoded
        assert is_encoded(weight.node)
        assert encoding_of(weight).bytes <= 512 * 256 * bits // 8


def test_weights_of_convolutions_read_back_in_blocks(cli: Cli, tmp_path: Path) -> None:
    _, output = compressed(cli, model_of("conv"), tmp_path, "blockwise4:b8")
    found = [n for n in import_onnx(output).nodes if n.op == "decode_blocks"]
    assert [(n.types[0].shape, n.inputs[1].shape) for n in found] == [((48, 32, 3, 3), (48, 4, 1, 1))]


@pytest.mark.parametrize("mode", ["int8", "palette4", "blockwise"])
@pytest.mark.parametrize("layer", ["conv", "gemm"])
def test_a_chip_computes_the_file_as_it_computes_the_compressed_model(
    cli: Cli, tmp_path: Path, layer: str, mode: str
) -> None:
    model, output = compressed(cli, model_of(layer), tmp_path, mode)
    x = feed_of(layer)
    want = hx.compile(model, target="M4", compress=mode)(x)
    np.testing.assert_array_equal(hx.compile(output, target="M4")(x), want)


def test_palettes_of_an_older_opset_have_two_indices_in_a_byte(cli: Cli, tmp_path: Path) -> None:
    model = one_node(helper.make_node("MatMul", ["x", "w"], ["y"]), (1, 512), numbers(512, 256), 17)
    _, output = compressed(cli, model, tmp_path, "palette4")
    assert output.stat().st_size < 512 * 256 // 2 + 3000


def test_what_costs_more_than_its_encoding_is_said(cli: Cli, tmp_path: Path) -> None:
    path = saved(model_of("gemm", zeros=True), tmp_path / "net.onnx")
    for mode, words in (
        ("palette3", "the ONNX file stores each 3-bit index in 4 bits"),
        ("sparse", "dense in the file, since ONNX has no mask"),
    ):
        ended = cli("compress", path, "--mode", mode, "--force", "-o", tmp_path / "small.onnx")
        assert f"matmul at Gemm#0: {words}" in ended.out.splitlines()


def test_large_tables_of_an_older_opset_are_said(cli: Cli, tmp_path: Path) -> None:
    sizes = []
    for opset in (17, 21):
        node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
        path = saved(one_node(node, (1, 256), numbers(256, 256), opset), tmp_path / "net.onnx")
        ended = cli("compress", path, "--mode", "palette4:g16", "--force", "-o", tmp_path / "small.onnx")
        said = "matmul at mm: its tables of combined indices take many bytes in the file" in ended.out
        assert said == (opset == 17)
        sizes.append((tmp_path / "small.onnx").stat().st_size)
    assert sizes[0] > 1.5 * sizes[1]


def two_readers(transposed: str) -> onnx.ModelProto:
    """y = x @ w, z = x @ t(w) + w: one tensor in three roles."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="first"),
        helper.make_node("Transpose", ["w"], ["t"], name="turn"),
        helper.make_node("MatMul", ["x", "t"], ["p"], name="second"),
        helper.make_node("Add", ["p", transposed], ["z"], name="sum"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xyz"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(numbers(64, 64), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("other", ["w", "t", "x"])
def test_a_tensor_that_other_nodes_read_too_stays_whole_for_them(cli: Cli, tmp_path: Path, other: str) -> None:
    model, output = compressed(cli, two_readers(other), tmp_path, "palette2")
    x = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    want = hx.compile(model, compress="palette2")(x)
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    for name, got in zip("yz", session.run(["y", "z"], {"x": x}), strict=True):
        assert distance(got, want[name]) < CLOSE
    kept = [tensor.name for tensor in onnx.load(output).graph.initializer]
    assert ("w" in kept) == (other != "x")


def test_a_weight_within_a_function_stays_whole(cli: Cli, tmp_path: Path) -> None:
    node = helper.make_node("Product", ["x", "w"], ["y"], name="call", domain="own")
    model = one_node(node, (3, 64), numbers(64, 64), 21)
    opsets = [helper.make_opsetid("", 21)]
    inner = helper.make_node("MatMul", ["a", "b"], ["c"])
    model.functions.append(helper.make_function("own", "Product", ["a", "b"], ["c"], [inner], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    path = saved(model, tmp_path / "net.onnx")
    ended = cli("compress", path, "--mode", "int8", "-o", tmp_path / "small.onnx")
    assert "matmul at call/MatMul#0: whole in the file, because it is no operand of a Conv" in ended.out
    x = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
    assert distance(by_onnxruntime(tmp_path / "small.onnx", x), hx.compile(path)(x)) < CLOSE


def test_a_matrix_that_is_a_column_of_one_number_each_stays_whole(cli: Cli, tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = one_node(node, (3, 4096), numbers(4096), 21)
    del model.graph.output[0].type.tensor_type.shape.dim[1:]
    path, output = compressed(cli, model, tmp_path, "int8")
    x = np.random.default_rng(3).standard_normal((3, 4096)).astype(np.float32)
    assert distance(by_onnxruntime(output, x), hx.compile(path)(x)) < CLOSE


def test_only_an_onnx_model_becomes_one(cli: Cli, tmp_path: Path) -> None:
    path = saved(model_of("conv"), tmp_path / "net.onnx")
    assert cli("compress", path, "--target", "M4", "--mode", "int8", "-o", tmp_path / "net.mil").code == 0
    ended = cli("compress", tmp_path / "net.mil", "--mode", "int8", "-o", tmp_path / "small.onnx")
    assert ended.code == 1
    assert "got no ONNX file, need one to write small.onnx" in ended.err


def tied(form: str, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """An embedding, and a head that reads the same table transposed, as exporters write it."""
    table = numpy_helper.from_array(numbers(128, 64), "emb")
    nodes = [helper.make_node("Gather", ["emb", "x"], ["h"], name="embed")]
    tensors = [table]
    if form == "Gemm":
        nodes += [
            helper.make_node("Squeeze", ["h", "zero"], ["row"]),
            helper.make_node("Gemm", ["row", "emb"], ["y"], transB=1, name="head"),
        ]
        tensors.append(numpy_helper.from_array(np.array([0]), "zero"))
    else:
        if form == "Transpose":
            nodes.append(helper.make_node("Transpose", ["emb"], ["turned"], perm=[1, 0], name="turn"))
        else:
            tensors.append(numpy_helper.from_array(np.ascontiguousarray(numbers(128, 64).T), "turned"))
        nodes.append(helper.make_node("MatMul", ["h", "turned"], ["y"], name="head"))
    given = helper.make_tensor_value_info("x", TensorProto.INT64, [1, 5])
    made = helper.make_tensor_value_info("y", kind, [None] * (2 if form == "Gemm" else 3))
    graph = helper.make_graph(nodes, "g", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("form", ["Transpose", "constant", "Gemm"])
@pytest.mark.parametrize("mode", ["int8", "blockwise4:b32", "palette4", "palette4:g16", "palette4:v2"])
def test_a_tied_table_is_stored_and_counted_once(cli: Cli, tmp_path: Path, form: str, mode: str) -> None:
    """onnxruntime computes the decoded numbers: no product becomes one that rounds its other operand."""
    model = tied(form)
    onnx.save(model, tmp_path / "m.onnx")
    done = cli("compress", tmp_path / "m.onnx", "-o", tmp_path / "c.onnx", "--mode", mode, "--force")
    assert done.code == 0, done.err
    assert "1 weight: " in done.out
    written = onnx.load(tmp_path / "c.onnx")
    large = [t for t in written.graph.initializer if np.prod(t.dims) >= 2048]
    assert len(large) == 1
    feed = {"x": np.array([[3, 0, 127, 64, 3]])}
    (want,) = onnx.reference.ReferenceEvaluator(written).run(None, feed)
    (got,) = onnxruntime.InferenceSession(written.SerializeToString()).run(None, feed)
    np.testing.assert_allclose(got, want, rtol=0, atol=CLOSE * np.abs(want).max())
    np.testing.assert_allclose(hx.compile(written)(feed["x"]), want, rtol=0, atol=CLOSE * np.abs(want).max())


def test_a_weight_that_no_encoding_takes_is_said(cli: Cli, tmp_path: Path) -> None:
    table = numpy_helper.from_array(numbers(128, 64), "t")
    table.ClearField("raw_data")
    table.data_type = TensorProto.BFLOAT16
    table.raw_data = numbers(128, 64).astype(ml_dtypes.bfloat16).tobytes()
    nodes = [
        helper.make_node("Gather", ["t", "x"], ["h"], name="embed"),
        helper.make_node("Cast", ["h"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "w"], ["y"], name="head"),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.INT64, [1, 5])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 96])
    graph = helper.make_graph(nodes, "g", [given], [made], [table, numpy_helper.from_array(numbers(64, 96), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    done = cli("compress", tmp_path / "m.onnx", "-o", tmp_path / "c.onnx", "--mode", "int8")
    assert "gather at embed: whole, in bf16: encodings take weights in fp32 and fp16" in done.out
