"""The published tables of gates and families, row by row: what the table says, and what Hexane answers."""

from collections.abc import Callable

import pytest

import hexane as hx
from hexane.targets import Family, Tier
from hexane.targets.descriptors import descriptors
from hexane.targets.family import hardware_versions
from hexane.targets.floors import floors
from hexane.targets.legality import op_status
from hexane.targets.query import chip_names, fact, load_chip, offsets

CHIPS = chip_names(all=True)

# Table 22.5: what reads a byte of the chip, the field of the chip, and where it is clear among the chips that run programs in MIL.
GATES = [
    ("softmax", "softmax", "0x815", set()),
    ("instance_norm", "instance_norm", "0x816", set()),
    ("dropout", "dropout_random", "0x4a9", {Tier.A13, Tier.A14}),
    ("random", "dropout_random", "0x4a9", {Tier.A13, Tier.A14}),
    ("affine", "texture_engine", "0x81d", {Tier.A13}),
    ("resize", "texture_engine", "0x81d", {Tier.A13}),
    ("resample", "texture_engine", "0x81d", {Tier.A13}),
    ("pad", "texture_engine", "0x81d", {Tier.A13}),
]


@pytest.mark.parametrize(("op", "gate", "offset", "clear"), GATES)
def test_table_22_5_a_byte_gates_an_op(op: str, gate: str, offset: str, clear: set[Tier]) -> None:
    assert offsets(f"gates.{gate}") == [offset]
    assert op in floors()
    for name in CHIPS:
        chip = load_chip(name)
        if chip.tier == Tier.OLDER:
            assert getattr(chip.gates, gate) is False
        else:
            assert getattr(chip.gates, gate) is (chip.tier not in clear), name


def test_table_22_5_gain_and_offset_at_run_time_is_absent_on_the_smallest_old_part_alone() -> None:
    assert offsets("gates.dynamic_goc") == ["0x814"]
    assert [name for name in CHIPS if not load_chip(name).gates.dynamic_goc] == ["m9"]


@pytest.mark.parametrize("chip", CHIPS)
def test_table_22_5_convolution_of_three_axes_runs_nowhere(chip: str) -> None:
    assert op_status("conv_3d", chip).verdict == "rejected"
    assert op_status("conv_3d", chip, "netplist").rule == "attested is not reachable"


# Table 35.1: hardware version, family and its index, targets.
VERSIONS = [
    (1, "A11Legacy", 0, "h11"),
    (3, "A12", 1, "h12"),
    (4, "A13", 2, "h13 h13g t1"),
    (5, "A14", 3, "h14 h14g h14c"),
    (6, "A15", 4, "h15 h15g h15c"),
    (8, "A15", 4, "h16 h16g h16c h16s"),
    (7, "A16", 5, "h17 h17a h17g h17c h17d"),
    (9, "A17", 6, "h17s"),
    (10, "A17", 6, "h18"),
]


@pytest.mark.parametrize(("version", "family", "index", "names"), VERSIONS)
def test_table_35_1_versions_resolve_to_families(version: int, family: str, index: int, names: str) -> None:
    assert hardware_versions()[version] == Family[family]
    assert Family[family].value == index
    for name in names.split():
        assert load_chip(name).hardware_version == version
        assert load_chip(name).family == Family[family]


# Table 35.2: the floor that the compiler declares, and the ops it names.
DECLARED = {
    "A11Legacy": (
        "conv conv_transpose matmul avg_pool max_pool l2_pool add sub mul maximum minimum abs square pow equal greater "
        "select reshape transpose concat sigmoid tanh relu gelu silu quantize dequantize"
    ),
    "A13": (
        "softmax layer_norm instance_norm batch_norm reduce_sum reduce_mean reduce_max reduce_min reduce_sum_square"
        " reduce_l1_norm reduce_l2_norm reduce_log_sum reduce_log_sum_exp resize scaled_dot_product_attention erf exp2"
        " rsqrt sqrt tile space_to_depth"
    ),
    "A14": "crop_resize resample",
    "A15": "sin cos global_argmax global_argmin",
}


@pytest.mark.parametrize(("floor", "op"), [(f, op) for f, ops in DECLARED.items() for op in ops.split()])
def test_table_35_2_ops_have_their_declared_floor(floor: str, op: str) -> None:
    assert floors()[op].trait == Family[floor]


