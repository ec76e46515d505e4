"""Weights from safetensors files: every dtype, shards, and files that lie."""

import json
import os
import random
import struct
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import hexane as hx
from hexane._core import FileMapping
from hexane.importers.safetensors import read_weights

DTYPES = [
    np.bool_,
    *[f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)],
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.bfloat16,
    *["float16", "float32", "float64"],
]
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.int8)


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header, as JSON or bytes, which may claim another length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of two shards and their index; one more file beside the folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B}, folder / "two.safetensors")
    save_file({"b": B}, tmp_path / "outside.safetensors")
    index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    return folder


def index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": weight_map}))
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 5)], ids=str)
def test_a_tensor_comes_back_as_it_was_saved(dtype, shape, tmp_path):
    values = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    name = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}.get(values.dtype.name)
    path = tmp_path / "w.safetensors"
    if name:
        write(path, {"w": tensor(name, list(shape), 0, values.nbytes)}, values.tobytes())
    else:
        save_file({"w": values}, path)
    same(hx.load_weights(path), {"w": values})


def test_tensors_of_many_sizes_stand_where_they_belong(tmp_path):
    random_ = np.random.default_rng(2)
    want = {f"w{i}": random_.integers(0, 2, i).astype(DTYPES[i % len(DTYPES)]) for i in range(40)}
    want = {name: array for name, array in want.items() if "float8" not in array.dtype.name}
    save_file(want, tmp_path / "w.safetensors", metadata={"format": "np"})
    same(hx.load_weights(str(tmp_path / "w.safetensors")), want)


def test_the_memory_of_a_weight_ends_with_it(tmp_path):
    save_file({"a": A, "b": B}, tmp_path / "w.safetensors")
    weights = hx.load_weights(tmp_path / "w.safetensors")
    owners = {}
    for name, array in weights.items():
        assert not array.flags.writeable
        assert array.ctypes.data % 64 == 0
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert array.nbytes <= weights[name].nbytes + 64
        owners[name] = weakref.ref(array)
    del array, weights["a"]
    assert owners["a"]() is None
    assert owners["b"]() is not None
    same(weights, {"b": B})


@pytest.mark.parametrize("change", ["truncate", "overwrite"])
def test_weights_do_not_mind_what_becomes_of_their_file(tmp_path, change):
    path = tmp_path / "w.safetensors"
    array = np.arange(100_000, dtype=np.float32)
    save_file({"a": array}, path)
    weights = hx.load_weights(path)
    if change == "truncate":
        os.truncate(path, 0)
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    np.testing.assert_array_equal(weights["a"], array)


def test_weights_outlive_their_file(tmp_path):
    save_file({"a": A}, tmp_path / "w.safetensors")
    weights = hx.load_weights(tmp_path / "w.safetensors")
    os.remove(tmp_path / "w.safetensors")
    same(weights, {"a": A})


def test_loaded_weights_are_constants_of_a_network(tmp_path):
    save_file({"a": A}, tmp_path / "w.safetensors")
    net = hx.compile(hx.input("x", (2, 3)) + hx.load_weights(tmp_path / "w.safetensors")["a"])
    np.testing.assert_array_equal(net(A), A + A)


def test_an_unaligned_tensor_is_aligned(tmp_path):
    header = json.dumps({"a": tensor("F32", [2, 3], 0, 24)}).encode()
    header += b" " * (-len(header) % 8 + 1)
    array = hx.load_weights(write(tmp_path / "w.safetensors", header, A.tobytes()))["a"]
    assert array.flags.aligned
    np.testing.assert_array_equal(array, A)


@pytest.mark.parametrize("name", ["model", "model/model.safetensors.index.json"])
def test_shards_are_joined(name, shards):
    same(hx.load_weights(shards.parent / name), {"a": A, "b": B})


def test_a_folder_without_an_index_is_every_file_in_it(shards):
    (shards / "model.safetensors.index.json").unlink()
    same(hx.load_weights(shards), {"a": A, "b": B})


def test_shards_may_stand_in_inner_folders(shards):
    (shards / "deep").mkdir()
    (shards / "two.safetensors").rename(shards / "deep" / "two.safetensors")
    index(shards, {"b": "deep/two.safetensors", "a": "one.safetensors"})
    assert list(hx.load_weights(shards)) == ["b", "a"]


def test_the_file_a_user_names_may_be_a_link(shards):
    (shards / "link").symlink_to("one.safetensors")
    same(hx.load_weights(shards / "link"), {"a": A})


