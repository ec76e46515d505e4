"""Which ops are legal where: the floors of both routes, and every op of the published tables."""

from collections import Counter
from collections.abc import Callable
from typing import get_args

import pytest

from hexane import targets
from hexane.cli.legality_page import page
from hexane.errors import Error
from hexane.ops import USER_OPS
from hexane.targets import Family
from hexane.targets.fact import STATUSES
from hexane.targets.floors import floors, layers, mil_ops
from hexane.targets.legality import disputes, op_status
from hexane.targets.query import chip_names, load_chip
from hexane.targets.tables import table
from hexane.targets.verdict import Kind, Verdict

CHIPS = chip_names(all=True)
MEASURED = ("h13", "h14", "h15", "h17s")  # one chip for each column of the published matrix
Published = Callable[[str], list[dict[str, str]]]

# op: the verdict on M1, M2, M3 and M5, for a program in MIL. Ops of every status of the published matrix.
VERDICTS = """
conv                          native      native      native      native
matmul                        native      native      native      native
scaled_dot_product_attention  native      native      native      native
softmax                       native      native      native      native
layer_norm                    native      native      native      native
real_div                      native      native      native      native
reduce_argmax                 native      native      native      native
erf                           native      native      native      native
atan                          native      native      native      native
tile                          native      native      native      native
constexpr_lut_to_dense        native      native      native      native
sin                           decomposed  decomposed  native      native
cos                           decomposed  decomposed  native      native
global_argmax                 decomposed  decomposed  native      native
global_argmin                 decomposed  decomposed  native      native
reduce_argmin                 decomposed  decomposed  native      native
constexpr_blockwise_shift_scale decomposed decomposed native      native
random_uniform                host        host        native      native
dropout                       host        host        native      native
random                        host        host        native      native
resize                        decomposed  native      native      native
upsample_bilinear             decomposed  native      native      native
gather_nd                     decomposed  native      native      native
gather_hw                     decomposed  native      native      native
sq_after_reduce               decomposed  native      native      native
crop_resize                   rejected    native      native      native
resample                      rejected    native      native      native
affine                        rejected    native      native      native
topk                          rejected    native      native      native
argsort                       rejected    native      native      native
sort                          rejected    native      native      native
dynamic_slice                 rejected    native      native      native
slice_by_index                decomposed  decomposed  decomposed  decomposed
const                         decomposed  decomposed  decomposed  decomposed
pe_goc                        decomposed  decomposed  decomposed  decomposed
mod                           host        host        host        host
logical_and                   decomposed  decomposed  decomposed  decomposed
reduce_prod                   host        host        host        host
scatter_nd                    host        host        host        host
one_hot                       host        host        host        host
non_zero                      host        host        host        host
tan                           host        host        host        host
non_maximum_suppression       host        host        host        host
while_loop                    host        host        host        host
list_read                     host        host        host        host
lstm                          decomposed  decomposed  decomposed  decomposed
band_part                     decomposed  decomposed  decomposed  decomposed
matrix_decomposition          rejected    rejected    rejected    rejected
cross_product                 rejected    rejected    rejected    rejected
rcas                          rejected    rejected    rejected    rejected
conv_3d                       rejected    rejected    rejected    rejected
unflatten                     rejected    rejected    rejected    rejected
"""

# op: the first family that runs its layer from an authored netplist; "-" no family. Below, the byte of the chip is 0, or code
# generation fails.
NETPLIST = {
    "conv": "A11Legacy",
    "softmax": "A13",
    "instance_norm": "A13",
    "global_argmax": "A13",
    "affine": "A14",
    "crop_resize": "A14",
    "resample": "A14",
    "topk": "A14",
    "sort": "A14",
    "dynamic_slice": "A14",
    "dropout": "A15",
    "random": "A15",
    "cross_product": "A13",
    "unflatten": "-",
    "conv_3d": "-",
    "rcas": "-",
    "reverse": "-",
    "sin": "-",
    "matrix_decomposition": "-",
}


@pytest.mark.parametrize("row", [line.split() for line in VERDICTS.strip().splitlines()], ids=lambda row: row[0])
def test_an_op_has_its_verdict_on_every_generation(row: list[str]) -> None:
    op, *want = row
    assert [op_status(op, chip).verdict for chip in MEASURED] == want


