"""The command `hexane`: compile, info and ops, and how the process starts and ends."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from command import Cli, linear_model, save_model, spawn
from hexane.ops import USER_OPS
from hexane.targets.activations import activations
from networks import small_networks

# ---- compile, info, ops ----


def test_compiled_plan_gives_the_same_bits_whatever_its_suffix(cli, model, tmp_path):
    plan = tmp_path / "plan.bin"
    assert cli("compile", model, "-o", plan).code == 0
    for path, folder in ((model, "a"), (plan, "b")):
        assert cli("run", path, "--output", tmp_path / folder).code == 0
    assert (tmp_path / "a" / "y.npy").read_bytes() == (tmp_path / "b" / "y.npy").read_bytes()


def test_compile_prints_sizes_as_json(cli, model, tmp_path):
    plan = tmp_path / "m.hxp"
    record = json.loads(cli("compile", model, "-o", plan, "--dtype", "fp16", "--json").out)
    assert record["plan"] == str(plan)
    assert record["file_bytes"] == plan.stat().st_size
    assert record["memory"]["weights"] >= 24 * 10 * 2


def test_compile_refuses_open_shapes_until_they_are_fixed(cli, open_model, tmp_path):
    plan = tmp_path / "m.hxp"
    refused = cli("compile", open_model, "-o", plan)
    assert refused.code == 1
    assert "--input-shape x:1x24" in refused.err
    assert not plan.exists()
    assert cli("compile", open_model, "-o", plan, "--input-shape", "x:2x24").code == 0
    assert hx.load(plan).inputs[0].shape == (2, 24)


def test_compile_dumps_the_graph_after_each_pass(cli, model, tmp_path):
    dump = tmp_path / "passes"
    assert cli("compile", model, "-o", tmp_path / "m.hxp", "--dump", dump).code == 0
    names = sorted(path.name for path in dump.iterdir())
    assert names[:2] == ["00-graph.txt", "01-write_rows.txt"]
    assert (dump / names[-1]).read_text().startswith("program ")


def test_compile_for_a_chip_warns_in_one_line_of_what_the_host_gets(cli, tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Sinh", ["a"], ["y"], name="second"),
    ]
    model = save_model(
        tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, [2, 3])], [("y", TensorProto.FLOAT, [2, 3])]
    )
    ended = cli("compile", model, "-o", tmp_path / "m.hxp", "--target", "M1")
    assert ended.code == 0
    assert (
        ended.err
        == "warning: [compile] M1 (h13): 1 of 2 ops runs on the CPU: sinh at second (no chip has a path for it)\n"
    )
    assert "steps for M1 (h13); " in ended.out
    assert "; memory on this CPU: " in ended.out
    assert "on-chip memory: at most " in ended.out
    assert json.loads(cli("info", tmp_path / "m.hxp", "--json").out)["target"] == "h13"
    assert "(plan, compiled for h13)" in cli("info", tmp_path / "m.hxp").out
    engine = cli("run", model, "--target", "M1", "--numerics", "engine")
    assert engine.code == 0
    assert "in the place of M1 (h13): its program in the engine's arithmetic" in engine.out
    host = cli("compile", model, "-o", tmp_path / "n.hxp", "--numerics", "engine")
    assert host.err == "error: [compile] --numerics: got 'engine' for host, need a chip as the target\n"
    refused = cli("compile", model, "-o", tmp_path / "n.hxp", "--target", "M1", "--fallback", "error")
    assert refused.code == 1
    assert refused.err.startswith("error: [compile] M1 (h13): 1 of 2 ops runs on the CPU: sinh at second")
    assert refused.err.endswith("need ops that the engine takes, or --fallback host\n")


def test_compile_leaves_the_old_file_when_it_fails(cli, model, tmp_path):
    plan = tmp_path / "old.hxp"
    plan.write_bytes(b"old")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    assert cli("compile", tmp_path / "bad.onnx", "-o", plan).code == 1
    assert plan.read_bytes() == b"old"


def test_compile_into_memory_writes_no_plan_that_does_not_fit(cli, model, tmp_path):
    plan = tmp_path / "m.hxp"
    record = json.loads(cli("compile", model, "-o", plan, "--sram", "1M", "--json").out)
    assert record["memory"]["arena"] + record["memory"]["scratch"] <= 1 << 20
    plan.unlink()
    held = json.loads(cli("compile", model, "-o", tmp_path / "held.hxp", "--sram", "1M", "--hold-ports", "--json").out)
    assert held["memory"]["arena"] > record["memory"]["arena"]
    refused = cli("compile", model, "-o", plan, "--sram", "1")
    assert refused.code == 1
    assert refused.err.startswith("error: [compile] memory: got 1 bytes of sram, need ")
    assert refused.err.endswith("; no plan written\n")
    assert "threads" not in refused.err  # the command has no such option, and plans for one thread
    assert not plan.exists()
    assert "of inputs and outputs" in cli("compile", model, "-o", plan, "--sram", "1", "--runtime", "c99").err
    assert cli("compile", model, "-o", plan, "--sram", "much").err.startswith("error: [memory] --sram: got 'much'")


def test_compile_says_why_no_weight_is_packed(cli, tmp_path):
    pytest.importorskip("lz4", reason="lz4 is not installed: pip install 'hexane[compress]'")
    noise = np.random.default_rng(1).standard_normal((24, 10)).astype(np.float32)
    model = linear_model(tmp_path / "noise.onnx", [1, 24], noise)
    ended = cli("compile", model, "-o", tmp_path / "m.hxp", "--sram", "1M", "--compress", "lz4")
    assert "0 of packed weights (none gets smaller, or --sram has no room to unpack it)" in ended.out


def test_compile_in_stages_and_fit_say_the_same(cli, tmp_path):
    model, plan = tmp_path / "m.onnx", tmp_path / "m.hxp"
    model.write_bytes(small_networks()["unet"].SerializeToString())
    whole = json.loads(cli("compile", model, "-o", plan, "--sram", "64M", "--json").out)["memory"]
    given = ("--sram", (whole["arena"] + whole["scratch"]) * 3 // 4, "--slow", "4M", "--strategy", "stages")
    kept = json.loads(cli("compile", model, "-o", plan, *given, "--json").out)["memory"]
    fits = json.loads(cli("fit", model, *given, "--json").out)
    assert fits["fits"] is True
    assert fits["planned"]["total"] == kept["arena"] + kept["arena.1"] + kept["scratch"]
    assert (fits["planned"]["read"], fits["planned"]["written"]) == (kept["slow_read"], kept["slow_written"])
    assert "slow_read" in cli("compile", model, "-o", plan, *given).out
    refused = cli("compile", model, "-o", tmp_path / "none.hxp", "--sram", "1K", "--slow", "4M", "--strategy", "stages")
    assert (refused.code, refused.err.endswith("; no plan written\n")) == (1, True)
    assert cli("fit", model, "--sram", "1K", "--slow", "4M", "--strategy", "stages").code == 3
    assert "need --sram as well" in cli("compile", model, "-o", plan, "--strategy", "stages").err
    assert "greedy" in cli("compile", model, "-o", plan, "--sram", "1M", "--strategy", "greedy").err


def test_compile_names_the_ops_that_repair_rewrites(cli, tmp_path):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["m"], "mean", axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["m"], ["q"], "sqrt"),
        helper.make_node("Div", ["x", "q"], ["d"], "div"),
        helper.make_node("Relu", ["d"], ["y"], "relu"),
    ]
    ports = [("x", TensorProto.FLOAT, [1, 64])], [("y", TensorProto.FLOAT, [1, 64])]
    model = save_model(tmp_path / "m.onnx", nodes, *ports)
    said = "rewritten to stay in fp16's range: square, mean, sqrt, div (--repair off keeps them)\n"
    for options in ((), ("--input", tmp_path / "x.npy")):
        np.save(tmp_path / "x.npy", np.ones((1, 64), np.float32))
        assert said in cli("compile", model, "-o", tmp_path / "m.hxp", "--target", "M1", *options).out
    off = cli("compile", model, "-o", tmp_path / "m.hxp", "--target", "M1", "--repair", "off")
    assert "rewritten" not in off.out


def test_fit_prints_and_draws_the_arena_over_time(cli, tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(small_networks()["mobile-17"].SerializeToString())
    record = json.loads(cli("fit", model, "--json").out)
    assert record["timeline"][0]["first"] == 0
    text = cli("fit", model, "--timeline").out
    assert all(one["layer"] in text for one in record["timeline"])
    assert cli("fit", model, "--plot", tmp_path / "arena.png").code == 0
    assert (tmp_path / "arena.png").read_bytes().startswith(b"\x89PNG")
    assert "need one that ends in .png" in cli("fit", model, "--plot", tmp_path / "arena.gif").err


def test_fit_says_what_a_model_takes_and_ends_with_3_where_that_is_too_much(cli, model, open_model, tmp_path):
    said = cli("fit", model)
    assert said.code == 0
    assert said.out.startswith("arena and scratch need ")
    assert cli("fit", model, "--sram", "1M").out.startswith("fits 1048576 bytes (1.00 MiB) of sram in whole")
    refused = cli("fit", model, "--sram", "1", "--json")
    assert refused.code == 3
    record = json.loads(refused.out)
    assert record["fits"] is False
    assert record["verdict"].startswith("does not fit 1 byte of sram: arena and scratch need ")
    assert record["streamed"] <= record["whole"]
    assert record["layers"][0]["bytes"] >= record["layers"][-1]["bytes"]
    assert record["floor"] <= record["bound"] <= record["streamed"]
    assert "open shapes" in cli("fit", open_model).err
    assert cli("fit", open_model, "--input-shape", "x:2x24").code == 0
    assert cli("compile", model, "-o", tmp_path / "m.hxp").code == 0
    assert "got a plan" in cli("fit", tmp_path / "m.hxp").err


def test_compile_to_a_folder_that_is_not_there_is_one_error(cli, model, tmp_path):
    ended = cli("compile", model, "-o", tmp_path / "none" / "m.hxp")
    assert ended.code == 1
    assert str(tmp_path / "none") in ended.err


def test_compile_never_writes_over_its_model(cli, model):
    before = model.read_bytes()
    ended = cli("compile", model, "-o", model)
    assert ended.code == 1
    assert "need another file" in ended.err
    assert model.read_bytes() == before


def test_info_shows_interface_ops_kernels_and_memory_of_a_model(cli, model):
    out = cli("info", model).out
    assert "x  fp32[1, 3, 2, 4]" in out
    assert "y  fp32[1, 10]" in out
    assert re.search(r"flatten +1", out)
    record = json.loads(cli("info", model, "--json").out)
    assert record["format"] == "onnx"
    assert record["ops"] == {"flatten": 1, "matmul": 1}
    assert record["memory"]["arena"] >= record["memory"]["arena_bound"]
    assert record["memory"]["weights"] >= 24 * 10 * 4
    assert f"kernels need while they run, on {record['threads']} thread" in out


def test_info_shows_a_plan(cli, model, tmp_path):
    assert cli("compile", model, "-o", tmp_path / "m.hxp").code == 0
    of_model, of_plan = (json.loads(cli("info", p, "--json").out) for p in (model, tmp_path / "m.hxp"))
    assert of_plan["format"] == "plan"
    assert all(of_plan[key] == of_model[key] for key in ("inputs", "outputs", "kernels"))
    assert "x  fp32[1, 3, 2, 4]" in cli("info", tmp_path / "m.hxp").out


def test_info_names_open_dims_and_the_option_that_fixes_them(cli, open_model):
    out = cli("info", open_model).out
    assert "fp32[rows, 24]" in out
    assert "--input-shape x:1x24" in out
    record = json.loads(cli("info", open_model, "--json").out)
    assert record["inputs"][0]["shape"] == ["rows", 24]
    fixed = json.loads(cli("info", open_model, "--input-shape", "x:2x24", "--json").out)
    assert fixed["outputs"][0]["shape"] == [2, 10]


def test_an_input_of_any_rank_is_shown_and_run(cli, tmp_path):
    ports = ("x", TensorProto.FLOAT, None), ("y", TensorProto.FLOAT, None)
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], ports[:1], ports[1:])
    assert "x  fp32[...]" in cli("info", path).out
    np.save(tmp_path / "x.npy", np.array([[-1, 2]], np.float32))
    assert cli("run", path, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [[0, 2]])


def test_an_input_that_decides_shapes_has_to_be_given(cli, tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = ("x", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])
    path = save_model(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)])
    assert "shape decides shapes" in cli("info", path).out
    assert "--value shape=V or --input shape=FILE.npy" in cli("run", path).err
    assert "--value shape=V" in cli("compile", path, "-o", tmp_path / "m.hxp").err
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    np.save(tmp_path / "shape.npy", np.array([2, 3]))
    files = "--input", f"x={tmp_path}/x.npy", "--input", f"shape={tmp_path}/shape.npy"
    assert cli("run", path, *files, "--output", tmp_path).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [[0, 1, 2], [3, 4, 5]])


def test_ops_lists_the_whole_catalogue(cli):
    out = cli("ops").out
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(USER_OPS)
    assert [op["name"] for op in json.loads(cli("ops", "--json").out)["ops"]] == list(USER_OPS)


@pytest.mark.parametrize("name", USER_OPS)
def test_every_op_is_shown_in_full(cli, name):
    ended = cli("ops", name)
    assert (ended.code, ended.err) == (0, "")
    assert USER_OPS[name].doc in " ".join(ended.out.split())
    record = json.loads(cli("ops", name, "--json").out)
    assert record["name"] == name
    assert list(record["attributes"]) == list(USER_OPS[name].attrs or {})


def test_an_unknown_op_is_told_its_neighbours(cli):
    assert "leaky_relu" in cli("ops", "leaky_rel").err
    assert "conv" in cli("ops", "convolution").err
    assert cli("ops", "nothing_like_it").code == 1


def test_ops_prints_the_knots_of_a_table(cli):
    table = activations()["gelu"]
    rows = cli("ops", "gelu_tanh", "--table").out.splitlines()
    assert "inferred" in rows[0]
    assert [float(row.split()[1]) for row in rows[-33:]] == pytest.approx(table.knots)
    assert rows[1:5] == [
        "reduction  none: x is looked up as it is",
        "           x is clamped to the range from -65504 to inf",
        "           below x = -4: 0 * x + 0",
        "           from x = 4 on: 1 * x + 0",
    ]
    assert rows[5] == "between knots: a straight line"
    record = json.loads(cli("ops", "log", "--table", "--json").out)
    assert (record["op"], record["table"]["name"], record["table"]["knots"][32]) == ("log", "log2", 0)
    assert "sigmoid" in cli("ops", "conv", "--table").err
    assert "need the name" in cli("ops", "--table").err


@pytest.mark.parametrize("op", ["sigmoid", "tanh", "erf", "gelu"])
def test_the_lines_beyond_the_knots_give_what_the_program_computes(cli, op):
    """The printed slope and offset, in fp16, are the results of the engine's arithmetic outside of the table."""
    lines = [line.strip() for line in cli("ops", op, "--table").out.splitlines()]
    x = hx.input("x", (1, 4))
    net = hx.compile(getattr(hx, op)(x), target="M1", device="cpu", fallback="host", threads=1)
    far = np.array([[9, 12, 20, 30]], np.float32)
    (line,) = (line for line in lines if line.startswith("from "))
    slope, _, rest = line.partition(": ")[2].partition(" * ")
    high = float(next(one for one in lines if "clamped" in one).rpartition(" to ")[2])
    expected = float(slope) * np.minimum(far, high) + float(rest.partition(" + ")[2])
    assert np.asarray(net(far)).ravel() == pytest.approx(expected.ravel(), rel=2e-3)


