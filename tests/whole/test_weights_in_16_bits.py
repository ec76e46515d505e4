"""Networks with weights in 16 bits and sums in fp32: the bits of fp32, in half the memory."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hexane as hx

KINDS = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
PRODUCTS = {"bf16": "cpu.widening_bf16_matmul", "fp16": "cpu.widening_matmul"}


def weight(kind: str, *shape: int) -> np.ndarray:
    values = np.random.default_rng(sum(shape)).standard_normal(shape) * shape[-1] ** -0.5
    return values.astype(KINDS[kind])


def ops(net: Any) -> list[str]:
    return [step.node.op for step in net.program.steps]


def results(graph: hx.Graph, rows: int, **options: Any) -> tuple[Any, np.ndarray]:
    net = hx.compile(graph, threads=1, **options)
    return net, np.asarray(net(np.random.default_rng(1).standard_normal((rows, 300)).astype(np.float32)))


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cast_weight_is_not_widened_at_compile_time(kind: str, rows: int) -> None:
    w, bias = weight(kind, 400, 300), np.linspace(-1, 1, 400).astype(np.float32)

    held = hx.cast(hx.const(w), dtype="fp32")
    graph = hx.graph(hx.gelu(hx.linear(hx.input("x", (rows, 300)), held, hx.const(bias))))

    plain = np.asarray(
        hx.compile(hx.graph(hx.linear(hx.input("x", (rows, 300)), hx.param("w", w.astype(np.float32)))))(
            np.random.default_rng(1).standard_normal((rows, 300)).astype(np.float32)
        )
    )
    net, got = results(graph, rows)
    assert ops(net) == [PRODUCTS[kind]]
    assert net.memory["weights"] < 1.1 * w.nbytes
    want = np.asarray(hx.compile(hx.graph(hx.gelu(hx.input("y", plain.shape))))(plain + bias))
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_other_ops_read_is_widened_once(kind: str) -> None:
    w = weight(kind, 300, 300)
    held = hx.cast(hx.const(w), dtype="fp32")
    x = hx.input("x", (300, 300))
    net, got = results(hx.graph(hx.matmul(x, held) + held), 300)
    assert "cast" not in ops(net)
    assert got.shape == (300, 300)
    assert "cpu.matmul" in ops(net)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_products_in_bf16_read_a_cast_weight_in_bf16(kind: str, rows: int) -> None:
    """With the bits of a weight in fp32, whatever the number of rows."""
    w = weight(kind, 400, 300)
    net, got = results(
        hx.graph(hx.linear(hx.input("x", (rows, 300)), hx.cast(hx.const(w), dtype="fp32"))), rows, dtype="bf16"
    )
    assert ops(net) == ["cpu.bf16_matmul"]
    assert net.memory["weights"] < 1.1 * w.nbytes
    wide = hx.graph(hx.linear(hx.input("x", (rows, 300)), hx.const(w.astype(np.float32))))
    assert np.array_equal(got, results(wide, rows, dtype="bf16")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_constants_decide_is_computed_at_compile_time(kind: str) -> None:
    """Rows of a table of positions at known places, and a product of two weights."""
    w, other = weight(kind, 300, 256), weight(kind, 256, 300)
    table, places = hx.cast(hx.const(w), dtype="fp32"), hx.const(np.array([2, 0, -1], np.int32))
    product = hx.matmul(table, hx.cast(hx.const(other), dtype="fp32"))
    x = hx.input("x", (3, 256))
    net = hx.compile(hx.graph([x + hx.gather(table, places), hx.input("y", (300, 300)) + product]))
    assert ops(net) == ["cpu.add", "cpu.add"]
    first, second = net(x=np.zeros((3, 256), np.float32), y=np.zeros((300, 300), np.float32)).values()
    assert np.array_equal(first, w[[2, 0, -1]].astype(np.float32))
    exact = w.astype(np.float64) @ other.astype(np.float64)
    np.testing.assert_allclose(second, exact, atol=1e-5)


def test_a_weight_in_fp32_stays() -> None:
    w = weight("bf16", 400, 300).astype(np.float32)
    net, _ = results(hx.graph(hx.linear(hx.input("x", (5, 300)), hx.const(w))), 5)
    assert ops(net) == ["cpu.matmul"]


@pytest.mark.parametrize("rows", [1, 30])
def test_a_model_in_bf16_keeps_its_weights(rows: int) -> None:
    """Its results are those in fp32, rounded once."""
    w, bias, more = weight("bf16", 400, 300), weight("bf16", 400), weight("bf16", rows, 400)
    x = weight("bf16", rows, 300) * 20
    graph = hx.graph(hx.relu(hx.linear(hx.input("x", x.shape, "bf16"), hx.const(w), hx.const(bias)) + hx.const(more)))
    net = hx.compile(graph, threads=1)
    assert "cpu.widening_bf16_matmul" in ops(net)
    assert net.memory["weights"] < 1.2 * (w.nbytes + more.nbytes)
    held, added, addend = (hx.const(v.astype(np.float32)) for v in (w, bias, more))
    wide = hx.compile(hx.graph(hx.relu(hx.linear(hx.input("x", x.shape), held, added) + addend)), threads=1)
    want = np.asarray(wide(x.astype(np.float32))).astype(KINDS["bf16"])
    assert np.array_equal(np.asarray(net(x)).view(np.uint16), want.view(np.uint16))


def test_special_numbers_keep_their_bits() -> None:
    w = weight("bf16", 400, 300)
    w[0, :4] = [np.inf, -0.0, 1e-40, -1e-39]
    _, got = results(hx.graph(hx.linear(hx.input("x", (2, 300)), hx.cast(hx.const(w), dtype="fp32"))), 2)
    wide = hx.compile(hx.graph(hx.linear(hx.input("x", (2, 300)), hx.param("w", w.astype(np.float32)))), threads=1)
    want = np.asarray(wide(np.random.default_rng(1).standard_normal((2, 300)).astype(np.float32)))
    assert np.array_equal(got, want, equal_nan=True)


def test_a_saved_plan_keeps_the_16_bits(tmp_path: Any) -> None:
    w = weight("fp16", 400, 300)
    net, got = results(hx.graph(hx.linear(hx.input("x", (5, 300)), hx.cast(hx.const(w), dtype="fp32"))), 5)
    net.save(tmp_path / "net.hxp")
    assert (tmp_path / "net.hxp").stat().st_size < 1.2 * w.nbytes
    x = np.random.default_rng(1).standard_normal((5, 300)).astype(np.float32)
    assert np.array_equal(np.asarray(hx.load(tmp_path / "net.hxp")(x)), got)
