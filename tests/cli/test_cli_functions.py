"""A model of several functions through the commands: compiled to one file, shown, run by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.emit.coreai.write import save_graph

WEIGHT = (np.random.default_rng(1).standard_normal((64, 64)) / 8).astype(np.float32)


@pytest.fixture
def asset(tmp_path: Path) -> Path:
    graphs = {f"rows_{n}": hx.graph({"y": hx.linear(hx.input("x", (n, 64)), WEIGHT)}) for n in (1, 8)}
    save_graph(graphs, tmp_path / "net.aimodel")
    return tmp_path / "net.aimodel"


def test_all_functions_go_to_one_file(cli: Any, asset: Path, tmp_path: Path) -> None:
    plan = tmp_path / "net.hxp"
    ended = cli("compile", asset, "-o", plan)
    assert ended.code == 0, ended.err
    assert "2 functions" in ended.out
    assert "rows_8: " in ended.out
    assert "functions  rows_1, rows_8" in cli("info", plan).out
    assert "x  fp32[8, 64]" in cli("info", plan, "--function", "rows_8").out
    x = np.random.default_rng(2).integers(0, 256, (8, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    ended = cli("run", plan, "--function", "rows_8", "--input", tmp_path / "x.npy", "--output", tmp_path / "out")
    assert ended.code == 0, ended.err
    need = hx.compile(f"{asset}#rows_8")(x)
    assert np.load(tmp_path / "out" / "y.npy").tobytes() == np.asarray(need).tobytes()


def test_a_function_has_to_be_named(cli: Any, asset: Path, tmp_path: Path) -> None:
    plan = tmp_path / "net.hxp"
    cli("compile", asset, "-o", plan)
    ended = cli("run", plan)
    assert ended.code != 0
    assert "need one of rows_1, rows_8" in ended.err
    assert "got the function 'none', need one of rows_1, rows_8" in cli("run", plan, "--function", "none").err
    assert "need one: hexane compile MODEL --function" in cli("codegen", plan, "-o", tmp_path / "c").err
    assert "need --function, one of rows_1, rows_8" in cli("compile", asset, "-o", plan, "--sram", "64K").err
    assert "compiled already" in cli("check", plan).err
