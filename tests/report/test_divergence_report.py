"""`predict_fp16_divergence`: the verdicts of an op, the field that drives them, and the warning of the same."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane.report.divergence import Judged
from hexane.targets.query import load_chip

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
X = (1, 4, 8, 16)


def last(y: hx.Tensor, a: str = "M1", b: str = "M5", **ranges: object) -> Judged:
    return hx.predict_fp16_divergence(y, a, b, ranges=ranges).ops[-1]


def test_a_slice_inside_a_row_saturates_unless_bounds_rule_it_out() -> None:
    x = hx.input("x", X)
    found = last(x[:, :, :, 3:])
    assert (found.verdict, found.field, found.values) == ("saturation", "hazards.width_slice_limit", (4094, None))
    assert last(x[:, :, 3:]).verdict == "none"
    assert last(x[:, :, :, 3:], "M1", "M2").verdict == "none"
    assert last(x[:, :, :, 3:], x=(-4000, 4000)).verdict == "none"
    assert last(x[:, :, :, 3:], x=(-4200, 4000)).verdict == "saturation"
    assert last(hx.crop(x, crop_height=(0, 0), crop_width=(1, 0))).verdict == "saturation"


def test_a_reduction_diverges_between_the_two_thresholds() -> None:
    for extent, verdict in ((191, "none"), (192, "ulp1"), (383, "ulp1"), (384, "none")):
        found = last(hx.reduce_sum(hx.input("x", (2, extent)), axes=1), x=(-1, 1))
        assert found.verdict == verdict
    assert last(hx.softmax(hx.input("x", (2, 200)))).field == "extents.reduction_route"
    assert last(hx.softmax(hx.input("x", (2, 200))), "M1", "M2").verdict == "none"


def test_winograd_is_one_more_rounding() -> None:
    x, weight = hx.input("x", X), np.ones((4, 4, 3, 3), np.float32)
    found = last(hx.conv(x, weight))
    assert (found.verdict, found.field, found.values) == ("round1", "gates.winograd", (False, True))
    assert last(hx.conv(x, weight), "M1", "M4").verdict == "none"
    assert last(hx.conv(x, weight, strides=2)).verdict == "none"
    assert last(hx.conv(x, np.ones((4, 4, 1, 1), np.float32))).verdict == "none"


def bytes_product(zero: int = 0, scale: object = np.float32(0.02)) -> hx.Tensor:
    x = hx.dequantize(hx.input("q", X, "int8"), scale, np.int8(zero) if zero else None, axis=1)
    weight = hx.dequantize(np.ones((4, 4, 3, 3), np.int8), np.full(4, 0.01, np.float32), axis=0)
    return hx.conv(x, weight, pad=1)


def test_products_of_bytes_are_sums_of_integers_on_m6() -> None:
    found = last(bytes_product(), "M5", "M6")
    assert (found.verdict, found.field, found.values) == ("round1", "gates.double_int8", (False, True))
    assert last(bytes_product(), "M1", "M4").verdict == "none"
    assert last(bytes_product(zero=3), "M5", "M6").verdict == "none"
    assert last(bytes_product(scale=np.full(4, 0.02, np.float32)), "M5", "M6").verdict == "none"


def test_a_reduction_that_is_squared_counts_where_chips_differ_in_it() -> None:
    h13 = load_chip("h13")
    other = replace(h13, gates=replace(h13.gates, square_after_reduction=True))
    mean = hx.reduce_mean(hx.input("x", (2, 8)), axes=1)
    for y in (hx.square(mean), mean * mean):
        found = hx.predict_fp16_divergence(y, h13, other).ops[-1]
        assert (found.verdict, found.field) == ("round1", "gates.square_after_reduction")
    assert hx.predict_fp16_divergence(hx.square(hx.input("x", (2, 8))), h13, other).verdict == "none"


def network() -> hx.Tensor:
    h = hx.conv(hx.input("x", X), np.full((4, 4, 3, 3), 0.1, np.float32), pad=1)
    return hx.softmax(hx.reduce_mean(hx.relu(h)[:, :, :, 1:], axes=(2, 3)))


def test_the_report_is_of_the_strongest_verdict_and_prints() -> None:
    found = hx.predict_fp16_divergence(network(), "M1", "M5")
    assert found.verdict == "saturation"
    assert [op.verdict for op in found.divergent] == ["saturation", "round1"]
    assert "overflow: 4 may" in found.summary
    assert "hazards.width_slice_limit: 4094 and None" in str(found)
    assert "may overflow: beyond 32768" in str(found)
    assert "<table>" in found._repr_html_()
    bounded = hx.predict_fp16_divergence(network(), "M1", "M5", ranges={"x": (0, 1)})
    assert bounded.verdict == "round1"
    assert not bounded.overflowing
    record = json.loads(bounded.to_json())
    assert record["targets"] == ["h13", "h17"]
    assert record["ops"][0]["bound"]["overflow"] == "cannot"
    assert record["ops"][0]["bound"]["high"] == pytest.approx(3.6, rel=0.05)
    assert json.loads(found.to_json())["ops"][0]["bound"]["high"] is None


def test_an_input_that_overflows_is_said_to() -> None:
    found = hx.predict_fp16_divergence(network(), "M1", "M4", ranges={"x": np.full(X, 20000, np.float32)})
    assert found.overflowing[0].overflow == "will overflow, for all inputs in these ranges: beyond 32768"
    assert "1 will" in found.summary


def test_the_host_and_unknown_inputs_are_refused() -> None:
    with pytest.raises(hx.Error, match="which is no chip"):
        hx.predict_fp16_divergence(network(), "M1", "host")
    with pytest.raises(hx.Error, match="need inputs of the model: x"):
        hx.predict_fp16_divergence(network(), "M1", "M5", ranges={"y": (0, 1)})


def test_a_check_against_another_chip_warns_of_the_same_once() -> None:
    with pytest.warns(hx.CrossChipFP16Warning, match="saturation: slice_by_index .*; round1: conv") as seen:
        assert hx.cross_compile_check(network(), "M1", against="M5")
    assert len([w for w in seen if w.category is hx.CrossChipFP16Warning]) == 1


def test_nothing_is_warned_of_where_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXANE_TARGET", raising=False)
    plain = hx.relu(hx.matmul(hx.input("x", (2, 8)), np.ones((8, 8), np.float32)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hx.cross_compile_check(plain, "M1", against="M5")
        hx.cross_compile_check(hx.softmax(hx.input("x", (2, 200))), "M5")  # this machine is no chip
        hx.compile(hx.softmax(hx.input("x", (2, 200))), target="M5")


def test_a_check_is_against_this_machine_s_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXANE_TARGET", "M5")
    with pytest.warns(hx.CrossChipFP16Warning, match=r"between M1 \(h13\) and M5 \(h17\): ulp1: softmax"):
        hx.cross_compile_check(hx.softmax(hx.input("x", (2, 200))), "M1")


@pytest.mark.parametrize("largest", [900, 60000])
def test_a_norm_that_cannot_overflow_gives_no_zeros(largest: float) -> None:
    """What the report says of a range holds in the arithmetic of the chip."""
    x = hx.input("x", (2, 8, 64))
    v = np.random.default_rng(5).uniform(-largest, largest, x.shape).astype(np.float32)
    for y in (hx.rms_norm(x), hx.layer_norm(x), hx.l2_norm(x), hx.mean_variance_norm(x, axes=(-1,))):
        found = hx.predict_fp16_divergence(y, "M1", "M4", ranges={"x": (-largest, largest)}).ops[-1]
        if found.bound is not None and found.bound.overflow == "cannot":
            got, want = np.asarray(hx.compile(y, target="M4")(v)), np.asarray(hx.compile(y)(v))
            assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)
