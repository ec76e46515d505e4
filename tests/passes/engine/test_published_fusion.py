"""Table 22.1, listings 22.1 to 22.3 and table 22.3 of the guide, row by row, in our own words: what the code does with
each.

Table 22.2 is in tests/sched/test_allocation_types.py, tables 22.4 to 22.6 in tests/validate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import hexane as hx
from engine import run_layers
from engine_cases import conv, image, per_channel, quantised, restart, rows, stored, whole
from hexane.graph import Graph, Node
from hexane.ops import ENGINE_OPS, LEAVES
from hexane.ops.neurons import FITTED, PUBLISHED
from hexane.ops.reference import run_reference
from hexane.passes.engine.lower_segment import PHASES, lower_segment
from hexane.targets import Chip, load_target

H13 = load_target("h13")
assert isinstance(H13, Chip)
NAMES = [phase.name for phase in PHASES]


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    restart()


def layers(made: Any, chip: str = "h13") -> tuple[Graph, list[Node]]:
    graph = lower_segment(hx.graph(made), load_target(chip))
    return graph, [node for node in graph.nodes if node.op not in LEAVES]


def slots(node: Node) -> dict[str, dict[str, Any]]:
    return {s.op: dict(s.attributes) for s in node.attrs["epilogue"]}


# ---- table 22.1 ----


@pytest.mark.parametrize(
    ("job", "passes"),
    [
        ("fusion: fold transposes", ("collapse_transpose", "ne_transpose_fusion")),
        ("fusion: hoist bias and activation into conv and matmul", ("hoist_goc_or_activation_for_conv_fusion", "simple_activation")),
        ("fusion: drop elementwise copies", ("lower",)),
        ("legalisation: dimensions and rank of at most 5", ("fold_axes", "split_transposes", "check_layers")),
        ("legalisation: split by kernel memory", ("split_kernel_memory",)),
    ],
)  # fmt: skip
def test_a_phase_has_its_passes(job: str, passes: tuple[str, ...]) -> None:
    assert set(passes) <= set(NAMES)
    split = NAMES.index("even_kernel_width")
    assert all((NAMES.index(name) < split) == job.startswith("fusion") for name in passes)


@pytest.mark.parametrize(
    ("job", "stage"),
    [
        ("schedule: find what could run together", "co_issue"),
        ("schedule: the list scheduler", "schedule"),
        ("schedule: emit partitions", "partition"),
        ("memory: strides against bank conflicts", "allocate"),
        ("memory: concatenations along the width", "width_concat"),
        ("memory: pack weights", "pack"),
    ],
)
def test_a_phase_behind_the_layers_says_what_it_decided(job: str, stage: str) -> None:
    x = image()
    made = hx.concat(hx.relu(hx.conv(x, whole(4, 4, 3, 3), pad=1)), hx.abs(x), axis=3)
    program = hx.compile(hx.graph(made), target="h13").program
    assert program is not None
    assert stage in {d.stage for d in program.decisions}, job


def test_memory_a_pad_is_part_of_what_it_feeds() -> None:
    x = hx.pad(image(), begin=(0, 0, 1, 1), end=(0, 0, 1, 1))
    program = hx.compile(hx.graph(hx.conv(x, whole(4, 4, 3, 3))), target="h14").program
    assert program is not None
    assert [layer.kind for layer in program.layers] == ["Conv"]


def test_a_copy_is_no_layer() -> None:
    _, found = layers(hx.identity(hx.relu(image())))
    assert [node.op for node in found] == ["anec.neuron"]


# ---- listings 22.1 and 22.2 ----


def test_a_product_has_two_bottoms_and_two_transpose_attributes() -> None:
    record = ENGINE_OPS["anec.matmul"]
    assert record.inputs == ("lhs", "rhs")
    assert {"transpose_lhs", "transpose_rhs"} <= set(record.attrs or {})


@pytest.mark.parametrize(("flip_x", "flip_y"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_attributes_cover_every_form_of_product(flip_x: bool, flip_y: bool) -> None:
    x, y = (
        hx.input("x", (2, 5, 7) if flip_x else (2, 7, 5), "fp16"),
        hx.input("y", (2, 3, 5) if flip_y else (2, 5, 3), "fp16"),
    )
    _, (product,) = layers(hx.matmul(x, y, transpose_x=flip_x, transpose_y=flip_y))
    assert (product.attrs["transpose_lhs"], product.attrs["transpose_rhs"]) == (flip_x, flip_y)


def test_a_product_of_depth_is_refused() -> None:
    with pytest.raises(hx.Error, match="depth > 1 is not supported"):
        layers(hx.input("x", (2, 2, 2, 3, 4), "fp16") @ hx.input("y", (2, 2, 2, 4, 5), "fp16"))


def test_channels_of_a_product_that_do_not_fit_kernel_memory_are_refused() -> None:
    x, y = hx.input("x", (2, 40_000), "fp16"), hx.input("y", (40_000, 2), "fp16")
    with pytest.raises(hx.Error, match="can not fit the Kmem"):
        layers(x @ y)


def test_a_convolution_has_the_attributes_of_the_listing() -> None:
    record = ENGINE_OPS["anec.convolution"]
    need = {
        "strides",
        "dilation_rates",
        "groups",
        "explicit_padding",
        "padding_style",
        "kernel_sizes",
        "weights_layout",
    }
    assert need <= set(record.attrs or {})
    assert record.inputs[0] == "x"


def test_a_padded_biased_activated_convolution_is_one_layer() -> None:
    _, (layer,) = layers(hx.gelu(hx.conv(image(), whole(4, 4, 3, 3), whole(4), pad=1)))
    assert layer.attrs["explicit_padding"] == (1, 1, 1, 1)
    assert slots(layer)["gain_offset"]["offset"] == 3
    assert slots(layer)["post_activation"]["mode"] == "gelu"


def test_a_product_with_bias_and_gelu_is_one_layer_between_moves() -> None:
    """The transpose behind it is in its slot, so that only the view of the rows and its way in remain."""
    _, found = layers(hx.gelu(rows() @ whole(8, 3) + whole(3)))
    assert [node.op for node in found] == ["anec.reshape", "anec.transpose", "anec.convolution", "anec.reshape"]
    assert list(slots(found[2])) == ["gain_offset", "post_activation", "transpose"]


@pytest.mark.parametrize(("columns", "resident"), [(1024, True), (1025, False)])
def test_weights_above_two_megabytes_stay_a_product(columns: int, resident: bool) -> None:
    _, found = layers(hx.input("x", (4, 1024), "fp16") @ np.ones((1024, columns), np.float16))
    assert any(node.op == "anec.convolution" for node in found) == resident
    assert any(node.op == "anec.matmul" for node in found) != resident


def test_the_scale_of_quantised_weights_stands_before_the_activation_and_outside_the_slots() -> None:
    _, (layer,) = layers(hx.relu(hx.conv(image(), stored(4, 4, 3, 3), whole(4), pad=1)))
    assert list(slots(layer)) == ["kernel_scale", "gain_offset", "post_activation"]
    assert layer.inputs[1].dtype.name == "int8"  # type: ignore[union-attr]


# ---- table 22.3 ----

OURS = {
    "ScaledEWOrEWWithConstInToGOC": "scaled_ew_or_ew_with_const_in_to_goc",
    "ZinMirHoistGOCorActivationForConvFusion": "hoist_goc_or_activation_for_conv_fusion",
    "FoldScale": "fold_scale",
    "FoldWeightsWithScale": "fold_weights_with_scale",
    "MergeFusableActivationPairs": "merge_fusable_activation_pairs",
    "SimpleActivation": "simple_activation",
    "CollapseTranspose": "collapse_transpose",
    "ZinMirNETransposeFusion": "ne_transpose_fusion",
    "CollapseQuantDequant": "collapse_quant_dequant",
    "DeduplicateStandaloneDequantGOCsAcrossConcat": "deduplicate_standalone_dequant_gocs_across_concat",
    "ReplaceMatmulWithConv": "replace_matmul_with_conv",
}


class Row(NamedTuple):
    pattern: str
    passes: tuple[str, ...]  # under the compiler's names; () for a barrier
    make: Callable[[], Any]
    layers: tuple[str, ...]  # what is left
    slots: tuple[str, ...] = ()  # of the last but those that move
    says: str = ""  # a decision of a barrier


def activated(name: str) -> Row:
    x: Callable[[], Any] = lambda: getattr(hx, name)(conv(image(), bias=True))  # noqa: E731
    return Row(
        f"activation {name}",
        ("MergeFusableActivationPairs", "SimpleActivation"),
        x,
        ("convolution",),
        ("gain_offset", "post_activation"),
    )


TABLE = (
    Row("bias-add", ("ScaledEWOrEWWithConstInToGOC", "ZinMirHoistGOCorActivationForConvFusion"),
        lambda: conv(image()) + per_channel(), ("convolution",), ("gain_offset",)),
    Row("scale of weights in whole numbers", ("FoldScale", "FoldWeightsWithScale"), lambda: conv(image()) * per_channel(), ("convolution",), ()),
    Row("scale whose products are rounded", ("FoldScale", "FoldWeightsWithScale"),
        lambda: conv(image()) * np.float16(0.1).reshape(1, 1, 1) * np.full((4, 1, 1), 0.3, np.float16), ("convolution",), ("gain_offset",)),
    Row("batch norm", ("FoldScale", "FoldWeightsWithScale"),
        lambda: hx.batch_norm(conv(image()), whole(4), np.ones(4, np.float16), whole(4), whole(4), epsilon=0.0), ("convolution",), ("gain_offset",)),
    *(activated(name) for name in ("relu", "leaky_relu", "relu6", "silu", "sigmoid", "tanh", "gelu")),
    Row("activation before a scale", ("SimpleActivation",), lambda: hx.relu(conv(image())) * np.full((4, 1, 1), 0.1, np.float16), ("convolution",),
        ("pre_activation", "gain_offset")),
    Row("transposes that cancel", ("CollapseTranspose",),
        lambda: hx.transpose(hx.transpose(conv(image()), perm=(0, 2, 3, 1)), perm=(0, 3, 1, 2)), ("convolution",), ()),
    Row("a transpose behind a layer", ("ZinMirNETransposeFusion",), lambda: hx.transpose(conv(image()), perm=(0, 2, 3, 1)), ("convolution",), ("transpose",)),
    Row("dequantised weights", ("CollapseQuantDequant",), lambda: hx.conv(image(), stored(4, 4, 3, 3)), ("convolution",), ("kernel_scale",)),
    Row("dequantised tensors of one scale", ("DeduplicateStandaloneDequantGOCsAcrossConcat",),
        lambda: hx.concat(quantised(), quantised("r"), axis=1), ("concat", "dequant")),
    Row("product", ("ReplaceMatmulWithConv",), lambda: hx.relu(hx.input("t", (1, 8), "fp16") @ whole(8, 3) + whole(3)),
        ("reshape", "convolution", "reshape"), ("gain_offset", "post_activation")),
    Row("two computed operands", (), lambda: hx.relu(conv(image()) + conv(image(name="y"))), ("convolution", "convolution", "add"), ("post_activation",),
        'add: "Must have 2 inputs when convert EW to GOC"'),
    Row("concat", (), lambda: hx.relu(hx.concat(image(), conv(image(name="y")), axis=1)), ("convolution", "concat", "neuron"), (),
        "concat: a concatenation ends fusion"),
    Row("attention", (), lambda: hx.relu(hx.scaled_dot_product_attention(rows(), rows("k"), rows("v"))), ("sdpa", "neuron"), (),
        "sdpa: attention is a hard cut between programs"),
)  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.pattern)
def test_a_row_of_table_22_3(row: Row) -> None:
    graph, found = layers(row.make())
    assert [node.op.removeprefix("anec.") for node in found] == list(row.layers)
    assert {OURS[name] for name in row.passes} <= set(NAMES)
    main = [node for node in found if "epilogue" in node.attrs]
    assert (tuple(slots(main[-1])) if main else ()) == row.slots
    if row.says:
        op, _, reason = row.says.partition(": ")
        assert any(d.node.startswith(op) and reason in d.reason and d.verdict == "barrier" for d in graph.decisions)


def test_an_activation_still_fills_the_slot_of_a_sum_that_does_not_vanish() -> None:
    _, found = layers(hx.relu(conv(image()) + conv(image(name="y"))))
    assert found[-1].op == "anec.add"
    assert list(slots(found[-1])) == ["post_activation"]


def test_a_concatenation_is_no_barrier_where_it_is_fusable() -> None:
    x = image()
    graph, found = layers(hx.relu(hx.concat(conv(x), conv(x), axis=1)))
    assert [node.op for node in found] == ["anec.convolution", "anec.convolution", "anec.concat"]
    assert all("post_activation" in slots(node) for node in found[:2])
    assert any(d.verdict == "fused" and "concatenation" in d.reason for d in graph.decisions)


def test_a_capacity_split_cuts_a_fused_layer_again_and_says_so() -> None:
    weight = np.ones((512, 512, 3, 3), np.float16)
    x = hx.input("x", (1, 512, 4, 4), "fp16")
    bytes_ = hx.quantize(hx.relu(hx.conv(x, weight, pad=1)), np.float32(0.5), dtype="int8")
    graph, found = layers(bytes_)
    assert [node.op for node in found].count("anec.convolution") > 1
    assert found[-1].op == "anec.quant"
    assert {"unfused", "split"} <= {d.verdict for d in graph.decisions if d.stage == "split_kernel_memory"}


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (1, 0, 3, 2)])
def test_each_piece_of_a_capacity_split_writes_its_result_transposed(perm: tuple[int, ...]) -> None:
    weight = np.random.default_rng(3).integers(-2, 3, (512, 512, 1, 3)).astype(np.float16)
    x = hx.input("x", (1, 512, 2, 4), "fp16")
    model = hx.graph(hx.transpose(hx.conv(x, weight), perm=perm))
    graph, found = layers(hx.transpose(hx.conv(x, weight), perm=perm))
    *pieces, joined = found
    assert len(pieces) > 1
    assert all(node.op == "anec.convolution" and "transpose" in slots(node) for node in pieces)
    assert (joined.op, joined.attrs["axis"]) == ("anec.concat", perm.index(1))
    feed = {"x": np.random.default_rng(4).integers(-3, 4, (1, 512, 2, 4)).astype(np.float16)}
    (got,), (want,) = run_layers(graph, feed).values(), run_reference(model, feed).values()
    np.testing.assert_array_equal(got, want)


def test_the_modes_are_those_of_the_published_enumeration(published: Callable[[str], list[dict[str, str]]]) -> None:
    modes = {row["mode"] for row in published("enum_nonlinear_mode")}
    tokens = {row["token"].split(" ")[0] for row in published("enum_neuron_tokens")}
    assert set(PUBLISHED) <= modes | tokens
    assert not set(FITTED) & modes
