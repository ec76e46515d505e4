"""`compare`: small networks whose differences between chips are known by hand."""

import json
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.report.causes import Cause
from hexane.report.compare import HEAD, MEANINGS, Comparison, Parting, _untolerated, compare
from hexane.report.difference import are_apart, difference
from hexane.report.trial import added_by_a_product, changed, scaled, split

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def parting(found: Comparison, first: str, second: str) -> Parting:
    (one,) = [p for p in found.partings if {p.first, p.second} == {first, second}]
    return one


def whole(low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(low, high, shape).astype(np.float32)


def test_an_accumulator_that_overflows_is_named_and_how_to_avoid_it() -> None:
    """8 * 100 * 50 = 40000: beyond the accumulator, not beyond fp16; an eighth of it is below half of the limit."""
    x = hx.relu(hx.input("x", (2, 8)))
    found = compare(
        hx.matmul(x, np.full((8, 3), 100, np.float32)), ["h13", "h17s", "ieee"], {"x": np.full((2, 8), 50, np.float32)}
    )
    assert parting(found, "h13", "h17s").layer is None
    parted = parting(found, "h13", "ieee")
    assert parted.layer is not None
    assert parted.cause is not None
    assert parted.difference is not None
    assert parted.layer.node.op == "matmul"
    assert (parted.difference.overflows, parted.difference.overflow) == (6, (0, 0))
    assert parted.cause.kind == "overflow"
    assert "with product 7 of 8 the sum reaches 32768" in parted.cause.why
    assert parted.cause.change.startswith("add 4 products in place of matmul at ")
    assert parted.cause.change.endswith("(tried: 6 of 6 infinite or NaN before, relative L2 0 after)")


def test_dropped_products_are_named() -> None:
    """2^-9 * 2^-9: exponents of -18, so every product is dropped; the sum of 64 of them would be 2^-12."""
    x = hx.input("x", (1, 64))
    small = np.full((1, 64), 2.0**-9, np.float32)
    found = compare(hx.matmul(x, small.T.copy()), ["h13", "ieee"], {"x": small})
    parted = parting(found, "h13", "ieee")
    assert parted.cause is not None
    assert parted.difference is not None
    assert parted.difference.max_abs == 2.0**-12
    assert parted.cause.kind == "dropped"
    assert (
        "the exact sum is 0.000244141; 64 of 64 products are dropped, which takes 0.000244141" in parted.cause.evidence
    )
    assert parted.cause.change.startswith(
        "scaling its input by 4096 and its result by 1/4096 was tried and does not help"
    ), "the compiler folds the second factor into the weights"


def test_rounded_products_are_named() -> None:
    """1.25 units each, rounded to 1: a fifth of the sum is lost, nothing is dropped."""
    x = hx.input("x", (1, 256))
    found = compare(
        hx.matmul(x, np.full((256, 1), 2.0**-8, np.float32)),
        ["h13", "ieee"],
        {"x": np.full((1, 256), 1.25 * 2.0**-8, np.float32)},
    )
    parted = parting(found, "h13", "ieee")
    assert parted.cause is not None
    assert parted.difference is not None
    assert parted.difference.relative_l2 == pytest.approx(0.2)
    assert parted.cause.kind == "rounding"
    assert "multiple of 2^-16" in parted.cause.why


@pytest.mark.parametrize("second", ["h13", "h16g", "h17s"])
def test_a_loss_that_both_chips_have_is_no_cause_between_them(second: str) -> None:
    """A12 rounds the product, adds the bias and rounds again; later chips add the bias in the sum and round once."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((10, 512)) * 0.02).astype(np.float32)
    bias = (4 * rng.standard_normal(10)).astype(np.float32)
    x = np.abs(rng.standard_normal((1, 512))).astype(np.float32)
    found = compare(hx.linear(hx.input("x", (1, 512)), weight, bias), ["h11", second], {"x": x})
    cause = parting(found, "h11", second).cause
    assert cause is not None
    assert cause.kind == "fp16"
    assert "the chips round at other places" in cause.why


def test_the_element_of_a_rounding_loss_is_one_that_differs() -> None:
    """The second column is wrong by a fifth; the first is exact on both and is not shown."""
    x, weight = hx.input("x", (1, 256)), np.zeros((256, 2), np.float32)
    weight[:, 1] = 2.0**-8
    found = compare(hx.matmul(x, weight), ["h13", "ieee"], {"x": np.full((1, 256), 1.25 * 2.0**-8, np.float32)})
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind == "rounding"
    assert "element [0, 0, 0, 1]: " in cause.evidence


def test_winograd_is_named_between_m4_and_m5() -> None:
    x = hx.relu(hx.input("x", (1, 4, 8, 8)))
    weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
    image = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    found = compare(hx.conv(x, weight, pad=1), ["M1", "M4", "M5"], image)
    assert found.targets == ("h13", "h16g", "h17")
    assert parting(found, "h13", "h16g").layer is None
    for other in ("h13", "h16g"):
        parted = parting(found, other, "h17")
        assert parted.cause is not None
        assert parted.cause.kind == "winograd"
        assert "Hexane adds other kernel sizes and strides directly on both; what M5 (h17) does" in parted.cause.change
        assert parted.cause.why.startswith("M5 (h17) computes this 3x3 convolution by Winograd")
        assert parted.cause.why.endswith(f"{'M1' if other == 'h13' else 'M4'} ({other}) adds its products directly")
    assert (
        sum("M1 (h13), M4 (h16g) compared with M5 (h17): first difference at conv" in line for line in found.lines) == 1
    ), "said once for both"
    strided = compare(hx.conv(x, weight, pad=1, strides=2), ["M4", "M5"], image)
    assert strided.ok, "of stride 2 both add directly"


def test_a_slice_that_saturates_is_said_with_its_place() -> None:
    x = hx.input("x", (2, 8), "fp16")
    numbers = np.full((2, 8), 10, np.float16)
    numbers[1, 5] = 5000
    found = compare(hx.relu(x)[:, 4:], ["M1", "M5"], {"x": numbers})
    said = " ".join(found.lines)
    assert "would make 1 numbers" in said or "slice: M1 (h13)" in said
    assert "[1, 1]" in said
    assert "slice along another axis" in said
    below = compare(hx.relu(x)[:, 4:], ["M1", "M5"], {"x": np.minimum(numbers, np.float16(4000))})
    assert below.ok
    assert below.notes == ()


def test_small_differences_that_add_up_are_no_layer_s_own() -> None:
    rng = np.random.default_rng(0)
    h = hx.input("x", (4, 64))
    for _ in range(6):
        h = hx.matmul(h, (rng.standard_normal((64, 64)) / 8).astype(np.float32))
    numbers = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    apart = [layer.differences["h13"].relative_l2 for layer in compare(h, ["h13", "ieee"], numbers).layers]
    assert apart[-1] == max(apart)
    assert apart[-2] > apart[-1] / 2
    found = compare(h, ["h13", "ieee"], numbers, tolerance=sorted(apart)[-2])
    parted = parting(found, "h13", "ieee")
    assert parted.cause is not None
    assert parted.cause.kind == "accumulated"


def test_layers_that_a_target_fused_are_listed_and_compared_among_the_others() -> None:
    x = hx.input("x", (1, 4, 8, 8))
    h = hx.conv(x, np.ones((4, 4, 1, 1), np.float32))  # the host fuses the sum behind it
    found = compare(hx.relu(h + x), ["h13", "h16", "ieee"], {"x": whole(-4, 5, 1, 4, 8, 8)})
    assert found.missing["ieee"]
    assert not found.missing["h13"]
    (layer,) = [layer for layer in found.layers if layer.node.op == "conv"]
    assert layer.base == "h13"
    assert layer.differences.keys() == {"h16"}
    assert any("from h13" in row[2] for row in found.rows())
    assert "not compared on ieee" in str(found)
    assert " and 1 inner layer of h13, h16 compared with ieee" in found.summary
    alone = compare(hx.relu(h + x), ["h13", "ieee"], {"x": whole(-4, 5, 1, 4, 8, 8)})
    assert " and 0 of 1 inner layer of h13 compared with ieee" in alone.summary


def test_a_network_of_exact_numbers_is_the_same_everywhere() -> None:
    x = hx.input("x", (1, 3, 6, 6))
    h = hx.relu(hx.conv(x, whole(-2, 3, 4, 3, 1, 1), bias=whole(-2, 3, 4)))
    found = compare(
        hx.max_pool(h, kernel_sizes=2, strides=2), ["h13", "h17s", "ieee"], {"x": whole(-4, 5, 1, 3, 6, 6)}, tolerance=0
    )
    assert found.ok
    assert all(d.different == 0 and d.ulps[0] == d.size for layer in found.layers for d in layer.differences.values())


def test_the_report_is_text_html_and_json() -> None:
    x = hx.matmul(hx.input("x", (2, 8)), np.full((8, 3), 100, np.float32))
    found = compare({"<y>": x}, ["h13", "ieee"], {"x": np.full((2, 8), 50, np.float32)}, name="<net>")
    record = json.loads(found.to_json())
    assert record["targets"] == ["h13", "ieee"]
    assert record["partings"][0]["cause"]["kind"] == "overflow"
    assert record["layers"][0]["is_output"]
    assert record["layers"][0]["differences"]["h13"]["overflow"] == [0, 0]
    assert "&lt;net&gt;" in found._repr_html_()
    assert "<net>" not in found._repr_html_()
    assert str(found).splitlines()[:2] == [
        "h13 compared with ieee: <y>: 6 of 6 infinite or NaN",
        "<net>: 1 output and 0 inner layers of h13 compared with ieee (the model's own dtypes on this CPU)",
    ]


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["h13"], "got h13, need at least two"),
        (["M1", "h13"], r"got M1 \(h13\), h13, need at least two"),
        (["h13", "h99"], "h99"),
    ],
)
def test_targets_that_cannot_be_compared_are_refused(targets: list[str], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        compare(hx.relu(hx.input("x", (2, 2))), targets, {"x": np.zeros((2, 2), np.float32)})


def test_inputs_that_do_not_fit_are_refused() -> None:
    y = hx.relu(hx.input("x", (2, 2)))
    for given in ({"x": np.zeros((2, 3), np.float32)}, {"x": np.zeros((2, 2))}, {}):
        with pytest.raises(hx.Error, match="x"):
            compare(y, ["h13", "ieee"], given)
    with pytest.raises(hx.Error, match="tolerance"):
        compare(y, ["h13", "ieee"], {"x": np.zeros((2, 2), np.float32)}, tolerance=-1)


def test_differences_known_by_hand() -> None:
    want = np.array([[1.0, 2.0, 4.0], [-1.0, 0.0, 3.0]])
    got = want.copy()
    got[0, 1] = 2 + 2.0**-9  # one place of fp16 at 2
    got[1, 2] = np.inf
    found = difference(got, want)
    assert (found.different, found.max_abs, found.overflow, found.overflows) == (2, 2.0**-9, (1, 2), 1)
    assert found.relative_l2 == 2.0**-9 / np.linalg.norm(want[np.isfinite(got)])
    assert found.ulps == (4, 1, 0, 0, 0, 0)
    ends = difference(np.float16([1, -(2.0**-24), 60000]), np.float16([-1, 2.0**-24, 1]))
    assert ends.ulps == (0, 0, 1, 0, 0, 2)
    assert difference(np.array([1, 2]), np.array([1, 3])).ulps == (0,) * 6


def test_a_distance_without_finite_numbers_is_no_zero() -> None:
    """Neither the table, nor a sentence, nor JSON says that outputs of infinite numbers are 0 apart."""
    x = hx.input("x", (1, 4))
    found = compare({"y": (x * x) * 1.0 + x}, ["h13", "ieee"], {"x": np.full((1, 4), 6e4, np.float32)})
    d = found.outputs[0].differences["h13"]
    assert (d.overflows, d.finite) == (4, 0)
    assert (d.record()["max_abs"], d.record()["relative_l2"], d.record()["finite"]) == (None, None, 0)
    assert all(row[4:6] == ("-", "-") for row in found.rows() if row[3] == "4")
    assert "relative L2 0" not in "\n".join((*found.first_lines, *found.lines))
    json.dumps(found.record(), allow_nan=False)


@pytest.mark.parametrize("other", [np.nan, -np.inf, 1.0])
def test_infinite_numbers_of_the_base_are_compared_too(other: float) -> None:
    want = np.array([1.0, np.inf])
    got = np.array([1.0, other])
    d = difference(got, want)
    assert (d.overflows, d.unlike, d.finite) == (0, 1, 1)
    assert str(d) == "1 of 2 differ from infinite numbers or NaN"
    assert d.beyond(0.5)
    assert are_apart(got, want, 0.5)
    assert are_apart(want, got, 0.5)
    assert not are_apart(want, want.copy(), 0.5)


@pytest.mark.parametrize("unit", [1e-200, 1e200, 1e308])
def test_the_squares_of_fp64_neither_overflow_nor_vanish(unit: float) -> None:
    want = np.array([1.0, 1.0]) * unit
    for got, distance in ((want * [1.0, 0.5], 0.125**0.5), (-want, 2.0)):
        d = difference(got, want)
        assert d.relative_l2 == pytest.approx(distance)
        assert d.beyond(0.25)
        assert are_apart(got, want, 0.25)
        assert not d.beyond(2.5)
        assert not are_apart(got, want, 2.5)
        json.dumps(d.record(), allow_nan=False)
    assert are_apart(want, 0 * want, 0.25)
    assert difference(want, 0 * want).beyond(0.25)


def test_integers_that_fp64_does_not_hold_differ() -> None:
    want, got = np.array([2**53, 5]), np.array([2**53 + 1, 5])
    assert difference(got, want).different == 1
    assert are_apart(got, want, 0.25)
    assert not are_apart(want, want.astype(np.uint64), 0.25)


def test_the_arithmetics_of_other_ops_are_named_with_an_element() -> None:
    found = compare(hx.exp(hx.input("x", (1, 3))), ["h13", "ieee"], {"x": np.float32([[0, 0.5, 0]])}, tolerance=1e-6)
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind in ("fp16", "table")
    assert "element [0, 1]: h13 1.648" in cause.evidence
    assert cause.evidence.endswith(", ieee 1.64872")
    assert "h13" in cause.why


def test_every_rounding_of_a_layer_is_listed_and_counted() -> None:
    """M1 computes the root mean square in steps of its own, A12 leaves it to the CPU."""
    y = hx.input("x", (4, 64))
    z = y * hx.rsqrt(hx.reduce_mean(hx.square(y), axes=(1,), keep_dims=True) + 1e-5)
    numbers = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    (parted,) = compare(z, ["A12", "M1"], {"x": numbers}).partings
    assert parted.cause is not None
    first, second = parted.cause.why.removeprefix("the chips round at other places. ").split(". ")
    assert first == "A12 (h11): rms_norm: on the CPU, stored as fp32: no rounding"
    assert "abs, reduce_max, maximum: no rounding (inferred); mul: one rounding to fp16" in second
    assert "mul, mul, mul, mul: one rounding to fp16, halves away from zero (measured)" in second
    # The input, six products with the table of the inverse between them, square, mean, sum, last product.
    assert second.endswith(": at least 11 roundings")


def test_chips_that_differ_only_in_constants_name_one() -> None:
    """A gain that follows from four parameters: A12 and M1 round it at different places."""
    x, g, rng = hx.input("x", (1, 8, 4, 4)), hx.input("g", (1, 8, 1, 1)), np.random.default_rng(0)
    y = hx.batch_norm(x, *(rng.uniform(0.5, 1.5, 8).astype(np.float32) for _ in range(4))) * g
    feeds = {"x": rng.standard_normal((1, 8, 4, 4)).astype(np.float32), "g": np.ones((1, 8, 1, 1), np.float32)}
    (parted,) = compare(y, ["A12", "M1"], feeds).partings
    assert parted.cause is not None
    assert parted.cause.why.startswith("both compute the same steps, with other constants: number [")
    assert parted.cause.why.endswith("mul and add: in fp32, then one rounding to fp16 (inferred): 2 roundings")


def test_a_layer_of_one_operand_shows_it() -> None:
    x = hx.max_pool(hx.input("x", (1, 1, 2, 4)), kernel_sizes=2, strides=2)
    numbers = np.float32([[[[0, 0, 0.5, 0], [0] * 4]]])
    found = compare({"pool": x, "exp": hx.exp(x)}, ["h13", "ieee"], {"x": numbers}, tolerance=1e-6)
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.evidence.endswith(", ieee 1.64872, from 0.5")


def test_an_activation_that_a_model_writes_out_is_its_table() -> None:
    x = hx.input("x", (1, 64))
    numbers = np.linspace(-3, 3, 64, dtype=np.float32)[None]
    found = compare(x * hx.sigmoid(x), ["h13", "ieee"], {"x": numbers}, tolerance=1e-3)
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind == "table"
    assert "by the table of" in cause.why


def test_the_tail_of_a_table_is_named() -> None:
    """The table of sigmoid is 0 from -9.94 on: its knots end at -8."""
    x = hx.max_pool(hx.input("x", (1, 1, 2, 4)), kernel_sizes=2, strides=2)
    numbers = np.float32([[[[-10, -10, 0, 0], [-10, -10, 0, 0]]]])
    found = compare({"pool": x, "sigmoid": hx.sigmoid(x)}, ["h13", "ieee"], {"x": numbers}, tolerance=1e-6)
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind == "table"
    assert "by the table of sigmoid" in cause.why
    assert cause.evidence.endswith("h13 0, ieee 4.53979e-05, from -10, in the tail of a table from -8 to 8")


def test_no_advice_scales_through_an_activation() -> None:
    """The layer is the gelu, whose table is far from it near 0; the products belong to the transposed convolution."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((4, 6, 2, 2)) * 2.0**-6).astype(np.float32)
    x = hx.input("x", (1, 4, 8, 8))
    numbers = (rng.standard_normal((1, 4, 8, 8)) * 2.0**-6).astype(np.float32)
    found = compare(hx.gelu(hx.conv_transpose(x, weight, strides=2)), ["h13", "ieee"], {"x": numbers})
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind == "table"
    assert "scale" not in cause.change
    assert "scaling" not in cause.change


def test_products_in_front_of_an_activation_are_the_cause_by_their_own_name() -> None:
    """relu is exact: what is lost are the products of the layer in front, which the host has fused."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((4, 6, 2, 2)) * 2.0**-6).astype(np.float32)
    x = hx.input("x", (1, 4, 8, 8))
    numbers = (rng.standard_normal((1, 4, 8, 8)) * 2.0**-6).astype(np.float32)
    found = compare(hx.relu(hx.conv_transpose(x, weight, strides=2)), ["h13", "ieee"], {"x": numbers})
    cause = parting(found, "h13", "ieee").cause
    assert cause is not None
    assert cause.kind == "dropped"
    assert cause.where.startswith("conv_transpose at ")


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("op", ["matmul", "linear", "conv", "conv_transpose"])
def test_changes_that_are_tried_keep_what_a_network_computes(op: str, parts: int) -> None:
    rng = np.random.default_rng(parts)
    x = hx.input("x", (1, 8, 4, 4) if op.startswith("conv") else (4, 8))
    shape = {"matmul": (8, 6), "linear": (6, 8), "conv": (6, 8, 3, 3), "conv_transpose": (8, 6, 3, 3)}[op]
    weight, bias = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    product = getattr(hx, op)(x, weight, bias=bias)
    graph = hx.graph({"y": hx.gelu(product)})
    feed = rng.standard_normal(x.shape).astype(np.float32)
    (node,) = [n for n in graph.nodes if n.op == op]
    want = hx.compile(graph)(feed)
    for change in (scaled(2.0**parts), scaled(2.0**-parts), split(parts)):
        np.testing.assert_allclose(hx.compile(changed(graph, [node], change))(feed), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean"])
@pytest.mark.parametrize("axes", [(1,), (0, 2), ()])
@pytest.mark.parametrize("keep_dims", [True, False])
def test_a_sum_by_a_product_with_ones_is_the_sum(op: str, axes: tuple[int, ...], keep_dims: bool) -> None:
    graph = hx.graph({"y": getattr(hx, op)(hx.input("x", (2, 3, 4)), axes=axes, keep_dims=keep_dims)})
    feed = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    (node,) = [n for n in graph.nodes if n.op == op]
    got = hx.compile(changed(graph, [node], added_by_a_product))(feed)
    np.testing.assert_allclose(got, hx.compile(graph)(feed), rtol=1e-5, atol=1e-6)


def test_outputs_come_first_and_truths_are_counted() -> None:
    """exp is a little off everywhere; 7 of 8 comparisons with its own result are not."""
    x = hx.input("x", (1, 8))
    numbers = np.linspace(0.1, 0.8, 8, dtype=np.float32)[None]
    probs = hx.exp(x)
    limit = np.exp(numbers)
    limit[0, 1:] = 0
    found = compare({"mask": probs >= limit, "probs": probs}, ["h13", "ieee"], {"x": numbers}, tolerance=0.05)
    mask, worst = found.outputs[0].differences["h13"], found.outputs[1].differences["h13"].max_abs
    assert mask.counted
    first = str(found).splitlines()[0]
    assert (
        first
        == f"h13 compared with ieee: mask: {mask}; probs: top-1 equal in 1 of 1 row, largest absolute difference {worst:.2g}"
    )
    assert mask.beyond(0.05) == (mask.different / 8 > 0.05)


def test_integers_and_truths_are_apart_by_the_share_that_differs() -> None:
    found = difference(np.array([1, 2, 3, 90]), np.array([1, 2, 3, 4]))
    assert (str(found), found.distance) == ("1 of 4 differ", 0.25)
    assert found.beyond(0.2)
    assert not found.beyond(0.25)
    truths = difference(np.array([True, False]), np.array([True, True]))
    assert (str(truths), truths.distance) == ("1 of 2 differ", 0.5)


def test_the_tolerance_is_that_of_outputs_and_of_layers_when_asked() -> None:
    """A layer that is far off, and an output that has nothing of it."""
    x = hx.input("x", (1, 64))
    numbers = {"x": np.linspace(-3, 3, 64, dtype=np.float32)[None]}
    y = hx.max_pool(hx.reshape(hx.gelu(x), shape=(1, 1, 8, 8)), kernel_sizes=8, strides=8) * np.float32(0)
    found = compare({"y": y}, ["h13", "ieee"], numbers, tolerance=1e-4)
    assert found.ok
    (said,) = [line for line in found.lines if "relative L2 at most 0.0001 in every output; inner" in line]
    assert "without effect on the outputs (--layers says why)" in said
    by_layers = compare({"y": y}, ["h13", "ieee"], numbers, tolerance=1e-4, layers=True)
    assert not by_layers.ok
    assert by_layers.partings[0].cause is not None


def _mean_of_squares(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(hx.square(x), axes=(2,))


def _by_moments(x: hx.Tensor) -> hx.Tensor:
    """A layer norm whose variance is E[x^2] - E[x]^2."""
    mean = hx.reduce_mean(x, axes=(2,))
    return (x - mean) * hx.rsqrt(_mean_of_squares(x) - hx.square(mean) + 1e-6)


# The network, the mean and standard deviation of its input, what is named, and the op that it is named at.
WRONG: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], float, float, str, str]] = {
    "squares in a norm": (lambda x: hx.silu(x * hx.rsqrt(_mean_of_squares(x) + 1e-6)), 0, 200, "overflow", "square"),
    "exp in a softplus": (lambda x: hx.log(1.0 + hx.exp(x)), 0, 8, "overflow", "exp"),
    "a power": (lambda x: hx.log(hx.pow(hx.abs(x), 8.0) + 1.0), 0, 3, "overflow", "pow"),
    "a square of a square": (lambda x: 0.5 * hx.log(hx.square(hx.square(x))), 0, 0.01, "vanished", "square"),
    "a variance by moments": (lambda x: hx.gelu(_by_moments(x)), 30, 1, "magnified", "sub"),
    "a difference of large numbers": (
        lambda x: hx.sigmoid((x * 1000.0 + x) - x * 1000.0),
        0,
        3,
        "magnified",
        "sub",
    ),
    "the least of near numbers": (lambda x: hx.reduce_argmax(x, axis=2), 1000, 0.1, "magnified", "reduce_argmax"),
    "a norm of an offset": (lambda x: hx.gelu(hx.layer_norm(x, axes=(2,))), 1000, 1, "fp16", "layer_norm"),
}


@pytest.mark.parametrize("chip", ["M1", "M5"])
@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_is_wrong_is_never_called_right(name: str, chip: str) -> None:
    make, mean, deviation, kind, op = WRONG[name]
    numbers = np.random.default_rng(1).normal(mean, deviation, (1, 8, 64)).astype(np.float32)
    (parted,) = compare(make(hx.input("x", (1, 8, 64))), [chip, "ieee"], {"x": numbers}, repair=False).partings
    assert parted.cause is not None
    assert parted.difference is not None
    assert parted.difference.distance > 0.03 or parted.difference.overflows
    assert (parted.cause.kind, parted.cause.where.partition(" ")[0]) == (kind, op)
    assert "tolerance" not in parted.cause.change.replace("a tolerance would hide it", "")
    assert "nothing in the network is wrong" not in "\n".join(
        parted.lines({p: p for p in (parted.first, parted.second)})
    )


def test_an_overflow_in_a_fused_layer_is_the_one_that_debug_names() -> None:
    x = hx.input("x", (1, 8, 64))
    y = hx.silu(x * hx.rsqrt(_mean_of_squares(x) + 1e-6))
    numbers = np.random.default_rng(1).normal(0, 200, (1, 8, 64)).astype(np.float32)
    (parted,) = compare(y, ["M1", "ieee"], {"x": numbers}, repair=False).partings
    stop = hx.compile(y, target="M1", device="cpu", repair=False).debug(numbers).stop
    assert stop is not None
    assert parted.cause is not None
    assert parted.cause.where == stop.where
    assert stop.why in parted.cause.why
    assert f"element {list(stop.index)} of {stop.type} is {stop.value}" in parted.cause.evidence
    assert "without it this layer would be 0.000" in parted.cause.evidence


def test_a_cause_that_hangs_on_inferred_arithmetic_says_so() -> None:
    """Whether a sum of squares alone is infinite beyond 65504 nobody has measured."""
    x = hx.input("x", (2, 512))
    y = hx.sqrt(hx.reduce_sum(hx.square(x), axes=(1,), keep_dims=True))
    numbers = np.random.default_rng(1).normal(0, 40, (2, 512)).astype(np.float32)
    (parted,) = compare(hx.tanh(y * 0.001), ["M1", "ieee"], {"x": numbers}, repair=False).partings
    assert parted.cause is not None
    assert parted.cause.where.startswith("reduce_sum at ")
    assert "inferred (docs/numerics/sums.md)" in parted.cause.why


def test_an_overflow_that_changes_nothing_is_not_the_cause() -> None:
    """relu(z) / (1 + inf) is 0, as in real numbers; what is wrong is z, a difference of large numbers."""
    x = hx.input("x", (1, 8, 64))
    z = (x * 1000.0 + x) - x * 1000.0
    numbers = np.random.default_rng(1).normal(0, 3, (1, 8, 64)).astype(np.float32)
    numbers[0, 0, 0] = -20
    (parted,) = compare(hx.relu(z) / (1.0 + hx.exp(-x)), ["M1", "ieee"], {"x": numbers}).partings
    assert parted.cause is not None
    assert (parted.cause.kind, parted.cause.where.partition(" ")[0]) == ("magnified", "sub")


def test_layers_are_apart_where_their_difference_is_beyond_the_tolerance() -> None:
    """The short way gives the answer of the whole difference."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal(500).astype(np.float32)
    others = [a, a + np.float32(1e-4), a * np.float32(1.02), np.where(a > 2, np.inf, a), np.where(a > 2, np.nan, a)]
    pairs = [(a, b.astype(np.float32)) for b in others] + [
        (np.arange(9), np.arange(9) // 2),
        (0 * a, a),
        (0 * a, -0.0 * a),
    ]
    for x, y in [*pairs, *[(y, x) for x, y in pairs]]:
        for tolerance in (0.0, 1e-3, 1e-2, 0.5):
            whole = difference(x, y).beyond(tolerance) or bool(difference(y, x).overflows)
            assert are_apart(x, y, tolerance) == whole


@pytest.mark.parametrize(
    ("off", "said"), [(0.02, "allow a tolerance"), (0.05, "none was found: an output is 0.05 off")]
)
def test_no_tolerance_is_advised_where_an_output_is_far_off(off: float, said: str) -> None:
    """The layer alone may be within it, as the last sigmoid of a voice detector was: 0.026 of 0.041."""
    cause = Cause("table", "sigmoid", "", "", "nothing in the network is wrong; allow a tolerance")
    runs = [SimpleNamespace(outputs={"y": np.float32([y])}) for y in (1 + off, 1)]
    assert said in _untolerated(cause, *runs).change  # type: ignore[arg-type]


def test_two_products_that_both_lose_small_numbers_are_scaled_together() -> None:
    """The mean of two heads, as a distilled transformer has it: scaling one of them alone changes little."""
    rng = np.random.default_rng(3)
    heads = (rng.standard_normal((2, 10, 256)) * 4e-3).astype(np.float32)
    x = hx.input("x", (1, 256))
    both = [hx.linear(hx.relu(x * factor), weight) for factor, weight in zip((2.0, 3.0), heads, strict=True)]
    feed = {"x": (rng.standard_normal((1, 256)) * 1e-3).astype(np.float32)}
    cause = parting(compare((both[0] + both[1]) * 0.5, ["h16g", "ieee"], feed), "h16g", "ieee").cause
    assert cause is not None
    assert cause.kind == "dropped"
    assert cause.change.startswith("scale the inputs of linear at ")
    assert cause.change.count("linear at ") == 2
    before, after = (float(n) for n in re.findall(r"relative L2 (\S+) (?:before|after)", cause.change))
    assert after < 2e-3 < 0.3 < before


@pytest.mark.parametrize("is_input", [False, True])
def test_an_operand_that_fp16_does_not_hold_is_the_cause_of_a_nan(is_input: bool) -> None:
    """Infinite over infinite: the quotient of 0.2 is NaN, because its operands are beyond fp16."""
    rng = np.random.default_rng(4)
    x, y = hx.input("x", (4, 256)), hx.input("y", (4, 10))
    numbers = np.abs(rng.standard_normal((4, 256)) * 4000).astype(np.float32)
    weight = np.abs(rng.standard_normal((256, 10))).astype(np.float32)
    above, feed = hx.matmul(x, weight), {"x": numbers}
    if is_input:
        feed = {**feed, "y": numbers @ weight}
    below = y if is_input else hx.matmul(x, weight[::-1].copy())
    cause = parting(compare(above / below, ["h16g", "ieee"], feed), "h16g", "ieee").cause
    assert cause is not None
    assert cause.kind == "overflow"
    assert not cause.where.startswith("real_div")
    assert "becomes infinite: it is beyond fp16; real_div at " in cause.why
    assert cause.why.endswith("becomes NaN")


@pytest.mark.parametrize("between", ["slice", "relu", "transpose and slice"])
def test_the_product_that_overflows_is_the_cause_not_the_op_that_reads_it(between: str) -> None:
    """Linear attention has numerator and denominator in one product: the slice of it was named."""
    rng = np.random.default_rng(5)
    x = hx.input("x", (16, 64))
    product = hx.matmul(x, (rng.random((64, 17)) * 100).astype(np.float32))
    if between == "relu":
        above, below = product[:, :16], hx.relu(product)[:, 16:]
    else:
        product = product if between == "slice" else hx.transpose(hx.transpose(product, perm=(1, 0)), perm=(1, 0))
        above, below = product[:, :16], product[:, 16:]
    feed = {"x": (rng.random((16, 64)) * 300).astype(np.float32)}
    cause = parting(compare(above / (below + 1e-3), ["h16g", "ieee"], feed), "h16g", "ieee").cause
    assert cause is not None
    assert cause.kind == "overflow"
    assert cause.where.startswith("matmul"), cause.why


@pytest.mark.parametrize("offset", [0.0, -30.0])
def test_no_power_of_two_is_advised_in_front_of_an_exponential(offset: float) -> None:
    """A factor in front of exp is a power behind it: a number has to be added."""
    x = hx.input("x", (4, 64))
    weight = np.random.default_rng(5).random((64, 8)).astype(np.float32)
    made = hx.exp(hx.tanh(x) * 14.0 + offset)
    y = hx.tanh(hx.matmul(made * 1e-7, weight)) if offset == 0 else hx.log(made) + hx.tanh(x)
    feed = {"x": np.random.default_rng(6).normal(0, 2, (4, 64)).astype(np.float32)}
    cause = parting(compare(y, ["h16g", "ieee"], feed), "h16g", "ieee").cause
    assert cause is not None
    assert cause.where.startswith("exp"), cause.why
    assert "power of two" not in cause.change
    assert ("subtract their largest" if offset == 0 else "add to them") in cause.change


def test_a_mean_that_is_zero_is_not_said_to_be_infinitely_far_off() -> None:
    x = hx.input("x", (1, 8, 16))
    numbers = np.linspace(-60000, 60000, 128, dtype=np.float32).reshape(1, 8, 16)
    found = compare(hx.reduce_mean(x, axes=(1, 2)), ["h13", "ieee"], {"x": numbers})
    assert "inf" not in str(parting(found, "h13", "ieee").cause)


def test_the_legend_names_each_column_of_numbers() -> None:
    found = compare(hx.relu(hx.input("x", (1, 4))), ["h13", "h16"], {"x": np.zeros((1, 4), np.float32)})
    named = {word.strip() for name in MEANINGS for word in name.split(",")}
    columns = {"ulps" if column.startswith("ulps") else column for column in HEAD}
    assert columns <= named
    assert found.legend in str(found)


def test_the_number_of_repairs_is_said() -> None:
    x = hx.input("x", (2, 512))
    norm = x / hx.sqrt(hx.reduce_mean(x * x, axes=(-1,)) + 1e-5)
    feeds = {"x": np.full((2, 512), 400, np.float32)}
    found, plain = (compare({"y": norm}, ["M1", "ieee"], feeds, repair=on) for on in (True, False))
    assert found.repaired == {"h13": 1}
    assert found.repairs[0].startswith("on M1 (h13) with 1 repair against overflow of fp16")
    assert plain.repairs == []
