"""The readers of .hwx and .e5 on files made here: what is in them, and every way out of them refused by the byte."""

import struct

import pytest

from containers import BUILD, NAMES, SHAPES, make_e5, make_hwx
from hexane.containers import read_e5, read_hwx
from hexane.errors import Error


def changed(data: bytes, at: int, layout: str, value: int) -> bytes:
    new = struct.pack(f"<{layout}", value)
    return data[:at] + new + data[at + len(new) :]


def test_an_hwx_has_its_parts() -> None:
    hwx = read_hwx(make_hwx())
    assert (hwx.cpu_subtype, hwx.file_type, hwx.flags) == (4, 2, 0x200000)
    assert {"h13", "h13g"} <= set(hwx.chips)
    assert not set(hwx.chips) & {"h14", "h16"}
    assert [name for name, _ in hwx.commands] == ["segment"] * 3 + ["symbols", "thread"]
    assert [s.name for s in hwx.segments] == ["__FVMLIB", "__TEXT", "__KERN_0"]
    assert [s.sections[0].offset is None for s in hwx.segments] == [True, False, False]
    assert (hwx.text_bytes, hwx.weight_bytes) == (0x274, 8192)
    assert [s.name for s in hwx.symbols] == ["_main", *SHAPES]
    assert hwx.symbols[0].value == 0x30010000
    assert hwx.shapes == SHAPES


def test_a_generation_that_is_not_known_has_no_chips() -> None:
    assert read_hwx(make_hwx(subtype=99)).chips == ()


# Where make_hwx has its fields: the header, then commands of 152 bytes.
TEXT, KERNEL, SYMBOLS = 32 + 152, 32 + 304, 32 + 456


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (0, "I", 0xFEEDFACF, r"byte 0: magic: got 0xfeedfacf, need 0xbeefface"),
        (4, "I", 7, r"byte 4: cputype: got 0x7, need 0x80"),
        (16, "I", 1 << 20, r"byte 16: ncmds: got 1048576 load commands in 504 bytes"),
        (20, "I", 0xFFFFFFFF, r"byte 32: load commands: got 4294967295 bytes, need them inside a file"),
        (20, "I", 150, r"byte 36: load command 0: got 152 bytes, need 8 at least and an end before byte 182"),
        (16, "I", 6, r"byte 540: load command 5: got \d+ bytes, need 8 at least and an end before byte 536"),
        (TEXT + 4, "I", 4, r"load command 1: got 4 bytes, need 8 at least"),
        (TEXT + 4, "I", 40, r"segment: got 40 bytes, need 72 at least"),
        (TEXT + 40, "Q", 1 << 63, r"segment __TEXT: got 628 bytes, need them inside a file"),
        (TEXT + 48, "Q", 1 << 63, r"segment __TEXT: got 9223372036854775808 bytes, need them inside"),
        (TEXT + 64, "I", 2, r"byte 248: segment __TEXT: got 2 sections in 152 bytes, need 80 for each"),
        (TEXT + 72 + 32, "Q", 0, r"section __TEXT,__text: got the addresses 0x0 to 0x274, need some of 0x30010000"),
        (TEXT + 72 + 40, "Q", 1 << 40, r"section __TEXT,__text: got the addresses 0x30010000"),
        (KERNEL + 72 + 48, "I", 9, r"section __KERN_0,__kern_0: got the bytes 9 to 8201, need some of"),
        (KERNEL + 72, "16s", b"\xff" * 16, r"section name: got b'\\xff.*, need UTF-8"),
        (SYMBOLS + 4, "I", 16, r"symbols: got 16 bytes, need 24"),
        (SYMBOLS + 8, "I", 1 << 31, r"symbols: got 48 bytes, need them inside"),
        (SYMBOLS + 12, "I", 1 << 31, r"symbols: got 34359738368 bytes"),
        (SYMBOLS + 20, "I", 9, r"symbol 1: got no zero byte before byte \d+"),
        (SYMBOLS + 24, "I", 2, r"load command 4: got a second table of symbols"),
    ],
)
def test_an_hwx_that_leads_out_of_itself_is_refused_by_the_byte(at: int, layout: str, value: int, message: str) -> None:
    with pytest.raises(Error, match=rf"^\[hwx\] byte \d+: |{message}") as error:
        read_hwx(changed(make_hwx(), at, layout, value))
    assert error.match(message)


def test_an_e5_of_another_writer_is_read() -> None:
    e5 = read_e5(make_e5())
    assert e5.version == 4
    assert e5.symbols == NAMES
    assert dict(e5.build) == BUILD
    assert len(e5.sections) == len(set(e5.sections)) == 3
    assert read_e5(make_e5(names=(), num_sections=0)).symbols == ()
    assert read_e5(make_e5(names=("é", ""))).symbols == ("é", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"byte 0: root: got 4 bytes, need them inside a file of 0 bytes"),
        (bytes(16), r"byte 0: root: got an offset to byte 0"),
        (struct.pack("<I", 1 << 30), r"root: got an offset to byte 1073741824"),
        (make_e5(version=5), r"version of the format: got 5, need 4"),
        (make_e5(version=0), r"root: got no fourth field"),
        (make_e5(names=("x" * 5000,)), r"name of a symbol: got a name of 5000 bytes, need at most 1024"),
    ],
)
def test_what_is_no_e5_is_refused_by_the_byte(data: bytes, message: str) -> None:
    with pytest.raises(Error, match=r"^\[e5\] byte \d+: .*") as error:
        read_e5(data)
    assert error.match(message)


@pytest.mark.parametrize("read", [read_hwx, read_e5])
@pytest.mark.parametrize("cut", range(0, 800, 7))
def test_a_file_that_ends_early_is_refused(read: object, cut: int) -> None:
    whole = make_hwx() if read is read_hwx else make_e5()
    with pytest.raises(Error, match=r"^\[(hwx|e5)\] byte \d+: "):
        read(whole[: min(cut, len(whole) - 4)])  # the last bytes of an .e5 are padding  # type: ignore[operator]


def test_names_that_lie_in_one_another_do_not_fill_the_memory() -> None:
    """Half a million symbols, each of which is the same thousand bytes."""
    count, name = 500_000, b"n" * 1000 + b"\0"
    start = 32 + 24
    table = struct.pack("<IBBHQ", 0, 0, 0, 0, 0) * count
    command = struct.pack("<IIIIII", 2, 24, start, count, start + len(table), len(name))
    header = struct.pack("<IIIIIIII", 0xBEEFFACE, 0x80, 4, 2, 1, 24, 0, 0)
    with pytest.raises(Error, match="names of more bytes than the file has"):
        read_hwx(header + command + table + name)
