"""`hexane emit` of Core ML packages."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import hexane as hx
from command import Cli, linear_model
from coreml_files import package, relu_spec
from hexane.emit.coreml.package import save_model, write_model
from hexane.graph.printer import size_text
from hexane.importers.coreml.model import open_model
from networks import small_networks


@pytest.fixture
def net(tmp_path: Path) -> Path:
    onnx.save(small_networks()["mobile-17"], tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_model_becomes_a_package(cli: Cli, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.mlpackage"
    ended = cli("emit", net, "-o", path, "--compute", "fp32")
    assert (ended.code, ended.err) == (0, "")
    assert "for iOS 15, macOS 12 and newer" in ended.out
    assert "in fp32; x: fp32[1, 3, 9, 8] -> y: fp32[1, 12]" in ended.out
    shown = json.loads(cli("info", path, "--json").out)["functions"]["main"]["outputs"]
    assert shown == [{"name": "y", "type": "fp32[1, 12]"}]
    assert "  output  y  fp32[1, 12]\n" in cli("info", path).out
    size = size_text(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    assert ended.out.startswith(f"{path}: {size}, ")
    x = np.random.default_rng(1).integers(0, 256, (1, 3, 9, 8)).astype(np.float32)
    np.testing.assert_array_equal(hx.compile(path)(x), hx.compile(net)(x))
    assert cli("check", path, "--target", "M4").code == 0
    assert cli("emit", path, "-o", tmp_path / "again.mlpackage").code == 0  # a package from a package


def test_info_says_which_output_has_no_type(cli: Cli, tmp_path: Path) -> None:
    spec = relu_spec()
    for one in spec.description.output:
        one.ClearField("type")
    path = package(tmp_path, spec.SerializeToString())
    assert "(the file gives no type)" in cli("info", path).out


def test_options_of_a_package(cli: Cli, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.mlpackage"
    record = json.loads(cli("emit", net, "-o", path, "--target", "M4", "--opset", "iOS17", "--json").out)
    assert (record["opset"], record["compute"], record["target"]) == ("iOS17", "fp16", "M4")
    assert record["functions"]["main"]["inputs"] == ["fp32[1, 3, 9, 8]"]
    assert open_model(path).program("main").opset == 17
    for options, said in {
        ("--target", "M4", "--compute", "fp32"): "compute: got fp32 with a chip",
        ("--opset", "iOS12"): "opset: got 'iOS12', need one of iOS15",
        ("--netplist",): "--netplist: got it for a Core ML package",
        ("--compress", "auto"): "--compress: got auto",
        ("--also", "main=net.onnx"): "got the function 'main' twice",
    }.items():
        ended = cli("emit", net, "-o", path, *options)
        assert (ended.code != 0, said in ended.err) == (True, True), ended.err
    ended = cli("emit", net, "-o", tmp_path / "mil", "--target", "M4", "--opset", "iOS17")
    assert "--opset: got it for another form than a Core ML package" in ended.err
    ended = cli("emit", net, "-o", tmp_path / "net.mil", "--format", "mlpackage")
    assert "need a folder that ends in .mlpackage" in ended.err


def test_several_functions_share_weights(cli: Cli, tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    one = linear_model(tmp_path / "one.onnx", [1, 64], weight)
    eight = linear_model(tmp_path / "eight.onnx", [8, 64], weight)
    path = tmp_path / "net.mlpackage"
    ended = cli("emit", one, "-o", path, "--compute", "fp32", "--also", f"eight={eight}")
    assert (ended.code, ended.err) == (0, "")
    assert "for iOS 18, macOS 15 and newer" in ended.out
    assert open_model(path).functions == ("main", "eight")
    assert (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size < weight.nbytes + 1024
    x = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    np.testing.assert_array_equal(hx.compile(f"{path}#eight")(x), hx.compile(eight)(x))
    assert cli("emit", path, "-o", tmp_path / "both.mlpackage").code == 0
    assert open_model(tmp_path / "both.mlpackage").functions == ("main", "eight")


def test_a_graph_of_python_becomes_a_package_in_one_line(tmp_path: Path) -> None:
    x = hx.input("x", (2, 3))
    saved = hx.save_coreml(hx.graph({"y": hx.relu(x)}), tmp_path / "net.mlpackage", compute="fp32")
    assert (saved.system, dict(saved.renamed)) == (15, {})
    assert np.asarray(hx.compile(saved.path)(np.full((2, 3), -1, np.float32))).tolist() == [[0, 0, 0]] * 2
    with pytest.raises(hx.Error, match=r"need one that ends in \.mlpackage"):
        hx.save_coreml(hx.graph({"y": hx.relu(x)}), tmp_path / "net.mlmodel")


def test_an_image_and_labels_from_the_command_line(cli: Cli, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.mlpackage"
    (tmp_path / "labels.txt").write_text("\n".join(f"kind {i}" for i in range(12)) + "\n")
    ended = cli("emit", net, "-o", path, "--image", "x=rgb,scale=1/255", "--labels", tmp_path / "labels.txt")
    assert (ended.code, ended.err) == (0, "")
    assert "; x: image, rgb, uint8[9, 8, 3] -> " in ended.out
    said = cli("info", path).out
    assert "image, rgb, uint8[9, 8, 3]" in said
    assert "\nports of the network that Hexane makes of the file:\ninput   " in said
    assert open_model(path).labels("main")[11] == "kind 11"
    assert "need NAME=COLOR" in cli("emit", net, "-o", path, "--image", "x").err
    assert "need a text file" in cli("emit", net, "-o", path, "--labels", tmp_path / "none.txt").err


def test_check_says_what_core_ml_does_with_the_file(cli: Cli, tmp_path: Path) -> None:
    made = package(tmp_path, relu_spec().SerializeToString())
    ended = cli("check", made, "--target", "M4")
    assert "what Core ML does with this file:\n  program at y: 1 of 1 ops compute in fp32" in ended.out
    told = json.loads(cli("check", made, "--target", "M4", "--json").out)
    assert [one["rule"] for one in told["package"]] == ["fp32_program"]


def test_a_package_is_compared_with_its_original(cli: Cli, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.mlpackage"
    assert cli("emit", net, "-o", path, "--compute", "fp32").code == 0
    ended = cli("compare", path, "--with", net)
    assert (ended.code, ended.err) == (0, "")
    assert "net.mlpackage computes what net.onnx does: relative L2 at most 0.01 in 1 output" in ended.out
    changed = onnx.load(net)
    first = next(node for node in changed.graph.node if node.op_type == "Clip" or node.op_type == "Relu")
    name = first.output[0]
    first.CopyFrom(onnx.helper.make_node("Sigmoid", first.input[:1], [name], name="changed"))
    onnx.save(changed, tmp_path / "changed.onnx")
    told = json.loads(cli("compare", path, "--with", tmp_path / "changed.onnx", "--tolerance", "1e-5", "--json").out)
    assert not told["ok"]
    assert told["sides"][1]["ops"][0] == "sigmoid at changed"
    assert told["cause"].startswith(("conversion", "not told"))
    assert "got nothing to compare with, need --targets A14,M4 or --with ORIGINAL" in " ".join(
        cli("compare", path).err.split()
    )
    both = cli("compare", path, "--targets", "M1", "--with", net)
    assert (both.code, "got --with as well, need one of the two" in " ".join(both.err.split())) == (2, True)


def test_several_shapes_of_an_input_are_listed(cli: Cli, tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3, "h", "w"]) for n in ("x", "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports[:1], ports[1:]), ir_version=8)
    onnx.save(model, tmp_path / "open.onnx")
    path, shapes = tmp_path / "net.mlpackage", "x:1x3x8x8,1x3x4x6"
    ended = cli("emit", tmp_path / "open.onnx", "-o", path, "--input-shape", shapes)
    assert (ended.code, ended.err) == (0, "")
    assert "also for fp32[1, 3, 4, 6]" in ended.out
    x = np.random.default_rng(2).standard_normal((1, 3, 4, 6)).astype(np.float32)
    np.testing.assert_allclose(hx.compile(path)(x), np.maximum(x, 0), rtol=1e-3)
    ended = cli("emit", tmp_path / "open.onnx", "-o", tmp_path / "mil", "--target", "M4", "--input-shape", shapes)
    assert "--input-shape: got several shapes of x, need -o NAME.mlpackage" in ended.err


def test_a_weight_of_two_functions_counts_once(cli: Cli, tmp_path: Path) -> None:
    """fp16 weights: 64 x 64 in both functions (8 KiB), 64 x 32 in one (4 KiB)."""
    rng = np.random.default_rng(1)
    shared, own = (rng.standard_normal((64, n)).astype(np.float32) / 8 for n in (64, 32))
    first = hx.graph({"y": hx.matmul(hx.input("x", (1, 64)), shared)})
    second = hx.graph({"y": hx.matmul(hx.matmul(hx.input("x", (8, 64)), shared), own)})
    path = tmp_path / "net.mlpackage"
    save_model(write_model({"a": first, "b": second}), path)
    assert "weights fp16: 2 tensors, 12.0 KiB" in cli("info", path).out
    of_a = cli("info", path, "--function", "a").out
    assert "weights of function a, fp16: 1 tensor, 8.00 KiB" in of_a
    assert [line.split()[1] for line in of_a.splitlines() if line.startswith("function ")] == ["a"]
    record = json.loads(cli("info", path, "--function", "b", "--json").out)["coreml"]
    assert record["weights"] == [{"encoding": "fp16", "tensors": 2, "bytes": 12288}]
    assert record["weights_of"] == "b"
