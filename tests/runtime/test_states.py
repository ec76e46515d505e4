"""Files of states: written by one model, read by another of the same graph, and by other readers of safetensors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import hexane as hx
from hexane.graph import Array
from hexane.ops.reference import run_reference
from hexane.runtime.states import read_states, write_states


def counting(dtype: str = "fp32", width: int = 3) -> hx.Model:
    """Adds its input to a sum that it keeps, and counts."""
    x = hx.input("x", (width,), dtype)
    total = hx.state("total", init=np.zeros(width), dtype=dtype)
    calls = hx.state("calls", init=np.zeros(1), dtype="int32")
    now = hx.write_state(total, total + x, np.array(0))
    count = hx.write_state(calls, calls + np.ones(1, np.int32), np.array(0))
    net = hx.compile({"sum": now, "count": count})
    assert isinstance(net, hx.Model)
    return net


def ones(width: int = 3) -> Array:
    return np.ones(width, np.float32)


def test_another_model_goes_on_from_the_file(tmp_path: Path) -> None:
    net = counting()
    for _ in range(3):
        net(ones())
    net.save_states(tmp_path / "a.hxc")
    other = counting()
    other.load_states(tmp_path / "a.hxc")
    assert other(ones())["count"] == 4
    np.testing.assert_array_equal(other.read_state("total"), [4, 4, 4])


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    net = counting()
    net(ones())
    net.save_states(tmp_path / "a.hxc")
    found = load_file(tmp_path / "a.hxc")
    np.testing.assert_array_equal(found["total"], ones())
    assert found["calls"].dtype == np.int32
    assert found["calls"] == [1]
    with safe_open(tmp_path / "a.hxc", framework="np") as file:
        assert file.metadata()["hexane.states"] == "1"


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    states = {
        str(kind): np.arange(5).astype(kind)
        for kind in (
            np.int8,
            np.uint8,
            np.int16,
            np.uint16,
            np.int32,
            np.int64,
            np.float16,
            np.float32,
            np.float64,
            bool,
        )
    }
    states |= {"empty": np.empty((0, 3), np.float32), "number": np.array(2.5, np.float32)}
    states["turned"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_states(tmp_path / "a.hxc", states)
    found = read_states(tmp_path / "a.hxc")
    assert list(found) == list(states)
    for name, array in states.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert list(read_states(tmp_path / "a.hxc", only=["number", "missing"])) == ["number"]


def test_each_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.hxc"
    write_states(path, {"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.int32)})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(hx.Error, match="load_states"):
            read_states(path)
    for size in (0, 7, 8, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(hx.Error, match="load_states"):
            read_states(path)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    save_file({"total": ones()}, tmp_path / "a.safetensors")
    with pytest.raises(hx.Error, match="of another kind, need one that save_states wrote"):
        counting().load_states(tmp_path / "a.safetensors")
    with pytest.raises(hx.Error, match="No such file"):
        counting().load_states(tmp_path / "none.hxc")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(hx.Error, match="no regular file"):
        counting().load_states(tmp_path / "pipe")


def test_states_of_another_model_change_nothing(tmp_path: Path) -> None:
    for states, words in (
        ({"total": ones()}, r"other states \(calls\)"),
        ({"calls": np.array([7], np.int32), "total": ones(4)}, r"state 'total': got fp32\[4\], need fp32\[3\]"),
        ({"calls": np.array([7], np.int32), "total": np.ones(3)}, "need fp32"),
    ):
        write_states(tmp_path / "a.hxc", states)
        net = counting()
        net(ones())
        with pytest.raises(hx.Error, match=words):
            net.load_states(tmp_path / "a.hxc")
        assert net.read_state("calls") == 1


def test_kept_states_stay(tmp_path: Path) -> None:
    write_states(tmp_path / "a.hxc", {"calls": np.array([7], np.int32)})
    net = counting()
    net(ones())
    net.load_states(tmp_path / "a.hxc", keep=["total"])
    np.testing.assert_array_equal(net.read_state("total"), ones())
    assert net.read_state("calls") == 7


def test_a_plan_with_states_is_read_too(tmp_path: Path) -> None:
    net = counting()
    net(ones())
    net.save(tmp_path / "a.hxp", states="now")
    other = counting()
    other.load_states(tmp_path / "a.hxp")
    assert other(ones())["count"] == 2
    assert read_states(tmp_path / "a.hxp", only=["calls"])["calls"] == 1


def test_a_model_without_states_has_nothing_to_write(tmp_path: Path) -> None:
    net = hx.compile(hx.input("x", (3,)) + 1)
    assert isinstance(net, hx.Model)
    with pytest.raises(hx.Error, match="without states"):
        net.save_states(tmp_path / "a.hxc")


FULL = """
import resource, signal
import numpy as np
from hexane.runtime.states import write_states
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
write_states({path!r}, {{"a": np.ones(4096, np.float32)}})
"""


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.hxc"
    write_states(path, {"a": ones()})
    before = path.read_bytes()
    ended = subprocess.run([sys.executable, "-c", FULL.format(path=str(path))], capture_output=True, text=True)
    assert "cannot write" in ended.stderr
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.hxc"]


@pytest.mark.parametrize("place", [0, 16383, 16384, 40000, 69999])
def test_a_large_state_begins_with_its_numbers_among_zeros(place: int) -> None:
    """Blocks of first contents that are zero are not copied: also not where a state is reset."""
    begin = np.zeros(70_000, np.float32)
    begin[place] = 3
    state = hx.state("sum", init=begin)
    net = hx.compile({"now": hx.write_state(state, state + hx.input("x", (70_000,)), np.array(0))})
    assert isinstance(net, hx.Model)
    for _ in range(2):
        assert np.array_equal(net(np.zeros(70_000, np.float32)), begin)
        assert np.array_equal(net(np.ones(70_000, np.float32)), begin + 1)
        net.reset_state()


FORMS = {
    "array": lambda make: make("s", np.arange(4, dtype=np.float32)),
    "list": lambda make: make("s", [0.0, 1.0, 2.0, 3.0]),
    "init": lambda make: make("s", init=np.arange(4, dtype=np.float32)),
    "init and shape": lambda make: make("s", shape=(4,), init=np.arange(4.0, dtype=np.float32)),
    "array and dtype": lambda make: make("s", np.arange(4), "fp32"),
}


@pytest.mark.parametrize("make", [hx.state, hx.param], ids=["state", "param"])
@pytest.mark.parametrize("form", FORMS)
def test_states_and_params_take_the_same_forms(form: str, make):
    kept = FORMS[form](make)
    assert (kept.shape, str(kept.dtype)) == ((4,), "fp32")
    net = hx.compile({"y": hx.write_state(kept, kept * 2.0)}, target="host")
    for times in (2, 4):
        np.testing.assert_array_equal(net(), np.arange(4, dtype=np.float32) * times)


@pytest.mark.parametrize("make", [hx.state, hx.param], ids=["state", "param"])
def test_a_shape_alone_is_of_zeros(make):
    net = hx.compile({"y": make("s", shape=(2, 3), dtype="int32") + 1}, target="host")
    np.testing.assert_array_equal(net(), np.ones((2, 3), np.int32))
    with pytest.raises(hx.Error, match="got neither a shape nor initial contents"):
        make("s")
    with pytest.raises(hx.Error, match=r"got init of shape \(2,\), need \(3,\)"):
        make("s", shape=(3,), init=[1.0, 2.0])
    with pytest.raises(hx.Error, match="got an array and init, need one of them"):
        make("s", np.zeros(2), init=np.zeros(2))


@pytest.mark.parametrize("position", [1, np.array(1), np.int64(1)], ids=["int", "array", "numpy"])
def test_a_position_is_an_integer_next_to_floats(position):
    cache = hx.state("cache", np.zeros((3, 2), np.float32))
    net = hx.compile({"y": hx.write_state(cache, hx.input("x", (1, 2)), position)}, target="host")
    np.testing.assert_array_equal(net(np.float32([[5, 6]])), [[0, 0], [5, 6], [0, 0]])


def test_only_an_update_of_all_needs_no_position():
    cache = hx.state("cache", np.zeros((3, 2), np.float32))
    with pytest.raises(
        hx.Error, match=r"got no position for an update of shape \(1, 2\), need one, or the shape \(3, 2\)"
    ):
        hx.write_state(cache, hx.input("x", (1, 2)))


def test_a_literal_index_is_an_integer_next_to_floats():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    net = hx.compile({"y": hx.gather(hx.input("x", (3, 2)), 1, axis=0)}, target="host")
    np.testing.assert_array_equal(net(x), x[1])


def test_a_number_is_no_shape_of_a_state() -> None:
    with pytest.raises(hx.Error, match=r"got the number 4, need a shape such as \(4,\), or init=4"):
        hx.state("s", shape=4)
    assert hx.state("s", init=4).shape == ()


@pytest.mark.parametrize("make", [hx.state, hx.param])
@pytest.mark.parametrize("given", ["array", "array and shape", "init", "init and shape", "number", "shape"])
def test_states_and_params_have_these_contents(make, given):
    array = np.array([1.0, 2.0, 3.0], np.float32)
    made, want = {
        "array": (lambda: make("s", array), array),
        "array and shape": (lambda: make("s", array, shape=(3,)), array),
        "init": (lambda: make("s", init=array), array),
        "init and shape": (lambda: make("s", shape=(3,), init=array), array),
        "number": (lambda: make("s", shape=(3,), init=2.5), np.full(3, 2.5)),
        "shape": (lambda: make("s", shape=(3,)), np.zeros(3)),
    }[given]
    (found,) = run_reference(hx.graph(made() * 1.0), {}).values()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, want)


def test_contents_of_another_shape_are_refused():
    with pytest.raises(hx.Error, match=r"got init of shape \(3,\), need \(4,\)"):
        hx.state("s", np.zeros(3, np.float32), shape=(4,))


@pytest.mark.parametrize("kind", ["float32", "float16", "int64", "int32", "uint8", "bool"])
def test_a_state_has_the_dtype_of_its_array(kind: str) -> None:
    array = np.array([0, 1, 1], kind)
    assert hx.state("s", array).dtype.numpy == array.dtype
    assert hx.state("s", init=array).dtype.numpy == array.dtype
    assert str(hx.state("s", array, dtype="fp32").dtype) == "fp32"


def test_a_state_of_a_shape_a_number_or_float64_is_fp32() -> None:
    for made in (hx.state("s", (3,)), hx.state("s", shape=(3,), init=2), hx.state("s", np.zeros(3))):
        assert str(made.dtype) == "fp32"
