"""Estimates: every number is followed to the formula, and bad input gives no number."""

from dataclasses import asdict, replace

import numpy as np
import pytest

import hexane as hx
from hexane.cost import estimate_program
from hexane.cost.demand import demand
from hexane.cost.estimate import BATCH, layer_parts
from hexane.cost.formula import weights_us
from hexane.cost.parameters import (
    RATES,
    calibration,
    host_facts,
    host_rates,
    measured,
    peak_ratio,
    power_mw,
    rate_facts,
    rates_of,
    read_rates,
    residuals,
)
from hexane.graph import Graph
from hexane.report.estimate import against_host, program_for, remarks
from hexane.targets import chip_names
from hexane.targets.fact import Place
from hexane.targets.query import load_chip
from hexane.targets.tables import table


def gemm(n: int = 256, m: int | None = None) -> Graph:
    weights = np.random.default_rng(0).standard_normal((n, n), np.float32).astype(np.float16)
    return hx.graph(hx.matmul(hx.input("x", (m or n, n), "fp16"), weights))


def convolutions(count: int, host: bool = False) -> Graph:
    x = hx.input("x", (1, 64, 56, 56), "fp16")
    for i in range(count):
        x = hx.conv(x, np.full((64, 64, 3, 3), (i + 1) / 64, np.float16), pad=1)
        x = hx.tan(x) if host and i == 0 else x
    return hx.graph(x)


def test_a_latency_is_the_sum_of_its_parts() -> None:
    found = hx.estimate(convolutions(2, host=True), "M1")
    assert found.submissions == 2
    parts = found.floor_us + found.copies_us + found.engine_us + found.host_us
    assert found.latency_us == pytest.approx(parts)
    assert found.p10_us < found.latency_us < found.p90_us


def test_every_part_of_a_product_follows_from_the_parameters() -> None:
    chip = load_chip("M5 Pro")
    found, rates = hx.estimate(gemm(256), chip), calibration(chip).rates
    size = 256 * 256 * 2
    assert found.floor_us == pytest.approx(rates.floor_us)
    assert found.copies_us == pytest.approx(size / rates.read_gbps / 1e3 + size / rates.write_gbps / 1e3)
    (product,) = (layer for layer in found.layers if layer.kind == "gemm")
    assert product.operations == 2 * 256**3
    times = {
        "compute": 2 * 256**3 / rates.gemm_gops / 1e3,
        "weights": size / rates.stream_gbps / 1e3,
        "activations": product.traffic / rates.traffic_gbps / 1e3,
    }
    assert product.us == pytest.approx(max(times.values()))
    assert product.bound == max(times, key=lambda name: times[name])


def mixed(count: int) -> Graph:
    x = hx.input("x", (1, 64, 56, 56), "fp16")
    for i in range(count):
        x = hx.conv(x, np.full((64, 64, 3, 3), (i + 1) / 64, np.float16), pad=1)
    return hx.graph(hx.matmul(hx.reduce_max(x, axes=(2, 3), keep_dims=False), np.full((64, 128), 0.5, np.float16)))


@pytest.mark.parametrize("chip", ["M5 Pro", "M2 Pro"])
def test_the_layers_of_a_network_take_a_part_of_their_time_alone(chip: str) -> None:
    """The longest one takes all of it."""
    program, known = program_for(mixed(4), load_chip(chip)), calibration(load_chip(chip))
    assert known.further == table("cost")["networks"][chip]
    found = estimate_program(program, load_chip(chip))
    assert (found.kind, found.further) == ("network", known.further)
    alone = [max(layer_parts(layer, known.rates).values()) for layer in demand(program).layers]
    of_kind = list(zip([layer.kind for layer in demand(program).layers], alone, strict=True))
    longest, total = max(us for k, us in of_kind if k != "move"), sum(us for k, us in of_kind if k != "move")
    assert found.engine_us == pytest.approx(longest + known.further * (total - longest))
    assert sum(layer.us for layer in found.layers if layer.kind != "move") == pytest.approx(found.engine_us)
    assert all(0 <= layer.utilisation <= 1 for layer in found.layers)
    assert any("published networks on" in line for line in remarks(found))


