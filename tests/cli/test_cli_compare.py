"""`hexane compare`: its table, its files, and what it says to wrong ones."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import Cli, linear_model, save_model, weights
from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.runtime import PortType
from hexane.runtime.random_arrays import random_arrays

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A product whose sums are beyond the engine's accumulator for inputs of 1."""
    return linear_model(tmp_path / "large.onnx", [2, 24], np.full((24, 10), 2000, np.float32))


@pytest.fixture
def ones(tmp_path: Path) -> Path:
    np.savez(tmp_path / "ones.npz", x=np.ones((2, 24), np.float32))
    return tmp_path / "ones.npz"


def test_targets_that_agree_end_with_0(cli: Cli, model: Path) -> None:
    ended = cli("compare", model, "--targets", "h13,M5,ieee")
    assert (ended.code, ended.err) == (0, "")
    assert (
        "inner layers of h13, M5 (h17) compared with ieee (the model's own dtypes on this CPU)\ninputs: random, seed 0; numbers on random inputs are only a hint"
        in ended.out
    )
    assert (
        "h13 compared with M5 (h17): the same numbers in every output, and in every layer that both have" in ended.out
    )


def test_targets_that_part_end_with_3_and_say_why(cli: Cli, large: Path, ones: Path) -> None:
    ended = cli("compare", large, "--targets", "h13,ieee", "--input", ones)
    assert ended.code == 3
    assert "why: overflow: h13: the accumulator overflows: with product 17 of 24" in ended.out
    assert ended.out.startswith("h13 compared with ieee: y: 20 of 20 infinite or NaN\n")
    assert "change: add 4 products in place of" in ended.out
    assert "random" not in ended.out


def test_json_says_the_same(cli: Cli, large: Path, ones: Path) -> None:
    ended = cli("compare", large, "--targets", "h13,ieee", "--input", ones, "--json")
    record = json.loads(ended.out)
    assert record["model"] == "large.onnx"
    assert record["partings"][0]["cause"]["kind"] == "overflow"