# ---- the process ----


def test_without_arguments_the_command_shows_its_help(cli):
    alone, asked = cli(), cli("--help")
    assert alone == asked
    assert alone.code == 0
    assert all(name in alone.out for name in ("run", "info", "compile", "ops", "targets", "--version"))


def test_version_is_the_package_version(cli):
    assert cli("--version").out == f"hexane {hx.__version__}\n"


def test_a_reader_that_goes_away_is_no_error():
    process = spawn("ops", "--json", stdout=subprocess.PIPE)
    process.stdout.close()
    _, err = process.communicate()
    assert err == ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc, to see that the command is at work")
def test_ctrl_c_ends_quietly_with_130(tmp_path):
    chain = [helper.make_node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(60_000)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("v0", "v60000")]
    graph = helper.make_graph(chain, "chain", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "chain.onnx")
    # A suite that runs in the background ignores the signal, and its children would too.
    process = spawn("info", tmp_path / "chain.onnx", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    maps = Path(f"/proc/{process.pid}/maps")
    while "onnx_cpp2py" not in maps.read_text() and process.poll() is None:
        time.sleep(0.01)  # the onnx package is loaded as soon as a model is read
    time.sleep(1)  # and the model takes several seconds
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("command", ["run", "info"])
def test_a_file_named_as_a_plan_that_is_none_is_told_apart(cli: Cli, tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.hxp"
    path.write_bytes(b"none")
    assert "need those of a plan" in cli(command, path).err
