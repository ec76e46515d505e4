"""`hexane check`: which chips run a model, and with which exit code it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hexane.cli.main import app
from hexane.targets.floors import floors
from hexane.targets.query import chip_names, load_chip


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli(path, ...) runs `hexane check` in this process."""

    def run(*args: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(["check", *(str(a) for a in args)], prog_name="hexane")
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def save(path: Path, last: str, rows: int | str = 1) -> Path:
    """A product, then an op."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node(last, ["h"], ["y"], "last")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return save(tmp_path / "relu.onnx", "Relu")


@pytest.fixture
def hosted(tmp_path: Path) -> Path:
    return save(tmp_path / "tan.onnx", "Tan")


def test_a_network_that_runs_ends_with_0(cli: Cli, runs: Path) -> None:
    ended = cli(runs, "--target", "h13")
    assert (ended.code, ended.err) == (0, "")
    weights = "weights: 16 numbers, 64 B in the model, 32 B with floats as fp16"
    assert ended.out == (
        "relu.onnx on h13 (iPhone 12, M1): runs whole on the engine: 2 native\n"
        f"{weights}; this chip can read palette and sparse weights without unpacking\n"
        "estimate at least: 118 us (dispatch 118, copies 0, multiply-adds 0), by rates of M1; a real call may be faster (p10 of `hexane estimate`)\n"
    )


def test_a_network_that_does_not_ends_with_3_and_says_why(cli: Cli, hosted: Path) -> None:
    ended = cli(hosted, "--target", "m1")
    assert ended.code == 3
    assert "1 of 2 ops on the engine, 1 on the CPU, in 2 parts: 1 native, 1 host" in ended.out
    for words in ("tan", "last", "no chip has a path for it", "guide app. A, measured", "write it with exp"):
        assert words in ended.out


def test_the_segments_of_one_chip_are_a_table_and_of_several_a_row(cli: Cli, hosted: Path) -> None:
    out = cli(hosted, "--target", "h13").out
    assert "2 segments; what crosses between them: 1 value, 8 bytes" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["0", "engine", "1", "matmul"] in lines
    assert any(line[:4] == ["1", "CPU", "1", "tan"] and "floor" not in line for line in lines)
    matrix = [line.split() for line in cli(hosted, "--target", "h13,h15").out.splitlines()]
    assert any(line[:2] == ["segments", "2"] for line in matrix)
    (runs,) = [" ".join(line) for line in matrix if line[:1] == ["verdict"]]
    assert runs.startswith("verdict 1 of 2 ops on the engine, 1 on the CPU, in 2 parts")
    record = json.loads(cli(hosted, "--target", "h13", "--json").out)["targets"][0]
    assert [s["device"] for s in record["segments"]] == ["ane", "host"]
    assert record["segments"][1]["inputs"] == [{"name": "%1", "type": "fp16[1, 4]", "from": 0, "to": []}]


def test_several_targets_are_a_matrix(cli: Cli, tmp_path: Path) -> None:
    ended = cli(save(tmp_path / "sin.onnx", "Sin"), "--target", "m1,m5")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["op", "M1", "(h13)", "M5", "(h17)"] in lines
    assert ["sin", "decomposed", "native"] in lines
    assert ["verdict", *(["runs", "whole", "on", "the", "engine"] * 2)] in lines


def test_the_matrix_says_which_chips_a_reason_is_of(cli: Cli, tmp_path: Path) -> None:
    """20,000 rows are too many for M1 and not for M5."""
    ended = cli(save(tmp_path / "tall.onnx", "Relu", 20000), "--target", "M1,M5")
    assert ended.code == 3
    assert ended.out.startswith(
        "tall.onnx runs whole on 1 of 2 chips, in parts on 1; the model has 2 ops\nwhat to do:\n  1. use tensors"
    )
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("made to fit")]
    assert [(row[3], row[-2:]) for row in rows] == [("matmul", ["M1", "(h13)"]), ("relu", ["M1", "(h13)"])]
    assert json.loads(cli(tmp_path / "tall.onnx", "--target", "M1,M5", "--json").out)["verdict"] in ended.out


def test_a_matrix_says_what_its_last_rows_count(cli: Cli, tmp_path: Path) -> None:
    out = cli(save(tmp_path / "sin.onnx", "Sin"), "--target", "m1,m5").out
    assert "\nrows below the ops:\n  verdict: where the network runs\n" in out  # "whole" has no count
    counted = cli(save(tmp_path / "tall.onnx", "Relu", 20000), "--target", "M1,M5").out
    assert "\n  verdict: where the network runs; it counts the ops as written for the chip" in counted
    lines = [line.partition(":")[0].strip() for line in out.splitlines()]
    for row in ("verdict", "segments", "engine segments", "values between devices", "estimate at least, us"):
        assert any(line.startswith(row) for line in out.splitlines())
        assert row in lines
    assert "\nwords:\n  native: the engine runs the op as it is\n  decomposed: " in out


def test_products_that_the_default_leaves_out_are_listed(cli: Cli, tmp_path: Path) -> None:
    model = save(tmp_path / "sin.onnx", "Sin")
    line = "\nleft out, as they take no programs in MIL: A12, A12X, A12Z, A13\n"
    assert line in cli(model, "--target", "all").out
    assert line not in cli(model, "--target", "M1,M5").out
    assert "left out" not in cli(model, "--target", "all,A12,A13").out


def test_facts_on_an_op_name_chips_where_a_source_names_a_family(cli: Cli, tmp_path: Path) -> None:
    out = cli(save(tmp_path / "tan.onnx", "Softmax"), "--target", "A12", "--node", "0").out
    assert "family" not in out
    claims = [claim.value for floor in floors().values() for claim in floor.claims]
    assert "native on iPhone 12 (A14, M1) and later, on iPhone 12 (A14, M1) within an envelope" in claims
    assert not [text for text in claims if "family" in text]


def test_the_matrix_says_which_chips_no_program_in_mil_reaches(cli: Cli, runs: Path) -> None:
    said = 'the compiler refuses MIL for these chips ("MIL is only supported for H13+ ANE architectures")'
    assert f"need a netplist: h11; h12: {said}\n" in cli(runs, "--target", "h11,h12,h13").out
    assert "netplist" not in cli(runs, "--target", "h13,h14").out


def test_chips_that_lack_the_same_share_their_rows(cli: Cli, tmp_path: Path) -> None:
    out = cli(save(tmp_path / "erf.onnx", "Erf"), "--target", "h11,h12").out
    assert "h11+ stands for h11; h12" in out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("rejected")] == ["erf"]


def test_the_matrix_says_which_encodings_stream(cli: Cli, runs: Path) -> None:
    out = cli(runs, "--target", "h13,h13g,h14").out
    assert "weights: 16 numbers, 64 B in the model" in out
    assert "these chips can read palette and sparse weights without unpacking: h13; h13g\n" in out
    assert "this chip can read palette, sparse and int8 weights without unpacking: h14\n" in out


def test_the_page_is_written_beside_what_is_printed(cli: Cli, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ended = cli(runs, "--target", "all", "--html", page, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["ok"]
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "relu.onnx" in page.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_leaves_the_old_one(cli: Cli, runs: Path, tmp_path: Path) -> None:
    page, beside = tmp_path / "page.html", tmp_path / "page.html.part"
    page.write_text("old")
    beside.mkdir()  # in the way of the file that is written first
    ended = cli(runs, "--target", "h13", "--html", page)
    assert ended.code == 1
    assert "page.html" in ended.err
    assert page.read_text() == "old"


def test_the_page_does_not_take_the_place_of_the_model(cli: Cli, runs: Path) -> None:
    ended = cli(runs, "--target", "h13", "--html", runs)
    assert (ended.code, "got the model itself as the page" in ended.err) == (1, True)
    assert cli(runs, "--target", "h13").code == 0


def test_one_chip_of_many_that_does_not_run_it_decides_the_exit_code(cli: Cli, tmp_path: Path) -> None:
    model = save(tmp_path / "sin.onnx", "Sin")
    assert cli(model, "--target", "h17s,h12").code == 3
    assert cli(model, "--target", "h17s").code == 0


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_all_is_every_chip_that_mil_reaches(cli: Cli, runs: Path, options: list[str]) -> None:
    """Those that no product has only with --all."""
    ended = cli(runs, "--target", "all", *options, "--json")
    assert ended.code == 0
    record = json.loads(ended.out)
    want = {n for n in chip_names(all=bool(options)) if load_chip(n).tier.name != "OLDER"}
    assert {target["target"] for target in record["targets"]} == want
    shared = cli(runs, "--target", "all", *options).out
    assert all(name in shared for name in want)
    assert ("t1" in shared) == bool(options)
    assert "iPhone 12, M1 (h13)+ stands for iPhone 12, M1 (h13); M1 Pro, M1 Max, M1 Ultra (h13g); " in shared


def test_a_chip_is_called_what_it_was_asked_for(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """Two names of one chip are both said; a comma in brackets is of a name."""
    ended = cli(runs, "--target", "a14, IPHONE 12,h17,MacBook Air (M2, 2022)", "--html", tmp_path / "page.html")
    assert "A14, iPhone 12 (h13)+ stands for A14, iPhone 12 (h13); h17; MacBook Air M2 (h14)" in ended.out
    assert '"lead":"A14, iPhone 12"' in (tmp_path / "page.html").read_text().replace('": "', '":"')
    assert cli(runs, "--target", "a14").out.startswith("relu.onnx on A14 (h13): runs whole on the engine")


def test_json_has_every_op_of_every_target(cli: Cli, hosted: Path) -> None:
    ended = cli(hosted, "--target", "h13,h14", "--json")
    record = json.loads(ended.out)
    assert (ended.code, record["ok"]) == (3, False)
    assert [(t["target"], t["ok"], t["counts"]["host"]) for t in record["targets"]] == [
        ("h13", False, 1),
        ("h14", False, 1),
    ]
    tan = record["targets"][0]["nodes"][1]
    assert (tan["op"], tan["where"], tan["verdict"], tan["number"]) == ("tan", "last", "host", 1)
    assert record["targets"][1]["streams"] == ["int4", "sparse", "int8"]
    assert record["targets"][1]["weights"] == {"tensors": 1, "numbers": 16, "bytes": 64, "engine_bytes": 32}
    assert all(tan[key] for key in ("reason", "rule", "source", "status", "change"))


@pytest.mark.parametrize("node", ["1", "last"])
def test_one_node_is_shown_in_full(cli: Cli, hosted: Path, node: str) -> None:
    ended = cli(hosted, "--target", "h13,h17s", "--node", node)
    assert ended.code == 3
    assert "1: tan -> fp32[1, 4] at last" in ended.out
    assert "  h13: host: no chip has a path for it" in ended.out
    assert "  h17s: host:" in ended.out
    assert "    rule: no floor" in ended.out
    native = cli(hosted, "--target", "A14", "--node", "0").out
    assert "    rule: in MIL from iPhone 12 (A14, M1) on" in native
    record = json.loads(cli(hosted, "--target", "h13", "--node", node, "--json").out)
    assert [n["op"] for n in record["targets"][0]["nodes"]] == ["tan"]


def test_what_the_compiler_says_is_told_from_our_words(cli: Cli, runs: Path) -> None:
    out = cli(runs, "--target", "h12", "--node", "0").out
    assert "in MIL: rejected: the compiler says: MIL is only supported for H13+ ANE architectures" in out


def test_sources_that_disagree_are_all_shown(cli: Cli, tmp_path: Path) -> None:
    out = cli(save(tmp_path / "sin.onnx", "Sin"), "--target", "h13", "--node", "last").out
    assert "guide ch35, table 35.4 (decoded): written out before iPhone 15 (A16, M3)" in out


def test_the_chip_of_this_machine_is_the_default(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXANE_TARGET", "m2")
    assert "on M2 (h14)" in cli(runs).out
    monkeypatch.setenv("HEXANE_TARGET", "host")
    assert "stands for" in cli(runs).out


def test_free_dims_are_given(cli: Cli, tmp_path: Path) -> None:
    model = save(tmp_path / "free.onnx", "Relu", "rows")
    assert "--input-shape" in cli(model, "--target", "h13").err
    assert cli(model, "--target", "h13", "--input-shape", "x:3x4").code == 0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--target", "host"), 1, "'host', which is no chip"),
        (("--target", "m1,m99"), 1, "got 'm99'"),
        (("--target", ","), 2, "need names of chips"),
        (("--target", "h13", "--node", "9"), 1, "[check] --node: got '9', need a number below 2"),
        (("--target", "h13", "--node", "relu"), 1, "got 'relu', need a number below 2 (relu: 1), or the name"),
    ],
)
def test_wrong_arguments_are_named(cli: Cli, runs: Path, args: tuple[str, ...], code: int, message: str) -> None:
    ended = cli(runs, *args)
    assert ended.code == code
    assert message in " ".join(ended.err.replace("│", " ").split())


def test_a_file_that_is_not_there_is_an_error(cli: Cli, tmp_path: Path) -> None:
    assert cli(tmp_path / "no.onnx", "--target", "h13").code == 1


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("host", 3, "h13: host: got 1 (tan last), need 0"),
        ("rejected", 0, "--fail-on: passed"),
        ("segments=1", 3, "segments: got 2, need at most 1"),
        ("segments=2,rejected", 0, "--fail-on: passed"),
        ("error=1e-1", 0, "--fail-on: passed"),
    ],
)
def test_only_what_is_asked_for_fails(cli: Cli, hosted: Path, what: str, code: int, said: str) -> None:
    ended = cli(hosted, "--target", "h13", "--fail-on", what)
    assert (ended.code, ended.err) == (code, "")
    assert said in ended.out
    record = json.loads(cli(hosted, "--target", "h13", "--fail-on", what, "--json").out)
    assert record["ok"] is (code == 0)
    assert bool(record["failed"]["h13"]) is (code == 3)


def test_an_error_on_random_inputs_is_advice(cli: Cli, hosted: Path, tmp_path: Path) -> None:
    ended = cli(hosted, "--target", "h13", "--fail-on", "error=0")
    assert (ended.code, ended.err) == (0, "")
    assert "--fail-on: passed\ninputs: random, seed 0; numbers on random inputs are only a hint: --input" in ended.out
    assert "  advice: h13: error: got " in ended.out
    record = json.loads(cli(hosted, "--target", "h13", "--fail-on", "error=0", "--json").out)
    assert (record["ok"], record["failed"], len(record["advice"]["h13"])) == (True, {"h13": []}, 1)
    x = np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ended = cli(hosted, "--target", "h13", "--fail-on", "error=0", "--input", tmp_path / "x.npy")
    assert ended.code == 3
    assert "of output y, need at most 0\ninputs: as given" in ended.out


def test_a_network_that_runs_may_still_have_too_much(cli: Cli, tmp_path: Path) -> None:
    sine = save(tmp_path / "sin.onnx", "Sin")
    assert cli(sine, "--target", "m1,m5", "--fail-on", "decomposed").code == 3
    assert cli(sine, "--target", "m5", "--fail-on", "decomposed", "--fail-on", "segments=1").code == 0


@pytest.mark.parametrize("what", ["", "hosts", "segments", "segments=-1", "error=nan", "error=-1", "host,host"])
def test_what_is_no_condition_is_refused(cli: Cli, runs: Path, what: str) -> None:
    ended = cli(runs, "--target", "h13", "--fail-on", what)
    assert (ended.code, ended.out) == (1, "")
    assert "--fail-on: got" in ended.err