def test_nothing_needs_more_than_a15() -> None:
    assert max(f.native for f in floors().values() if f.native) == Family.A15


def test_a_later_family_runs_what_an_earlier_one_runs() -> None:
    order = sorted(CHIPS, key=lambda name: load_chip(name).family)
    for op in floors():
        native = [op_status(op, name).verdict == "native" for name in order]
        assert native == sorted(native), op


def test_m1_compiles_as_family_a13_and_the_guide_s_target_of_m5_as_family_a17() -> None:
    assert [load_chip(name).family for name in ("M1", "h17s")] == [Family.A13, Family.A17]


def test_the_two_oldest_families_have_no_general_division() -> None:
    assert op_status("real_div", "h12", "netplist").verdict == "rejected"
    assert op_status("real_div", "h13", "netplist").verdict == "native"


X = hx.input("x", (1, 8, 4, 6))
ROW = hx.input("x", (1, 8, 1, 6))
VECTOR = hx.input("x", (1, 8, 1, 1))

# Chapter 35 on the two oldest families: reshape, squeeze and expand_dims become a flatten, or are refused with these words.
FLATTENS = [
    (lambda: hx.reshape(X, shape=(1, 192)), True),
    (lambda: hx.reshape(X, shape=(1, 192, 1, 1)), True),
    (lambda: hx.reshape(X, shape=(1, 6, 8, 4)), False),
    (lambda: hx.flatten(X), True),
    (lambda: hx.flatten(X, axis=2), False),
    (lambda: hx.squeeze(VECTOR, axes=(2, 3)), True),
    (lambda: hx.squeeze(ROW, axes=(2,)), False),
    (lambda: hx.expand_dims(hx.input("x", (1, 8)), axes=(2, 3)), True),
    (lambda: hx.expand_dims(hx.input("x", (1, 8, 6)), axes=(2,)), False),
]


@pytest.mark.parametrize(("build", "flattens"), FLATTENS)
@pytest.mark.parametrize("chip", ["h11", "h12"])
def test_the_two_oldest_families_reshape_by_a_flatten_alone(
    build: Callable[[], hx.Tensor], flattens: bool, chip: str
) -> None:
    verdict = hx.preflight(build(), chip).entries[0].verdict
    assert verdict.verdict == ("native" if flattens else "rejected")
    assert verdict.reject == ("" if flattens else "cannot be lowered as Flatten on ANE")
    assert hx.preflight(build(), "h13").ok


def test_the_two_oldest_families_divide_by_constants_and_spread_by_ones_and_zeros() -> None:
    def form(y: hx.Tensor) -> str:
        return hx.preflight(y, "h12").entries[-1].verdict.form

    assert form(X / 3.0) == "written as mul by the reciprocal"
    assert form(X / hx.input("y", X.shape)) == ""
    assert form(hx.broadcast_to(hx.input("y", (1, 8, 1, 6)), shape=X.shape)) == "written as add of zeros"
    by_channels = "written as a convolution with ones, and add of zeros"
    assert form(hx.broadcast_to(hx.input("y", (1, 1, 4, 6)), shape=X.shape)) == by_channels


# Table 35.3: what differs between chips though the lowering is the same, and the numbers that decide.
DIVERGES = {
    "width slice": ("extents.patch_width", "extents.patch_floor", "extents.patch_cap", "memory.dma_granule", "hazards.width_slice_limit"),
    "resize": ("gates.texture_engine",),
    "matmul": ("memory.working_set", "extents.height"),
    "transpose": ("extents.transpose_width", "extents.transpose_height"),
    "strided convolution": ("extents.stride_factors", "extents.stride_factors_per_axis"),
}  # fmt: skip


@pytest.mark.parametrize("path", [path for paths in DIVERGES.values() for path in paths])
def test_table_35_3_what_decides_is_a_number_of_the_chip(path: str) -> None:
    for chip in CHIPS:
        assert fact(chip, path).source


