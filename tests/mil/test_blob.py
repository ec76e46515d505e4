"""Weight files of MIL programs: written as Apple's own writer writes them, read as its reader reads them, and nothing
damaged is read."""

import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error

APPLES = {
    "fp16": "fp16", "fp32": "float", "uint8": "uint8", "int8": "int8", "int16": "int16", "uint16": "uint16", "int4": "int4",
    "uint1": "uint1", "uint2": "uint2", "uint3": "uint3", "uint4": "uint4", "uint6": "uint6", "int32": "int32", "uint32": "uint32",
}  # fmt: skip
CODES = ["fp16", "fp32", "uint8", "int8", "bf16", "int16", "uint16", "int4", "uint1", "uint2", "uint4", "uint3", "uint6", "int32",
         "uint32", "fp8e4m3", "fp8e5m2"]  # fmt: skip


@pytest.fixture(scope="module")
def apple() -> Any:
    return pytest.importorskip("coremltools.libmilstoragepython", reason="coremltools is not installed")


def numbered(dtype: str, count: int) -> np.ndarray[Any, Any]:
    """Different elements, the extremes among them; small ones a byte each."""
    if dtype in ("fp16", "fp32"):
        return np.linspace(-3, 5, count).astype({"fp16": np.float16, "fp32": np.float32}[dtype])
    if dtype.startswith("int") and dtype != "int4":
        return (np.arange(count) * 37 - 100).astype(dtype)
    if dtype in ("uint8", "uint16", "uint32"):
        return (np.arange(count) * 37).astype(dtype)
    bits = int(dtype.lstrip("uint"))
    values = (np.arange(count) * 7) % (1 << bits)
    return (values - 8).astype(np.int8) if dtype == "int4" else values.astype(np.uint8)


def arrays_of_all_kinds() -> list[tuple[str, Any]]:
    return [(dtype, numbered(dtype, count)) for dtype in APPLES for count in (1, 3, 8, 11, 64, 130)]


def metadata(code: int = 1, size: int = 4, offset: int = 128, padding: int = 0, magic: int = 0xDEADBEEF) -> bytes:
    return struct.pack("<IIQQQ", magic, code, size, offset, padding) + bytes(32)


HEADER = struct.pack("<II", 1, 2) + bytes(56)


def test_a_file_is_what_apples_writer_makes_of_the_same_arrays(apple: Any, tmp_path: Path) -> None:
    given = arrays_of_all_kinds()
    writer = apple._BlobStorageWriter(str(tmp_path / "theirs.bin"))
    offsets = []
    for dtype, array in given:
        bits = array.view(np.uint16) if dtype == "fp16" else array
        offsets.append(getattr(writer, f"write_{APPLES[dtype]}_data")(bits))
    del writer
    ours, own_offsets = _core.blob_write(given)
    assert own_offsets == offsets
    assert ours == (tmp_path / "theirs.bin").read_bytes()


@pytest.mark.parametrize("dtype", APPLES)
def test_apples_reader_reads_what_is_written(apple: Any, tmp_path: Path, dtype: str) -> None:
    given = [(dtype, numbered(dtype, count)) for count in (5, 77)]
    file, offsets = _core.blob_write(given)
    (tmp_path / "w.bin").write_bytes(file)
    reader = apple._BlobStorageReader(str(tmp_path / "w.bin"))
    for (_, array), offset in zip(given, offsets, strict=True):
        read = np.array(getattr(reader, f"read_{APPLES[dtype]}_data")(offset))
        np.testing.assert_array_equal(read.view(np.float16) if dtype == "fp16" else read, array)


@pytest.mark.parametrize("dtype", CODES)
def test_what_is_written_is_read(dtype: str) -> None:
    elements = numbered(dtype, 13) if dtype in APPLES else np.arange(26, dtype=np.uint8)
    file, (offset,) = _core.blob_write([(dtype, elements)])
    name, data = _core.blob_read(file, offset)
    assert name == dtype
    assert data.tobytes() == elements.tobytes()
    assert struct.unpack_from("<I", file, 68) == (CODES.index(dtype) + 1,)


def test_equal_arrays_are_stored_once() -> None:
    a = np.arange(100, dtype=np.float16)
    given = [("fp16", a), ("fp16", a + 1), ("fp16", a.copy()), ("int16", a.view(np.int16))]
    file, offsets = _core.blob_write(given)
    assert offsets[0] == offsets[2]
    assert len(set(offsets)) == 3
    assert struct.unpack_from("<II", file, 0) == (3, 2)


def test_arrays_that_differ_at_their_end_are_all_stored() -> None:
    alike = [np.zeros(1000, np.float16) for _ in range(5)]
    for i, array in enumerate(alike[:3]):
        array[999] = i + 1
    file, offsets = _core.blob_write([("fp16", array) for array in alike])
    assert len(set(offsets)) == 4
    for array, offset in zip(alike, offsets, strict=True):
        np.testing.assert_array_equal(_core.blob_read(file, offset)[1].view(np.float16), array)


def test_no_arrays_are_no_file() -> None:
    assert _core.blob_write([]) == (b"", [])


