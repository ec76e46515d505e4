"""Task descriptors of networks: against published programs of M1, over all op examples, and in containers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane.containers import read_hwx
from hexane.containers.task_descriptor import read_descriptors
from hexane.emit.task_descriptors import Task
from hexane.errors import Error, UnsupportedError
from hexane.report.task_descriptors import descriptors_of
from hexane.targets.descriptor_fields import descriptor_fields
from hexane.targets.query import load_chip
from published.task_descriptors import ADD, CONV, CONV_3X3, MULTIPLY_CFG, RELU, words_of

M1 = load_chip("M1")
IMAGE = hx.input("x", (1, 8, 16, 16))
# What Hexane's own plan decides (places on chip, numbers of layers), or writes for the end of a chain.
OWN = {"L2.SourceRowStride.Stride", "L2.ResultBase.Addr", "L2.SourceBase.Addr", "common.TaskInfo.TaskID"}
OWN |= {"header.Header0.LNID", "header.Header0.TID"}


def only(y: Any) -> Task:
    (part,) = hx.descriptors(y, "M1").segments
    (task,) = part.tasks
    return task


def diagonal() -> hx.Tensor:
    return hx.conv(hx.input("x", (1, 3, 1, 1)), hx.const(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1) / 2))


PROGRAMS = [
    (lambda: hx.relu(hx.input("x", (1, 1, 1, 77))), RELU),
    (lambda: hx.add(hx.input("x", (1, 64, 1, 1)), hx.input("y", (1, 64, 1, 1))), ADD),
    (lambda: hx.mul(hx.input("x", (1, 64, 1, 1)), hx.input("y", (1, 64, 1, 1))), ADD | {0x22C: MULTIPLY_CFG}),
    (diagonal, CONV),
]


@pytest.mark.parametrize(("build", "program"), PROGRAMS, ids=["relu", "add", "mul", "conv"])
def test_what_is_written_is_in_the_published_program(build: Any, program: dict[int, int]) -> None:
    """Of a convolution, M1's compiler deals channels to engines otherwise."""
    task, words = only(build()), words_of(program)
    compared = 0
    for field in descriptor_fields(7):
        value = task.descriptor[field.path]
        if not value or field.offset not in program or field.path in OWN or field.block == "kernel":
            continue
        compared += 1
        published = words[field.offset // 4] >> field.bit & field.most
        assert value == published, field
    assert compared > 30
    assert task.descriptor.unnamed == {}


def test_a_convolution_has_the_guides_word() -> None:
    y = hx.conv(hx.input("x", (1, 8, 16, 16)), hx.const(np.ones((8, 8, 3, 3), np.float32)), pad=(1,))
    task = only(y)
    assert task.descriptor.words[0x144 // 4] == CONV_3X3
    assert task.left_out == ("the binary point: tables disagree about its bits",)


def test_disputed_fields_stay_0() -> None:
    y = hx.conv(hx.input("x", (1, 8, 9, 9)), hx.const(np.ones((4, 8, 3, 3), np.float32)), strides=(2,))
    for task in hx.descriptors(hx.sigmoid(y) * 2.0, "M1").segments[0].tasks:
        assert not any(task.descriptor[f.path] for f in descriptor_fields(7) if f.status == "disputed")


def test_a_value_too_large_for_its_field_is_left_out_and_said() -> None:
    y = hx.conv(hx.input("x", (1, 4, 16, 16)), hx.const(np.ones((4, 4, 4, 4), np.float32)), strides=(4,))
    task = only(y)
    assert {"common.ConvCfg.Sx: 4 exceeds 3", "common.ConvCfg.Sy: 4 exceeds 3"} <= set(task.left_out)
    assert task.descriptor["common.ConvCfg.Sx"] == 0


LEFT_OUT = [
    (lambda: hx.relu6(IMAGE), ("the activation: no source publishes how clamped_relu is coded",)),
    (lambda: hx.sigmoid(IMAGE), ("the look-up table of sigmoid_high_precision",)),
    (lambda: hx.softmax(IMAGE), ("the operation: no source publishes how a softmax is coded",)),
    (
        lambda: hx.add(IMAGE, hx.input("y", IMAGE.shape)),
        ("sources after the first: no published field has their formats and strides",),
    ),
    (
        lambda: hx.conv(IMAGE, hx.const(np.ones((8, 1, 3, 3), np.float32)), groups=8),
        (
            "the inputs of each group: no published program has groups",
            "the binary point: tables disagree about its bits",
        ),
    ),
]


@pytest.mark.parametrize(("build", "words"), LEFT_OUT)
def test_parts_without_a_published_field_are_named(build: Any, words: tuple[str, ...]) -> None:
    task = only(build())
    assert task.left_out == words
    sigmoid = "look-up" in words[0]
    assert task.descriptor["multiply-accumulate.MACCfg.NonlinearMode"] == (2 if sigmoid else 0)


def test_a_deconvolution_is_named_apart_from_a_convolution() -> None:
    weight = hx.const(np.random.default_rng(0).standard_normal((8, 4, 2, 2)).astype(np.float32))
    task = only(hx.conv_transpose(IMAGE, weight, strides=2))
    assert "the operation: no source publishes how a deconvolution is coded" in task.left_out


def test_slots_name_the_layer_s_inputs_by_number() -> None:
    """An offset for each channel is a slot of the layer. It has no gain."""
    weight = hx.const(np.random.default_rng(0).standard_normal((8, 8, 2, 2)).astype(np.float32))
    bias = hx.const(np.arange(1, 9, dtype=np.float32))
    task = only(hx.conv(IMAGE, weight, bias))
    slots = [said for said in task.left_out if said.startswith("the slot ")]
    assert slots
    assert all("=-1" not in said for said in slots), slots
    assert any("offset=input " in said for said in slots), slots


@pytest.mark.parametrize("chip", ["h11", "h12", "h14", "h15", "h16", "h17s"])
def test_chips_of_other_versions_are_refused(chip: str) -> None:
    with pytest.raises(UnsupportedError, match=r"got task descriptors of version \d+, need version 7, as h13 has"):
        hx.descriptors(PROGRAMS[0][0](), chip)


def test_a_network_without_the_engine_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="got a network without a layer on the engine, need one"):
        hx.descriptors(hx.input("x", (4,), "int32") + hx.input("y", (4,), "int32"), "M1")


def test_a_container_has_the_descriptors_that_were_written(tmp_path: Path) -> None:
    x = hx.input("x", (1, 8, 16, 16))
    y = hx.relu(hx.conv(x, hx.const(np.ones((8, 8, 3, 3), np.float32)), pad=(1,))) + hx.input("b", (1, 8, 16, 16))
    found, path = hx.descriptors(y, "M1"), tmp_path / "net.hwx"
    hx.write_hwx(path, found)
    data = path.read_bytes()
    hwx = read_hwx(data)
    assert "h13" in hwx.chips
    (text,) = [s for segment in hwx.segments for s in segment.sections if s.name == "__text"]
    assert text.offset is not None
    read = read_descriptors(data, text.offset, text.bytes)
    assert read == tuple(task.descriptor for task in found.segments[0].tasks)
    assert hwx.weight_bytes == found.segments[0].weight_bytes > 0
    assert len(hwx.symbols) == len(found.segments[0].ports) == 3
    hx.write_hwx(tmp_path / "again.hwx", y, "h13")
    assert (tmp_path / "again.hwx").read_bytes() == data


def test_a_container_needs_a_chip_and_one_segment(tmp_path: Path) -> None:
    y = PROGRAMS[0][0]()
    with pytest.raises(Error, match=r"\[write_hwx\] target: got None, need a chip"):
        hx.write_hwx(tmp_path / "net.hwx", y)
    with pytest.raises(Error, match=r"\[write_hwx\] segment: got 5, need the number of one: 0"):
        hx.write_hwx(tmp_path / "net.hwx", y, "M1", segment=5)


def test_text_and_record_say_that_it_is_experimental() -> None:
    found = hx.descriptors(PROGRAMS[0][0](), "M1")
    assert "1 task descriptor of version 7\nExperimental: " in str(found)
    assert "common.InDim.Win = 77" in str(found)
    record = found.record()
    assert record["note"].startswith("Experimental")
    task = record["segments"][0]["tasks"][0]
    assert read_descriptors(bytes.fromhex(task["bytes"]))[0].fields == task["fields"]


@pytest.mark.parametrize(("op", "case"), CASES, ids=IDS)
def test_op_examples_round_trip(op: Any, case: int) -> None:
    """Every layer of the catalogue's examples that the engine of M1 runs."""
    inputs = arrays(op, op.cases[case])
    graph = graph_of(op, op.cases[case], inputs)
    try:
        found = descriptors_of(graph, M1)
    except UnsupportedError as failed:
        pytest.skip(str(failed))
    known = {f.path for f in descriptor_fields(7) if f.status != "disputed"}
    for part in found.segments:
        read = read_descriptors(part.text)
        assert read == tuple(task.descriptor for task in part.tasks)
        for task in read:
            assert task.unnamed == {}
            assert {path for path, value in task.fields.items() if value} <= known
