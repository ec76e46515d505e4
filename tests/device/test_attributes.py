"""What the framework says of programs and classes, as it stands: for people who see it on a Mac for the first time."""

import ctypes as c
import plistlib
from collections.abc import Iterator

import numpy as np
import pytest

import hexane as hx
from engines import stand_in_engine
from hexane import _core
from hexane.report.self_test import program
from hexane.runtime import engine
from stand_in import FRAMEWORK, LIBRARY

WEIGHTS = "weights/weights.bin"


@pytest.fixture
def made() -> Iterator[_core.DeviceProgram]:
    text, weights = program()
    yield stand_in_engine().compile(text, {WEIGHTS: weights}, 21)
    c.CDLL(str(FRAMEWORK)).fake_ane_set(b"float_type", c.c_int64(0))


def test_attributes_are_a_property_list_as_the_framework_has_it(made: _core.DeviceProgram) -> None:
    found = plistlib.loads(made.attributes(21).encode())
    (network,) = found["NetworkStatusList"]
    assert {live["Name"]: live["RowStride"] for live in network["LiveInputList"]} == {"a": 64, "z": 64}


def test_attributes_are_told_where_hexane_does_not_understand_the_ports(made: _core.DeviceProgram) -> None:
    c.CDLL(str(FRAMEWORK)).fake_ane_set(b"float_type", c.c_int64(1))
    with pytest.raises(hx.DeviceError, match="the unknown type Float64"):
        made.load(21)
    assert "Float64" in made.attributes(21)


def test_every_method_of_the_framework_is_listed_known_or_not() -> None:
    stand_in_engine()
    setup = engine.ane_setup(LIBRARY, str(FRAMEWORK))
    listed = {name: encoding for _, name, encoding, _ in _core.ane_methods(setup)}
    assert listed["-[_ANEInMemoryModel isKept]"].startswith("B")  # Hexane does not use it
    needed = {name: found for kind, name, found, _ in _core.probe_ane(setup) if kind == "selector"}
    assert needed.items() <= listed.items()


def test_a_purged_program_is_not_found_again(made: _core.DeviceProgram) -> None:
    text, weights = program()
    device = stand_in_engine()
    assert device.find(text, {WEIGHTS: weights}) is not None
    made.purge()
    assert device.find(text, {WEIGHTS: weights}) is None


def test_a_loaded_program_runs_on_surfaces_of_any_size(made: _core.DeviceProgram) -> None:
    made.load(21)
    given = {"z": np.arange(60, dtype=np.float16).reshape(1, 4, 3, 5), "a": np.zeros((1, 4, 1, 1), np.float16)}
    for sizes in ([], [20000], [16384, 32768, 20000]):
        found = made.run(given, qos=21, surface_bytes=sizes)["largest"]
        np.testing.assert_array_equal(found, given["z"].max(axis=3, keepdims=True))
    with pytest.raises(hx.Error, match="input a: got nothing, need an array"):
        made.run({"z": given["z"]}, qos=21)
