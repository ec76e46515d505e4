"""Products whose weights exceed the working set are convolutions, whatever the model writes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane.compression import as_compression
from hexane.compression.compress import compress
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.mil import emit_mil
from hexane.ops import OPS
from hexane.ops.encodings import encoding_of
from hexane.ops.reference import run_reference
from hexane.passes.layout.products_as_convolutions import products_as_convolutions
from hexane.targets.query import load_chip

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
CHIPS = ("h13", "h14", "h16", "h17s")
ROWS, INNER, COLUMNS = 24, 1024, 1152  # 2.25 MiB of weights in fp16
RNG = np.random.default_rng(5)
WEIGHTS = (RNG.standard_normal((INNER, COLUMNS)) / 32).astype(np.float32)
BACK = (RNG.standard_normal((COLUMNS, INNER)) / 32).astype(np.float32)
BIAS = RNG.standard_normal(COLUMNS).astype(np.float32)
INTEGERS = RNG.integers(-127, 128, (2 * INNER, COLUMNS)).astype(np.int8)  # 2.25 MiB
SCALES = (RNG.random(COLUMNS) / 2000 + 1e-4).astype(np.float32)

SPELLINGS: dict[str, Callable[[], hx.Tensor]] = {
    "matmul": lambda: hx.input("x", (1, ROWS, INNER)) @ WEIGHTS + BIAS,
    "bias in front": lambda: BIAS + hx.input("x", (1, ROWS, INNER)) @ WEIGHTS,
    "matmul with a bias": lambda: hx.matmul(hx.input("x", (1, ROWS, INNER)), WEIGHTS, BIAS),
    "transposed": lambda: hx.matmul(hx.input("x", (1, ROWS, INNER)), WEIGHTS.T.copy(), transpose_y=True) + BIAS,
    "linear": lambda: hx.linear(hx.input("x", (1, ROWS, INNER)), WEIGHTS.T.copy(), BIAS),
    "rank 2": lambda: hx.linear(hx.input("x", (ROWS, INNER)), WEIGHTS.T.copy(), BIAS),
    "rank 4": lambda: hx.input("x", (2, 3, ROWS // 6, INNER)) @ WEIGHTS + BIAS,
    "columns": lambda: hx.matmul(hx.input("x", (INNER, ROWS)), WEIGHTS, BIAS, transpose_x=True),
    "columns of rank 3": lambda: hx.matmul(hx.input("x", (1, INNER, ROWS)), WEIGHTS, BIAS, transpose_x=True),
    "columns of rank 4": lambda: hx.matmul(hx.input("x", (2, 3, INNER, ROWS // 6)), WEIGHTS, BIAS, transpose_x=True),
    "integers": lambda: hx.matmul(
        hx.input("x", (1, ROWS, 2 * INNER)),
        hx.dequantize(INTEGERS, SCALES, axis=1),
        BIAS,
    ),
    "blocks": lambda: hx.linear(
        hx.input("x", (1, ROWS, 2 * INNER)),
        hx.decode_blocks(INTEGERS.T.copy(), (RNG.random((COLUMNS, 64)) / 2000 + 1e-4).astype(np.float32)),
        BIAS,
    ),
    "palette": lambda: hx.matmul(
        hx.input("x", (1, ROWS, 2 * INNER)),
        hx.gather(RNG.standard_normal(200).astype(np.float32) / 64, np.abs(INTEGERS.astype(np.int32)), axis=0),
        BIAS,
    ),
    "conv": lambda: hx.conv(hx.input("x", (1, INNER, 1, ROWS)), WEIGHTS.T.reshape(COLUMNS, INNER, 1, 1).copy(), BIAS),
}


def fed(net: hx.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in net.inputs}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_product_bias_and_gelu_are_convolutions_alone(spelling: str, chip: str) -> None:
    model = hx.gelu(SPELLINGS[spelling]())
    plan = hx.explain(model, chip)
    kinds = {layer.kind for layer in plan.program.layers}
    assert kinds <= {"Conv", "Concat", "Transpose", "Reshape"}
    assert len(plan.program.layers) <= 3 or not load_chip(chip).gates.shared_kernel_data  # ports have channels last


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_numbers_are_those_of_the_host(spelling: str) -> None:
    model = hx.gelu(SPELLINGS[spelling]())
    host = hx.compile(model, target="host")
    x = fed(host)
    want = host(**x)
    for chip in ("h13", "h16"):
        got = hx.compile(model, target=chip, numerics="ieee")(**x)
        np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


def mlp() -> hx.Tensor:
    x = hx.input("x", (1, ROWS, INNER))
    y = hx.gelu(x @ WEIGHTS + BIAS) * 0.5
    return x + y @ BACK


@pytest.mark.parametrize("chip", CHIPS)
def test_elementwise_ops_between_two_products_read_the_image(chip: str) -> None:
    text = emit_mil(hx.graph(mlp()), load_chip(chip)).text
    assert text.count(" = conv(") == 2
    assert text.count(" = transpose(") == 2
    assert " = matmul(" not in text


@pytest.mark.parametrize("chip", CHIPS)
def test_the_residual_of_one_token_leaves_both_products_convolutions(chip: str) -> None:
    """A single row is a bias of the product that it is added to, one that is no constant."""
    x = hx.input("x", (1, INNER))
    y = x + hx.relu(x @ WEIGHTS + BIAS) @ BACK
    text = emit_mil(hx.graph(y), load_chip(chip)).text
    assert text.count(" = conv(") == 2
    assert " = matmul(" not in text
    host = hx.compile(y, target="host")
    fed_row = fed(host)
    got, want = hx.compile(y, target=chip, numerics="ieee")(**fed_row), host(**fed_row)
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


@pytest.mark.parametrize("encoding", ["none", "int8", "palette6", "blockwise4:b32"])
def test_a_head_of_many_words_is_convolutions_in_the_weight_s_encoding(encoding: str) -> None:
    """M1 computes 16,384 columns in one layer. The parts of an encoded weight keep the encoding."""
    weight = (np.random.default_rng(3).standard_normal((40_000, 320)) / 16).astype(np.float32)
    graph = hx.graph(hx.linear(hx.input("x", (1, 320)), hx.const(weight)))
    if encoding != "none":
        graph = compress(graph, as_compression(encoding), load_chip("M1"))
    written = for_engine(graph, load_chip("M1"))
    kernels = [node.inputs[1] for node in written.nodes if node.op == "conv"]
    assert len(kernels) == 3
    assert written.ops.isdisjoint({"matmul", "linear", "slice_by_size", "slice_by_index"})
    assert all((encoding_of(kernel).kind == "whole") == (encoding == "none") for kernel in kernels if kernel)
    x = {"x": np.random.default_rng(4).standard_normal((1, 320)).astype(np.float32)}
    want = next(iter(run_reference(graph, x).values()))
    got = [next(iter(run_reference(written, x).values())), hx.compile(graph, target="M1", numerics="ieee")(**x)]
    for result in got:
        np.testing.assert_allclose(result, want, atol=4e-3 * np.abs(want).max())


def test_each_weight_is_loaded_once() -> None:
    plan = hx.explain(mlp(), "h16")
    weights = 2 * (WEIGHTS.size + BACK.size)
    ports = 2 * 2 * ROWS * INNER
    assert sum(plan.traffic.values()) <= 1.15 * (weights + ports)


KEPT: dict[str, Callable[[], hx.Tensor]] = {
    "fits the working set": lambda: hx.input("x", (1, ROWS, INNER)) @ WEIGHTS[:, :512].copy(),
    "computed": lambda: hx.input("x", (ROWS, INNER)) @ hx.input("y", (INNER, COLUMNS)),
    "may change": lambda: hx.input("x", (ROWS, INNER)) @ hx.param("w", WEIGHTS),
    "a matrix for each image": lambda: hx.input("x", (2, ROWS, INNER)) @ np.stack([WEIGHTS, WEIGHTS]),
    "one row": lambda: hx.linear(hx.input("x", (INNER,)), WEIGHTS.T.copy()),
}


@pytest.mark.parametrize("case", KEPT)
def test_other_products_stay(case: str) -> None:
    graph = hx.graph(KEPT[case]())
    assert products_as_convolutions(graph, load_chip("h16")) is graph


def elementwise_calls() -> list[tuple[str, tuple[int, ...], int]]:
    """Ops of one and two operands, the shape of a constant operand, and its place."""
    shapes = ((6,), (1, 6), (6, 1), (1,), (), (6, 6, 6))
    calls: list[tuple[str, tuple[int, ...], int]] = []
    for name, op in sorted(OPS.items()):
        if op.elementwise and op.level == "user" and hasattr(hx, name):
            calls += [(name, (), -1)] if len(op.inputs or ()) == 1 else []
            calls += [(name, shape, i) for shape in shapes for i in (0, 1)] if len(op.inputs or ()) == 2 else []
    return calls


def test_every_elementwise_op_reads_the_image_along_the_right_axis() -> None:
    """All extents are equal, so that an operand along another axis would not be noticed by its shape."""
    h16 = load_chip("h16")
    chip = replace(h16, memory=replace(h16.memory, working_set=64))
    rng = np.random.default_rng(9)
    seen = set()
    for name, shape, place in elementwise_calls():
        y = hx.input("x", (6, 6, 6), "fp16") @ rng.standard_normal((6, 6)).astype(np.float16)
        constant = (np.abs(rng.standard_normal(shape)) + 0.1).astype(np.float16)
        try:
            model = getattr(hx, name)(*([y] if place < 0 else [constant, y] if place == 0 else [y, constant]))
        except (hx.Error, TypeError):
            continue  # ops of integers and truths
        graph = hx.graph(model)
        images = products_as_convolutions(graph, chip)
        assert "conv" in images.ops
        seen.add(name)
        feeds = {"x": rng.standard_normal((6, 6, 6)).astype(np.float16)}
        with np.errstate(all="ignore"):
            want, got = (next(iter(run_reference(one, feeds).values())) for one in (graph, images))
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2, err_msg=f"{name} {shape} {place}")
    assert {"add", "sub", "pow", "prelu", "greater", "gelu", "clip"} <= seen
