"""The compiler's checks beside those of single layers: the umbrella, modules, edits of weights, and programs when they
are loaded."""

from dataclasses import replace

import pytest

from hexane.graph import tensor_type
from hexane.targets.query import load_chip
from hexane.validate import Matrix, Unit, validate_module, validate_network, validate_program, validate_weight_edit

H13 = load_chip("h13")
X = tensor_type("fp16", (1, 8, 4, 4))
UNITS = (Unit("a", "Softmax", (X,), {}), Unit("b", "Neuron", (X,), {}))
COLLISION = 'ANE internal error: Unit name "a" collision during MIL to ANEC IR conversion.'


def test_a_network_in_order_is_accepted() -> None:
    assert validate_network(UNITS, H13) == {}


def test_the_umbrella_asks_every_layer() -> None:
    found = validate_network((*UNITS, Unit("c", "Dropout", (X,), {})), H13)
    assert [v.reject for v in found["c"]] == ["Dropout layer is not supported on this architecture."]
    assert found.keys() == {"c"}


def test_a_module_newer_than_the_schema_is_refused() -> None:
    (got,) = validate_network(UNITS, H13, version=(1, 0, 11))[""]
    assert got.rule == "umbrella: schema"
    assert not got.published
    assert "1.0.11" in got.reject
    assert validate_module((1, 0, 10), ["a", "b"]) == []


@pytest.mark.parametrize("chip", ["h13", "h17d"])
def test_bonded_networks_are_refused_on_every_chip(chip: str) -> None:
    (got,) = validate_network(UNITS, load_chip(chip), bonded=True)[""]
    assert got.reject == "Bonded networks are not supported on the target"
    assert got.published


def test_two_units_of_one_name_collide() -> None:
    (got,) = validate_network((UNITS[0], Unit("a", "Neuron", (X,), {})), H13)[""]
    assert got.reject == COLLISION
    assert got.published


def test_a_unit_without_a_conversion_record_is_refused() -> None:
    (got,) = validate_network(UNITS, H13, records={"a"})[""]
    assert got.rule == "umbrella: conversion"
    assert got.reject.endswith("the unit b")


def test_weights_are_replaced_by_what_they_are() -> None:
    weights = {"w": X}
    assert validate_weight_edit(weights, {"w": X}) == []
    wrong = validate_weight_edit(weights, {"w": tensor_type("fp16", (1, 8, 4, 5)), "v": X})
    assert [v.reject for v in wrong] == [
        "weight w: got fp16[1, 8, 4, 5], need fp16[1, 8, 4, 4]",
        "got the weight v, which the program does not have",
    ]


LOADED = Matrix("x", "single plane", planes=1, rows=256, row_bytes=60, row_stride=64, plane_stride=16384, size=16384)


@pytest.mark.parametrize(
    "matrix",
    [
        LOADED,
        replace(LOADED, form="multi-plane", planes=2, size=32768),
        replace(LOADED, form="uncompressed"),
        replace(LOADED, form="tiled compressed", tile=32),
    ],
)
def test_the_four_forms_of_tensors_are_loaded(matrix: Matrix) -> None:
    assert validate_program([matrix], 4, H13) == []


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (replace(LOADED, form="round"), "got the form 'round'"),
        (replace(LOADED, planes=2, size=32768), "got 2 planes, need 1"),
        (replace(LOADED, form="multi-plane"), "got 1 plane, need 2 or more"),
        (replace(LOADED, row_stride=60), "got rows 60 bytes apart, need a multiple of 64"),
        (replace(LOADED, row_bytes=65), "need a multiple of 64, 65 or more"),
        (replace(LOADED, plane_stride=64), "got planes 64 bytes apart, need 16384 or more"),
        (replace(LOADED, size=100), "got 100 bytes, need a multiple of 16384"),
        (replace(LOADED, form="tiled compressed", tile=8), "got tiles of 8, need 16 or 32"),
    ],
)
def test_a_program_is_checked_again_when_it_is_loaded(matrix: Matrix, says: str) -> None:
    (got,) = validate_program([matrix], 4, H13)
    assert says in got.reject
    assert got.status == "inferred"
    assert not got.published


def test_a_program_of_another_generation_is_not_loaded() -> None:
    (got,) = validate_program([LOADED], 5, H13)
    assert got.reject == "program of generation 5: h13 takes 4"
