"""What is larger than a chip takes, in pieces: at the limit, one over it and far over it, with the same results."""

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

import hexane as hx
from hexane.passes.retarget import becomes, retarget
from hexane.targets.query import load_chip
from hexane.validate import judge
from hexane.validate.extents import fits
from retargeted import assert_retargeted, ops, small, w, x

# Small extents stand for the chip's, so that every tile is made of small arrays.
TINY = {"width": 8, "height": 7, "depth": 6, "channels": 5, "batch": 4}

# (builds an op of that extent, the extent's limit, how it says it is tiled, whether results are equal to the bit)
Build = Callable[[int], Any]
TILES: dict[str, tuple[Build, int, str, bool]] = {
    "elementwise_width": (lambda n: hx.relu(x(1, 2, 3, n)), 8, "spatial", True),
    "elementwise_height": (lambda n: x(1, 2, n, 3) + x(1, 1, n, 1, name="y"), 7, "spatial", True),
    "elementwise_depth": (lambda n: hx.abs(x(1, 2, n, 3, 3)), 6, "spatial", True),
    "elementwise_channels": (lambda n: x(1, n, 2, 3) * w(n, 1, 1), 5, "channels", True),
    "elementwise_batch": (lambda n: hx.relu(x(n, 2, 2, 3)), 4, "batch", True),
    "elementwise_row": (lambda n: x(n) - x(1, name="y"), 8, "spatial", True),
    "select": (lambda n: hx.select(x(1, n, dtype="bool"), x(3, n, name="a"), x(3, 1, name="b")), 8, "spatial", True),
    "softmax_along_another": (lambda n: hx.softmax(x(3, n), axis=0), 8, "spatial", False),
    "layer_norm_rows": (lambda n: hx.layer_norm(x(n, 5), w(5), w(5)), 8, "spatial", False),
    "batch_norm_channels": (lambda n: hx.batch_norm(x(1, n, 2, 3), w(n), abs(w(n)) + 1, w(n), None), 5, "channels", False),
    "instance_norm_channels": (lambda n: hx.instance_norm(x(1, n, 2, 3), w(n), w(n)), 5, "channels", False),
    "transpose": (lambda n: hx.transpose(x(1, 2, 3, n), perm=(0, 2, 1, 3)), 8, "transpose", True),
    "transpose_to_rows": (lambda n: hx.transpose(x(n, 3)), 8, "transpose", True),
    "matmul_rows": (lambda n: x(n, 6) @ x(6, 5, name="y"), 8, "spatial", True),
    "matmul_columns": (lambda n: hx.matmul(x(3, 6), w(6, n), w(n)), 8, "spatial", True),
    "matmul_transposed": (lambda n: hx.matmul(x(6, n), x(5, 6, name="y"), transpose_x=True, transpose_y=True), 8, "spatial", True),
    "matmul_batch": (lambda n: x(n, 2, 3, 6) @ x(2, 6, 3, name="y"), 4, "batch", True),
    "matmul_contraction": (lambda n: hx.matmul(x(3, n), x(n, 5, name="y"), w(5)), 8, "contraction", True),
    "matmul_contraction_of_weights": (lambda n: x(2, 3, n) @ w(n, 5), 8, "contraction", True),
    "matmul_contraction_transposed": (lambda n: hx.matmul(x(n, 3), w(5, n), transpose_x=True, transpose_y=True), 8, "contraction", True),
    "conv_width": (lambda n: hx.conv(x(1, 2, 3, n), w(3, 2, 1, 1)), 8, "spatial", True),
    "conv_channels": (lambda n: hx.conv(x(1, 2, 3, 4), w(n, 2, 3, 3), w(n), pad=1), 5, "channels", True),
    "conv_input_channels": (lambda n: hx.conv(x(1, n, 3, 4), w(3, n, 3, 3), w(3)), 5, "contraction", True),
    "conv_groups": (lambda n: hx.conv(x(1, n, 3, 4), w(n, 1, 3, 3), w(n), groups=n), 5, "channels", True),
    "conv_batch": (lambda n: hx.conv(x(n, 2, 3, 4), w(3, 2, 3, 3)), 4, "batch", True),
    "conv_transpose_channels": (lambda n: hx.conv_transpose(x(1, 2, 3, 4), w(2, n, 2, 2), w(n)), 5, "channels", True),
    "conv_transpose_input_channels": (lambda n: hx.conv_transpose(x(1, n, 3, 4), w(n, 3, 2, 2), w(3)), 5, "contraction", True),
    "pool_channels": (lambda n: hx.max_pool(x(1, n, 4, 4), kernel_sizes=2), 5, "channels", True),
    "sum": (lambda n: hx.reduce_sum(x(3, n), axes=1), 8, "reduction", True),
    "sum_without_the_axis": (lambda n: hx.reduce_sum(x(3, n), axes=1, keep_dims=False), 8, "reduction", True),
    "sum_of_the_others": (lambda n: hx.reduce_sum(x(3, n), axes=0, keep_dims=False), 8, "spatial", True),
    "mean": (lambda n: hx.reduce_mean(x(3, n), axes=(0, 1)), 8, "reduction", False),
    "max": (lambda n: hx.reduce_max(x(3, n), axes=1), 8, "reduction", True),
    "min": (lambda n: hx.reduce_min(x(3, n), axes=1), 8, "reduction", True),
    "l1": (lambda n: hx.reduce_l1_norm(x(3, n), axes=1), 8, "reduction", True),
    "l2": (lambda n: hx.reduce_l2_norm(x(3, n), axes=1, keep_dims=False), 8, "reduction", False),
    "sum_square": (lambda n: hx.reduce_sum_square(x(3, n), axes=1), 8, "reduction", True),
    "log_sum_exp": (lambda n: hx.reduce_log_sum_exp(x(3, n), axes=1), 8, "reduction", False),
    "argmax_of_the_others": (lambda n: hx.reduce_argmax(x(3, n), axis=0), 8, "spatial", True),
    "cumsum": (lambda n: hx.cumsum(x(3, n), axis=1), 8, "running sum", True),
    "cumsum_backwards": (lambda n: hx.cumsum(x(3, n), axis=1, reverse=True, exclusive=True), 8, "running sum", True),
    "reverse": (lambda n: hx.reverse(x(3, n), axes=(0, 1)), 8, "spatial", True),
}  # fmt: skip