def test_whole_bytes_are_read_in_place() -> None:
    file, (offset,) = _core.blob_write([("fp16", np.ones(1000, np.float16))])
    _, data = _core.blob_read(file, offset)
    assert not data.flags.owndata
    assert not data.flags.writeable


@pytest.mark.parametrize("dtype", ["bool", "int64", "fp64", "uint64"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(Error, match=f"got {dtype}, which a weight file cannot hold"):
        _core.blob_write([(dtype, np.zeros(1))])


def test_an_int4_is_the_same_as_a_byte_of_numpy_and_of_ml_dtypes() -> None:
    numbers = np.arange(-8, 8, dtype=np.int8)
    assert _core.blob_write([("int4", numbers)]) == _core.blob_write([("int4", numbers.astype(ml_dtypes.int4))])


@pytest.mark.parametrize(
    ("dtype", "value", "need"),
    [("uint3", 8, "at most 7"), ("uint4", 16, "at most 15"), ("int4", 16, "-8 to 7"), ("int4", 100, "-8 to 7"), ("int4", -9, "-8 to 7")],
)  # fmt: skip
def test_an_element_beyond_its_dtype_is_refused(dtype: str, value: int, need: str) -> None:
    with pytest.raises(Error, match=f"got the element {value} of {dtype}, need {need}"):
        _core.blob_write([(dtype, np.array([7, value], np.int8))])


def test_the_single_and_the_multiple_chunks_of_others_are_read() -> None:
    """A file of one 128-byte header; and one whose second metadata follows the first payload without a gap."""
    single = HEADER + metadata(size=6) + np.arange(3, dtype=np.float16).tobytes()
    assert _core.blob_read(single, 64)[1].view(np.float16).tolist() == [0, 1, 2]
    second = metadata(size=4, offset=198) + np.array([5, 6], np.float16).tobytes()
    assert _core.blob_read(single + second, 134)[1].view(np.float16).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("file", "offset", "message"),
    [
        (b"", 64, "bytes"),
        (struct.pack("<II", 1, 1) + bytes(56) + metadata() + bytes(8), 64, "got a file of version 1, need 2"),
        (HEADER + metadata(magic=1) + bytes(8), 64, "got no metadata at 64"),
        (HEADER + metadata(code=0) + bytes(8), 64, "dtype code 0"),
        (HEADER + metadata(code=18) + bytes(8), 64, "dtype code 18"),
        (HEADER + metadata(size=9) + bytes(8), 64, "payload"),
        (HEADER + metadata(size=1 << 63) + bytes(8), 64, "payload"),
        (HEADER + metadata(size=3) + bytes(8), 64, "need whole elements of fp16"),
        (HEADER + metadata(padding=4) + bytes(8), 64, "need whole elements of fp16"),
        (HEADER + metadata(code=8, padding=8) + bytes(8), 64, "need whole elements of int4"),
        (HEADER + metadata(code=12, size=1, padding=1) + bytes(8), 64, "need whole elements of uint3"),
        (HEADER + metadata(offset=0) + bytes(8), 64, "got a payload at 0 for the metadata at 64"),
        (HEADER + metadata(offset=100) + bytes(8), 64, "got a payload at 100 for the metadata at 64"),
        (HEADER + metadata() + bytes(8), 0, "got metadata at 0"),
        (HEADER + metadata() + bytes(8), 100, "metadata"),
        (HEADER + metadata() + bytes(8), 1 << 63, "metadata"),
    ],
)
def test_a_damaged_file_is_refused(file: bytes, offset: int, message: str) -> None:
    with pytest.raises(Error, match=message):
        _core.blob_read(file, offset)


def test_a_size_written_as_one_byte_is_refused() -> None:
    """What a published benchmark does: byte 10 of the metadata is set in place of the size and the offset."""
    broken = bytearray(HEADER + metadata(size=0, offset=0) + bytes(1 << 17))
    broken[64 + 10] = 8
    with pytest.raises(Error, match="payload"):
        _core.blob_read(bytes(broken), 64)


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutants_are_read_or_refused(count: int) -> None:
    file, offsets = _core.blob_write(arrays_of_all_kinds()[::5])
    draw = random.Random(7)
    num_asked = num_read = 0
    for _ in range(count):
        mutant = bytearray(file)
        for _ in range(draw.randint(1, 4)):
            at = draw.choice(offsets) + draw.randrange(40) if draw.random() < 0.8 else draw.randrange(len(file))
            if at < len(mutant):
                mutant[at] = draw.choice([0, 1, 2, 7, 18, 127, 128, 255, draw.randrange(256)])
        if draw.random() < 0.2:
            del mutant[draw.randrange(len(mutant)) :]
        # An array of its own, so that a sanitizer sees a read past its end.
        data = np.frombuffer(bytes(mutant), np.uint8).copy()
        for offset in (*offsets, draw.randrange(1 << 12)):
            num_asked += 1
            with suppress(Error):
                _core.blob_read(data, offset)
                num_read += 1
    assert num_asked // 10 < num_read < num_asked * 9 // 10
