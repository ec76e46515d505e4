"""`Model.debug` stops where the first number overflows, and says what made it."""

import json

import numpy as np
import pytest

import hexane as hx

X = (2, 9)


def net(numerics: str = "engine", scale: float = 100.0) -> hx.Model:
    weight = np.full((9, 4), scale, np.float32)
    weight[3] = -scale
    found = hx.compile(hx.matmul(hx.relu(hx.input("x", X)), weight), target="h13", numerics=numerics)
    assert isinstance(found, hx.Model)
    return found


def values(size: float) -> np.ndarray:
    x = np.full(X, size, np.float32)
    x[:, 5] = 2 * size
    return x


def test_a_run_without_overflow_says_the_range_of_every_layer() -> None:
    found = net().debug(values(1))
    assert found.ok
    assert len(found.layers) == 4, "a cast at each port"
    assert [(r.low, r.high) for r in found.layers][1:3] == [(1.0, 2.0), (800.0, 800.0)]
    assert "every number finite; the largest number is 800, in" in str(found)


@pytest.mark.parametrize("given", [np.nan, np.inf])
def test_a_run_on_numbers_that_are_not_finite_does_not_say_that_they_are(given: float) -> None:
    x = values(1)
    x[0, 3] = given
    found = net("ieee").debug(x)
    assert found.ok, "nothing finite overflowed"
    assert "every number finite" not in found.summary
    assert found.summary.startswith(
        "4 layers, no finite numbers overflow; the first that are infinite or NaN, 1 in cast"
    )


def test_an_accumulator_that_overflows_is_found_with_its_products() -> None:
    found = net().debug(values(50))
    assert found.stop is not None
    assert (set(found.stop.index), found.stop.value) == ({0}, np.inf)
    assert "test_debug.py" in found.stop.where
    assert len(found.layers) == 3, "what follows did not run"
    totals = (
        5000,
        10000,
        15000,
        10000,
        15000,
        25000,
        30000,
        35000,
    )  # the fourth weight is -100, the sixth number is 100
    assert found.stop.path == tuple(enumerate(map(float, totals), 1))
    first = found.stop.products[0]
    assert (first.x_index[-1], sorted(first.weight_index)[-1], first.x, first.weight) == (5, 5, 100.0, 100.0)
    assert "with product 8 of 9 the sum reaches 32768" in found.stop.why


def test_params_that_were_replaced_are_those_of_the_products() -> None:
    weight = hx.param("w", np.full((9, 4), 1, np.float32))
    net = hx.compile(hx.matmul(hx.input("x", X), weight), target="h13")
    assert isinstance(net, hx.Model)
    net.update(w=np.full((9, 4), 300, np.float32))
    found = net.debug(values(50))
    assert found.stop is not None
    assert [(p.x, p.weight) for p in found.stop.products[:2]] == [(100.0, 300.0), (50.0, 300.0)]
    assert "with product 3 of 9 the sum reaches 32768" in found.stop.why


def test_ieee_arithmetic_overflows_where_fp16_ends() -> None:
    assert net("ieee").debug(values(50)).ok
    found = net("ieee").debug(values(85))
    assert found.stop is not None
    assert "the sum of 9 products is 68000, which fp16 does not hold" in found.stop.why
    assert found.stop.path[-1] == (9, 68000.0)


def test_other_ops_show_their_operands() -> None:
    x = hx.input("x", X)
    found = hx.compile(hx.exp(x), target="h13").debug(np.full(X, 13, np.float32))
    assert found.stop is not None
    assert found.stop.why == "exp of 13"
    assert found.stop.products == ()


def test_ops_of_a_fused_step_are_named() -> None:
    """The product is 18; e^18 is more than fp16 holds."""
    net = hx.compile(hx.graph(hx.exp(hx.input("x", (1, 8)) * np.float32(9))), target="M1", device="cpu")
    found = net.debug({"x": np.full((1, 8), 2, np.float32)})
    assert found.stop is not None
    assert found.stop.why == "mul of 2, 9, then exp"


def test_infinities_that_are_given_are_no_overflow() -> None:
    mask = np.where(np.tri(9, dtype=bool), 0, -np.inf).astype(np.float16)
    x = hx.input("x", (9, 9), "fp16")
    assert hx.compile(hx.softmax(x + mask), target="h13").debug(np.ones((9, 9), np.float16)).ok


def test_winograd_overflows_by_itself() -> None:
    """y1 = (d1 + d2) - (d2 - d1) - (d1 - d3) for the taps 1, 0, 1: 20000 + 20000 - 40000 on the pixels 0, 20000, 0,
    -20000."""
    x = hx.input("x", (1, 1, 4, 4), "fp16")
    weight = np.zeros((1, 1, 3, 3), np.float16)
    weight[0, 0, 1] = 1, 0, 1
    image = np.broadcast_to(np.array([20000, 0, -20000, 0], np.float16), (1, 1, 4, 4)).copy()
    net = {c: hx.compile(hx.conv(x, weight, pad=1), target=c, numerics="engine") for c in ("h13", "h17s")}
    assert net["h13"].debug(image).ok
    found = net["h17s"].debug(image)
    assert found.stop is not None
    assert "Winograd's transforms" in found.stop.why
    assert all(abs(total) <= 20000 for _, total in found.stop.path)


def test_the_report_is_text_html_and_json() -> None:
    found = net().debug({"x": values(50)})
    record = json.loads(found.to_json())
    assert record["stop"]["value"] == "inf"
    assert record["stop"]["products"][0]["product"] == 10000.0
    assert not record["ok"]
    assert "largest products:" in str(found)
    assert "= 100 * 100 = 10000" in found._repr_html_()
    assert "stopped at" in repr(found)


def test_what_cannot_be_debugged_is_refused(tmp_path) -> None:
    net().save(tmp_path / "net.hxp")
    with pytest.raises(hx.Error, match="without its graph"):
        hx.load(tmp_path / "net.hxp").debug(values(1))
    with pytest.raises(hx.Error, match="need float32"):
        net().debug(np.zeros(X))
    with pytest.raises(hx.Error, match="need"):
        net().debug()
