"""Products by weights in int8 that round their other operand to int8: their numbers, and which products they are."""

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error

TERMS, COLUMNS = 192, 96
PRODUCT = "cpu.quantized_matmul"


def weight(rows: int = COLUMNS, terms: int = TERMS, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, terms)) * terms**-0.5).astype(np.float32)


def activations(*shape: int) -> np.ndarray:
    """Rows of very different sizes, with channels of 300 and 20,000 as in trained language models."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[..., 3] += 300
    x[0, ..., 7] += 20000
    return np.asarray(
        x * np.float32(10.0) ** np.arange(-2, shape[0] - 2, dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1))
    )


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers, and a scale for each row, in fp64."""
    largest = np.abs(rows).max(axis=-1, keepdims=True).astype(np.float64)
    scale = np.where(largest == 0, 1, largest / 127)
    steps = rows / scale
    return np.sign(steps) * np.floor(np.abs(steps) + 0.5), scale


def compiled(graph: hx.Graph, **options: object) -> hx.Model:
    return hx.compile(graph, compress="int8", dtype="int8", **options)


def ops(net: hx.Model) -> list[str]:
    return [step.node.op for step in net.program.steps]


@pytest.mark.parametrize("shape", [(7, TERMS), (2, 5, TERMS), (1, TERMS)], ids=str)
def test_rows_are_rounded_to_int8(shape: tuple[int, ...]) -> None:
    x, bias = activations(*shape), np.arange(COLUMNS, dtype=np.float32)
    codes, scales = rounded(weight())
    stored = hx.dequantize(codes.astype(np.int8), scales[:, 0].astype(np.float32), axis=0)
    graph = hx.graph([hx.linear(hx.input("x", shape), stored, bias)])
    net = hx.compile(graph, dtype="int8")
    assert ops(net).count(PRODUCT) == 1
    steps, sizes = rounded(x)
    want = steps @ codes.T * sizes * scales[:, 0]
    far = np.abs(np.asarray(net(x)) - bias - want).max(axis=-1) / np.abs(want).max(axis=-1)
    assert far.max() < 1e-4  # the bias is larger than the smallest rows
    assert net(x).tobytes() == hx.compile(graph, dtype="int8", threads=2)(x).tobytes()


def test_a_matmul_by_columns_is_one_too() -> None:
    x, w = activations(4, TERMS), weight()
    net = compiled(hx.graph([hx.matmul(hx.input("x", (4, TERMS)), np.ascontiguousarray(w.T))]))
    assert PRODUCT in ops(net)
    np.testing.assert_allclose(
        net(x),
        hx.compile(hx.graph([hx.linear(hx.input("x", (4, TERMS)), w)]), compress="int8", dtype="int8")(x),
        rtol=1e-5,
    )


def test_products_of_the_same_rows_share_their_integers() -> None:
    x = hx.input("x", (3, TERMS))
    net = compiled(hx.graph([hx.linear(x, weight(seed=i)) for i in range(3)]))
    assert (ops(net).count("quantize_by_range"), ops(net).count(PRODUCT)) == (1, 3)
    assert sum(d.stage == "multiply_in_int8" for d in net.program.decisions) == 3


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    x = activations(5, TERMS)
    x[1, 4], x[3, 0], x[4] = np.nan, -np.inf, 0
    y = np.asarray(compiled(hx.graph([hx.linear(hx.input("x", x.shape), weight())]))(x))
    assert not np.isfinite(y[[1, 3]]).any()
    assert np.isfinite(y[[0, 2]]).all()
    assert not y[4].any()


@pytest.mark.parametrize("mode", ["blockwise8:b32", "palette4"])
def test_weights_in_blocks_and_palettes_multiply_in_fp32(mode: str) -> None:
    graph = hx.graph([hx.linear(hx.input("x", (3, TERMS)), weight())])
    x = activations(3, TERMS)
    net = hx.compile(graph, compress=mode, dtype="int8")
    assert PRODUCT not in ops(net)
    assert net(x).tobytes() == hx.compile(graph, compress=mode)(x).tobytes()


def test_without_weights_in_int8_nothing_changes() -> None:
    graph = hx.graph([hx.linear(hx.input("x", (3, TERMS)), weight())])
    x = activations(3, TERMS)
    assert hx.compile(graph, dtype="int8")(x).tobytes() == hx.compile(graph)(x).tobytes()


@pytest.mark.parametrize("largest", [4e-37, 3e-37, 2e-38])
def test_rows_of_tiny_numbers_keep_their_size(largest: float) -> None:
    """127 / largest would be infinite."""
    x = (activations(4, TERMS) / 25000 * largest).astype(np.float32)
    y = np.asarray(compiled(hx.graph([hx.linear(hx.input("x", x.shape), weight())]))(x))
    want = x.astype(np.float64) @ weight().T.astype(np.float64)
    assert np.abs(y - want).max() < 2.0**-126 * np.abs(weight()).sum(axis=1).max()


def test_a_graph_without_weights_in_int8_says_so() -> None:
    net = hx.compile(hx.graph([hx.linear(hx.input("x", (3, TERMS)), weight())]), dtype="int8")
    (decision,) = [d for d in net.program.decisions if d.stage == "multiply_in_int8"]
    assert "unchanged: no matrix product has an fp32 input and weights in int8" in str(decision)


def test_a_chip_has_no_products_in_int8() -> None:
    with pytest.raises(Error, match="dtype: got 'int8' for M1"):
        hx.compile(hx.graph([hx.linear(hx.input("x", (3, TERMS)), weight())]), target="M1", dtype="int8")
