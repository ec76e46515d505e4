"""`hexane doctor` without an engine, with the stand-in, and with stand-ins that are ill."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import Cli
from hexane import _core
from hexane.report import doctor
from hexane.report.mac import collect
from hexane.report.mac.interface import SELF_TEST, SYSTEM
from hexane.report.self_test import SHAPES
from hexane.runtime import engine
from machine_reports import worker_program
from stand_in import FRAMEWORK, LIBRARY, StandIn, needs_stand_in, no_budget

INJECTED = ("--library", LIBRARY, "--framework", FRAMEWORK)


def plan(folder: Path, offsets: Callable[[list[int]], list[int]] = list, rows: int = 5) -> bytes:
    """The plan of the self-test's text. offsets: those that are read, of those in the text. rows: so many elements of
    each row count."""
    text, weights = (folder / "model.mil").read_text(), (folder / "weights" / "weights.bin").read_bytes()
    found = [int(offset) for offset in re.findall(r"offset = uint64\((\d+)\)", text)]
    arrays = [_core.blob_read(weights, offset)[1] for offset in offsets(found)]
    first, second = (np.frombuffer(array, np.float16).reshape(4, 4, 1, 1) for array in arrays)
    z, a = (hx.input(name, shape, dtype="fp16") for name, shape in SHAPES.items())
    total = hx.conv(hx.conv(z, first), second) + a
    net = hx.compile({"sum": total, "largest": hx.reduce_max(z[..., :rows], axes=(3,), keep_dims=True)}, threads=1)
    net.save(folder / "plan.hxp")
    return (folder / "plan.hxp").read_bytes()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    needs_stand_in()
    for module in (doctor, engine):
        monkeypatch.setattr(module, "dispatch", no_budget)
    return StandIn()


def test_without_an_engine_the_cpu_serves(cli: Cli) -> None:
    ended = cli("doctor")
    assert (ended.code, ended.err) == (0, "")
    assert "chip     none of Apple's" in ended.out
    assert ended.out.endswith(
        "No Neural Engine: libhexane_ane.dylib is part of the package on macOS only. "
        "Programs run on this CPU, those compiled for chips too.\n"
    )
    record = json.loads(cli("doctor", "--json").out)
    assert (record["has_engine"], record["ok"], record["checks"]) == (False, True, [])


def test_a_library_that_is_not_there_is_named(cli: Cli) -> None:
    assert "No Neural Engine: there is no /nowhere/lib.so" in cli("doctor", "--library", "/nowhere/lib.so").out


def test_a_healthy_engine_is_shown_in_full(cli: Cli, stand_in: StandIn) -> None:
    ended = cli("doctor", *INJECTED)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("The Neural Engine works.\n")
    lines = [re.sub(r" +", " ", line.strip()) for line in ended.out.splitlines()]
    evaluate = "-[_ANEInMemoryModel evaluateWithQoS:options:request:error:]"
    assert f"selector {evaluate} B44@0:8I16@20@28^@36 ok" in lines
    assert "device aneArchitectureType stand-in" in lines
    assert "port z fp16[1, 4, 3, 5], strides [768, 192, 64, 2]" in lines
    assert "self-test weights each layer has its own weights ok" in lines
    assert any(re.fullmatch(r"budget compiled programs [1-9]\d* of 1073741824 in this process", line) for line in lines)
    assert "budget loaded programs 0 of 120 in this process" in lines
    record = json.loads(cli("doctor", *INJECTED, "--json").out)
    assert (record["has_engine"], record["ok"], record["problem"]) == (True, True, "")
    assert all(check["ok"] for check in record["checks"])


@pytest.mark.parametrize(
    ("ill", "found"),
    [
        (lambda folder: plan(folder, lambda o: [o[0], o[0]]), "weights all layers read the first weights"),
        (lambda folder: plan(folder, lambda o: [o[1], o[1]]), "weights all layers read the last weights"),
        (lambda folder: plan(folder, lambda o: o[::-1], rows=4), "rows [4.0, 9.0, 14.0,"),
    ],
)
def test_an_engine_that_computes_something_else_is_ill(
    cli: Cli, stand_in: StandIn, ill: Callable[[Path], bytes], found: str
) -> None:
    StandIn(ill)
    ended = cli("doctor", *INJECTED)
    assert ended.code == 1
    assert found in re.sub(r" +", " ", ended.out)
    assert ended.out.endswith("The Neural Engine does not do what Hexane needs: see the table.\n")


def test_a_failure_has_its_stage_and_what_to_do(cli: Cli, stand_in: StandIn) -> None:
    stand_in.set(fail_loads=2)
    ended = cli("doctor", *INJECTED)
    assert ended.code == 1
    assert "The Neural Engine cannot be used: [device load] com.apple.appleneuralengine 6: " in ended.out
    assert ended.out.endswith("too many programs are loaded, or this one is too large\n")


def test_a_machine_without_an_engine_is_not_ill(cli: Cli, stand_in: StandIn) -> None:
    stand_in.set(no_engine=1)
    try:
        ended = cli("doctor", *INJECTED)
    finally:
        stand_in.set(no_engine=0)
    assert ended.code == 0
    assert "No Neural Engine: [device open] this machine has no Neural Engine." in ended.out


def test_an_error_of_the_device_has_parts(stand_in: StandIn) -> None:
    setup = _core.AneSetup(library=str(LIBRARY), framework="/nowhere", compile_limit=0, load_limit=0, load_retry_ms=0)
    with pytest.raises(hx.DeviceError) as error:
        _core.probe_ane(setup)
    assert isinstance(error.value, hx.Error)
    assert (error.value.stage, error.value.code) == ("open", 0)
    assert error.value.hint == "the CPU executor runs programs without an engine"


@pytest.mark.slow
def test_a_report_is_made_and_read_by_one_command_each(
    cli: Cli, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(collect.__kwdefaults__, "program", worker_program())
    monkeypatch.setitem(collect.__kwdefaults__, "probes", (SYSTEM, SELF_TEST))
    ended = cli("doctor", "--report", tmp_path / "reports", *INJECTED)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("machine: machine: done\nself test: self test: done\n\nThe report is ")
    (path,) = (tmp_path / "reports").iterdir()
    ended = cli("doctor", "--read-report", path)
    assert (ended.code, ended.err) == (0, "")
    assert path.with_suffix(".html").read_text().startswith("<!DOCTYPE html>")
    assert "self_test_right = true" in path.with_suffix(".toml").read_text()
    record = json.loads(cli("doctor", "--read-report", path, "--json").out)
    states = {belief["name"]: belief["state"] for belief in record["beliefs"]}
    assert (states["self_test_right"], states["threads"]) == ("holds", "open")


def test_a_report_needs_the_library_that_talks_to_the_engine(cli: Cli, tmp_path: Path) -> None:
    ended = cli("doctor", "--report", tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert "need the library that talks to the Neural Engine: run it on a Mac" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_report_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    assert "need a .zip" in cli("doctor", "--read-report", path).err
    assert path.read_text() == "mine"
    assert "need one of them" in cli("doctor", "--read-report", path, "--report", tmp_path).err
