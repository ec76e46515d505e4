"""encoded_rows_matmul: the bits of a product with the decoded weight, and its errors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cpu.test_kernels_encoded import MODES, kernels, whole
from tests.support.kernels import run, run_every_cut
from tests.support.remembered import quantised_once

import hexane as hx
from hexane.compression.compress import compress
from hexane.errors import Error
from hexane.graph import Graph
from hexane.targets import load_target

ROWS_KERNEL = "encoded_rows_matmul"
SHAPES = [(72, 64), (48, 608), (1152, 24), (1536, 97)]  # of weights: sums of one block and of several, odd widths


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


def there_and_back(shape: tuple[int, int], rows: tuple[int, ...], turned: bool = False) -> tuple[Graph, np.ndarray]:
    """A product with the weight, and one with its transpose: a linear layer and the gradient of its input."""
    rng = np.random.default_rng(shape)
    weight = hx.const(rng.standard_normal(shape).astype(np.float32))
    x = hx.input("x", (*rows, shape[1]))
    g = hx.input("g", (*rows[:-1], shape[0], rows[-1]) if turned else (*rows, shape[0]))
    bias = rng.standard_normal(shape[1]).astype(np.float32)
    back = hx.matmul(g, weight, transpose_x=turned) + bias
    return hx.graph({"y": hx.linear(x, weight), "back": hx.relu(back + 0.25) + hx.silu(back)}), weight.value.node.data


def fed(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_product_by_rows_has_the_bits_of_the_decoded_weight(mode: str, shape: tuple[int, int]) -> None:
    for rows, turned in (((1,), False), ((5,), True), ((2, 150), False), ((2, 23), True)):
        graph, _ = there_and_back(shape, rows, turned)
        small = compress(graph, hx.Compression(mode), load_target("host"))
        want = hx.compile(whole(small), threads=1)
        assert ROWS_KERNEL not in kernels(want)
        arrays = fed(graph)
        for threads in (1, 2):
            net = hx.compile(small, threads=threads)
            assert kernels(net).count(ROWS_KERNEL) == 1
            for name, array in want(**arrays).items():
                np.testing.assert_array_equal(net(**arrays)[name], array)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("palette", [0, 1])
def test_every_cut_has_the_same_bits(bits: int, palette: int) -> None:
    rng = np.random.default_rng(bits + palette)
    weight = rng.integers(0, 256, (600, 51 if bits == 8 else 26)).astype(np.uint8)
    numbers = rng.standard_normal((3, 13) if palette else (1, 600)).astype(np.float32)
    x, bias = rng.standard_normal((2, 30, 600)).astype(np.float32), rng.standard_normal(51).astype(np.float32)
    got = np.empty((2, 30, 51), np.float32)
    run_every_cut(
        ROWS_KERNEL, [x, weight, numbers, bias], [got], bits=bits, palette=palette, transpose_x=0, epilogue=()
    )
    op = hx.ops.OPS["cpu.encoded_rows_matmul"]
    attrs: dict[str, Any] = {"bits": bits, "palette": bool(palette), "transpose_x": False, "width": 51}
    want = op.ref(
        x.astype(np.float64), weight if palette or bits == 4 else weight.view(np.int8), numbers, bias, **attrs
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-3)


def test_the_weight_of_both_products_lies_in_the_plan_once() -> None:
    graph, weight = there_and_back((512, 256), (4,))
    for mode, share in (("int8", 0.27), ("blockwise4:b32", 0.17), ("palette4", 0.14)):
        net = hx.compile(graph, compress=mode)
        assert net.memory["weights"] < share * weight.nbytes
    small = compress(graph, hx.Compression("int8"), load_target("host"))
    assert ROWS_KERNEL not in kernels(hx.compile(small, memory=hx.Memory(runtime="c99")))


def test_a_weight_of_one_product_is_stored_as_the_faster_kernel_reads_it() -> None:
    rng = np.random.default_rng(0)
    product = hx.matmul(hx.input("x", (3, 96)), rng.standard_normal((96, 64)).astype(np.float32))
    for mode in ("int8", "palette4"):
        assert kernels(hx.compile(product, compress=mode)) == ["encoded_matmul"]


def test_an_index_beyond_the_table_names_its_last_entry() -> None:
    weight = np.tile(np.array([0, 6, 7, 255, 1, 200], np.uint8), (8, 1))
    y = np.zeros((2, 6), np.float32)
    numbers = np.arange(7, dtype=np.float32)[None]
    x = np.ones((2, 8), np.float32)
    run(ROWS_KERNEL, [x, weight, numbers], [y], {"bits": 8, "palette": 1, "transpose_x": 0, "epilogue": ()})
    np.testing.assert_array_equal(y, np.tile(8.0 * np.array([0, 6, 6, 6, 1, 6]), (2, 1)))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bits": 3}, "bits: got 3, need 4 or 8"),
    ({"weight": np.zeros((8, 2), np.uint8)}, r"weight: got \(8, 2\), need 3 bytes"),
    ({"x": np.ones((2, 7), np.float32)}, "as M x K and K x N"),
    ({"x": np.ones(8, np.float32)}, "ranks: got 1, 2 -> 2"),
    ({"numbers": np.ones((1, 7), np.float32)}, r"scales: got \(1, 7\), need \(blocks, 8\)"),
    ({"numbers": np.ones((2, 8), np.float32)}, r"scales: got \(2, 8\), .* even ones where there are several"),
    ({"palette": 1, "numbers": np.ones((2, 4), np.float32)}, r"tables: got \(2, 4\)"),
]


@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], told: str) -> None:
    found = {
        "x": np.ones((2, 8), np.float32), "weight": np.zeros((8, 3), np.uint8), "numbers": np.ones((1, 8), np.float32),
        "bits": 4, "palette": 0, "transpose_x": 0, "epilogue": (),
    } | changed  # fmt: skip
    arrays = [found.pop(name) for name in ("x", "weight", "numbers")]
    with pytest.raises(Error, match=told):
        run(ROWS_KERNEL, arrays, [np.zeros((2, 6), np.float32)], found)
