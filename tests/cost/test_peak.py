"""Peaks: each number follows from facts, and none is given as a speed-up."""

import json

import pytest

import hexane as hx
from hexane.targets import chip_names
from hexane.targets.fact import STATUSES
from hexane.targets.query import load_chip
from hexane.targets.tables import table


@pytest.mark.parametrize(("chip", "advertised"), [("A14", 11), ("A15", 15.8), ("A16", 17), ("A17 Pro", 35 / 2)])
def test_a_peak_is_near_the_advertised_rate(chip: str, advertised: float) -> None:
    """Apple advertises that of A17 Pro for int8, which is twice as fast there."""
    assert hx.project_peak(chip).tflops == pytest.approx(advertised, rel=0.07)


def test_a_peak_follows_from_its_facts() -> None:
    found = hx.project_peak("M5")
    clock, products = found.facts["clock"].value, found.facts["multiply_adds_per_core_cycle"].value
    assert found.tflops == pytest.approx(found.cores * products * 2 * clock / 1e6)
    assert found.ghz == pytest.approx(clock / 1000)
    assert found.relative_to_m1 == pytest.approx(2172 / 1428)
    assert found.facts["cores"].status == "disputed"
    assert hx.project_peak("M1").relative_to_m1 == 1


def test_m6_was_measured_just_below_its_peak() -> None:
    peak = hx.project_peak("M6").tflops
    assert peak is not None
    assert 20.6 < peak < 21.3


def test_a_peak_says_that_it_is_no_speed_up_and_what_was_measured() -> None:
    found = hx.project_peak("M5")
    assert found.end_to_end == (2.3, 3.3)
    assert "no speed-up" in found.caveat
    assert "2.3 to 3.3" in found.caveat
    assert len(found.facts["end_to_end"].claims) == 2
    assert hx.project_peak("MacBookPro18,2").end_to_end == hx.project_peak("M1 Max").end_to_end is not None
    assert hx.project_peak("A14").end_to_end is None
    assert "no latency of A14 (h13)" in hx.project_peak("A14").caveat


def test_m1_is_what_others_are_compared_with() -> None:
    assert "M1 is the chip that others are compared with" in hx.project_peak("M1").caveat


def test_a_clock_of_another_target_is_inferred_and_an_unknown_one_gives_no_peak() -> None:
    clock = hx.project_peak("M2 Pro").facts["clock"]
    assert (clock.source, clock.status) == ("the clock of h14", "inferred")
    found = hx.project_peak("A19")
    assert (found.tflops, found.relative_to_m1, found.ghz) == (None, None, None)
    assert found.facts["clock"].status == "unknown"


@pytest.mark.parametrize("chip", chip_names(all=True))
def test_every_fact_has_a_known_source_and_a_status(chip: str) -> None:
    known = tuple(table("sources"))
    found = hx.project_peak(chip)
    assert json.dumps(found.record(), allow_nan=False)
    for name in ("multiply_adds_per_core_cycle", "end_to_end", "clock"):
        fact = found.facts.get(name)
        for one in () if fact is None else (fact, *fact.claims):
            assert one.status in STATUSES
            assert one.status in ("inferred", "unknown") or one.source.startswith(known)


def test_measured_ratios_are_of_products_that_exist() -> None:
    assert all(name in load_chip(name).products for name in table("peak")["end_to_end"])


@pytest.mark.parametrize(("chip", "said"), [("M77", "need one of"), ("host", "is no chip")])
def test_what_is_no_chip_has_no_peak(chip: str, said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.project_peak(chip)