@pytest.mark.parametrize("over", ["far", "one", "none"])
@pytest.mark.parametrize(("build", "limit", "kind", "exact"), TILES.values(), ids=TILES)
def test_what_is_too_large_is_tiled(build: Build, limit: int, kind: str, exact: bool, over: str) -> None:
    extent = {"none": limit, "one": limit + 1, "far": 4 * limit + 3}[over]
    graph, chip = hx.graph(build(extent)), small(**TINY)
    node = graph.outputs[0].value.node
    if over == "none":
        assert becomes(node, chip).verdict == "native"
        assert str(retarget(graph, chip)) == str(graph)
        return
    verdict = becomes(node, chip)
    assert verdict.form == f"tiled: {kind}, {ceil(extent / limit)} pieces"
    assert (verdict.verdict, verdict.runs) == ("oversize", True)
    after = assert_retargeted(graph, chip, exact)
    # Whatever still reads or makes what is too large only cuts and joins.
    for made in after.nodes:
        if made.op not in ("input", "const", "slice_by_size", "concat"):
            assert judge(made, chip).verdict == "native", made
    assert any(d.verdict == "tiled" and f"{kind}, " in d.reason for d in after.decisions)


WINDOWS: dict[str, Build] = {
    "conv": lambda n: hx.conv(x(1, 2, n, 6), w(3, 2, 3, 3), w(3), pad=1),
    "conv_strides": lambda n: hx.conv(x(1, 2, 5, n), w(3, 2, 3, 3), w(3), pad=(1, 1, 2, 1), strides=(1, 2)),
    "conv_dilated": lambda n: hx.conv(x(1, 2, n, n), w(3, 2, 2, 2), dilations=3, pad=(0, 2, 3, 0)),
    "conv_groups": lambda n: hx.conv(x(1, 4, n, 4), w(4, 1, 3, 3), groups=4, strides=2),
    "conv_transpose": lambda n: hx.conv_transpose(x(1, 2, n, 3), w(2, 3, 3, 3), w(3), pad=1),
    "conv_transpose_strides": lambda n: hx.conv_transpose(x(1, 2, 3, n), w(2, 3, 2, 3), w(3), strides=2, pad=(0, 0, 1, 0), output_padding=1),
    "conv_transpose_gaps": lambda n: hx.conv_transpose(x(1, 2, n, 3), w(2, 3, 2, 2), w(3), strides=4, output_padding=3),
    "max_pool": lambda n: hx.max_pool(x(1, 2, n, 6), kernel_sizes=3, pad=1),
    "max_pool_strides": lambda n: hx.max_pool(x(1, 2, 6, n), kernel_sizes=3, strides=2, pad=1, ceil_mode=True),
    "avg_pool": lambda n: hx.avg_pool(x(1, 2, n, 6), kernel_sizes=(4, 2), strides=(2, 1), pad=(1, 0, 0, 0)),
    "avg_pool_with_padding": lambda n: hx.avg_pool(x(1, 2, n, 6), kernel_sizes=(4, 2), strides=4, pad=(3, 2, 0, 0), exclude_padding=False),
}  # fmt: skip


