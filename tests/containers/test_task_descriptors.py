"""Task descriptors against published programs of M1 and the vendor's printout of one of their tasks."""

import random
import re
import struct

import pytest

from hexane.containers.task_descriptor import (
    TaskDescriptor,
    encode_descriptor,
    link_descriptors,
    read_descriptors,
    write_descriptors,
)
from hexane.errors import Error
from hexane.targets.descriptor_fields import (
    descriptor_blocks,
    descriptor_bytes,
    descriptor_fields,
    unplaced_names,
)
from published.task_descriptors import ADD, CONV, CONV_3X3, PRINTED, RELU, STREAMS, words_of


def test_streams_lie_where_programs_have_them() -> None:
    """eiln/ane: 0x28 + the seven streams + 8 bytes for each == 0x274; libane: the offsets of its structures."""
    assert descriptor_bytes(7) == 0x274
    starts = {block.block: block.offset for block in descriptor_blocks(7)}
    assert starts == STREAMS
    for block in descriptor_blocks(7)[1:]:
        assert block.header is not None
        assert (block.words - 1) << 26 == block.header & 0xFC000000


@pytest.mark.parametrize("version", [5, 7])
def test_no_bit_has_two_names(version: int) -> None:
    taken: dict[tuple[str, int], int] = {}
    for field in descriptor_fields(version):
        bits, key = field.most << field.bit, (field.block, field.word)
        assert not taken.get(key, 0) & bits, field
        taken[key] = taken.get(key, 0) | bits
        assert bool(field.note) == (field.status == "disputed")


def test_versions_without_a_table_are_refused() -> None:
    for version in (1, 6, 8, 10, 11, 17, 24):
        with pytest.raises(Error, match=rf"version {version}: got no published table of its fields, need version 5"):
            descriptor_fields(version)


def test_every_printed_name_has_bits_or_is_said_to_have_none() -> None:
    known = {field.path for field in descriptor_fields(7)}
    assert not PRINTED.keys() - known
    assert not known & set(unplaced_names(7))


# The printout is of an activation by table, the words are of a relu of the same shape: what may differ.
# And the driver that ran the words writes the number of a queue over that of the network.
OTHER_TASK = {"multiply-accumulate.MACCfg.NonlinearMode", "header.Header9.KBase0", "header.Header9.KBE0"}
OTHER_TASK |= {"header.Header0.NID", "header.Header0.LNID"}


def test_words_of_a_published_program_say_what_the_vendor_prints() -> None:
    """The printout and the words are by different people, from different machines."""
    task, status = TaskDescriptor(words_of(RELU)), {f.path: f.status for f in descriptor_fields(7)}
    published = {4 * i for i, word in enumerate(task.words) if 4 * i in RELU}
    compared = 0
    for field in descriptor_fields(7):
        if field.path not in PRINTED or field.offset not in published or field.path in OTHER_TASK:
            continue
        compared += 1
        same = task[field.path] == PRINTED[field.path]
        assert same or (status[field.path] == "disputed" and "printout" in field.note), field
        if field.status == "verified" and field.block != "kernel":  # the convolution below shows those
            assert PRINTED[field.path], f"{field.path}: a field that is 0 in both proves no place"
    assert compared > 90


