"""The bytes of Core AI assets: what is read is what was written, and no damage does more than raise an error."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
from assets import Function, perceptron
from hexane.emit.coreai.asset import AssetWriter, save_asset
from hexane.emit.coreai.bytecode import number, signed
from hexane.emit.coreai.write import emit_asset
from hexane.importers.coreai import import_asset, import_coreai, open_asset, read_asset
from hexane.importers.coreai.bytecode import MAGIC
from hexane.importers.coreai.cursor import Cursor
from hexane.importers.coreai.numbers import numbers
from hexane.importers.coreai.operations import walk


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**35 - 1, 2**49, 2**56 - 1, 2**56, 2**64 - 1])
def test_numbers_come_back(value: int) -> None:
    assert Cursor(memoryview(number(value)), 0, "f").number() == value


@pytest.mark.parametrize("value", [0, -1, 1, -64, 64, 2**31, -(2**31), 2**62, -(2**62), -(2**63)])
def test_signed_numbers_come_back(value: int) -> None:
    assert Cursor(memoryview(signed(value)), 0, "f").signed() == value


def test_the_first_bytes_say_how_long_a_number_is() -> None:
    """As MLIR documents its variable-width integers: the position of the first set bit."""
    for data, value in ((b"\x03", 1), (b"\x02\x01", 64), (b"\x04\x00\x01", 8192), (b"\0" + b"\x01" + b"\0" * 7, 1)):
        assert Cursor(memoryview(data), 0, "f").number() == value


def test_an_asset_is_what_was_written(tmp_path: Path) -> None:
    program, feeds, want = perceptron(np.random.default_rng(0))
    save_asset(tmp_path / "net.aimodel", program, {"assetVersion": "2.0", "producer": "tests"})
    asset = open_asset(tmp_path / "net.aimodel")
    assert asset.hash_fits
    assert asset.metadata["producer"] == "tests"
    assert [(p.name, str(p.type)) for p in asset.function().inputs] == [("x", "f32[4, 24]")]
    assert [(p.name, str(p.type)) for p in asset.function().outputs] == [("y", "f32[4, 10]")]
    np.testing.assert_allclose(hx.compile(tmp_path / "net.aimodel")(feeds), want, rtol=1e-5, atol=1e-6)


def test_a_changed_program_is_told(tmp_path: Path) -> None:
    program, _, _ = perceptron(np.random.default_rng(0))
    save_asset(tmp_path / "net.aimodel", program, {})
    (tmp_path / "net.aimodel" / "main.hash").write_bytes(hashlib.sha256(b"another").digest())
    assert open_asset(tmp_path / "net.aimodel").hash_fits is False


def test_a_bundle_is_opened_by_its_folder(tmp_path: Path) -> None:
    program, feeds, want = perceptron(np.random.default_rng(1))
    (tmp_path / "bundle").mkdir()
    save_asset(tmp_path / "bundle" / "inner.aimodel", program, {})
    (tmp_path / "bundle" / "metadata.json").write_text(json.dumps({"kind": "llm", "assets": {"main": "inner.aimodel"}}))
    np.testing.assert_allclose(hx.compile(tmp_path / "bundle")(feeds), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ('{"assets": {"main": "../other"}}', r"assets.main '../other', need the name of a folder in this bundle"),
        ('{"assets": {}}', "got no assets.main"),
        ("[1]", "got list, need an object"),
        ("{", "need JSON"),
    ],
)
def test_a_bundle_leads_nowhere_else(metadata: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text(metadata)
    with pytest.raises(hx.Error, match=message):
        open_asset(tmp_path)


def test_a_folder_without_a_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match="no such folder"):
        open_asset(tmp_path / "net.aimodel")
    (tmp_path / "net.aimodel").mkdir()
    with pytest.raises(hx.Error, match=r"main\.mlirb"):
        open_asset(tmp_path / "net.aimodel")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "at 0: got the first bytes"),
        (b"PK\x03\x04", "at 0: got the first bytes"),
        (MAGIC, "at 4: got 0 bytes up to the end, need 1"),
        (MAGIC + number(7), "at 4: got bytecode of version 7, need 6"),
        (MAGIC + number(6) + b"x" * 5000, "a text of more than 4096 bytes"),
        (MAGIC + number(6) + b"x\0", "got no section of strings"),
        (MAGIC + number(6) + b"x\0" + b"\x1e" + number(0), "at 7: got a section of kind 30"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        read_asset(data, "f")


def everything(data: bytes) -> None:
    """Reads all of a file that a reader may look at."""
    asset = read_asset(data, "f")
    for function in asset.functions.values():
        for operation in walk(function.body):
            if operation.name == "primitive.constant_v1":
                asset.numbers_of(operation)


def mutants(data: bytes, count: int, seed: int) -> int:
    """The number of damaged files that are read. All others end in an Error."""
    rng = np.random.default_rng(seed)
    num_read = 0
    for i in range(count):
        changed = bytearray(data)
        at = int(rng.integers(len(changed)))
        match i % 8:
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 2:
                del changed[at : at + int(rng.integers(1, 9))]
            case _:  # all sizes stay right, so many of these are read
                for place in rng.integers(len(changed), size=rng.integers(1, 4)):
                    changed[place] = int(rng.integers(256))
        with suppress(hx.Error):
            everything(bytes(changed))
            import_asset(read_asset(bytes(changed), "f"))
            num_read += 1
    return num_read


def with_state() -> bytes:
    f = Function()
    x, s = f.input("x", (2, 3)), f.state("s", (2, 3))
    token = f.op("dataflow.create_token", result=_token(f))
    f.op("dataflow.write_handle", s, x, token, result=_token(f))
    return f.finish({"y": f.op("primitive.exp", x)}).bytes()


def _token(f: Function) -> object:
    from hexane.emit.coreai.bytecode import WrittenValue

    return WrittenValue(f.writer.token())


def with_stored_weights(seed: int) -> bytes:
    """Palettes, blocks of integers, and rows of them."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-8, 8, (16, 24)).astype(np.int8)
    scales, tables = (rng.random((4, 6, n)).astype(np.float32) for n in (1, 4))
    weights = (
        hx.decode_palette(hx.const((integers & 3).astype(np.uint8)), hx.const(tables)),
        hx.decode_blocks(hx.const(integers), hx.const(scales[..., 0])),
        hx.dequantize(hx.const(integers), hx.const(scales.reshape(-1)), hx.const(integers[0]), axis=1),
    )
    x = hx.input("x", (2, 24))
    return emit_asset(hx.graph([hx.linear(x, weight) for weight in weights]))


