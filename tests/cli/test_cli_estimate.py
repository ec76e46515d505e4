"""`hexane estimate`: its table, its JSON, and no number where there is no estimate."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import Cli, save_model
from hexane.cli.estimate import HEAD, LAYER_HEAD


def network(path: Path, op: str = "Relu") -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node(op, ["c"], ["y"], name="last"),
    ]
    weights = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
    x, y = (("x", TensorProto.FLOAT, [1, 8, 16, 16]), ("y", TensorProto.FLOAT, [1, 8, 16, 16]))
    return save_model(path, nodes, [x], [y], [("w", weights)])


def on_host(path: Path) -> Path:
    x, y = (("x", TensorProto.FLOAT, [1, 8]), ("y", TensorProto.FLOAT, [1, 8]))
    return save_model(path, [helper.make_node("Tan", ["x"], ["y"], name="tan")], [x], [y], [])


def test_one_chip_shows_its_latency_and_its_layers(cli: Cli, tmp_path: Path) -> None:
    ended = cli("estimate", network(tmp_path / "net.onnx"), "--target", "M1")
    assert (ended.code, ended.err) == (0, "")
    for words in ("M1 (h13)", "dispatch", "calls dominate: 1 x", "stem/conv", "weights 1.12 KiB", "docs/cost.md"):
        assert words in ended.out


def test_the_columns_are_defined_and_those_of_layers_with_their_table(cli: Cli, tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx")
    for chips, head, layers in (("M1", HEAD + LAYER_HEAD, True), ("M1,M4", HEAD, False)):
        _, _, text = cli("estimate", model, "--target", chips).out.partition("\ncolumns:\n")
        named = {word.strip() for line in text.splitlines() for word in line.partition(":")[0].split(",")}
        assert ("busy" in named) is layers
        assert set(head) - named == {"chip"} | ({"layer", "name", "us"} if layers else set())


def test_all_chips_and_products_of_one_target_have_a_line_each(cli: Cli, tmp_path: Path) -> None:
    out = cli("estimate", network(tmp_path / "net.onnx"), "--target", "all").out
    assert "left out, without rates of their own: A14 (like M1), " in out
    assert "left out, as they run no programs in MIL: A12, A12X, A12Z, A13" in out
    for chip in ("M1 (h13)", "M1 Max (h13g)", "M5 (h17)", "M5 Pro (h17)", "M6 (h18g)", "iPhone 15, M3 (h15)"):
        assert sum(line.startswith(f"{chip} ") for line in out.splitlines()) == 1
    (line,) = (line for line in out.splitlines() if line.startswith("M6 (h18g) "))
    assert line.rstrip().endswith("M5 (extrapolated)")


def test_json_has_the_interval_the_layers_and_the_remarks(cli: Cli, tmp_path: Path) -> None:
    record = json.loads(cli("estimate", network(tmp_path / "net.onnx", "Tan"), "--target", "M1,A14", "--json").out)
    one, other = record["estimates"]
    assert one["p10_us"] < one["latency_us"] < one["p90_us"]
    assert one["submissions"] == len(one["layers"]) == 1
    assert any("the CPU computes" in line for line in one["remarks"])
    assert (one["extrapolated"], other["extrapolated"]) == (False, True)


def test_the_host_is_measured_and_compared(cli: Cli, tmp_path: Path) -> None:
    ended = cli("estimate", network(tmp_path / "net.onnx"), "--target", "M1,host")
    assert (ended.code, ended.err) == (0, "")
    assert any(line.startswith("host ") and line.rstrip().endswith("this CPU") for line in ended.out.splitlines())
    assert "would be faster: " in ended.out
    record = json.loads(cli("estimate", tmp_path / "net.onnx", "--target", "host", "--json").out)
    assert record["estimates"][0]["kind"] == "measured"
    assert record["against_host"] == []


@pytest.mark.parametrize(
    ("target", "said"),
    [("M77", "need one of"), ("M1", "no op runs on the engine"), (",", "all")],
)
def test_no_estimate_is_an_error(cli: Cli, tmp_path: Path, target: str, said: str) -> None:
    ended = cli("estimate", on_host(tmp_path / "net.onnx"), "--target", target)
    assert ended.code in (1, 2)
    assert said in ended.err
    assert "us" not in ended.out


def test_a_chip_that_cannot_run_it_is_a_line_without_a_number(cli: Cli, tmp_path: Path) -> None:
    ended = cli("estimate", on_host(tmp_path / "net.onnx"), "--target", "M1,M4")
    assert ended.code == 1
    assert "M4 (h16g): [estimate]" in ended.out
    record = json.loads(cli("estimate", tmp_path / "net.onnx", "--target", "M1,M4", "--json").out)
    assert [sorted(one) for one in record["estimates"]] == [["error", "target"]] * 2


def test_a_page_and_a_picture_are_written(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "net.html", tmp_path / "net.png"
    ended = cli(
        "estimate", network(tmp_path / "net.onnx"), "--target", "M1,A14", "--html", page, "--plot", picture, "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    assert len(json.loads(ended.out)["estimates"]) == 2
    assert "stem/conv" in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "file", "said"),
    [
        ("--plot", "net.gif", "need one that ends in .png, .svg, .pdf"),
        ("--html", "net.onnx", "got the model itself as the page"),
        ("--html", "none/net.html", "--html: "),
        ("--plot", "none/net.png", "--plot: "),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error(cli: Cli, tmp_path: Path, option: str, file: str, said: str) -> None:
    ended = cli("estimate", network(tmp_path / "net.onnx"), "--target", "M1", option, tmp_path / file)
    assert ended.code in (1, 2)
    assert said in ended.err


def test_rates_of_a_file_that_is_none_are_an_error(cli: Cli, tmp_path: Path) -> None:
    ended = cli("estimate", network(tmp_path / "net.onnx"), "--target", "M1", "--rates", tmp_path / "none.toml")
    assert ended.code == 1
    assert "No such file or directory, need a file that `hexane bench --calibrate` wrote" in ended.err


def test_the_cpu_has_no_rates_to_calibrate(cli: Cli, tmp_path: Path) -> None:
    ended = cli("bench", "dispatch", "--calibrate", tmp_path / "rates.toml")
    assert ended.code == 2
    assert "rates are of an engine" in ended.err


def test_traffic_of_tensors_is_not_called_by_the_name_of_functions(cli: Cli, tmp_path: Path) -> None:
    x, y = (("x", TensorProto.FLOAT, [1, 64, 1024, 1024]), ("y", TensorProto.FLOAT, [1, 1, 1, 1]))
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["y"], axes=[1]),
    ]
    ended = cli("estimate", save_model(tmp_path / "pool.onnx", nodes, [x], [y], []), "--target", "M1")
    table, _, legend = ended.out.partition("\ncolumns")
    assert ended.code == 0
    assert " tensors in memory " in table
    assert "activations" not in ended.out
    assert "compute: arithmetic" in legend