def test_no_network_takes_less_by_one_more_layer() -> None:
    times = [hx.estimate(mixed(count), "M5 Pro").latency_us for count in range(5)]
    assert times == sorted(times)


def test_a_program_of_one_kind_takes_what_its_layers_take_alone() -> None:
    found = hx.estimate(convolutions(3), "M5 Pro")
    assert (found.kind, found.further) == ("conv", 1)


def test_a_product_without_published_networks_has_their_wider_interval() -> None:
    found = hx.estimate(mixed(2), "M4")
    assert (found.kind, found.further) == ("network", 1)
    assert found.p10_us == pytest.approx(found.latency_us * residuals("plain_network", extrapolated=False)[0])


def test_the_host_computes_at_its_own_rates() -> None:
    program = program_for(convolutions(2, host=True), load_chip("M1"))
    asked, host = demand(program), host_rates()
    us = max(asked.host_operations / host.gops, asked.host_bytes / host.gbps) / 1e3
    assert estimate_program(program, load_chip("M1")).host_us == pytest.approx(us)


def test_weights_are_read_once_for_each_tile_of_the_data() -> None:
    assert weights_us(1e6, 100, 1000, 1) == pytest.approx(1000)
    assert weights_us(1e6, 3000, 1000, 1) == pytest.approx(3000)


@pytest.mark.parametrize("chip", measured())
def test_more_work_takes_longer(chip: str) -> None:
    times = [hx.estimate(convolutions(count), chip).latency_us for count in (1, 2, 4)]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_products_of_one_target_have_rates_of_their_own() -> None:
    one, other = (hx.estimate(gemm(), chip) for chip in ("M5", "M5 Pro"))
    assert (one.measured_on, other.measured_on) == ("M5", "M5 Pro")
    assert one.latency_us != other.latency_us
    assert asdict(hx.estimate(gemm(), "MacBookPro17,1"))["measured_on"] == "M1"


@pytest.mark.parametrize("chip", ["A14", "M4 Max", "M3", "M6", "h18"])
def test_a_chip_without_measurements_says_whose_rates_it_has_and_is_less_sure(chip: str) -> None:
    found = hx.estimate(gemm(), chip)
    assert found.extrapolated
    assert found.measured_on in measured()
    assert found.measured_on in remarks(found)[0]
    known = hx.estimate(gemm(), found.measured_on)
    assert found.p10_us / found.latency_us < known.p10_us / known.latency_us
    assert found.p90_us / found.latency_us > known.p90_us / known.latency_us


@pytest.mark.parametrize("chip", ["A14", "M6"])
def test_a_whole_network_on_a_chip_without_measurements_is_less_sure(chip: str) -> None:
    network = hx.graph(hx.softmax(hx.conv(hx.input("x", (1, 8, 16, 16), "fp16"), np.ones((8, 8, 3, 3), np.float16))))
    found = hx.estimate(network, chip)
    known = hx.estimate(network, found.measured_on)
    assert found.kind == "network"
    assert found.p10_us / found.latency_us < known.p10_us / known.latency_us
    assert found.p90_us / found.latency_us > known.p90_us / known.latency_us


@pytest.mark.parametrize("chip", chip_names())
def test_an_unknown_clock_does_not_count_as_one_megahertz(chip: str) -> None:
    assert 1 / 20 < peak_ratio(load_chip(chip), load_chip("M5")) < 20


@pytest.mark.parametrize("chip", measured())
def test_every_rate_is_a_fact(chip: str) -> None:
    facts = rate_facts(chip)
    assert tuple(facts) == RATES
    for name, fact in facts.items():
        assert fact.value == getattr(rates_of(chip), name) > 0
        assert fact.status == "fitted"
        assert fact.source.startswith("fitted on ")
    assert table("cost")["chips"][chip]["rows"] > 0
    found = hx.estimate(gemm(), chip)
    assert (found.source, found.status) == (facts["floor_us"].source, "fitted")