@pytest.mark.parametrize("seed", range(4))
def test_mutants_raise_errors_and_nothing_else(seed: int) -> None:
    assert 10 < mutants(with_stored_weights(seed), 150, seed) < 140
    assert 10 < mutants(perceptron(np.random.default_rng(seed))[0], 150, seed) < 140
    assert mutants(with_state(), 150, seed) < 140  # a few bytes, most of them names: up to 3 are read


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_thousand_mutants_of_an_asset_raise_errors_and_nothing_else(seed: int) -> None:
    made = (with_state, lambda: perceptron(np.random.default_rng(seed))[0], lambda: with_stored_weights(seed))
    assert 0 < mutants(made[seed % 3](), 1000, seed) < 900


# ---- numbers of less than a byte, the first in the lowest bits ----


@pytest.mark.parametrize(
    ("element", "data", "want"),
    [
        ("ui4", "21 43", [1, 2, 3, 4]),
        ("si4", "f1 80", [1, -1, 0, -8]),
        ("ui2", "e4", [0, 1, 2, 3]),
        ("si2", "e4", [0, 1, -2, -1]),
        ("ui1", "05", [1, 0, 1, 0, 0, 0, 0, 0]),
        ("ui6", "81 30 10", [1, 2, 3, 4]),
        ("f4E2M1FN", "21 7f", [0.5, 1.0, -6.0, 6.0]),
        ("f8E8M0FN", "7f 80 7e", [1.0, 2.0, 0.5]),
        ("bool", "01 00 02", [1, 0, 1]),
        ("bf16", "80 3f 00 c0", [1.0, -2.0]),
    ],
)
def test_small_numbers_are_decoded(element: str, data: str, want: list[float]) -> None:
    found = numbers(memoryview(bytes.fromhex(data)), element, (len(want),))
    np.testing.assert_array_equal(found.astype(np.float32), np.array(want, np.float32))


def test_one_element_stands_for_all() -> None:
    found = numbers(memoryview(np.float16(1.5).tobytes()), "f16", (2, 3))
    np.testing.assert_array_equal(found, np.full((2, 3), 1.5, np.float16))
    whole = numbers(memoryview(np.arange(3, dtype=np.int8).tobytes()), "si8", (3,))
    assert whole.dtype == np.int8
    assert numbers(memoryview(b"\x3c\x38"), "f8E4M3FN", (2,)).dtype == ml_dtypes.float8_e4m3fn


def test_a_constant_of_other_bytes_is_an_error() -> None:
    f = Function()
    f.input("x", (2,))
    y = f.const(np.arange(3, dtype=np.float32))
    y.type = f.writer.tensor((5,), "f32")
    with pytest.raises(hx.Error, match="12 bytes, need 20 for 5 elements of f32"):
        hx.compile(_written(f.finish({"y": y})))


def _written(writer: AssetWriter) -> hx.Graph:

    return import_asset(read_asset(writer.bytes(), "f"))


def test_functions_are_chosen_by_name(tmp_path: Path) -> None:
    writer = AssetWriter()
    for name, op in (("double", "add"), ("square", "mul")):
        f = Function(writer, name)
        x = f.input("x", (3,))
        f.finish({"y": f.op(f"primitive.{op}", x, x)})
    save_asset(tmp_path / "two.aimodel", writer.bytes(), {})
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(hx.compile(f"{tmp_path}/two.aimodel#square")(x), x * x)
    np.testing.assert_array_equal(hx.compile(import_coreai(tmp_path / "two.aimodel", function="double"))(x), 2 * x)
    with pytest.raises(hx.Error, match="no function, need one of double, square"):
        hx.compile(tmp_path / "two.aimodel")
    with pytest.raises(hx.Error, match="the function 'cube', need one of double, square"):
        hx.compile(f"{tmp_path}/two.aimodel#cube")