def test_seeds_differ_and_a_tolerance_forgives(cli: Cli, model: Path) -> None:
    first, again, other = (cli("compare", model, "--targets", "h13,ieee", "--seed", s).out for s in (1, 1, 2))
    assert first == again
    assert first != other
    ports = [PortType("x", (2, 3), FP32)]
    assert not np.array_equal(random_arrays(ports, 1)["x"], random_arrays(ports, 2)["x"])
    ended = cli("compare", model, "--targets", "h13,ieee", "--tolerance", 1e-9)
    assert ended.code == 3
    assert ended.out.splitlines()[-1] == "exit code 3: these differ beyond the tolerance 1e-09: h13 and ieee"
    assert cli("compare", model, "--targets", "h13,ieee", "--tolerance", 0.5).code == 0


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.PDF", b"%PDF")])
def test_a_plot_is_a_picture_of_the_kind_it_is_named(
    cli: Cli, large: Path, ones: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    cli("compare", large, "--targets", "h13,h17s,ieee", "--input", ones, "--plot", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_without_matplotlib_names_the_extra(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ended = cli("compare", model, "--targets", "h13,ieee", "--plot", tmp_path / "p.png")
    assert ended.code == 1
    assert "pip install 'hexane[plot]'" in ended.err
    assert "running" not in ended.err, "nothing runs first"
    monkeypatch.setattr("hexane.cli.compare.compare", lambda *_, **__: pytest.fail("it ran"))
    assert cli("compare", model, "--targets", "h13,ieee", "--plot", tmp_path / "p.png").code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--targets", "h13,ieee", "--plot", "p.bmp"], ".png, .svg, .pdf"),
        (["--targets", "h13,ieee", "--input", "x.bin"], ".npy, .npz, .png, .jpg or .wav"),
        (["--targets", "h13,ieee", "--tolerance", "-1"], "--tolerance"),
        (["--tarets", "h13,ieee"], "--targets"),
        ([], "--targets"),
    ],
)
def test_wrong_usage_ends_with_2(cli: Cli, model: Path, args: list[str], words: str) -> None:
    ended = cli("compare", model, *args)
    assert ended.code == 2
    assert words in ended.err


def test_one_chip_is_compared_with_the_model_itself(cli: Cli, model: Path) -> None:
    assert cli("compare", model, "--target", "M1").out == cli("compare", model, "--targets", "M1,ieee").out


@pytest.mark.parametrize(
    ("targets", "words"), [("ieee", "need at least two"), ("h13,zzz", "zzz"), (",", "got none, need at least two")]
)
def test_targets_that_cannot_be_compared_end_with_1(cli: Cli, model: Path, targets: str, words: str) -> None:
    ended = cli("compare", model, "--targets", targets)
    assert ended.code == 1
    assert words in ended.err


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.ones((2, 24), np.float32)}, "got the arrays y, need x"),
        ({"x": np.full((2, 24), 1e39)}, "got float64[2, 24]"),
        ({"x": np.ones((2, 12), np.float32)}, "got float32[2, 12]"),
        ({"x": np.zeros((4000, 4000), np.float32)}, "got 64000128 bytes for 'x'"),
        ({"x": np.array([{}])}, "Python objects"),
        ({}, "got the arrays none, need x"),
    ],
)
def test_an_archive_that_does_not_fit_is_refused(
    cli: Cli, large: Path, tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    np.savez_compressed(tmp_path / "in.npz", **arrays)
    ended = cli("compare", large, "--targets", "h13,ieee", "--input", tmp_path / "in.npz")
    assert ended.code == 1
    assert words in ended.err


def test_files_that_are_none_are_one_readable_error(cli: Cli, large: Path, ones: Path, tmp_path: Path) -> None:
    ended = cli("compare", large, "--targets", "h13,ieee", "--input", tmp_path / "none.npz")
    assert (ended.code, "No such file" in ended.err) == (1, True)
    other = large.rename(large.with_suffix(".npz"))
    ended = cli("compare", other, "--targets", "h13,ieee", "--input", other)
    assert (ended.code, "is no npz file" in ended.err) == (1, True)
    ended = cli("compare", tmp_path / "none.onnx", "--targets", "h13,ieee")
    assert (ended.code, "No such file" in ended.err) == (1, True)


def test_a_plot_into_no_folder_is_one_readable_error(cli: Cli, large: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    ended = cli("compare", large, "--targets", "h13,ieee", "--plot", tmp_path / "no folder" / "p.png")
    assert (ended.code, "no folder" in ended.err) == (1, True)


def test_a_plan_and_free_dims_are_told_what_to_give(cli: Cli, model: Path, open_model: Path, tmp_path: Path) -> None:
    cli("compile", model, "-o", tmp_path / "net.hxp")
    assert "need the model that it was made from" in cli("compare", tmp_path / "net.hxp", "--targets", "h13,ieee").err
    assert cli("compare", open_model, "--targets", "h13,ieee").code == 1
    assert cli("compare", open_model, "--targets", "h13,ieee", "--input-shape", "x:3x24").code == 0


def test_a_model_that_one_target_does_not_compile_names_the_target(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("hexane.report.compare")
    compiled = module.compile

    def refusing(*args: object, **kwargs: object) -> object:
        if kwargs["target"] == "h16":
            raise Error("[relu at r] got nothing, need something")
        return compiled(*args, **kwargs)

    monkeypatch.setattr(module, "compile", refusing)
    path = linear_model(tmp_path / "m.onnx", [1, 24], weights(24))
    ended = cli("compare", path, "--targets", "h13,h16")
    assert ended.code == 1
    assert "[compare] the model does not compile for h16: [relu at r]" in ended.err


def test_help_shows_examples(cli: Cli) -> None:
    out = cli("compare", "--help").out
    assert "hexane compare net.onnx --targets A14,M4,M5,ieee" in out
    assert "--plot parts.png" in out


def test_an_input_of_integers_is_random_too(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Exp", ["f"], ["y"], "e"),
    ]
    ports = [("i", TensorProto.INT64, [2, 3])], [("y", TensorProto.FLOAT, [2, 3])]
    path = save_model(tmp_path / "i.onnx", nodes, *ports)
    assert cli("compare", path, "--targets", "h13,ieee").code == 0


def test_chips_that_differ_by_a_bit_end_with_3_and_say_that_any_bit_counts(cli: Cli, tmp_path: Path) -> None:
    """Chips round a product and its bias at different places."""
    path, w = tmp_path / "net.onnx", np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    x, y = (("x", TensorProto.FLOAT, [8, 64]), ("y", TensorProto.FLOAT, [8, 32]))
    save_model(path, nodes, [x], [y], [("w", w), ("b", w[0])])
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).standard_normal((3, 8, 64)).astype(np.float32))
    ended = cli("compare", path, "--targets", "A12,M1", "--calibration", tmp_path / "x.npz")
    assert ended.code == 3
    assert ended.out.splitlines()[-1] == (
        "exit code 3: these differ: A12 (h11) and M1 (h13): any bit that differs between chips counts, --tolerance 0.01"
        " allows more"
    )
    assert "is furthest apart on M1 (h13): " in ended.out
    assert ended.err.count("softmax at Softmax#2") == 1
    assert "[compile] A12 (h11): " in ended.err
