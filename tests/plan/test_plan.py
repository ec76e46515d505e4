"""Plan files: what is written is read back, and whatever is wrong is refused with the place, got and need."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import DTYPES, PlanBuilder, copy_plan, counting_plan, many_sided_plan

Sections = dict[str, Any]
SECTIONS = 16


def resealed(data: bytes | bytearray) -> bytes:
    """The file with its checksum made right again."""
    data = bytearray(data)
    data[24:32] = _core.xxh64(bytes(data[32:])).to_bytes(8, "little")
    return bytes(data)


def test_sections_round_trip():
    sections = many_sided_plan().sections()
    read = _core.plan_read(_core.plan_write(sections))
    assert list(read) == [
        "strings", "spaces", "tensors", "operands", "numerics", "steps", "loops", "moves", "attrs", "inputs", "outputs", "blocks", "weights", "packed", "state",
    ]  # fmt: skip
    for name, rows in read.items():
        assert rows.tobytes() == bytes(sections[name]), name
        assert not rows.flags.writeable


@pytest.mark.parametrize("name", ["state", "weights"])
def test_state_and_weights_may_come_in_pieces(name: str) -> None:
    """With the bytes of the whole, and zeros between them."""
    sections = many_sided_plan().sections()
    size = len(bytes(sections[name]))
    assert size > 8
    whole = b"abc" + bytes(2) + b"de" + bytes(size - 7)
    pieces = [(0, whole[:3]), (5, whole[5:7]), (size, b"")]
    want = _core.plan_write({**sections, name: whole})
    assert _core.plan_write({**sections, name: pieces}) == want
    assert bytes(_core.plan_read(want)[name]) == whole


@pytest.mark.parametrize(
    "pieces", [[(0, b"abc"), (2, b"d")], [(4, b"a"), (0, b"b")], [(1 << 62, b"a")], [((1 << 64) - 1, b"ab")]]
)
@pytest.mark.parametrize("name", ["state", "weights"])
def test_pieces_lie_one_after_the_other(name: str, pieces: list[tuple[int, bytes]]) -> None:
    sections = {**many_sided_plan().sections(), name: pieces}
    with pytest.raises(Error, match=f"{name}: got"):
        _core.Program(sections, 1)
    with pytest.raises(Error, match=f"{name}: got"):
        _core.plan_write(sections)


def test_the_file_is_what_plan_h_says():
    data = copy_plan().tobytes()
    assert data[:8] == b"HEXANE\x1a\n"
    assert int.from_bytes(data[8:12], "little") == 4
    assert int.from_bytes(data[16:24], "little") == len(data)
    assert int.from_bytes(data[24:32], "little") == _core.xxh64(data[32:])
    for row in range(SECTIONS):
        section = data[32 + 40 * row :]
        assert int.from_bytes(section[16:24], "little") % 64 == 0


def test_every_truncation_is_refused():
    data = copy_plan().tobytes()
    for size in range(len(data)):
        with pytest.raises(Error):
            _core.plan_read(data[:size])


def test_a_flipped_bit_is_refused():
    data = copy_plan().tobytes()
    for at in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(Error):
            _core.plan_read(bytes(flipped))


def test_plan_write_refuses_an_unknown_section():
    with pytest.raises(Error, match="'stepz'"):
        _core.plan_write({"stepz": b""})


def test_plan_write_refuses_half_a_row():
    with pytest.raises(Error, match="spaces: got 17 bytes, need a multiple of 32"):
        _core.plan_write({"spaces": bytes(17)})


HEADER = [
    ("magic", 0, b"X", "need those of a plan"),
    ("version", 8, b"\x01", "version: got 1, need 4"),
    ("num_sections", 12, b"\x09", f"sections: got 9, need {SECTIONS}"),
    ("file_bytes", 16, b"\x01", "file of"),
    ("section_name", 32, b"X", "need 'strings'"),
    ("section_offset", 32 + 16, b"\x01", "offset: got"),
    ("section_bytes", 32 + 24 + 7, b"\xff", "need it inside"),
    ("section_row_bytes", 32 + 32, b"\x02", "row_bytes: got 2, need 1"),
    ("gap", 32 + 40 * SECTIONS, b"\x01", "gap"),
]


@pytest.mark.parametrize(("at", "value", "message"), [row[1:] for row in HEADER], ids=[row[0] for row in HEADER])
def test_a_wrong_header_is_refused(at: int, value: bytes, message: str):
    data = bytearray(copy_plan().tobytes())
    data[at : at + 1] = value
    with pytest.raises(Error, match=message):
        _core.plan_read(resealed(data))


def test_bytes_after_the_last_section_are_refused():
    data = bytearray(copy_plan().tobytes()) + b"\0"
    data[16:24] = len(data).to_bytes(8, "little")
    with pytest.raises(Error, match="1 bytes after the last section"):
        _core.plan_read(resealed(data))


def put(section: str, row: int, field: str, value: Any) -> Callable[[Sections], None]:
    def change(sections: Sections) -> None:
        if section == "operands":
            sections[section][row] = value
        else:
            sections[section][field][row] = value

    return change


def at_axis(field: str, axis: int, value: int) -> Callable[[Sections], None]:
    def change(sections: Sections) -> None:
        sections["tensors"][field][1][axis] = value

    return change


def no_terminator(sections: Sections) -> None:
    sections["strings"] = sections["strings"][:-1]


def not_utf8(sections: Sections) -> None:
    sections["strings"] = sections["strings"][:-1] + b"\xff\0"


def kind_of_port(sections: Sections) -> None:
    sections["spaces"]["kind"][0] = sections["spaces"]["kind"][1]


def name_of_arena(sections: Sections) -> None:
    kind_of_port(sections)
    sections["spaces"]["name"][0] = sections["spaces"]["name"][1]


def missing_weights(sections: Sections) -> None:
    sections["weights"] = bytes(1)


def too_much_state(sections: Sections) -> None:
    sections["state"] = bytes(1)


def same_space(sections: Sections) -> None:
    sections["outputs"]["tensor"] = sections["inputs"]["tensor"]


def no_steps(sections: Sections) -> None:
    sections["steps"] = sections["steps"][:0]
    sections["operands"] = sections["operands"][:0]


def an_operand_more(sections: Sections) -> None:
    sections["operands"] = np.append(sections["operands"], sections["operands"][:1])


# Tensors of copy_plan: 0 is x, 1 the one in the arena, 2 is y; spaces alike; steps copy 0 to 1 and 1 to 2.
WRONG: list[tuple[str, Callable[[Sections], None], str]] = [
    ("unterminated_strings", no_terminator, "strings: need a zero byte first and last"),
    ("strings_not_utf8", not_utf8, "need UTF-8"),
    ("space_name", put("spaces", 0, "name", 9999), r"spaces\[0\]: name: got string 9999"),
    ("space_kind", put("spaces", 0, "kind", 1), r"spaces\[0\]: kind: got 'x', need"),
    ("space_huge", put("spaces", 1, "bytes", 2**40 + 1), "bytes: got 1099511627777, need at most"),
    ("space_limit", put("spaces", 1, "limit", 63), r"spaces\[1\]: arena: bytes: got 64, need at most its limit, 63"),
    ("space_alignment", put("spaces", 1, "alignment", 48), "alignment: got 48, need a power of two up to 4096"),
    ("space_alignment_huge", put("spaces", 1, "alignment", 8192), "alignment: got 8192, need a power of two"),
    ("second_arena_of_one_name", name_of_arena, "name: got a second 'arena'"),
    ("arena_for_a_port", kind_of_port, "got a tensor in arena, need a port"),
    ("weights_without_space", missing_weights, "weights: got 1 bytes"),
    ("state_without_space", too_much_state, "state: got 1 bytes"),
    ("tensor_dtype", put("tensors", 1, "dtype", 1), r"unknown dtype 'x'"),
    ("tensor_space", put("tensors", 1, "space", 3), "space: got 3, need less than 3"),
    ("tensor_rank", put("tensors", 1, "rank", 9), "rank: got 9, need at most 8"),
    ("tensor_beyond_rank", put("tensors", 1, "rank", 1), "axis 1 is beyond the rank"),
    ("tensor_offset", put("tensors", 1, "offset", 2), "offset: got 2, need a multiple of 4"),
    ("tensor_outside", put("tensors", 1, "offset", 20), "bytes: got"),
    ("tensor_offset_huge", put("tensors", 1, "offset", 2**64 - 4), "bytes: got"),
    ("tensor_ring", put("tensors", 1, "ring", 5), "ring: got 5"),
    ("shape_negative", at_axis("shape", 0, -1), r"shape\[0\]: got -1"),
    ("shape_huge", at_axis("shape", 0, 2**62), r"shape\[0\]: got"),
    ("shape_product", at_axis("shape", 0, 2**39), "more than"),
    ("stride_negative", at_axis("strides", 0, -4), r"strides\[0\]: got -4"),
    ("stride_odd", at_axis("strides", 0, 6), r"strides\[0\]: got 6, need a multiple of 4"),
    ("stride_huge", at_axis("strides", 0, 2**39), "more than"),
    ("stride_outside", at_axis("strides", 0, 64), "bytes: got"),
    ("output_overlaps_itself", at_axis("strides", 0, 4), "its elements overlap"),
    ("operand", put("operands", 0, "", 7), "operand 0: got tensor 7, need less than 3"),
    ("absent_output", put("operands", 1, "", 2**32 - 1), "operand 1: got tensor"),
    ("written_input_port", put("operands", 1, "", 0), "only read"),
    ("read_before_written", put("operands", 0, "", 1), "no earlier step has written"),
    ("step_operands", put("steps", 0, "operands", 2**32 - 1), "operands: got"),
    ("step_operands_again", put("steps", 1, "operands", 0), "operands: got 0, need 2"),
    ("operands_of_no_step", an_operand_more, "operands: got 5, need 4"),
    ("step_inputs", put("steps", 0, "num_inputs", 2**32 - 1), "operands: got"),
    ("step_outputs", put("steps", 0, "num_outputs", 0), "outputs: got 0"),
    ("step_numerics", put("steps", 0, "numerics", 1), "numerics: got 1, need less than 1"),
    ("numerics_name", put("numerics", 0, "name", 9999), r"numerics\[0\]: name: got string 9999"),
    ("numerics_family", put("numerics", 0, "family", 1), r"numerics\[0\]: ieee: family: got 'x', need one of ieee"),
    ("numerics_bytes", put("numerics", 0, "bytes", 8), "bytes: got 8, need 0 for the family ieee"),
    ("numerics_offset", put("numerics", 0, "offset", 4), "offset: got 4, need a multiple of 8"),
    ("numerics_outside", put("numerics", 0, "offset", 8), r"parameters: got \[8, \+0\)"),
    ("step_device", put("steps", 0, "device", 1), "device: got 'x', need cpu"),
    ("step_attrs", put("steps", 0, "attrs", 8), "attrs: got"),
    ("step_attrs_odd", put("steps", 0, "attrs_bytes", 4), "need multiples of 8"),
    ("step_cut", put("steps", 0, "cut_axis", 8), "cut: got axis 8"),
    ("step_cut_range", put("steps", 0, "end", 2), "cut: got axis -1"),
    ("port_space", same_space, "got the space of another port"),
    ("port_tensor", put("inputs", 0, "tensor", 3), "tensor: got 3, need less than 3"),
    ("port_in_arena", put("outputs", 0, "tensor", 1), "got a tensor in arena"),
    ("port_streamed", put("outputs", 0, "streamed", 2), "streamed: got 2, need 0 or 1"),
    ("port_larger", put("spaces", 0, "bytes", 52), "need a dense tensor that fills its space"),
    ("output_not_written", no_steps, "no step writes all of it"),
]


def same_names(sections: Sections) -> None:
    sections["outputs"]["name"][1] = sections["outputs"]["name"][0]


LENGTHS = [
    ("names", same_names, "need a name of its own among the outputs"),
    ("streamed", put("outputs", 0, "streamed", 1), "streamed: got an output with a length"),
    ("of_an_input", put("inputs", 0, "length", 2), "inputs have their shapes"),
    ("of_nothing", put("outputs", 0, "length", 3), "length: got 3, need at most 2"),
    ("of_itself", put("outputs", 0, "length", 1), "length: got the output 'y', need one int64 number"),
    ("in_a_ring", put("outputs", 1, "length", 1), "length: got the output"),
    ("axis", put("outputs", 0, "axis", 2), "axis: got 2, need less than the rank, 2"),
    ("axis_alone", put("outputs", 1, "axis", 1), "axis: got 1, need 0 without a length"),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in LENGTHS], ids=[row[0] for row in LENGTHS])
def test_wrong_lengths_are_refused(change: Callable[[Sections], None], message: str):
    sections = counting_plan().sections()
    _core.plan_read(_core.plan_write(sections))
    change(sections)
    with pytest.raises(Error, match=message):
        _core.plan_read(_core.plan_write(sections))


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_rows_are_refused(change: Callable[[Sections], None], message: str):
    sections = copy_plan().sections()
    change(sections)
    with pytest.raises(Error, match=message):
        _core.plan_read(_core.plan_write(sections))


def arena_plan(first: dict[str, Any], second: dict[str, Any]) -> bytes:
    """x is copied to a view of the arena, and from there to another one."""
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (4, 2))
    arena = plan.space("arena", 128)
    a = plan.tensor(arena, (4, 2), **first)
    b = plan.tensor(arena, (4, 2), **second)
    plan.step("copy", [x], [a])
    plan.step("copy", [a], [b])
    return plan.tobytes()


def test_axes_of_extent_1_do_not_make_another_view():
    plan = PlanBuilder()
    x = plan.port("inputs", "x", (4, 2))
    arena = plan.space("arena", 64)
    a, b = plan.tensor(arena, (4, 2)), plan.tensor(arena, (1, 4, 1, 2), strides=(4, 8, 64, 4))
    plan.step("copy", [x], [a])
    plan.step("copy", [a], [b])
    _core.plan_read(plan.tobytes())


@pytest.mark.parametrize("offset", [0, 32, 96])
def test_an_output_may_be_its_input_or_apart_from_it(offset: int):
    _core.plan_read(arena_plan({}, {"offset": offset}))


def test_an_output_may_take_turns_with_its_input():
    _core.plan_read(arena_plan({"strides": (16, 4)}, {"offset": 8, "strides": (16, 4)}))
    _core.plan_read(arena_plan({"strides": (16, 4), "offset": 8}, {"strides": (16, 4)}))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"offset": 4}),
        ({}, {"offset": 28}),
        ({}, {"strides": (4, 16)}),
        ({"strides": (16, 4)}, {"offset": 4, "strides": (16, 4)}),
        ({"strides": (16, 4)}, {"offset": 12, "strides": (16, 4)}),
        ({"strides": (16, 4)}, {"offset": 8, "strides": (24, 4)}),
    ],
)
def test_an_output_must_not_overlap_its_input_in_part(first: dict[str, Any], second: dict[str, Any]):
    with pytest.raises(Error, match="need the same view or none of its bytes"):
        _core.plan_read(arena_plan(first, second))


def test_rows_may_come_from_any_buffer():
    sections = {name: bytes(rows) for name, rows in copy_plan().sections().items()}
    assert _core.plan_write(sections) == copy_plan().tobytes()


def test_row_dtypes_have_the_sizes_of_plan_h():
    sizes = {name: dtype.itemsize for name, dtype in DTYPES.items()}
    assert sizes == {
        "spaces": 32,
        "tensors": 160,
        "operands": 4,
        "numerics": 24,
        "steps": 64,
        "loops": 24,
        "moves": 8,
        "inputs": 24,
        "outputs": 24,
        "blocks": 56,
    }


# ---- saving ----


def test_plan_save_writes_what_plan_write_gives(tmp_path: Path):
    plan = many_sided_plan()
    _core.plan_save(str(tmp_path / "m.hxp"), plan.sections())
    assert (tmp_path / "m.hxp").read_bytes() == plan.tobytes()


def test_save_file_replaces_a_file_and_keeps_its_mode(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    _core.save_file(str(path), np.arange(5, dtype=np.uint8))
    assert path.read_bytes() == bytes(range(5))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path):
    mask = os.umask(0o027)
    try:
        _core.save_file(str(tmp_path / "file"), b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_save_to_a_folder_that_is_not_there_names_it(tmp_path: Path):
    path = tmp_path / "nowhere" / "m.hxp"
    with pytest.raises(Error, match=r"nowhere/m.hxp: got no folder .*nowhere, need an existing one"):
        _core.save_file(str(path), b"new")


def test_save_over_a_folder_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(Error, match="folder: got a folder, need a regular file"):
        _core.save_file(str(tmp_path / "folder"), b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def limited(path: Path, limit: int) -> str:
    """A process that may write `limit` bytes to a file and dies by the signal, unless it is ignored, saving more to
    `path`."""
    return (
        "import resource, signal, sys; from hexane import _core; from hexane.errors import Error\n"
        "ignore = sys.argv[1] == 'ignore'\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN if ignore else signal.SIG_DFL)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        f"_core.save_file({str(path)!r}, bytes({limit * 2}))"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX file size limits")
@pytest.mark.parametrize("signal", ["ignore", "die"])
def test_a_save_that_fails_or_is_killed_half_way_leaves_the_old_file(tmp_path: Path, signal: str):
    path = tmp_path / "m.hxp"
    path.write_bytes(b"old")
    command = [sys.executable, "-c", limited(path, 4096), signal]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert ended.returncode == (1 if signal == "ignore" else -25)
    assert path.read_bytes() == b"old"
    if signal == "ignore":
        assert "cannot write: File too large" in ended.stderr
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("missing", [None, 0, 1, 3])
def test_rows_with_gaps_between_are_read_when_every_row_is_written(missing: int | None):
    """Four rows of 3 in a pitch of 9, written one by one; the gaps never are."""
    plan = PlanBuilder()
    arena = plan.space("arena", 4 * 9 * 4)
    x, y = plan.port("inputs", "x", (3,)), plan.port("outputs", "y", (4, 3))
    for row in range(4):
        if row != missing:
            plan.step("copy", [x], [plan.tensor(arena, (3,), offset=36 * row)])
    plan.step("copy", [plan.tensor(arena, (4, 3), strides=(36, 4))], [y])
    if missing is None:
        _core.plan_read(plan.tobytes())
    else:
        with pytest.raises(Error, match="no earlier step has written"):
            _core.plan_read(plan.tobytes())


def test_a_second_memory_of_weights_is_refused():
    plan = copy_plan()
    plan.space("weights", 0)
    plan.space("weights", 0, "other")
    with pytest.raises(Error, match="kind: got a second 'weights', need one"):
        _core.plan_read(plan.tobytes())