# Table 35.4: what M1 lacks, what becomes of it there, and the first family that has it. Where "decomposed" and what ANEForge and
# the matrix of ops say differ, floors.toml lists the dispute.
BLOCKED = [
    ("sin", "decomposed", "A15"),
    ("cos", "decomposed", "A15"),
    ("crop_resize", "rejected", "A14"),
    ("resample", "rejected", "A14"),
    ("affine", "rejected", "A14"),
    ("gather_hw", "decomposed", "A14"),
    ("topk", "rejected", "A14"),
    ("sort", "rejected", "A14"),
    ("dynamic_slice", "rejected", "A14"),
    ("dropout", "host", "A15"),
    ("random", "host", "A15"),
    ("global_argmax", "decomposed", "A15"),
    ("global_argmin", "decomposed", "A15"),
    ("sq_after_reduce", "decomposed", "A14"),
]


@pytest.mark.parametrize(("op", "on_m1", "first"), BLOCKED)
def test_table_35_4_what_m1_blocks(op: str, on_m1: str, first: str) -> None:
    assert op_status(op, "m1").verdict == on_m1
    for name in CHIPS:
        chip = load_chip(name)
        assert (op_status(op, name).verdict == "native") == (chip.family >= Family[first]), name


def test_table_35_4_weights_that_stream_and_slices_that_saturate() -> None:
    assert [load_chip(c).hazards.width_slice_limit for c in ("h13", "h14", "h15")] == [4094, 4094, None]
    assert ["int8" in load_chip(c).formats.streams for c in ("h13", "h14", "h15")] == [False, True, True]
    assert ["blockwise" in load_chip(c).formats.streams for c in ("h13", "h14", "h15")] == [False, False, True]


@pytest.mark.parametrize(
    "op",
    [
        "tan",
        "asin",
        "acos",
        "atan2",
        "sinh",
        "cosh",
        "atanh",
        "asinh",
        "acosh",
        "scatter",
        "one_hot",
        "non_zero",
        "mod",
    ],
)
def test_no_family_has_them(op: str) -> None:
    assert {op_status(op, name).verdict for name in CHIPS if load_chip(name).family >= Family.A13} == {"host"}


@pytest.mark.parametrize(
    "op", ["rnn", "gru", "lstm", "band_part", "reverse_sequence", "logical_and", "logical_or", "logical_xor"]
)
def test_no_family_has_them_as_they_are(op: str) -> None:
    assert "native" not in {op_status(op, name).verdict for name in CHIPS}


# Table 35.5: where the width of a patch lies in the descriptors of a generation.
PATCH = {7: 0x200, 8: 0x224, 10: 0x12C, 11: 0x21C, 17: 0x23C, 19: 0x248, 20: 0x26C}


@pytest.mark.parametrize(("generation", "offset"), PATCH.items())
def test_table_35_5_the_patch_width_of_a_generation(generation: int, offset: int) -> None:
    assert next(d for d in descriptors() if d.generation == generation).patch_width == offset


# Table 35.6: an offset of the compiler's parameter block, and the field here.
FIELDS = {
    0x1B8: "memory.working_set",
    0x1C0: "memory.dma_granule",
    0x328: "hal.unicast_channels",
    0x138: "extents.width",
    0x468: "extents.transpose_height",
    0x470: "extents.transpose_width",
    0x730: "extents.stride_factors",
    0x812: "gates.depth_broadcast",
    0x81D: "gates.texture_engine",
    0x3F8: "hal.pool_patch_clamp",
    0x400: "extents.patch_floor",
    0x410: "extents.patch_cap",
    0x228: "hal.cycle_divisor",
    0x238: "hal.num_nes",
}


def test_chapter_35_names_the_chips_that_differ() -> None:
    def having(gate: str) -> list[str]:
        return [name for name in CHIPS if getattr(load_chip(name).gates, gate)]

    assert {load_chip(name).family for name in having("gather_check")} == {Family.A13}
    assert having("yuv420") == ["h15", "h15c", "h15g", "m11"]
    assert {load_chip(name).hal.extended_kernel_memory for name in CHIPS} == {0}
    assert not any(load_chip(name).gates.shared_kernel_data for name in CHIPS if load_chip(name).family <= Family.A13)


@pytest.mark.parametrize(("offset", "path"), FIELDS.items())
def test_table_35_6_a_field_of_the_parameter_block(offset: int, path: str) -> None:
    assert fact("h13", offset) is load_chip("h13").facts[path]