def test_verified_fields_are_printed_or_measured_by_words() -> None:
    for field in descriptor_fields(7):
        if field.status == "verified" and field.path not in PRINTED:
            assert re.search(r"\[\d+\]|RB|KB", field.path), field


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"Kw": 1, "Kh": 1, "Sx": 1, "Sy": 1, "Ox": 1, "Oy": 1}, RELU[0x144]),
        ({"Kw": 3, "Kh": 3, "Sx": 1, "Sy": 1, "Px": 1, "Py": 1, "Ox": 1, "Oy": 1}, CONV_3X3),
    ],
)
def test_the_guides_opcode_word_is_the_geometry_of_a_convolution(fields: dict[str, int], word: int) -> None:
    task = encode_descriptor({f"common.ConvCfg.{name}": value for name, value in fields.items()})
    assert task.words[0x144 // 4] == word


@pytest.mark.parametrize("program", [RELU, ADD, CONV], ids=["relu", "add", "conv"])
def test_published_words_come_back_from_their_fields(program: dict[int, int]) -> None:
    task = TaskDescriptor(words_of(program))
    again = encode_descriptor(task.fields)
    for i, (mine, theirs) in enumerate(zip(again.words, task.words, strict=True)):
        assert mine == theirs & ~task.unnamed.get(4 * i, 0)
    assert read_descriptors(task.changed({"header.Header7.NextPointer": 0}).bytes)[0].fields == task.fields


def test_published_fields_of_an_addition_and_a_convolution() -> None:
    add, conv = TaskDescriptor(words_of(ADD)), TaskDescriptor(words_of(CONV))
    assert (add["common.Cin.Cin"], add["source.DepthStride.Stride"] << 6) == (64, 0x1000)
    assert (add["planar.Cfg.OpMode"], add["planar.BiasScale.Scale"]) == (0, 0x3C00)
    assert struct.pack("<I", add["planar.FinalScale.FinalScale"]) == struct.pack("<f", 1.0)
    assert (conv["multiply-accumulate.KernelCfg.KernelFmt"], conv["common.Cfg.ShMin"]) == (2, 4)
    engines = range(16)
    assert [conv[f"kernel.CoeffDMAConfig[{i}].En"] for i in engines] == [1] * 3 + [0] * 13
    assert [conv[f"kernel.CoeffBaseAddr[{i}].Addr"] << 6 for i in engines][:4] == [0, 0x40, 0x80, 0]
    assert {conv[f"kernel.CoeffDMAConfig[{i}].CacheHint"] for i in engines} == {2}


def test_random_values_of_all_fields_round_trip() -> None:
    draw = random.Random(7)
    for _ in range(50):
        values = {f.path: draw.getrandbits(f.bits) for f in descriptor_fields(7)}
        values["header.Header7.NextPointer"] = 0
        task = encode_descriptor(values)
        (read,) = read_descriptors(task.bytes)
        assert read.fields == values
        assert read.unnamed == {}


def test_a_chain_is_linked_and_read_back() -> None:
    tasks = [encode_descriptor({"common.Cin.Cin": i + 1}) for i in range(5)]
    data = write_descriptors(tasks)
    assert len(data) == 4 * 0x300 + 0x274
    read = read_descriptors(bytes(48) + data + b"tail", 48, len(data))
    assert read == link_descriptors(tasks)
    assert [t["header.Header7.NextPointer"] for t in read] == [0x300, 0x600, 0x900, 0xC00, 0]
    assert [t["header.Header1.NextSize"] for t in read] == [0x9C] * 4 + [0]
    assert [t["header.Header0.EON"] for t in read] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"common.InDim.Win": 1 << 15}, r"common\.InDim\.Win: got 32768, need 0 to 32767: it has 15 bits"),
        ({"common.Cin.Cin": -1}, r"common\.Cin\.Cin: got -1, need 0 to 131071"),
        ({"common.Kw": 1}, r"got no published field 'common\.Kw', need one of version 7, as common\.InDim\.Win"),
        ({"Spare": 1}, r"got no published field 'Spare', need one of version 7, as common\.Cin\.Cin"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(Error, match=message):
        encode_descriptor(values)


TWO = write_descriptors([encode_descriptor({}), encode_descriptor({})])


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0x28, 0x4401F800, r"byte 40: task 0, stream of kernel: got 0x4401f800, need 0xf401f800, version 7"),
        (0x300 + 0x254, 0, r"byte 1364: task 1, stream of destination: got 0x0, need 0x18017800"),
        (0x1C, 0x100, r"byte 28: task 0, link: got 0x100, need 0 or a multiple of 4 from 0x274 on"),
        (0x1C, 0x302, r"byte 28: task 0, link: got 0x302, need 0 or a multiple of 4"),
        (0x1C, 0x500, r"byte 1280: task 1: got 116 bytes, need 628"),
        (0x300 + 0x1C, 0x300, r"byte 796: task 1, link: got 0x300, need 0 or a multiple of 4 from 0x574 on"),
    ],
)
def test_broken_chains_are_refused_by_the_byte(at: int, value: int, message: str) -> None:
    with pytest.raises(Error, match=message):
        read_descriptors(TWO[:at] + struct.pack("<I", value) + TWO[at + 4 :])


def test_short_texts_are_refused() -> None:
    with pytest.raises(Error, match=r"\[descriptors\] byte 0: task 0: got 9 bytes, need 628"):
        read_descriptors(bytes(9))
    with pytest.raises(Error, match=r"byte 4: task descriptors: got 9 bytes, need them inside a file of 8 bytes"):
        read_descriptors(bytes(8), 4, 9)


@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_mutants_are_read_or_refused(count: int) -> None:
    draw = random.Random(11)
    good = write_descriptors([encode_descriptor({"common.Cout.Cout": i}) for i in range(4)])
    places = [0x1C, 0x28, 0x124, 0x254, 0x6]
    num_read, refused = 0, list[str]()
    for _ in range(count):
        data = bytearray(good)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = 0x300 * draw.randrange(4) + draw.choice(places) if draw.random() < 0.5 else draw.randrange(len(data))
            value = draw.choice((0, 4, 0x274, 0x300, 0x900, draw.getrandbits(32), draw.getrandbits(12)))
            data[at : at + 4] = struct.pack("<I", value)
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
        try:
            tasks = read_descriptors(bytes(data))
        except Error as failed:
            refused.append(str(failed))
            continue
        num_read += 1
        assert 1 <= len(tasks) <= 4
        rest = tasks[-1].unnamed
        named = tuple([word & ~rest.get(4 * i, 0) for i, word in enumerate(tasks[-1].words)])
        assert encode_descriptor(tasks[-1].fields).words == named
    assert 0 < num_read < count
    assert [text for text in refused if not re.match(r"\[descriptors\] byte \d+: ", text)] == []
