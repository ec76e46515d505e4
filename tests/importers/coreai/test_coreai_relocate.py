"""Assets with other locations are the same program."""

import numpy as np

import hexane as hx
from assets import FOLDER, as_the_first_converters, with_locations
from hexane.emit.coreai.relocate import repaired, stripped
from hexane.importers.coreai import import_asset, read_asset


def numbers(data: bytes) -> np.ndarray:
    net = hx.compile(import_asset(read_asset(data, "f")), threads=1)
    return np.asarray(net(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)))


def test_operations_have_the_lines_and_modules_of_their_author() -> None:
    graph = import_asset(read_asset(with_locations(), "f"))
    assert [n.where for n in graph.nodes if n.op == "matmul"] == ["matmul at model.py:41, Model$1.Linear$1"]


def test_what_is_stripped_names_nobody_and_computes_the_same() -> None:
    data = with_locations()
    small = stripped(read_asset(data, "f"))
    assert FOLDER.encode() in data
    assert FOLDER.encode() not in small
    assert b"Model$1" not in small
    assert len(small) < len(data)
    np.testing.assert_array_equal(numbers(small), numbers(data))


def test_old_locations_become_those_of_today() -> None:
    data = with_locations()
    old = as_the_first_converters(data)
    asset = read_asset(old, "f")
    assert asset.is_of_the_first_converters
    new = repaired(asset)
    assert not read_asset(new, "f").is_of_the_first_converters
    np.testing.assert_array_equal(numbers(new), numbers(data))
    np.testing.assert_array_equal(numbers(old), numbers(data))


def test_what_is_repaired_twice_is_the_same() -> None:
    once = stripped(read_asset(with_locations(), "f"))
    assert numbers(stripped(read_asset(once, "f"))).tolist() == numbers(once).tolist()
