"""`hexane.sources.open`: what each thing is, and that every command and function asks it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import encoders
import hexane as hx
from command import Cli, in_this_process, linear_model, weights
from containers import make_e5, make_hwx
from coreml_files import package, relu_spec
from hexane import sources
from hexane.cli.main import app
from hexane.emit.coreai.write import save_graph
from hexane.train import with_params
from networks import small_networks
from tflite_writer import TfliteModel

MODEL_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "check": ("--target", "h13"),
    "compare": ("--targets", "h13,ieee"),
    "compile": ("-o", "out.hxp"),
    "compress": ("-o", "out.hxp"),
    "emit": ("--target", "h13", "-o", "out"),
    "estimate": ("--target", "h13"),
    "explain": ("--target", "h13"),
    "fit": (),
    "quantize": ("--dynamic", "-o", "out.onnx"),
}  # of the commands that need a network


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


def scaled(name: str, factor: float) -> hx.Graph:
    return hx.graph({"y": hx.input(name, (2, 3)) * factor})


def tflite() -> bytes:
    m = TfliteModel()
    x, y = m.tensor((2, 3)), m.tensor((2, 3))
    m.op("NEG", [x], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m.tobytes()


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, str]]:
    """Each thing that can be opened, and its format."""
    tmp_path = tmp_path_factory.mktemp("things")
    path = linear_model(tmp_path / "net.onnx", [1, 3, 2, 4], weights(24))
    for chip, more in (("h13", ()), ("h11", ("--netplist",))):
        app(["emit", str(path), "--target", chip, "-o", str(tmp_path / chip), *more], standalone_mode=False)
    hx.compile(path).save(tmp_path / "net.hxp")
    hx.compile_functions({"a": scaled("x", 2), "b": scaled("x", 3)}).save(tmp_path / "functions.hxp")
    save_graph({"prefill": scaled("x", 2), "decode": scaled("z", 3)}, tmp_path / "net.aimodel")
    for name, data in (("net.hwx", make_hwx()), ("no_suffix", make_hwx()), ("net.e5", make_e5())):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "other.npz").write_bytes(path.read_bytes())
    (tmp_path / "plan.onnx").write_bytes((tmp_path / "net.hxp").read_bytes())
    x = hx.input("x", (2, 3))
    return {
        "path": (path, "onnx"),
        "text": (str(path), "onnx"),
        "onnx of another name": (tmp_path / "other.npz", "onnx"),
        "bytes": (path.read_bytes(), "onnx"),
        "bytearray": (bytearray(path.read_bytes()), "onnx"),
        "memoryview": (memoryview(path.read_bytes()), "onnx"),
        "proto": (onnx.load(path), "onnx"),
        "graph": (scaled("x", 2), "graph"),
        "tensor": (x + 1, "tensors"),
        "list": ([x + 1, x * 2], "tensors"),
        "mapping": ({"y": x + 1}, "tensors"),
        "mil": (tmp_path / "h13" / "model.mil", "mil"),
        "netplist": (tmp_path / "h11" / "net.plist", "netplist"),
        "asset": (tmp_path / "net.aimodel", "aimodel"),
        "function": (f"{tmp_path}/net.aimodel#decode", "aimodel"),
        "package": (package(tmp_path, relu_spec().SerializeToString()), "coreml"),
        "tflite": (tflite(), "tflite"),
        "plan": (tmp_path / "net.hxp", "plan"),
        "plan of another name": (tmp_path / "plan.onnx", "plan"),
        "several plans": (tmp_path / "functions.hxp", "plans"),
        "bytes of a plan": ((tmp_path / "net.hxp").read_bytes(), "plan"),
        "hwx": (tmp_path / "net.hwx", "hwx"),
        "hwx of another name": (tmp_path / "no_suffix", "hwx"),
        "e5": (tmp_path / "net.e5", "e5"),
        "encoder": (encoder(tmp_path / "bert"), "encoder"),
    }


def encoder(folder: Path) -> Path:
    shapes = json.loads(encoders.RECORD.read_text())["bert"]["shapes"]
    return encoders.write_folder(folder, "bert", encoders.tensors(shapes))


def test_each_thing_is_told_by_type_name_and_first_bytes(things: dict[str, tuple[Any, str]]) -> None:
    assert {name: sources.open(thing).form for name, (thing, _) in things.items()} == {
        name: form for name, (_, form) in things.items()
    }
    assert {form for _, form in things.values()} == {row.name for row in sources.FORMATS}


def test_what_is_opened_has_signatures_and_graphs(things: dict[str, tuple[Any, str]]) -> None:
    for thing, form in things.values():
        opened = sources.open(thing)
        assert (not opened.functions) == (form in ("plan", "plans", "hwx", "e5"))
        for function in opened.functions.values():
            graph = function.graph({i.name: (2, 4) for i in function.signature.inputs if i.free}, {})
            assert [i.name for i in function.signature.inputs] == graph.input_names()
            assert list(function.signature.outputs) == [port.name for port in graph.outputs]


def test_the_small_networks_are_onnx_by_their_bytes() -> None:
    assert {sources.form_of(proto.SerializeToString()) for proto in small_networks().values()} == {"onnx"}


def test_an_asset_has_functions_by_name(things: dict[str, tuple[Any, str]]) -> None:
    asset = things["asset"][0]
    assert sorted(sources.open(asset).functions) == ["decode", "prefill"]
    assert list(sources.open(asset, function="prefill").functions) == ["prefill"]
    assert list(sources.open(things["function"][0]).functions) == ["decode"]
    with pytest.raises(hx.Error, match="got no function, need one of decode, prefill"):
        sources.open(asset).function()
    with pytest.raises(hx.Error, match="got the function 'none', need one of decode, prefill"):
        sources.open(asset, function="none")
    with pytest.raises(hx.Error, match=r"\[run\] .*net.onnx: got the function 'f' for a model of one function"):
        sources.open(things["path"][0], function="f", where="run")


def test_an_opened_model_is_taken_by_whoever_takes_a_model(things: dict[str, tuple[Any, str]]) -> None:
    opened = sources.open(things["path"][0])
    assert sources.open(opened) is opened
    x = np.random.default_rng(2).integers(-4, 5, (1, 3, 2, 4)).astype(np.float32)
    assert hx.compile(opened)(x).tobytes() == hx.compile(things["path"][0])(x).tobytes()
    assert str(hx.preflight(opened, "h13")) == str(hx.preflight(things["path"][0], "h13"))


@pytest.mark.parametrize("kind", ["graph", "tensor", "mil", "netplist"])
def test_a_model_of_fixed_shapes_takes_none(things: dict[str, tuple[Any, str]], kind: str) -> None:
    for options in ({"input_shapes": {"x": (2, 3)}}, {"input_values": {"x": 1}}):
        with pytest.raises(hx.Error, match="for a model of fixed shapes, need an ONNX model"):
            hx.compile(things[kind][0], **options)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "compile": hx.compile,
    "preflight": lambda model: hx.preflight(model, "h13"),
    "compare": lambda model: hx.compare(model, ["h13", "ieee"], {}),
    "explain": lambda model: hx.explain(model, "h13"),
    "estimate": lambda model: hx.estimate(model, "h13"),
    "fit": hx.fit,
    "quantize": lambda model: hx.quantize_model(model, []),
    "predict_fp16_divergence": lambda model: hx.predict_fp16_divergence(model, "h13", "h14"),
    "cross_compile_check": lambda model: hx.cross_compile_check(model, "h13"),
    "train.with_params": with_params,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_needs_a_network_says_what_it_got(things: dict[str, tuple[Any, str]], name: str) -> None:
    for kind in ("plan", "plan of another name", "bytes of a plan"):
        with pytest.raises(hx.Error, match=rf"\[{name}\] .*: got a plan, which is compiled already, need the model"):
            FUNCTIONS[name](things[kind][0])
    with pytest.raises(hx.Error, match=rf"\[{name}\] .*got a program of Apple's compiler .*`hexane info` shows"):
        FUNCTIONS[name](things["hwx of another name"][0])
    with pytest.raises(hx.Error, match=rf"\[{name}\] got int, need a Graph, tensors, the path"):
        FUNCTIONS[name](3)
    with pytest.raises(hx.Error, match=rf"\[{name}\] /none.onnx: No such file or directory, need a readable model"):
        FUNCTIONS[name]("/none.onnx")


@pytest.mark.parametrize("command", MODEL_ARGUMENTS)
def test_a_command_that_needs_a_network_says_what_it_got(
    cli: Cli, things: dict[str, tuple[Any, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("plan", "plan of another name"):
        ended = cli(command, things[kind][0], *MODEL_ARGUMENTS[command])
        assert (ended.code, ended.out) == (1, "")
        assert f"error: [{command}] {things[kind][0]}: got a plan, which is compiled already" in ended.err
    assert cli(command, "none.onnx", *MODEL_ARGUMENTS[command]).err == (
        f"error: [{command}] none.onnx: No such file or directory, need a readable model\n"
    )


def test_a_path_without_a_folder_names_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("none.onnx", "#main", "none#main"):
        with pytest.raises(hx.Error, match=f"{name}: No such file"):
            sources.open(name)