GOOD = {"a": tensor("F32", [2, 3], 0, 24)}


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (b"", b"", 0),
        (b"{", b"", None),
        (b"[]", b"", None),
        (b"\xff\xfe", b"", None),
        (b"[" * 100_000, b"", None),
        (GOOD, A.tobytes(), 1000),
        (GOOD, A.tobytes(), 2**63),
        (GOOD, A.tobytes(), 2**64 - 1),
        (GOOD, A.tobytes(), 99_000_000),
        (GOOD, A.tobytes()[:-1], None),
        (GOOD, A.tobytes() + b"0", None),
        ({"a": tensor("F32", [2, 3], 0, 20)}, A.tobytes()[:20], None),
        ({"a": tensor("F32", [2, 3], 24, 0)}, A.tobytes(), None),
        ({"a": tensor("F32", [2, 3], 0, 24), "b": tensor("F32", [6], 12, 36)}, bytes(36), None),
        ({"a": tensor("F32", [2, 3], 0, 24), "b": tensor("F32", [2, 3], 0, 24)}, A.tobytes(), None),
        ({"a": tensor("F32", [2, 3], 0, 24), "b": tensor("I8", [1], 32, 33)}, bytes(33), None),
        ({"a": tensor("F32", [-2, -3], 0, 24)}, A.tobytes(), None),
        ({"a": tensor("F32", [2.0, 3], 0, 24)}, A.tobytes(), None),
        ({"a": tensor("F32", [2**33, 2**33], 0, 24)}, A.tobytes(), None),
        ({"a": tensor("F32", [2**64, 0], 0, 0)}, b"", None),
        ({"a": tensor("F33", [2, 3], 0, 24)}, A.tobytes(), None),
        ({"a": tensor("float32", [2, 3], 0, 24)}, A.tobytes(), None),
        ({"a": {"dtype": "F32", "shape": [2, 3]}}, A.tobytes(), None),
        ({"a": 1}, b"", None),
        (
            b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            b"1",
            1,
        ),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_a_damaged_file_is_refused_by_its_path(header, data, length, tmp_path):
    path = write(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(hx.Error, match=r"\[load_weights\] .*bad\.safetensors: .*need"):
        hx.load_weights(path)


@pytest.mark.parametrize(
    ("entry", "data", "message"),
    [
        (tensor("F6_E2M3", [4], 0, 3), bytes(3), "got the dtype F6_E2M3, need one of BOOL"),
        (tensor("F8_E8M0", [1], 0, 1), b"1", "got the dtype F8_E8M0"),
        (tensor("F4", [2], 0, 1), b"1", "got the dtype F4"),
        (tensor("BOOL", [3], 0, 3), b"\0\1\2", "got the byte 2, need 0 or 1"),
        (tensor("I8", [1] * 9, 0, 1), b"1", "got rank 9, need at most 8"),
        (tensor("I8", [0, 2**50], 0, 0), b"", r"need less"),
    ],
    ids=lambda v: v["dtype"] if isinstance(v, dict) else "",
)
def test_a_tensor_that_hexane_does_not_have_is_refused_by_its_name(entry, data, message, tmp_path):
    path = write(tmp_path / "w.safetensors", {"layer.weight": entry}, data)
    with pytest.raises(hx.Error, match=rf"w\.safetensors: tensor 'layer.weight': .*{message}"):
        hx.load_weights(path)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 40, -1])
def test_a_truncated_file_is_refused(size, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": A}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(hx.Error, match=r"\[load_weights\] .*w\.safetensors: .*need a safetensors file"):
        hx.load_weights(path)


def test_mutated_files_load_or_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"a": A, "b": B, "c": np.array([True, False])}, path)
    good = path.read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(1000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad) - 20)] = chance.choice(b'0123456789",:[]{}FIU\x00\xff')
        path.write_bytes(bad)
        try:
            weights = hx.load_weights(path)
        except hx.Error:
            continue
        assert sum(w.nbytes for w in weights.values()) == A.nbytes + B.nbytes + 2


@pytest.mark.parametrize(
    "location",
    ["../outside.safetensors", "deep/../../outside.safetensors", "{folder}/two.safetensors", "/etc/passwd", "", ".",
     "link.safetensors", "near.safetensors", "out/outside.safetensors", "hard.safetensors", "deep", "..\\outside.safetensors",
     "two\0.safetensors"],
)  # fmt: skip
def test_an_index_never_leaves_its_folder(location, shards):
    (shards / "deep").mkdir()
    (shards / "link.safetensors").symlink_to("../outside.safetensors")
    (shards / "near.safetensors").symlink_to("two.safetensors")
    (shards / "out").symlink_to("..")
    os.link(shards.parent / "outside.safetensors", shards / "hard.safetensors")
    index(shards, {"a": "one.safetensors", "b": location.format(folder=shards)})
    for path in (shards, shards / "model.safetensors.index.json"):
        with pytest.raises(hx.Error, match=r"\[load_weights\] .*model: .*need a file"):
            hx.load_weights(path)


