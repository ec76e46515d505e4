"""What the engine's compiler would refuse is refused before it is written, with its number; what can be written otherwise is."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.emit.mil import Mil, emit_mil
from hexane.errors import Error
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
        (lambda: hx.greater(x(1, 4), 0.0), 24, r"got bool\[1, 4\], need one of fp16, int8, uint8, int16, uint16"),
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
    assert ops(masked) == ["matmul", "mul", "add", "softmax", "matmul"]


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


@pytest.mark.parametrize(
    ("shape", "affine", "expected"),
    [
        ((1, 2, 3, 1023), True, ["layer_norm"]),
        ((1, 2, 3, 1024), True, ["layer_norm", "mul", "add"]),
        ((1, 3, 1024), True, ["layer_norm"]),
        ((1, 2, 3, 1024), False, ["layer_norm"]),
        ((1, 3, 10240), False, ["reduce_mean", "sub", "mul", "reduce_sum_square", "add", "rsqrt", "mul"]),
    ],
)
def test_a_layer_norm_that_is_too_wide_is_written_in_parts(shape: Any, affine: bool, expected: list[str]) -> None:
    params = (w(shape[-1]), w(shape[-1])) if affine else ()
    assert ops(emit(hx.layer_norm(x(*shape), *params))) == expected


def test_a_border_of_infinities_is_written_as_constants() -> None:
    mil = emit(hx.pad(x(1, 3, 4), begin=(0, 1, 0), end=(0, 0, 2), value=-np.inf))
    assert ops(mil) == ["concat", "concat"]
    assert "inf" not in mil.text


def test_every_constraint_that_is_known_has_its_number_and_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "mil.md").read_text(encoding="utf-8")
    page = text.partition("## Constraints")[2].partition("\n## ")[0]
    assert {int(number) for number in re.findall(r"\b\d+\b", page)} >= set(range(1, 34))


def test_weights_are_in_one_file_however_many_there_are() -> None:
    y = x(1, 8, 4, 4)
    for i in range(40):
        y = hx.relu(hx.conv(y, w(8, 8, 1, 1) * (i + 1)))
    mil = emit(y)
    assert mil.text.count("BLOBFILE") == 40
    assert mil.text.count("@model_path/") == mil.text.count("@model_path/weights/weights.bin") == 40
