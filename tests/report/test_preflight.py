"""What a chip does with a network, before anything is compiled: op by op, with rule, source and what to write
instead."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from hexane.graph import constant
from hexane.importers.onnx import import_onnx
from hexane.ops import OPS, Op, apply
from hexane.passes.retarget.borders import BORDERS
from hexane.report.report import VERDICTS, WORDS
from hexane.targets.fact import STATUSES
from hexane.targets.query import load_chip
from hexane.validate.constants import is_constant

Build = Callable[[], Any]


def x(*shape: int, dtype: str = "fp32", name: str = "x") -> hx.Tensor:
    return hx.input(name, shape, dtype)


def w(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# what is built, the list it lands in on M1, M2 and M5, and words of the reason or of what the compiler says ("" for none)
NODES: list[tuple[str, Build, tuple[str, str, str], str]] = [
    ("conv", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 3, 3)), ("native",) * 3, ""),
    ("conv_wide", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 3, 14)), ("oversize", "oversize", "native"), "Invalid conv kernel width = 14, It should be in [1,13]"),
    ("conv_16", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 16, 16), strides=16), ("oversize",) * 3, "Invalid conv kernel width = 16"),
    ("conv_stride_16", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 8, 8), strides=16), ("decomposed",) * 3, "written with strides of 8 x 2 and 8 x 2"),
    ("conv_dilation_5", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 3, 3), dilations=5), ("decomposed",) * 3, "5 images in the batch"),
    ("conv_dilation_6", lambda: hx.conv(x(1, 3, 32, 32), w(8, 3, 3, 3), dilations=6), ("native",) * 3, ""),
    ("conv_channels_last", lambda: hx.conv(x(1, 32, 32, 3), w(8, 3, 3, 3), layout="nhwc"), ("decomposed",) * 3, "transposes to channels first"),
    ("conv_high", lambda: hx.conv(x(1, 3, 64, 64), w(8, 3, 16, 3)), ("native",) * 3, ""),
    ("conv_padded_high", lambda: hx.conv(x(1, 3, 2, 8), w(4, 3, 5, 3), pad=(2, 2, 0, 0)), ("native",) * 3, ""),
    ("conv_1d_padded", lambda: hx.conv(x(1, 3, 2), w(4, 3, 5), pad=(1, 2)), ("decomposed",) * 3, "written as reshape, conv"),
    ("conv_1d", lambda: hx.conv(x(1, 3, 32), w(8, 3, 3)), ("decomposed",) * 3, "written as reshape, conv"),
    ("conv_3d", lambda: hx.conv(x(1, 3, 8, 8, 8), w(8, 3, 3, 3, 3)), ("decomposed",) * 3, "Apple's compiler then fails on every chip"),
    ("conv_many_channels", lambda: hx.conv(x(1, 20000, 4, 4), w(20000, 1, 1, 1), groups=20000), ("native",) * 3, ""),
    ("transposed_conv_wide", lambda: hx.conv_transpose(x(1, 3, 16, 16), w(3, 8, 9, 9), strides=2), ("oversize",) * 3, "Invalid conv kernel width = 9"),
    ("wide", lambda: hx.relu(x(1, 3, 8, 16385)), ("oversize", "oversize", "native"), "width 16385, the chip takes 16384"),
    ("flat", lambda: hx.reshape(hx.relu(x(1, 3, 32, 32)), shape=(1, 3072)), ("native",) * 3, ""),
    ("rows_too_long", lambda: hx.relu(x(2, 25088)), ("oversize", "oversize", "native"), "25088"),
    ("channels", lambda: hx.relu(x(1, 65537, 1, 1)), ("oversize",) * 3, "channels 65537"),
    ("six_axes", lambda: hx.relu(x(1, 2, 1, 2, 1, 2)), ("oversize",) * 3, "6 axes, the chip takes 5"),
    ("reshape_to_six", lambda: hx.reshape(x(1, 2, 2, 2), shape=(1, 2, 1, 2, 1, 2)), ("oversize",) * 3, "Cannot reshape a tensor of rank > 5"),
    ("empty", lambda: hx.relu(x(0, 8)), ("rejected",) * 3, "extent 0"),
    ("empty_constants", lambda: hx.matmul(w(4, 0), w(0, 8), x(8)), ("rejected",) * 3, "extent 0"),
    ("big_transpose", lambda: hx.transpose(x(1, 64, 512, 512), perm=(0, 2, 3, 1)), ("oversize",) * 3, "elements"),
    ("medium_transpose", lambda: hx.transpose(x(1, 64, 400, 400), perm=(0, 2, 3, 1)), ("oversize", "oversize", "native"), "10240000 elements"),
    ("matmul", lambda: x(4, 16) @ w(16, 8), ("native",) * 3, ""),
    ("matmul_long", lambda: x(4, 16385) @ w(16385, 8), ("oversize", "oversize", "native"), "16385"),
    ("matmul_vocabulary", lambda: x(4, 16) @ w(16, 32000), ("oversize", "oversize", "native"), "32000"),
    ("matmul_5", lambda: x(1, 2, 2, 4, 16) @ x(1, 2, 2, 16, 4, name="y"), ("decomposed",) * 3, "depth > 1 is not supported for MatMult"),
    ("linear_5", lambda: hx.linear(x(1, 1, 1, 4, 8), w(2, 8)), ("decomposed",) * 3, "ANE cannot support Linear with input rank >= 5"),
    ("sin", lambda: hx.sin(x(4, 4)), ("decomposed", "decomposed", "native"), "polynomial"),
    ("mish", lambda: hx.mish(x(4, 4)), ("decomposed",) * 3, "written as softplus, tanh, mul"),
    ("logical_and", lambda: hx.logical_and(x(4, dtype="bool"), x(4, dtype="bool", name="y")), ("decomposed",) * 3, "written as select"),
    ("scatter", lambda: hx.scatter_nd(x(4, 4), np.zeros((1, 1), np.int64), w(1, 4)), ("host",) * 3, "scatters"),
    ("topk", lambda: hx.topk(x(4, 16), k=5)[0], ("rejected", "native", "native"), "Apple's compiler then fails"),
    ("topk_3", lambda: hx.topk(x(4, 16), k=3)[0], ("rejected",) * 3, ""),
    ("argmax", lambda: hx.reduce_argmax(x(4, 2048), axis=1), ("native",) * 3, ""),
    ("argmax_long", lambda: hx.reduce_argmax(x(4, 2049), axis=1), ("oversize",) * 3, "fp16 counts exactly"),
    ("resize", lambda: hx.upsample_bilinear(x(1, 3, 8, 8), scale_factor_height=2, scale_factor_width=2), ("decomposed", "native", "native"), "texture"),
    ("grid_sample", lambda: hx.grid_sample(x(1, 3, 8, 8), x(1, 4, 4, 2, name="g")), ("rejected", "native", "native"), "texture engine"),
    ("cubic", lambda: hx.resize(x(1, 3, 8, 8), sizes=(16, 16), axes=(2, 3), mode="cubic", scales=(2, 2)), ("decomposed",) * 3, ""),
    ("pad", lambda: hx.pad(x(1, 3, 8, 8), begin=(0, 0, 1, 1), end=(0, 0, 1, 1)), ("native",) * 3, ""),
    ("pad_channels", lambda: hx.pad(x(1, 3, 8, 8), begin=(0, 1, 0, 0), end=(0, 0, 0, 0)), ("decomposed",) * 3, "Channel padding is not supported on ANE"),
    ("pad_reflect", lambda: hx.pad(x(1, 3, 8, 8), begin=(0, 0, 1, 1), end=(0, 0, 1, 1), mode="reflect"), ("decomposed", "native", "native"), "Architecture does not support padding mode."),
    ("pad_wrap", lambda: hx.pad(x(1, 3, 8, 8), begin=(0, 0, 1, 1), end=(0, 0, 1, 1), mode="wrap"), ("decomposed",) * 3, "which no layer has"),
    ("pad_edge", lambda: hx.pad(x(1, 3, 8, 8), begin=(0, 0, 1, 1), end=(0, 0, 1, 1), mode="edge"), ("decomposed",) * 3, "Replication padding mode is not supported"),
    ("tile", lambda: hx.tile(x(1, 3, 8, 8), reps=(1, 6, 1, 1)), ("native",) * 3, ""),
    ("tile_5", lambda: hx.tile(x(1, 3, 8, 8), reps=(1, 5, 1, 1)), ("decomposed",) * 3, "2, 3, 4 and 8"),
    ("max_pool", lambda: hx.max_pool(x(1, 3, 32, 32), kernel_sizes=3, strides=2, pad=1), ("native",) * 3, ""),
    ("max_pool_stride_3", lambda: hx.max_pool(x(1, 3, 33, 33), kernel_sizes=3, strides=3), ("decomposed",) * 3, "Pool with strides of 3 is only supported with Avg mode"),
    ("avg_pool_30", lambda: hx.avg_pool(x(1, 3, 64, 64), kernel_sizes=30), ("oversize", "native", "native"), "Invalid Pool kernel width (30), must be [1-29] or 64"),
    ("global_pool", lambda: hx.avg_pool(x(1, 3, 64, 64), kernel_sizes=64), ("native",) * 3, ""),
    ("gather", lambda: hx.gather(x(8, 4), np.array([1, 2]), axis=0), ("native",) * 3, ""),
    ("gather_batch", lambda: hx.gather(x(2, 8, 4, 4), np.arange(0, 40, 2) % 7, axis=1), ("rejected", "native", "native"), "Invalid gather data tensor batch size 2, must be 1"),
    ("lrn_16", lambda: hx.local_response_norm(x(1, 16, 4, 4), size=5), ("rejected", "native", "native"), "less than 16"),
    ("lrn_small", lambda: hx.local_response_norm(x(1, 4, 4, 4), size=5), ("rejected",) * 3, "LRN Channel count must be greater than kernel channel. Channel: 4, Kernel Depth: 5"),
    ("pixel_shuffle", lambda: hx.pixel_shuffle(x(1, 25, 4, 4), upscale_factor=5), ("decomposed",) * 3, "returned invalid:"),
    ("group_norm", lambda: hx.group_norm(x(1, 8, 300, 300), num_groups=2), ("decomposed",) * 3, "statistics of each channel"),
    ("integers", lambda: x(4, dtype="int64") + x(4, dtype="int64", name="y"), ("host",) * 3, "the engine computes in fp16, not in int64"),
    ("cast_to_int", lambda: hx.cast(x(4), dtype="int32"), ("rejected", "host", "host"), "int32"),
    ("to_bits", lambda: hx.bit_cast(x(4), dtype="int32"), ("host",) * 3, "MIL has no op for it"),
    ("slice", lambda: hx.slice_by_size(x(1, 3, 8, 8), begin=(0, 0, 2, 0), size=(1, 3, 4, 8)), ("native",) * 3, ""),
    ("slice_steps", lambda: hx.slice_by_index(x(8, 8), begin=(0, 0), end=(8, 8), stride=(2, 1)), ("decomposed",) * 3, "folds into what reads it"),
    ("attention", lambda: hx.scaled_dot_product_attention(x(1, 2, 16, 8), x(1, 2, 16, 8, name="k"), x(1, 2, 16, 8, name="v")), ("native",) * 3, ""),
    ("attention_other_values", lambda: hx.scaled_dot_product_attention(x(1, 2, 16, 8), x(1, 2, 16, 8, name="k"), x(1, 2, 16, 4, name="v")), ("decomposed",) * 3, "one shape"),
    ("lstm_cell_ops", lambda: hx.gru(x(4, 1, 8), w(1, 24, 8), w(1, 24, 8))[0], ("decomposed",) * 3, "written as slice_by_index, reshape, matmul"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "lists", "words"), [row[1:] for row in NODES], ids=[row[0] for row in NODES])
def test_an_op_lands_in_its_list(build: Build, lists: tuple[str, str, str], words: str) -> None:
    for chip, name in zip(("h13", "h14", "h17s"), lists, strict=True):
        report = hx.preflight(build(), chip, repair=False)
        entry = report.entries[-1]
        assert entry in getattr(report, name), (chip, str(entry.verdict))
        assert report.ok == all(segment.device == "ane" for segment in report.segments)
        assert report.ok <= all(e.verdict.runs for e in report.entries)
        assert bool(entry.verdict.form) == (name in ("decomposed", "oversize") and entry.verdict.runs)
        if name == lists[0]:
            assert words in entry.verdict.reason + entry.verdict.reject


def test_a_slice_that_starts_inside_a_row_is_warned_of() -> None:
    def reason(chip: str, begin: int) -> str:
        return hx.preflight(hx.slice_by_size(x(1, 8), begin=(0, begin), size=(1, 2)), chip).entries[0].verdict.reason

    assert "numbers above 4094 become infinity" in reason("m1", 3)
    (sliced, _) = hx.preflight(hx.relu(x(2, 8)[:, 3:5]), "m1").entries
    assert sliced.verdict.reason.startswith("written as slice_by_size; numbers above 4094 become infinity"), "said once"
    assert "numbers above 4094 become infinity" in reason("m2", 3)
    assert "infinity" not in reason("m5", 3)
    assert "infinity" not in reason("m1", 0)


def test_random_numbers_are_the_hosts_whose_stream_no_program_can_keep() -> None:
    numbers = hx.random_uniform(hx.stream(0), shape=(4,))
    for chip in ("m1", "m2", "m3", "m5"):
        (entry,) = [entry for entry in hx.preflight(numbers, chip).entries if entry.op == "random_uniform"]
        assert entry.verdict.verdict == "host"
    assert "int64[2] comes from outside the engine" in entry.verdict.reason


def test_the_oldest_chips_take_netplists_and_the_report_says_that_mil_is_refused() -> None:
    report = hx.preflight(hx.relu(x(4)), "h12")
    assert [entry.op for entry in report.native] == ["relu"]
    assert report.mil is not None
    assert report.mil.reject == "MIL is only supported for H13+ ANE architectures"
    assert report.mil.reject in report.summary
    assert (report.record()["route"], hx.preflight(hx.relu(x(4)), "h13").record()["route"]) == ("netplist", "mil")
    assert [e.op for e in hx.preflight(hx.softmax(x(4, 4)), "h12").rejected] == ["softmax"]
    (refused,) = hx.preflight(hx.layer_norm(x(4, 4)), "h12").rejected
    assert refused.verdict.reason == "the compiler declares it for iPhone 12 (A14, M1) and later"
    assert refused.verdict.change == "needs iPhone 12 (A14, M1) or later"
    (deep,) = hx.preflight(hx.transpose(x(1, 2, 12, 4, 4), perm=(0, 2, 1, 3, 4)), "h12").oversize
    assert (deep.verdict.rule, deep.verdict.change) == ("extents.depth", "write it on four axes")


# (what is too large, how it is written instead)
TILED = [
    (lambda: hx.relu(x(1, 3, 8, 40000)), "tiled: spatial, 3 pieces"),
    (lambda: hx.relu(x(1, 70000, 1, 1)), "tiled: channels, 2 pieces"),
    (lambda: hx.relu(x(1, 1, 20000, 20000)), "tiled: spatial, 2 pieces"),
    (lambda: x(4, 40000) @ w(40000, 8), "tiled: contraction, 3 pieces"),
    (lambda: hx.conv(x(1, 1, 4, 20000), w(1, 1, 3, 3)), "tiled: spatial, 2 pieces"),
    (lambda: hx.reduce_sum(x(8, 40000), axes=1), "tiled: reduction, 3 pieces"),
    (lambda: hx.softmax(x(8, 40000)), "written as reduce_max, sub, exp, reduce_sum, real_div; tiled: "),
]


@pytest.mark.parametrize(("build", "words"), TILED, ids=[words for _, words in TILED])
def test_a_verdict_on_what_is_too_large_names_the_tiles(build: Build, words: str) -> None:
    report = hx.preflight(build(), "h13")
    (entry,) = report.oversize
    assert entry.verdict.form.startswith(words)
    assert entry.verdict.reason.startswith(f"{entry.verdict.form}: fp32[")
    assert report.engine_segments
    assert report.host_nodes, "the pieces are cut and joined there"
    assert {node.op for node in report.host_nodes} <= BORDERS
    assert not report.ok


def test_what_cannot_be_tiled_says_so() -> None:
    entry = hx.preflight(hx.reduce_argmax(x(4, 3000), axis=1), "h13").oversize[0]
    assert (entry.verdict.form, entry.verdict.runs) == ("", False)
    assert "fp16 counts exactly" in entry.verdict.reason


def test_what_is_computed_from_constants_is_no_op_of_the_engine() -> None:
    folded = hx.scatter_nd(hx.const(w(4, 4)), np.zeros((1, 1), np.int64), w(1, 4))
    report = hx.preflight(x(4, 4) + folded, "m1")
    assert report.ok
    assert [e.verdict.reason for e in report.entries if e.op == "scatter_nd"] == [
        "computed when the program is compiled"
    ]


def test_constants_are_found_without_recursion() -> None:
    value = constant(np.ones(2, np.float32))
    for _ in range(5000):
        value = apply(OPS["abs"], [value], {})[0]
    assert is_constant(value.node)


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
@pytest.mark.parametrize("others", [False, True], ids=["stack alone", "another reader"])
def test_a_refused_view_is_no_reason_where_what_is_written_for_its_readers_undoes_it(others: bool) -> None:
    """A stack of views is written on views of the same elements: a view of a view, and both are none."""
    view = hx.reshape(x(1, 5, 5), shape=(5, 5))
    outputs = {"y": hx.stack([view, view], axis=0), **({"z": hx.relu(view)} if others else {})}
    report, net = hx.preflight(outputs, "h12"), hx.compile(outputs, target="h12", device="cpu", threads=1)
    (of_view,) = [e.verdict for e in report.entries if e.node.op == "reshape"]
    assert of_view.verdict == ("rejected" if others else "decomposed")
    hosted = {d.node for d in net.program.decisions if d.verdict == "host"}
    assert hosted == {e.node.where for e in report.entries if not e.verdict.runs}


def test_entries_say_where_they_come_from() -> None:
    entry = hx.preflight(hx.tan(x(4)), "m1").host[0]
    assert entry.where.startswith("test_preflight.py:")
    assert (entry.number, entry.op, entry.type) == (0, "tan", "fp32[4]")
    assert entry.verdict.change


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_every_case_of_the_catalogue_has_a_verdict(op: Op, index: int) -> None:
    graph = graph_of(op, op.cases[index], arrays(op, op.cases[index]))
    for chip in ("h11", "h13", "h14", "h17s"):
        for entry in hx.preflight(graph, chip).entries:
            assert entry.verdict.reason
            assert entry.verdict.source
            assert entry.verdict.status in STATUSES


def test_a_chip_of_its_own_numbers_is_not_taken_for_another() -> None:
    h13 = load_chip("h13")
    small = replace(h13, extents=replace(h13.extents, width=8))
    y = hx.relu(x(1, 1, 1, 16))
    assert hx.preflight(y, h13).native
    assert hx.preflight(y, small).oversize
    assert hx.preflight(y, h13).native


def _model() -> hx.Tensor:
    return hx.tan(hx.relu(hx.conv(x(1, 3, 16, 16), w(4, 3, 3, 3))))


def test_the_report_prints_as_text() -> None:
    text = str(hx.preflight(_model(), "m1"))
    assert text.startswith("graph on M1 (h13): 2 of 3 ops on the engine, 1 on the CPU, in 2 parts: 2 native, 1 host")
    assert "host: tan at test_preflight.py:" in text
    assert "  source: guide app. A, measured\n  instead: write it with exp, log, sqrt and atan, or a polynomial" in text


def test_verdicts_say_whose_ops_they_count() -> None:
    report = hx.preflight(hx.tan(hx.sin(x(1, 3, 16, 16))), "m1")
    ops = report.outcome.engine + report.outcome.host
    assert ops > len(report.entries) == 2
    counts = f"these {ops} are the model's 2 ops as written for the chip: 1 decomposed, 1 host"
    assert report.summary.endswith(f"1 on the CPU, in 2 parts; {counts}")
    assert hx.preflight(hx.sin(x(4)), "m1").summary.endswith("runs whole on the engine: 1 decomposed")


def test_a_report_defines_the_words_that_it_prints() -> None:
    text = str(hx.preflight(hx.tan(hx.sin(x(1, 3, 16, 16))), "m1"))
    _, _, words = text.partition("\n\nwords:\n")
    named = [line.strip().partition(":")[0] for line in words.split("\n\n")[0].splitlines() if line[2] != " "]
    assert named == ["decomposed", "host", "guide", "Apple's rules for the engine", "measured", "read"]
    assert "words:" not in str(hx.preflight(hx.relu(x(4)), "m1"))


def test_every_verdict_has_a_meaning() -> None:
    assert tuple(VERDICTS) == WORDS


def test_the_report_prints_as_html() -> None:
    page = hx.preflight(_model(), "m1")._repr_html_()
    assert page.count("<tr>") == 2
    assert "no chip has a path for it" in page
    assert "<table>" not in hx.preflight(hx.relu(x(4)), "m1")._repr_html_()


def test_the_report_is_json() -> None:
    record = json.loads(hx.preflight(_model(), "m1").to_json())
    assert record["target"] == "h13"
    assert record["ok"] is False
    assert record["counts"] == {"native": 2, "decomposed": 0, "oversize": 0, "host": 1, "rejected": 0}
    assert record["counts"].keys() >= {node["verdict"] for node in record["nodes"]}, "one spelling"
    assert record["nodes"][2]["verdict"] == "host"
    assert record["nodes"][2].keys() >= {
        "op",
        "where",
        "type",
        "reason",
        "rule",
        "reject",
        "source",
        "status",
        "change",
    }


def test_models_are_taken_in_every_form(model_file: Callable[[str], Any]) -> None:
    path = model_file("ds_cnn")
    want = len(hx.preflight(import_onnx(path), "m1").entries)
    assert want == len(hx.preflight(path, "m1").entries) == len(hx.preflight(path.read_bytes(), "m1").entries)
    assert len(hx.preflight({"a": hx.relu(x(4))}, "m1").entries) == 1


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        (lambda: hx.relu(x(4)), "host", "'host', which is no chip"),
        (lambda: 3, "m1", r"\[preflight\] got int, need a Graph"),
        (lambda: hx.relu(x(4)), "m99", r"\[target\] got 'm99'"),
    ],
)
def test_errors_name_what_is_wrong(model: Build, target: str, message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.preflight(model(), target)


@pytest.mark.filterwarnings("ignore::hexane.HazardWarning")
def test_an_op_that_moves_many_times_its_tensors_says_so() -> None:
    weight = np.random.default_rng(1).standard_normal((32, 1, 40, 40)).astype(np.float32)
    graph = hx.graph({"y": hx.conv_transpose(hx.input("x", (1, 32, 32, 32)), weight, strides=(8, 8), groups=32)})
    (entry,) = hx.preflight(graph, "h13").entries
    program = hx.compile(graph, target="h13", device="cpu").program
    assert program is not None
    moved = sum(layer.loaded + layer.stored for layer in program.layers) / 2**20
    said = float(entry.verdict.reason.partition("it moves ")[2].partition(" MiB")[0])
    assert moved * 0.8 < said < moved * 1.2
    small = hx.graph({"y": hx.resize(hx.input("x", (1, 32, 64, 64)), sizes=(512, 512))})
    assert "it moves" not in hx.preflight(small, "h13").entries[0].verdict.reason


def test_an_op_that_moves_its_own_tensors_says_nothing() -> None:
    graph = hx.graph({"y": hx.softplus(hx.input("x", (1, 64, 256, 256)))})
    for chip in ("h13", "h16"):
        assert "it moves" not in str(hx.preflight(graph, chip))


@pytest.mark.parametrize("target", ["h11", "h13"])
def test_a_small_offset_in_one_channel_stays_on_the_engine(target: str) -> None:
    """A batch norm written as product and sum, then the next scale: fp16 loses 3e-8 of an offset next to numbers near
    0.01."""
    rng = np.random.default_rng(0)
    offset = rng.normal(0, 0.1, (1, 4, 1, 1)).astype(np.float32)
    offset[0, 2] = 4.74e-05
    variance = (10 ** rng.uniform(4, 5, 4)).astype(np.float32)
    h = x(1, 4, 16, 16) * (1 / np.sqrt(variance)).reshape(1, 4, 1, 1) + offset
    y = hx.relu(h * (100 + rng.random((1, 4, 1, 1), np.float32)) + rng.normal(0, 1, (1, 4, 1, 1)).astype(np.float32))
    report = hx.preflight(y, target)
    assert [entry.verdict.verdict for entry in report.entries] == ["native"] * len(report.entries)
    pixels = rng.integers(0, 256, (1, 4, 16, 16)).astype(np.float32)
    got, want = (np.asarray(net(pixels)) for net in (hx.compile(y, target=target), hx.compile(y)))
    assert np.linalg.norm(got - want) < 2e-3 * np.linalg.norm(want)


def test_an_op_whose_form_leaves_fp16_says_so() -> None:
    """A batch norm that is a product and a sum on old chips, where the product may be beyond fp16."""
    norm = hx.batch_norm(x(1, 2, 4, 4), w(2), w(2) * 1e-8, w(2), w(2), epsilon=0.0)
    for entry in hx.preflight(hx.hard_swish(norm), "h11").entries:
        assert entry.verdict.verdict == "host"
        assert "fp16 does not hold" in entry.verdict.reason