@pytest.mark.parametrize("extent", [7, 8, 9, 16, 17, 31])
@pytest.mark.parametrize("build", WINDOWS.values(), ids=WINDOWS)
def test_an_image_is_cut_with_the_rows_that_both_sides_read(build: Build, extent: int) -> None:
    after = assert_retargeted(hx.graph(build(extent)), small(width=7, height=7), exact=True)
    for node in after.nodes:
        if node.op in ("conv", "conv_transpose", "max_pool", "avg_pool"):
            assert all(fits(v.type, small(width=7, height=7)) for v in (node.inputs[0], *node.values) if v is not None)


DEEP: dict[str, Build] = {
    "elementwise": lambda n: hx.sigmoid(x(1, 3, n, 2, 4)),
    "broadcast": lambda n: x(1, 3, n, 2, 4) * x(3, n, 1, 1, name="y"),
    "sum": lambda n: hx.reduce_sum(x(1, 3, n, 2, 4), axes=(2,)),
    "sum_without_the_axis": lambda n: hx.reduce_sum(x(1, 3, n, 2, 4), axes=(2, 4), keep_dims=False),
    "mean": lambda n: hx.reduce_mean(x(2, 3, n, 2, 2), axes=(2, 3, 4)),
    "softmax": lambda n: hx.softmax(x(1, 3, n, 2, 2), axis=2),
    "running_sum": lambda n: hx.cumsum(x(1, 3, n, 2, 2), axis=2),
    "reverse": lambda n: hx.reverse(x(1, 3, n, 2, 2), axes=(2,)),
}


@pytest.mark.parametrize("build", DEEP.values(), ids=DEEP)
def test_a_chip_without_depth_is_given_four_axes_and_no_slices(build: Build) -> None:
    chip = load_chip("u1")
    assert chip.extents.depth == 1
    graph = hx.graph(build(700))
    after = assert_retargeted(graph, chip, exact=False)
    made = [node for node in after.nodes if node.op == ops(graph)[0]]
    assert len(ops(after)) <= 12
    assert all(max(node.types[0].rank, node.inputs[0].type.rank) <= 4 for node in made if node.inputs[0])


THOUSANDS: dict[str, Callable[[], Any]] = {
    "elementwise": lambda: hx.relu(x(2, 8192)),
    "of_two_axes": lambda: hx.relu(x(1, 1, 7 * 40, 8 * 40)),
    "sum": lambda: hx.reduce_sum(x(2, 8192), axes=(1,)),
    "sum_of_two_axes": lambda: hx.reduce_sum(x(1, 1, 7 * 40, 8 * 40), axes=(2, 3)),
    "running_sum": lambda: hx.cumsum(x(2, 8192), axis=1),
    "reverse": lambda: hx.reverse(x(2, 8192), axes=(1,)),
    "contraction": lambda: x(2, 8192) @ x(8192, 2, name="y"),
    "input_channels": lambda: hx.conv(x(1, 5 * 600, 3, 3), w(2, 5 * 600, 1, 1)),
}