@pytest.mark.parametrize(("op", "first"), NETPLIST.items())
def test_a_netplist_has_a_layer_from_its_first_family_on(op: str, first: str) -> None:
    for chip in CHIPS:
        native = op_status(op, chip, "netplist").verdict == "native"
        assert native == (first != "-" and load_chip(chip).family >= Family[first]), chip


def test_m9_alone_has_no_gain_and_offset_at_run_time() -> None:
    gated = [name for name in CHIPS if load_chip(name).gates.dynamic_goc is False]
    assert gated == ["m9"]


@pytest.mark.parametrize("chip", CHIPS)
def test_every_op_has_an_answer_on_every_chip_and_route(chip: str) -> None:
    for op in (*floors(), *USER_OPS):
        for route in ("mil", "netplist"):
            got = op_status(op, chip, route)  # type: ignore[arg-type]
            assert got.verdict in get_args(Kind)
            assert got.verdict != "oversize"
            assert got.reason
            assert got.rule
            assert got.source
            assert got.status in STATUSES


@pytest.mark.parametrize("chip", ["h11", "h12", "m9", "t0"])
def test_no_op_in_mil_runs_before_a13(chip: str) -> None:
    for op in floors():
        got = op_status(op, chip)
        assert got.verdict == "rejected"
        assert got.reject == "MIL is only supported for H13+ ANE architectures"
        assert got.published


def test_the_family_decides_and_not_the_tier() -> None:
    assert load_chip("h16").tier > load_chip("h15").tier
    for op in floors():
        assert op_status(op, "h16").verdict == op_status(op, "h15").verdict


@pytest.mark.parametrize(
    ("chip", "status"),
    [
        *((chip, "measured") for chip in ("h13", "h14", "h17")),
        *((chip, "inherited") for chip in ("h13g", "t1", "u1", "h18")),
        *((chip, "inferred") for chip in ("h15", "h16")),
    ],
)
def test_a_verdict_is_measured_where_its_source_measured(chip: str, status: str) -> None:
    """The guide measured M1, M2 and M5, says its sources; other chips of their families inherit, and the rest is
    inferred."""
    assert op_status("conv", chip).status == status


def test_a_route_that_is_closed_names_the_other() -> None:
    got = op_status("global_argmax", "m1")
    assert got.verdict == "decomposed"
    assert "netplist" in got.reason
    assert op_status("global_argmax", "m1", "netplist").rule == "gate byte 0x4f2"
    said = "the engine's compiler has no softmax for this chip: byte 0x815 of its table is 0"
    assert op_status("softmax", "a12", "netplist").reason == said


def test_a_closed_gate_gives_what_the_validator_says() -> None:
    got = op_status("affine", "m1")
    assert got.reject == "affine transform is not supported on this architecture"
    assert got.published
    assert got.change == "needs iPhone 13 (A15, M2) or later"


def test_names_are_found_in_any_spelling_of_the_target() -> None:
    assert targets.op_status("sin", "Apple M1") == targets.op_status("sin", load_chip("h13"))


@pytest.mark.parametrize(
    ("op", "target", "route", "message"),
    [
        ("softmaks", "h13", "mil", "[targets] got the op 'softmaks', need one like softmax"),
        ("relu", "host", "mil", "'host', which is no chip"),
        ("relu", "h13", "metal", "[targets] route: got 'metal', need one of mil, netplist"),
    ],
)
def test_errors_name_what_is_wrong(op: str, target: str, route: str, message: str) -> None:
    with pytest.raises(Error) as error:
        op_status(op, target, route)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_every_op_of_the_catalogue_says_what_it_is_in_mil() -> None:
    assert {name for name, op in USER_OPS.items() if not op.mil} == {
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right", "bit_cast"),
        *("max_pool_with_indices", "col2im", "unique", "lookup", "interleave", "running_sum"),
        *("q31_add", "q31_avg_pool", "q31_conv", "q31_matmul", "q31_mean", "q31_mul", "q31_softmax"),
        "quantize_by_range",
        *(name for name, op in USER_OPS.items() if op.host),
    } | {name for name in USER_OPS if mil_ops(name) is None}
    assert USER_OPS["conv"].mil == ("conv",)
    parts = ("abs", "reduce_max", "maximum", "mul", "inverse", "square", "reduce_mean", "add", "rsqrt")
    assert USER_OPS["rms_norm"].mil == parts
    assert [USER_OPS[op].unit for op in ("conv", "relu", "transpose", "grid_sample", "concat", "reshape")] == [
        *("mac", "planar", "transpose", "texture", "dma", ""),
    ]