def test_the_host_has_rates_with_a_source() -> None:
    known = tuple(table("sources"))
    assert all(fact.source.startswith(known) and fact.status == "decoded" for fact in host_facts().values())


@pytest.mark.parametrize("wrong", [0, -1, "fast", float("inf"), {"value": 3, "source": "", "status": "measured"}])
def test_a_wrong_rate_is_an_error_that_names_it(wrong: object) -> None:
    given = {**table("cost")["chips"]["M1"], "gemm_gops": wrong}
    with pytest.raises(hx.Error, match=r"\[rates.toml\] chips.M1.gemm_gops"):
        read_rates(given, "chips.M1", Place("rates.toml", "hexane", "measured"))


def test_a_missing_rate_is_an_error() -> None:
    given = {key: value for key, value in table("cost")["chips"]["M1"].items() if key != "gemm_gops"}
    with pytest.raises(hx.Error, match="need exactly"):
        read_rates(given, "chips.M1", Place("rates.toml", "hexane", "measured"))


@pytest.mark.parametrize("kind", table("cost")["unseen_rows"])
def test_intervals_hold_one_and_are_wider_for_unseen_chips(kind: str) -> None:
    low, high = residuals(kind, extrapolated=False)
    wide_low, wide_high = residuals(kind, extrapolated=True)
    assert wide_low < low < 1 < high < wide_high


@pytest.mark.parametrize("kind", ["attention", "move", "pool"])
def test_a_kind_without_quantiles_has_those_of_all_rows(kind: str) -> None:
    assert residuals(kind, extrapolated=False) == residuals("other", extrapolated=False)


def test_a_transformer_is_as_unsure_as_other_whole_networks() -> None:
    """Attention alone was measured and met better than networks with attention in them."""
    x = hx.input("x", (1, 4, 64, 32), "fp16")
    attention = hx.scaled_dot_product_attention(x, x, x)
    ones = np.ones(32, np.float16)
    alone = hx.estimate(hx.graph(attention), "M5")
    whole = hx.estimate(hx.graph(hx.layer_norm(attention, ones, ones, axes=(-1,), epsilon=1e-5)), "M5")
    assert (alone.kind, whole.kind) == ("attention", "network")
    assert whole.p90_us / whole.latency_us > alone.p90_us / alone.latency_us


def test_a_small_network_is_said_to_be_dominated_by_its_call() -> None:
    found = hx.estimate(gemm(64), "M1")
    assert found.dominant == "dispatch"
    assert any("calls dominate" in line for line in remarks(found))


def test_memory_counts_weights_and_both_surfaces() -> None:
    found = hx.estimate(convolutions(1), "M1")
    assert found.memory.weights == 64 * 64 * 9 * 2
    assert found.memory.surfaces == 2 * 64 * 56 * 56 * 2
    assert found.memory.on_chip > 0


def test_a_network_that_cannot_run_there_is_an_error() -> None:
    with pytest.raises(hx.Error, match="no op runs on the engine"):
        hx.estimate(hx.graph(hx.tan(hx.input("x", (1, 8)))), "M1")


def test_an_unknown_chip_is_an_error() -> None:
    with pytest.raises(hx.Error, match="need"):
        hx.estimate(gemm(), "M77")


def test_the_host_is_measured() -> None:
    found = hx.estimate(gemm(512), "host")
    assert (found.kind, found.measured_on, found.extrapolated) == ("measured", "this CPU", False)
    assert 0 < found.p10_us <= found.latency_us <= found.p90_us
    assert found.latency_us == found.host_us
    assert (found.dominant, found.submissions, found.layers) == ("host", 0, ())
    assert "measured here" in remarks(found)[0]


