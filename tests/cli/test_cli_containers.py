"""`hexane info` of .hwx and .e5 files."""

import json
from pathlib import Path

from command import Cli
from containers import BUILD, NAMES, SHAPES, make_e5, make_hwx


def test_info_shows_an_hwx(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(make_hwx())  # known by its first bytes
    ended = cli("info", tmp_path / "model.bin")
    assert (ended.code, ended.err) == (0, "")
    assert "generation 4: h13" in ended.out
    assert "task descriptors 628 B, weights 8.00 KiB" in ended.out
    assert SHAPES[0] in ended.out
    record = json.loads(cli("info", tmp_path / "model.bin", "--json").out)
    assert (record["format"], record["weight_bytes"], record["shapes"]) == ("hwx", 8192, list(SHAPES))
    assert record["segments"][0]["sections"][0]["offset"] is None


def test_info_shows_an_e5(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.E5").write_bytes(make_e5())
    ended = cli("info", tmp_path / "model.E5")
    assert (ended.code, ended.err) == (0, "")
    assert "version 4, 3 sections, 3 symbols" in ended.out
    record = json.loads(cli("info", tmp_path / "model.E5", "--json").out)
    assert (record["format"], record["build"], record["symbols"]) == ("e5", BUILD, list(NAMES))


def test_info_refuses_what_a_name_only_promises(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.hwx").write_bytes(b"no program")
    ended = cli("info", tmp_path / "model.hwx")
    assert ended.code == 1
    assert "model.hwx: got a text file, need " in ended.err
    (tmp_path / "model.hwx").write_bytes(b"\0no program")
    assert "[hwx] byte 0: magic: got 0x206f6e00, need 0xbeefface" in cli("info", tmp_path / "model.hwx").err
    (tmp_path / "model.hwx").write_bytes(make_hwx())
    assert "need none" in cli("info", tmp_path / "model.hwx", "--input-shape", "x:1x2").err