@pytest.mark.parametrize("build", THOUSANDS.values(), ids=THOUSANDS)
def test_what_would_be_cut_into_thousands_stays_whole_and_says_why(build: Callable[[], Any]) -> None:
    graph = hx.graph(build())
    verdict = becomes(graph.outputs[0].value.node, small(**TINY))
    assert not verdict.runs
    assert "the chip takes" in verdict.reason
    after = retarget(graph, small(**TINY))
    assert ops(after) == ops(graph)


@pytest.mark.parametrize(("chip", "limit"), [("h13", 16384), ("h14", 16384), ("h17s", 65536), ("h11", 16384)])
def test_the_limit_is_the_chips(chip: str, limit: int) -> None:
    target = load_chip(chip)
    forms = [
        becomes(hx.graph(hx.relu(x(2, n))).outputs[0].value.node, target).form for n in (limit, limit + 1, 3 * limit)
    ]
    tiles = ["", "tiled: spatial, 2 pieces", "tiled: spatial, 3 pieces"]
    assert forms == tiles


def test_the_oldest_chips_are_given_pieces_that_the_host_cuts() -> None:
    after = assert_retargeted(hx.graph(hx.relu(x(2, 16385))), load_chip("h11"))
    assert ops(after) == ["slice_by_size", "relu", "slice_by_size", "relu", "concat"]


def test_a_chain_stays_in_pieces_from_the_first_op_to_the_last() -> None:
    graph = hx.graph(hx.relu(x(3, 20) * 2.0 + 1.0))
    after = assert_retargeted(graph, small(**TINY))
    assert ops(after).count("concat") == 1
    assert ops(after).count("slice_by_size") == 3


def test_a_softmax_of_a_long_row_is_written_out_in_pieces() -> None:
    after = assert_retargeted(hx.graph(hx.softmax(x(3, 20))), small(**TINY), exact=False)
    assert ops(after).count("exp") == 3
    assert ops(after).count("concat") == 1


def test_both_axes_of_an_image_are_cut() -> None:
    graph, chip = hx.graph(hx.relu(x(1, 1, 15, 17))), small(**TINY)
    after = assert_retargeted(graph, chip)
    assert ops(after).count("relu") == 9


def test_two_extents_that_are_too_large_are_both_named_in_the_decisions() -> None:
    after = retarget(hx.graph(x(9, 9) @ x(9, 9, name="y")), small(**TINY))
    told = " ".join(d.reason for d in after.decisions if d.verdict == "tiled")
    assert "spatial, 2 pieces" in told
    assert "contraction, 2 pieces" in told


def test_sums_in_parts_are_a_hazard_and_maxima_are_none() -> None:
    def hazards(build: Build) -> list[str]:
        return [
            d.reason
            for d in retarget(hx.graph(build(20)), small(**TINY)).decisions
            if d.verdict == "hazard" and "sums" in d.reason
        ]

    assert hazards(TILES["sum"][0]) == ["its sums are added in 3 parts, each of them rounded"]
    assert hazards(TILES["matmul_contraction"][0])
    assert not hazards(TILES["max"][0])
    assert not hazards(TILES["elementwise_width"][0])


@pytest.mark.parametrize(("rows", "pieces"), [(8, 0), (9, 2), (16, 2), (17, 3)])
def test_a_transpose_of_too_many_elements_is_cut(rows: int, pieces: int) -> None:
    graph = hx.graph(hx.transpose(x(1, rows, 6, 5), perm=(0, 2, 3, 1)))
    chip = small(transpose_elements=240)
    assert becomes(graph.outputs[0].value.node, chip).form == (f"tiled: transpose, {pieces} pieces" if pieces else "")
    assert_retargeted(graph, chip)


def test_a_product_whose_rows_exceed_the_memory_for_weights_is_cut() -> None:
    graph = hx.graph(x(2, 40000) @ x(40000, 2, name="y"))
    assert becomes(graph.outputs[0].value.node, load_chip("h17s")).form == "tiled: contraction, 2 pieces"
    assert_retargeted(graph, load_chip("h17s"))