def test_a_chip_is_compared_with_the_cpu_that_was_measured() -> None:
    chip, host = hx.estimate(gemm(64), "M1"), hx.estimate(gemm(64), "host")
    fast = replace(host, latency_us=1.0, p10_us=0.9, p90_us=1.1)
    slow = replace(host, latency_us=1e6, p10_us=0.9e6, p90_us=1.1e6)
    assert against_host([chip, fast])[0].startswith("this CPU would be faster: 1 us measured here")
    assert against_host([slow, chip])[0].startswith("M1 (h13) would be faster: ")
    near = replace(host, latency_us=chip.latency_us * 0.99, p10_us=chip.p10_us, p90_us=chip.p90_us)
    assert against_host([chip, near])[0].endswith("; the intervals overlap")
    assert against_host([chip]) == []


def test_a_batch_shares_the_call_and_the_weights() -> None:
    one = hx.estimate(gemm(1024, 8), "M5")
    whole = hx.estimate(gemm(1024, 8 * BATCH), "M5")
    assert one.batched_us == pytest.approx(whole.latency_us / BATCH, rel=0.02)
    assert one.batched_us < 0.2 * one.latency_us
    assert f"in a batch of {BATCH} an input takes {one.batched_us:.0f} us" in remarks(one)[0]


def test_a_batch_of_attention_does_not_share_its_keys() -> None:
    x = hx.input("x", (1, 4, 64, 32), "fp16")
    many = hx.input("x", (BATCH, 4, 64, 32), "fp16")
    one, whole = (hx.estimate(hx.graph(hx.scaled_dot_product_attention(t, t, t)), "M4") for t in (x, many))
    assert one.batched_us == pytest.approx(whole.latency_us / BATCH, rel=0.1)


def test_leaving_the_engine_has_a_price() -> None:
    found = hx.estimate(convolutions(2, host=True), "M1")
    rates, crossing = calibration(load_chip("M1")).rates, 64 * 56 * 56 * 2
    border = crossing / rates.read_gbps / 1e3 + crossing / rates.write_gbps / 1e3
    assert found.border_us == pytest.approx(border)
    assert found.leaving_us == pytest.approx(rates.floor_us + border + found.host_us)
    assert found.leaving_us == found.record()["leaving_us"]
    assert any(line.startswith(f"leaving the engine costs about {found.leaving_us:.0f} us") for line in remarks(found))
    assert hx.estimate(convolutions(2), "M1").leaving_us == 0


@pytest.mark.parametrize("chip", table("power")["chips"])
def test_energy_is_latency_times_published_power(chip: str) -> None:
    power = power_mw(chip, "gemm") or power_mw(chip, "attention")
    assert power is not None
    least, middle, most = power.value
    assert least <= middle <= most
    assert power.status == "measured"
    assert power.source.startswith(tuple(table("sources")))
    if power_mw(chip, "gemm"):
        found = hx.estimate(gemm(), chip)
        assert found.energy_uj == pytest.approx(found.latency_us * middle / 1000)
        assert found.energy_span_uj == pytest.approx((found.p10_us * least / 1000, found.p90_us * most / 1000))
        assert any(line.startswith("energy of the engine alone: about ") for line in remarks(found))


@pytest.mark.parametrize("chip", ["M2", "A14", "M6", "h18"])
def test_energy_is_unknown_where_no_power_was_published(chip: str) -> None:
    found = hx.estimate(gemm(), chip)
    assert (found.energy_uj, found.energy_span_uj) == (None, None)
    assert not any("energy" in line for line in remarks(found))


def test_energy_is_unknown_for_kinds_without_published_power_and_parts_on_the_host() -> None:
    assert hx.estimate(hx.graph(hx.softmax(hx.input("x", (1, 64), "fp16"))), "M1").energy_uj is None
    assert hx.estimate(convolutions(2, host=True), "M1").energy_uj is None


def test_weights_that_no_kernel_memory_holds_are_weights() -> None:
    """A product of 768 x 3,072 reads them as a tensor."""
    w = np.random.default_rng(0).standard_normal((768, 3072)).astype(np.float32)
    found = hx.estimate(hx.graph(hx.matmul(hx.input("x", (1, 197, 768)), w)), "M4")
    assert found.memory.weights == w.size * 2
    y = hx.input("y", (768, 3072))
    assert hx.estimate(hx.graph(hx.matmul(hx.input("x", (1, 197, 768)), y)), "M4").memory.weights == 0