def test_a_folder_without_an_index_follows_no_link(shards):
    (shards / "model.safetensors.index.json").unlink()
    (shards / "link.safetensors").symlink_to("../outside.safetensors")
    with pytest.raises(hx.Error, match=r"'link.safetensors': a link"):
        hx.load_weights(shards)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, "'three.safetensors': No such file"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, r"one.safetensors: does not hold tensor 'b'"),
        (
            {"b": "one.safetensors"},
            r"one.safetensors: holds, unlike the index says, tensor 'a'|does not hold tensor 'b'",
        ),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "two.safetensors: holds, unlike the index says, tensor 'b'"),
        ({}, "need a 'weight_map'"),
        ([], "need a 'weight_map'"),
        ({"a": 1}, "need a 'weight_map'"),
    ],
    ids=repr,
)
def test_an_index_and_its_shards_agree(weight_map, message, shards):
    index(shards, weight_map)
    with pytest.raises(hx.Error, match=message):
        hx.load_weights(shards)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}',
        "[" * 100_000,
        "1" * 10_000,
        "\0",
    ],
    ids=lambda text: text[:20],
)
def test_an_index_that_is_none_is_refused(text, shards):
    (shards / "model.safetensors.index.json").write_text(text)
    with pytest.raises(hx.Error, match=r"model\.safetensors\.index\.json: .*need"):
        hx.load_weights(shards)


def test_two_indices_in_one_folder_are_ambiguous(shards):
    (shards / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(hx.Error, match=r"got the indices model.*, other.*, need the path of one"):
        hx.load_weights(shards)


def test_a_tensor_in_two_files_is_refused(shards):
    (shards / "model.safetensors.index.json").unlink()
    save_file({"a": A}, shards / "three.safetensors")
    with pytest.raises(hx.Error, match=r"three.safetensors: got tensor 'a' of another file"):
        hx.load_weights(shards)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(hx.Error, match=r"without \.safetensors files"):
        hx.load_weights(tmp_path)


@pytest.mark.parametrize(
    "name", ["missing.safetensors", "missing/w.safetensors", "missing.safetensors.index.json", "a\0b"]
)
def test_a_path_that_cannot_be_read_is_refused(name, tmp_path):
    with pytest.raises(hx.Error, match=r"\[load_weights\] .*need a readable safetensors file"):
        hx.load_weights(tmp_path / name)


def test_a_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "w.safetensors")
    for path in (tmp_path, tmp_path / "w.safetensors"):
        with pytest.raises(hx.Error, match="no regular file"):
            hx.load_weights(path)


@pytest.mark.parametrize("name", ["w", "a longer name", "ab" * 21])
def test_the_first_tensor_is_aligned_whatever_the_header_takes(name: str, tmp_path: Path) -> None:
    text = json.dumps({name: tensor("F32", [2, 3], 0, 24)}).encode()
    for gap in range(9):
        path = write(tmp_path / "m.safetensors", text + b" " * gap, A.tobytes())
        found = hx.load_weights(path)[name]
        assert found.ctypes.data % 64 == 0
        np.testing.assert_array_equal(found, A)


@pytest.mark.parametrize(("dtype", "shape"), [(d, s) for d in DTYPES for s in [(5, 3), (), (0, 4)]])
def test_a_mapped_tensor_has_the_bytes_of_a_read_one(dtype, shape, tmp_path):
    data = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    save_file({"w": data, "z": A}, tmp_path / "w.safetensors")
    same(read_weights(tmp_path / "w.safetensors", mapped=True), hx.load_weights(tmp_path / "w.safetensors"))


def test_a_mapped_tensor_stays_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": A}, path)
    mapped = read_weights(path, mapped=True)["w"]
    assert FileMapping.of(mapped)
    assert FileMapping.of(mapped[1:].T)
    assert not FileMapping.of(hx.load_weights(path)["w"])
    with pytest.raises(ValueError, match="read-only"):
        mapped[0, 0] = 1
    path.unlink()
    assert mapped.tobytes() == A.tobytes()


def test_an_unaligned_tensor_is_read(tmp_path: Path) -> None:
    header = {"a": tensor("I8", [1], 0, 1), "b": tensor("F32", [2, 3], 1, 25)}
    path = write(tmp_path / "w.safetensors", header, b"\x07" + A.tobytes())
    mapped = read_weights(path, mapped=True)
    same(mapped, {"a": np.array([7], np.int8), "b": A})
    assert not FileMapping.of(mapped["b"])


@pytest.mark.parametrize("change", [b"longer", b""])
def test_a_change_of_a_mapped_file_is_seen(change: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": A}, path)
    file = FileMapping.of(read_weights(path, mapped=True)["w"])
    assert file is not None
    file.release()
    file.check_unchanged()
    with path.open("ab") as opened:
        opened.write(change)
    os.utime(path)
    with pytest.raises(
        hx.Error, match=r"w\.safetensors: the file has changed since it was opened, load the model again"
    ):
        file.check_unchanged()
    with pytest.raises(hx.Error, match="need a part of the file's"):
        file.part(8, 1 << 62)
