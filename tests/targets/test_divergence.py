"""Where two chips may round, or saturate, differently; and what the compiler's cost model assumes of them."""

from dataclasses import replace
from typing import Any

import pytest

import hexane as hx
from hexane.targets import Family, Tier, analytic_costs, fp16_divergence
from hexane.targets.query import load_chip


@pytest.mark.parametrize(
    ("op", "chips", "more", "verdict"),
    [
        ("slice_by_size", ("m1", "m5"), {"begin": (0, 3)}, "saturation"),
        ("slice_by_size", ("m2", "m5"), {"begin": (0, 3)}, "saturation"),
        ("slice_by_size", ("m1", "m2"), {"begin": (0, 3)}, "none"),
        ("slice_by_size", ("m1", "m5"), {"begin": (3, 0)}, "none"),
        ("slice_by_size", ("m1", "m5"), {"begin": (0, 3), "largest": 4094}, "none"),
        ("slice_by_size", ("m1", "m5"), {"begin": (0, 3), "largest": 4096}, "saturation"),
        ("softmax", ("m1", "m5"), {}, "ulp1"),
        ("softmax", ("m1", "m2"), {}, "none"),
        ("reduce_mean", ("m1", "m5"), {"extent": 191}, "none"),
        ("reduce_mean", ("m1", "m5"), {"extent": 192}, "ulp1"),
        ("reduce_mean", ("m1", "m5"), {"extent": 384}, "none"),
        ("layer_norm", ("m2", "m3"), {}, "ulp1"),
        ("conv", ("m1", "m5"), {}, "none"),
    ],
)
def test_known_routes_that_differ_are_named(
    op: str, chips: tuple[str, str], more: dict[str, Any], verdict: str
) -> None:
    assert fp16_divergence(op, *chips, **more) == verdict
    assert fp16_divergence(op, *reversed(chips), **more) == verdict


def test_a_square_after_a_reduction_counts_where_chips_differ_in_it() -> None:
    h13 = load_chip("h13")
    other = replace(h13, gates=replace(h13.gates, square_after_reduction=True))
    assert fp16_divergence("rms_norm", h13, other) == "round1"
    assert fp16_divergence("softmax", h13, other) == "none"


@pytest.mark.parametrize(
    ("family", "clamps", "ramp"),
    [
        ("A12", (50, 100, 200, 400, 800), (1.84, 14.72)),
        ("A13", (50, 100, 200, 400, 800), (1.84, 7.36)),
        ("A16", (62.5, 125, 250, 500), (1.84, 7.36)),
        ("A17", (62.5, 125, 250, 500), (1.84, 7.36)),
        *((family, (34.1, 68.2), (1.84, 13.57)) for family in ("A11Legacy", "A14", "A15")),
    ],
)
def test_a_row_of_table_35_7(family: str, clamps: tuple[float, ...], ramp: tuple[float, float]) -> None:
    assert analytic_costs(Family[family]) == (clamps, ramp)


def test_a_tier_has_no_costs() -> None:
    with pytest.raises(hx.Error, match="need a Family"):
        analytic_costs(Tier.A13)  # type: ignore[arg-type]


def test_the_host_diverges_from_nobody() -> None:
    with pytest.raises(hx.Error, match="which is no chip"):
        fp16_divergence("softmax", "host", "m1")