def test_what_an_op_is_written_as_are_ops_of_mil() -> None:
    other = table("floors")["ops"]
    assert {name for names in other.values() for name in names} <= set(floors())


def test_rows_name_layers_that_there_are_and_gates_of_chips() -> None:
    assert {floor.layer for floor in floors().values()} - {""} <= set(layers())
    gates = load_chip("h13").gates
    assert all(hasattr(gates, layer.gate) for layer in layers().values() if layer.gate)


def test_no_op_has_two_rows() -> None:
    count = Counter(op for group in table("floors")["group"] for op in group["ops"])
    assert count.most_common(1)[0][1] == 1


def test_what_sources_disagree_about_keeps_every_claim() -> None:
    for op, row in disputes().items():
        assert op in floors()
        assert row["taken"]
        assert row["why"]
        assert len(row["claims"]) >= 2
    assert [claim.value for claim in op_status("cumsum", "m5").claims][1] == "not implemented on M5"


def test_fifty_validators_and_forty_five_constructors() -> None:
    exported = [layer for layer in layers().values() if layer.export]
    assert len(exported) == 50
    assert {layer.name for layer in exported if not layer.descriptor} == {
        *("ArgMinMax", "GlobalArgMinMax", "Broadcast", "CrossProduct", "ElementWise"),
    }
    assert {layer.name for layer in layers().values() if not layer.authored} == {"RCAS", "Reverse"}


def test_the_page_of_what_runs_where_has_every_op_of_mil() -> None:
    text = page()
    assert all(f"| {op} | " in text for op in floors())


# ---- against the published tables, where they are at hand ----

# A cell of the matrix: what it may be here. Without a path, an op may still be written as others.
CELLS = {
    "Native": {"native"},
    "Bridge": {"decomposed", "host", "rejected"},
    "Family-gated": {"decomposed", "rejected"},
    "No path": {"host", "decomposed"},
}


def test_all_187_ops_of_the_published_matrix_are_answered(published: Published) -> None:
    rows = published("op_device_matrix")
    assert len(rows) == 187
    columns = dict(
        zip(("M1_A13", "M2_A14", "M3_A15", "M4M5_A16A17"), (("h13",), ("h14",), ("h15",), ("h16", "h17s")), strict=True)
    )
    for row in rows:
        for column, chips in columns.items():
            for chip in chips:
                got = op_status(row["mil_op"], chip)
                assert got.verdict in CELLS[row[column]], (row["mil_op"], chip, got)


def test_where_other_tables_differ_from_the_matrix_a_dispute_is_listed(published: Published) -> None:
    matrix = {row["mil_op"]: row["M4M5_A16A17"] for row in published("op_device_matrix")}
    differ = {
        row["mil_op"]
        for row in published("mil_sweep_M5")
        if row["mil_op"] in matrix
        and (matrix[row["mil_op"]] == "Native") != (row["result_on_M5_direct_path"] == "runs")
    }
    same = {"Native": "native", "Bridge": "bridge", "No path": "walled", "Family-gated": "walled"}
    catalog = {row["op"]: row for row in published("op_catalog")}
    for row in published("op_device_matrix"):
        other = catalog[row["mil_op"]]
        theirs = [other[key] for key in ("m1", "m2", "m3", "m4_m5")]
        if theirs != [same[row[key]] for key in ("M1_A13", "M2_A14", "M3_A15", "M4M5_A16A17")]:
            differ.add(row["mil_op"])
    assert differ <= set(disputes())


def test_the_published_floors_hold(published: Published) -> None:
    for row in published("op_floors"):
        floor = floors()[row["op"]]
        assert floor.native == Family[row["min_family"]], row["op"]


def test_every_published_layer_has_a_row(published: Published) -> None:
    rows = published("layer_descriptors")
    exported = {layer.name: layer.descriptor for layer in layers().values() if layer.export}
    assert exported == {row["ANEC<name>LayerDesc"]: row["descriptor_constructor"] == "yes" for row in rows}
    known = {row["validator (_ANECValidate<name>Layer)"] for row in published("validators")}
    assert known <= set(layers())


def test_a_verdict_prints_as_a_line() -> None:
    got = Verdict(verdict="host", reason="why", rule="r", source="s", status="read")
    assert str(got) == "host: why (s, read)"
