"""What is known of ops: each rule finds what it is about, names what to write, and says so once for each kind of op."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import spawn
from hexane.build import Tensor
from hexane.report.explain import explain
from hexane.report.preflight import preflight
from hexane.report.rules import Finding, find_rules
from hexane.targets.fact import STATUSES
from hexane.targets.rules import rules
from hexane.targets.tables import table
from mil_programs import program

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")


def w(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float16)


def x(*shape: int, name: str = "x") -> Tensor:
    return hx.input(name, shape, "fp16")


def conv(kernel: int = 1, **attrs: object) -> Tensor:
    return hx.conv(x(1, 32, 96, 96), w(32, 32, kernel, kernel), **attrs)  # type: ignore[arg-type]


def packed(dtype: str, **attrs: object) -> Tensor:
    image = hx.input("x", (1, 32, 96, 96), "fp32")
    return hx.conv(image, weights(dtype), **attrs)  # type: ignore[arg-type]


def weights(kind: str) -> Tensor:
    if kind == "palette":
        return hx.gather(np.ones(16, np.float32), hx.const(np.zeros((32, 32, 1, 1), np.int32)), axis=0)
    if kind.startswith("blocks"):
        codes = np.full((32, 32, 1, 1), 7 if kind == "blocks of int4" else 100, np.int8)
        return hx.decode_blocks(codes, np.ones((32, 2, 1, 1), np.float32))
    most = {"int8": 100, "int4": 7, "uint4": 15}[kind]
    integers = np.full((32, 32, 1, 1), most, np.uint8 if kind == "uint4" else np.int8)
    integers[0] = 0 if kind == "uint4" else -8
    return hx.dequantize(hx.const(integers), np.float32(1))


def hidden(value: float) -> Tensor:
    mask = np.where(np.tri(32, dtype=np.bool_), 0, value).astype(np.float16)
    return hx.softmax(x(32, 32) + mask)


def bounded(op: Callable[..., Tensor], bound: float) -> Tensor:
    """A softmax of scores below their largest, which is kept from an infinity."""
    scores = x(32, 32)
    return hx.softmax(scores - op(hx.reduce_max(scores, axes=(-1,), keep_dims=True), hx.const(np.float16(bound))))


Case = tuple[str, Callable[[], Tensor], str]
BROKEN: list[Case] = [
    ("kernel_dma", lambda: hx.matmul(x(32, 4096), w(4096, 4096)), "pad the 4096 outputs to 4128, with zeros"),
    ("kernel_dma", lambda: hx.matmul(x(32, 4096), w(4000, 4096), transpose_y=True), ""),
    ("kernel_dma", lambda: hx.linear(x(32, 4096), w(2048, 4096)), "pad the 2048 outputs to 2080"),
    ("kernel_dma", lambda: hx.linear(x(32, 4096), w(2064, 4096)), "pad the 2064 outputs to 2080"),
    ("kernel_dma", lambda: hx.linear(x(32, 4096), w(2080, 4096)), ""),
    ("kernel_dma", lambda: hx.linear(x(32, 32), w(32, 32)), ""),
    ("kernel_dma", lambda: hx.conv(x(1, 512, 96, 96), w(1820, 512, 3, 3)), "pad the 1820 outputs to 1856"),
    ("infinite_mask", lambda: hidden(-np.inf), "write -40000"),
    ("infinite_mask", lambda: hidden(-40000), ""),
    ("infinite_mask", lambda: bounded(hx.maximum, -np.inf), ""),
    ("infinite_mask", lambda: bounded(hx.minimum, np.inf), ""),
    ("infinite_mask", lambda: bounded(hx.minimum, -np.inf), "write -40000"),
    ("infinite_mask", lambda: x(32, 32) + np.full((32, 32), -np.inf, np.float16), ""),
    ("conv_strides", lambda: conv(strides=14, kernel=14), "use equal strides of 1, 2, 3, 4, 6, 8"),
    ("conv_strides", lambda: conv(strides=(2, 5), kernel=5), "one of 2 with one of 1, 3, 4, 8 or 9"),
    ("conv_strides", lambda: conv(strides=(3, 4), kernel=4), "use equal strides"),
    ("conv_strides", lambda: conv(strides=(2, 3), kernel=4), ""),
    ("conv_strides", lambda: conv(strides=16, kernel=16), ""),
    ("conv_strides", lambda: conv(strides=(1, 2), kernel=4), ""),
    ("pool_strides", lambda: hx.max_pool(x(1, 32, 96, 96), kernel_sizes=(3, 3), strides=3), "strides of 1, 2 or 4"),
    ("pool_strides", lambda: hx.max_pool(x(1, 32, 96, 96), kernel_sizes=(2, 2), strides=2), ""),
    ("pool_strides", lambda: hx.avg_pool(x(1, 32, 7, 7), kernel_sizes=(7, 7), strides=7), ""),
    (
        "palette_strides",
        lambda: packed("palette", strides=4),
        "strides of 4 x 4, more than 2: keep these weights as fp16",
    ),
    ("palette_strides", lambda: packed("palette", strides=2), ""),
    ("dilations", lambda: conv(kernel=3, dilations=5), "products of 2 or 3"),
    ("dilations", lambda: conv(kernel=3, dilations=6), ""),
    ("linear_int4", lambda: packed("int4"), "a palette of 16 numbers"),
    ("linear_int4", lambda: packed("uint4"), "a palette of 16 numbers"),
    ("linear_int4", lambda: packed("blocks of int4"), "a palette of 16 numbers"),
    ("linear_int4", lambda: packed("blocks of int8"), ""),
    ("linear_int4", lambda: packed("int8"), ""),
    ("linear_int4", lambda: packed("palette"), ""),
    ("short_rows", lambda: hx.relu(x(1, 64, 96, 1)), "make a longer axis the last one"),
    ("short_rows", lambda: hx.relu(x(1, 96)), ""),
    ("short_rows", lambda: hx.relu(x(1, 64, 96, 28)), ""),
    ("short_rows", lambda: hx.relu(x(1, 64, 96, 16)), "32 bytes, which take 64 each: 2 times the memory"),
    ("fused_attention", lambda: hx.scaled_dot_product_attention(*(x(1, 2, 32, 32, name=n) for n in "qkv")), "head"),
    ("silu_in_fp32", lambda: hx.silu(x(32, 32)), "x * sigmoid(x)"),
    ("tanh_by_sigmoid", lambda: hx.tanh(x(32, 32)), "2 * sigmoid(2 * x) - 1"),
    ("overflowing_exp", lambda: hx.softplus(x(32, 32)), "infinite above 11"),
    ("argmax", lambda: hx.reduce_argmax(x(32, 32), axis=-1), "compute it on the CPU"),
    ("topk", lambda: hx.topk(x(32, 32), k=3)[0], "1750 microseconds"),
    ("input_weights", lambda: hx.matmul(x(32, 40), x(40, 32, name="w")), "pad it to 64"),
    ("input_weights", lambda: hx.matmul(x(32, 64), x(64, 32, name="w")), ""),
]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: hx.conv(x(1, 1, 4, 4096), np.ones((4, 1, 1, 256), np.float16), strides=(1, 128)), "conv_strides"),
        (lambda: hx.max_pool(x(1, 32, 96, 96), kernel_sizes=3, strides=3), "pool_strides"),
        (lambda: hx.conv(x(1, 3, 32, 32), np.ones((8, 3, 3, 3), np.float16), dilations=5), "dilations"),
    ],
)
def test_a_layer_that_is_written_as_others_raises_no_alarm_of_its_own(make: Callable[[], Tensor], rule: str) -> None:
    """The convolution of a spectrogram has strides of 128: the engine gets others."""
    assert rule in found(make())
    for chip in ("h13", "h14", "h17s"):
        report = hx.preflight(make(), chip)
        assert report.entries[-1].verdict.verdict != "native"
        assert rule not in {finding.rule for finding in report.findings}


def found(outputs: Tensor) -> dict[str, Finding]:
    return {finding.rule: finding for finding in find_rules(hx.graph(outputs))}


@pytest.mark.parametrize(("rule", "make", "said"), BROKEN, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(BROKEN)])
def test_a_rule_finds_what_breaks_it_and_says_what_to_write(rule: str, make: Callable[[], Tensor], said: str) -> None:
    finding = found(make()).get(rule)
    assert (finding is not None) == bool(said), finding
    assert finding is None or said in str(finding)


def test_every_rule_has_an_example() -> None:
    assert {rule for rule, _, said in BROKEN if said} == set(rules())


@pytest.mark.parametrize("name", rules())
def test_a_rule_has_a_source_and_a_status(name: str) -> None:
    rule = rules()[name]
    known = tuple(table("sources"))
    for source, status in ((rule.source, rule.status), *((f.source, f.status) for f in rule.numbers.values())):
        assert source.startswith(known)
        assert status in STATUSES


@pytest.mark.slow
def test_no_padded_size_is_near_a_multiple_again() -> None:
    for inputs in (1024, 1152, 4096, 4608, 8192):
        for outputs in range(16, 8192, 112):
            y = hx.linear(x(32, inputs), hx.const(np.broadcast_to(np.float16(1), (outputs, inputs))))
            finding = found(y).get("kernel_dma")
            if finding is None:
                continue
            padded = int(finding.instead.split(" to ")[1].split(",")[0])
            count = padded // 16 * inputs * 2
            assert padded > outputs
            assert min(count % 2**20, -count % 2**20) >= 2**14


def network() -> hx.Graph:
    y = x(32, 4096)
    for _ in range(3):
        y = hx.tanh(hx.linear(y, w(4096, 4096)))
    return hx.graph(y)


def test_one_line_for_each_rule_and_op_counts_the_others() -> None:
    findings = find_rules(network())
    assert [(f.rule, f.op, f.count) for f in findings] == [("kernel_dma", "linear", 3), ("tanh_by_sigmoid", "tanh", 3)]
    assert str(findings[0]).startswith("linear at ")
    assert " (1 of 3 ops): 4096 x 4096 streams its weights slowly, at worst at a third of the rate" in str(findings[0])


def test_only_ports_of_the_engine_have_advice_about_its_rows() -> None:
    """The input is read by the engine and by the CPU, y is written by the engine, z by the CPU."""
    x = hx.input("x", (1, 64, 96, 1))
    y = hx.relu(x)
    report = preflight(hx.graph({"y": y, "z": hx.tan(x)}), "h16")
    assert [f.wrong.partition(" ")[0] for f in report.findings if f.rule == "short_rows"] == ["x", "y"]
    assert not preflight(hx.graph({"z": hx.tan(x)}), "h16").findings


def test_reports_say_what_is_known() -> None:
    report = preflight(network(), "h16")
    line = "pad the 4096 outputs to 4128, with zeros (engine DMA notes, measured)"
    assert line in str(report)
    assert [r["op"] for r in report.record()["rules"]] == ["linear", "tanh"]
    told = explain(network(), "h16")
    assert sum(line in text for text in told.lines) == 1
    assert json.loads(told.to_json())["rules"] == report.record()["rules"]


def printed(*args: object) -> str:
    with spawn(*args, stdout=subprocess.PIPE) as process:
        out, error = process.communicate()
    assert process.returncode == 0, error
    return str(out)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["A14", "A14,M4"])
def test_check_and_explain_print_a_rule_once(tmp_path: Path, target: str) -> None:
    path = tmp_path / "model.mil"
    path.write_text(program(hx.graph(hx.tanh(hx.tanh(x(1, 4, 4, 32))))).text, encoding="utf-8")
    assert printed("check", path, "--target", target).count("write 2 * sigmoid(2 * x) - 1") == 1
    told = json.loads(printed("check", path, "--target", target, "--json"))
    assert [r["rule"] for r in told["targets"][0]["rules"]] == ["tanh_by_sigmoid"]
    assert printed("explain", path, "--target", "A14").count("write 2 * sigmoid(2 * x) - 1") == 1
