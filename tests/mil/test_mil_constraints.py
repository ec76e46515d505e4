"""What the engine's compiler would refuse is refused before it is written, with its number; what can be written
otherwise is."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.emit.mil import Mil, budget, emit_mil
from hexane.errors import Error
from hexane.targets.mil import mil_limits
from hexane.targets.query import load_chip
from mil_programs import assert_read_back

H13 = load_chip("h13")


def x(*shape: int, name: str = "x", dtype: str = "fp16") -> hx.Tensor:
    return hx.input(name, shape, dtype)


def w(*shape: int) -> Any:
    return np.full(shape, 0.5, np.float16)


def emit(outputs: Any) -> Mil:
    mil = emit_mil(hx.graph(outputs), H13)
    assert_read_back(mil)
    return mil


def ops(mil: Mil) -> list[str]:
    return [node.op for node in mil.graph.nodes if node.op not in ("input", "const")]


@pytest.mark.parametrize(
    ("make", "number", "message"),
    [
        (lambda: hx.conv(x(1, 32000, 1, 1), w(1, 32000, 1, 1)), 16, "got 32000 input channels, need less than 32000"),
        (lambda: hx.relu(x(1, 4, 1, 20000)), 22, "does not run it"),
        (lambda: hx.relu(x(1, 1, 1, 1, 1, 4)), 23, "need 1 to 5 axes"),
        (lambda: hx.relu(x(0, 4)), 22, "need elements"),
        (
            lambda: hx.argsort(x(1, 4), dtype="int32"),
            24,
            r"got int32\[1, 4\], need one of fp16, int8, uint8, int16, uint16",
        ),
        (lambda: hx.add(x(1, 4, dtype="int32"), 1), 24, r"got int32\[1, 4\]"),
        (lambda: hx.mul(hx.reduce_sum(x(1, 4)), 0.0), 27, "got a reduction times 0"),
        (lambda: hx.tan(x(1, 4)), 31, "h13 does not run it"),
        (lambda: hx.conv(x(2, 4, 3, 3), x(5, 4, 1, 1, name="w")), 32, "need a batch of 1"),
        (lambda: hx.const(np.ones(3, np.float16)), 14, "as an output"),
    ],
)
def test_what_the_compiler_refuses_has_a_number(make: Any, number: int, message: str) -> None:
    with pytest.raises(Error, match=rf"^\[emit\] .*{message}.*\(constraint {number}\)$"):
        emit(make())


def test_concat_says_interleave_and_gelu_its_mode() -> None:
    text = emit({"y": hx.concat(x(1, 4), x(1, 4, name="z"), axis=1), "g": hx.gelu(x(1, 4, name="u"))}).text
    assert "interleave = interleave" in text
    assert 'val = string("EXACT")' in text


def test_an_attention_with_a_mask_is_written_out() -> None:
    q, mask = x(1, 2, 8, 4), np.triu(np.full((8, 8), -65504, np.float16), 1)
    masked = emit(hx.scaled_dot_product_attention(q, q, q, mask))
    assert ops(masked) == ["mul", "matmul", "add", "softmax", "matmul"]


def test_an_attention_without_a_mask_and_of_the_usual_scale_is_one_op() -> None:
    q = x(1, 2, 8, 4)
    assert ops(emit(hx.scaled_dot_product_attention(q, q, q))) == ["scaled_dot_product_attention"]
    assert ops(emit(hx.scaled_dot_product_attention(q, q, q, scale=2.0))) == ["matmul", "mul", "softmax", "matmul"]


def test_a_bias_is_added_behind_a_convolution() -> None:
    assert ops(emit(hx.conv(x(1, 3, 4, 4), w(2, 3, 1, 1), w(2)))) == ["conv", "add"]


def test_outputs_are_alive_and_inputs_are_read() -> None:
    y, unread = x(1, 4), x(1, 4, name="unread")
    graph = hx.graph({"y": hx.relu(y), "x_again": hx.reshape(y, shape=(1, 4))})
    mil = emit_mil(replace(graph, inputs=(*graph.inputs, unread.value)), H13)
    assert sorted(ops(mil)) == ["mul", "relu"]
    assert [p.name for p in mil.inputs] == ["x"]
    assert_read_back(mil)


# Differences of halves from the mean, divided by the largest of the row, so that no square leaves fp16.
WIDE_NORM = ["mul", "reduce_mean", "sub", "abs", "reduce_max", "maximum", "mul", "inverse", "mul", "mul"]
WIDE_NORM += ["mul", "square", "reduce_mean", "mul", "mul", "add", "rsqrt", "mul"]


@pytest.mark.parametrize(
    ("shape", "affine", "expected"),
    [
        ((1, 2, 3, 1023), True, ["layer_norm"]),
        ((1, 2, 3, 1024), True, ["layer_norm", "mul", "add"]),
        ((1, 3, 1024), True, ["layer_norm"]),
        ((1, 2, 3, 1024), False, ["layer_norm"]),
        ((1, 3, 10240), False, WIDE_NORM),
    ],
)
def test_a_layer_norm_that_is_too_wide_is_written_in_parts(shape: Any, affine: bool, expected: list[str]) -> None:
    params = (w(shape[-1]), w(shape[-1])) if affine else ()
    assert ops(emit(hx.layer_norm(x(*shape), *params))) == expected


def test_a_border_of_infinities_is_written_as_constants() -> None:
    mil = emit(hx.pad(x(1, 3, 4), begin=(0, 1, 0), end=(0, 0, 2), value=-np.inf))
    assert ops(mil) == ["concat", "concat"]
    assert "inf" not in mil.text


def test_weights_are_in_one_file_however_many_there_are() -> None:
    y = x(1, 8, 4, 4)
    for i in range(40):
        y = hx.relu(hx.conv(y, w(8, 8, 1, 1) * (i + 1)))
    mil = emit(y)
    assert mil.text.count("BLOBFILE") == 40
    assert mil.text.count("@model_path/") == mil.text.count("@model_path/weights/weights.bin") == 40


def test_ports_are_in_the_order_of_their_names() -> None:
    """By the bytes of the names; the same for inputs and outputs of any sizes."""
    b, a, upper = x(1, 4, name="b"), x(2, 3, 4, 5, name="a"), x(8, name="Z")
    mil = emit({"z": hx.relu(b), "y2": hx.relu(a), "Y": hx.relu(upper)})
    assert [p.name for p in mil.inputs] == ["Z", "a", "b"]
    assert [p.name for p in mil.outputs] == ["Y", "y2", "z"]
    assert mil.text.index("fp16, [8]> Z") < mil.text.index("fp16, [2, 3, 4, 5]> a") < mil.text.index("fp16, [1, 4]> b")
    assert mil.text.rstrip().endswith("-> (Y, y2, z);\n}")


def test_params_are_constants_of_the_program() -> None:
    mil = emit(hx.matmul(x(4, 16), hx.param("w", np.full((16, 16), 0.5, np.float16))))
    assert [p.name for p in mil.inputs] == ["x"]
    assert len(mil.weights) == 128 + 512


def test_offsets_are_those_of_the_metadata() -> None:
    mil = emit(hx.relu(hx.conv(hx.conv(x(1, 8, 4, 4), w(8, 8, 1, 1)), w(8, 8, 1, 1) * 2)))
    offsets = [int(n) for n in re.findall(r"offset = uint64\((\d+)\)", mil.text)]
    assert offsets == [64, 256]
    for offset in offsets:
        assert mil.weights[offset : offset + 4] == b"\xef\xbe\xad\xde"


def test_a_matmul_says_both_transposes() -> None:
    text = emit(hx.matmul(x(4, 8), w(8, 4))).text
    assert re.search(r"matmul\(x = x, y = \w+, transpose_x = \w+, transpose_y = \w+\)", text)


def test_weights_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = mil_limits()
    small = replace(limits.program_bytes, fact=replace(limits.program_bytes.fact, value=512))
    monkeypatch.setattr("hexane.emit.mil.constraints.mil_limits", lambda: replace(limits, program_bytes=small))
    with pytest.raises(Error, match=r"got 512 bytes of weights, need less than 512 \(constraint 26\)"):
        emit(hx.matmul(x(4, 16), w(16, 16)))
    emit(hx.matmul(x(4, 16), w(16, 15)))


def test_names_are_given_once_and_every_statement_has_one() -> None:
    y = hx.relu(x(1, 4, name="relu"))
    text = emit({"conv": y, "a b": hx.abs(y), "a_b": hx.exp(y)}).text
    names = re.findall(r'\[name = string\("(\w+)"\)', text)
    assert len(names) == len(set(names)) == text.count(" = const()[") + 3
    assert not {"relu", "conv", "abs", "exp"} & set(names)


@pytest.mark.parametrize(
    ("make", "number", "said"),
    [
        (
            lambda: hx.matmul(x(4, 64), w(64, 64)),
            17,
            "slow: a 1x1 convolution with the same numbers is about 3 times as fast",
        ),
        (lambda: hx.conv(x(1, 4, 8, 31), w(4, 4, 1, 1)), 29, "slow: got rows of 31, a multiple of 32 is faster"),
        (lambda: hx.softmax(x(4, 48), axis=1), 30, "unconfirmed: got an axis of 48; somebody reported failures"),
    ],
)
def test_what_is_slow_or_not_known_to_work_is_said(make: Any, number: int, said: str) -> None:
    (decision,) = [d for d in emit(make()).graph.decisions if d.stage == "emit"]
    assert f"{decision.verdict}: {decision.reason}".startswith(said)
    assert decision.reason.endswith(f"(constraint {number})")


@pytest.mark.parametrize(
    "make",
    [
        lambda: hx.matmul(x(4, 64), x(64, 64, name="y")),
        lambda: hx.conv(x(1, 4, 8, 64), w(4, 4, 1, 1)),
        lambda: hx.conv(x(1, 4, 1, 1), w(4, 4, 1, 1)),
        lambda: hx.softmax(x(4, 64), axis=1),
        lambda: hx.softmax(x(4, 1), axis=1),
    ],
)
def test_nothing_is_said_of_what_is_fast_and_known(make: Any) -> None:
    assert not [d for d in emit(make()).graph.decisions if d.stage == "emit"]


def test_more_programs_than_a_process_compiles_are_a_hazard() -> None:
    assert not budget("net", 119)
    (decision,) = budget("net", 120)
    assert decision.verdict == "hazard"
    assert "got 120 programs, and one process may compile 119" in decision.reason
    assert "(constraint 5)" in decision.reason


HERE, DISPATCH, STRICT = "mil/test_mil_constraints", "device/test_dispatch", "device/test_stand_in"
REFUSED = f"{HERE}:test_what_the_compiler_refuses_has_a_number"
SAID = f"{HERE}:test_what_is_slow_or_not_known_to_work_is_said"
STRICTLY = f"{STRICT}:test_what_the_device_refuses_is_refused"
STRIDES = f"{DISPATCH}:test_ports_have_names_and_strides_of_the_loaded_model"
TESTED = {
    1: f"{HERE}:test_concat_says_interleave_and_gelu_its_mode",
    2: "runtime/test_state_on_a_device:test_outputs_of_a_program_are_of_one_size",
    3: f"{HERE}:test_ports_are_in_the_order_of_their_names",
    4: f"{DISPATCH}:test_surfaces_that_are_too_small_are_refused_by_name",
    5: f"{DISPATCH}:test_budgets_are_refused_before_they_bite",
    6: f"{HERE}:test_an_attention_with_a_mask_is_written_out",
    7: f"{HERE}:test_params_are_constants_of_the_program",
    8: f"{HERE}:test_offsets_are_those_of_the_metadata",
    9: STRICTLY,
    10: f"{HERE}:test_concat_says_interleave_and_gelu_its_mode",
    11: STRICTLY,
    12: f"{HERE}:test_a_matmul_says_both_transposes",
    13: f"{HERE}:test_a_bias_is_added_behind_a_convolution",
    14: f"{HERE}:test_outputs_are_alive_and_inputs_are_read",
    15: "device/test_compile_worker:test_the_worker_takes_over_when_the_budget_is_spent",
    16: REFUSED,
    17: SAID,
    18: "device/test_ill_frameworks:test_a_network_runs_where_the_surfaces_of_a_side_have_to_be_equal",
    19: f"{HERE}:test_ports_are_in_the_order_of_their_names",
    20: STRIDES,
    21: STRIDES,
    22: REFUSED,
    23: REFUSED,
    24: REFUSED,
    25: f"{HERE}:test_weights_are_in_one_file_however_many_there_are",
    26: f"{HERE}:test_weights_that_are_too_large_are_refused",
    27: REFUSED,
    28: f"{HERE}:test_a_layer_norm_that_is_too_wide_is_written_in_parts",
    29: SAID,
    30: SAID,
    31: REFUSED,
    32: REFUSED,
    33: f"{HERE}:test_names_are_given_once_and_every_statement_has_one",
    34: "mil/test_finite_constants:test_a_mask_of_infinities_is_finite_and_gives_what_the_host_gives",
    35: "passes/test_split_stalled_kernels:test_programs_and_packages_have_the_parts",
}


@pytest.mark.parametrize("number", range(1, 35))
def test_every_constraint_is_on_the_page_and_has_its_test(number: int) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "mil.md").read_text(encoding="utf-8").partition("## Constraints")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in page.splitlines() if re.match(r"\| \d", row)]
    assert number in {int(n) for row in rows for n in re.findall(r"\d+", row)}
    file, _, test = TESTED[number].partition(":")
    assert f"\ndef {test}(" in (root / "tests" / f"{file}.py").read_text(encoding="utf-8")
