"""Weights stored with few bits: written as Core AI's own operations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from apple_runtime import has_apple_runtime, run_apple
from hexane.compression import Compression
from hexane.compression.compress import compress
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.coreai.write import emit_asset, save_graph
from hexane.graph import Graph
from hexane.importers.coreai import import_asset, import_coreai, open_asset, read_asset
from hexane.importers.coreai.numbers import BITS, numbers, packed
from hexane.targets import load_target
from hexane.targets.query import load_chip

LUT, BLOCKS, SPARSE = "lut_to_dense", "blockwise_shift_scale", "build_sparse_with_bitmask"
# The operation of each mode, and the bits of a number with its share of tables and scales in fp32.
MODES = {
    "int8": (BLOCKS, 8.6), "blockwise4:b32": (BLOCKS, 5.3), "blockwise8:b16": (BLOCKS, 10.2),
    **{f"palette{bits}": (LUT, bits + 2.1 if bits == 8 else bits + 0.7) for bits in (1, 2, 3, 4, 6, 8)},
    "palette4:g32": (LUT, 4.8), "palette3:g16": (LUT, 3.8), "sparse:0.6": (SPARSE, 14.1),
}  # fmt: skip


def network() -> Graph:
    """Weights of a linear layer, of images and of lines, of a product, and rows of an embedding."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.1).astype(np.float32)

    x, image, line = hx.input("x", (1, 64)), hx.input("image", (1, 32, 6, 6)), hx.input("line", (1, 32, 20))
    ids = hx.input("ids", (3,), "int32")
    return hx.graph(
        {
            "of_x": hx.linear(x, random(96, 64), random(96)),
            "of_image": hx.relu(hx.conv(image, random(64, 32, 3, 3))),
            "of_line": hx.conv(line, random(64, 32, 3)),
            "product": hx.matmul(x, random(64, 128)),
            "rows": hx.gather(hx.const(random(128, 64)), ids, axis=0),
        }
    )


def compressed(mode: str) -> Graph:
    return compress(network(), Compression(mode), load_target("host"))


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        str(v.node.attrs["name"]): np.array([5, 0, 127], np.int32)
        if v.dtype.kind == "int"
        else rng.standard_normal(v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    }


def same_bits(first: Graph, second: Graph) -> None:
    want, got = (hx.compile(g, threads=1)(feeds_of(first)) for g in (first, second))
    for name, array in want.items():
        np.testing.assert_array_equal(got[name].view(np.uint8), array.view(np.uint8), err_msg=name)


# ---- written and read back ----


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_written_as_they_are_stored(mode: str, tmp_path: Path) -> None:
    graph = compressed(mode)
    size = save_graph(graph, tmp_path / "net.aimodel")
    operation, bits = MODES[mode]
    names = [o.name for o in open_asset(tmp_path / "net.aimodel").function().body.operations]
    assert sum(operation in name for name in names) == (4 if operation == SPARSE else 5)
    weights = 96 * 64 + 64 * 32 * 9 + 64 * 32 * 3 + 64 * 128 + 128 * 64
    whole = 128 * 64 * 32 - 128 * 64 * bits if operation == SPARSE else 0  # the rows of an embedding have no mask
    assert size < (weights * bits + whole) / 8 + 3000
    same_bits(graph, import_coreai(tmp_path / "net.aimodel"))


@pytest.mark.parametrize("mode", ["int8", "palette4:g16", "blockwise4:b32", "sparse:0.6"])
def test_for_a_chip_weights_stay_stored(mode: str) -> None:
    chip = load_chip("h16")
    graph, whole = (for_engine(g, chip) for g in (compressed(mode), network()))
    data = emit_asset(graph)
    assert len(data) < 0.76 * len(emit_asset(whole))
    same_bits(graph, import_asset(read_asset(data, "f")))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_apples_runtime_decodes_what_was_written(mode: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    graph = compressed(mode)
    save_graph(graph, tmp_path / "net.aimodel")
    want = hx.compile(graph)(feeds_of(graph))
    for name, array in run_apple(python, tmp_path / "net.aimodel", feeds_of(graph), tmp_path).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)


def test_entries_that_no_index_names_are_filled_up() -> None:
    """Five entries take three bits; an index beyond the last names the last."""
    rng = np.random.default_rng(2)
    indices, tables = rng.integers(0, 9, (64, 32)), rng.standard_normal((4, 1, 5)).astype(np.float32)
    weight = hx.decode_palette(hx.const(indices.astype(np.uint8)), hx.const(tables))
    graph = hx.graph(hx.linear(hx.input("x", (2, 32)), weight))
    back = import_asset(read_asset(emit_asset(graph), "f"))
    dense = tables[np.arange(64)[:, None] // 16, 0, np.minimum(indices, 4)]
    x = rng.standard_normal((2, 32)).astype(np.float32)
    np.testing.assert_allclose(hx.compile(back)(x), x @ dense.T, rtol=1e-5, atol=1e-5)


def test_scales_that_the_result_does_not_hold_are_multiplied_out() -> None:
    rng = np.random.default_rng(3)
    integers, scale = rng.integers(-127, 128, (48, 64)).astype(np.int8), rng.random(48).astype(np.float32) / 100
    weight = hx.dequantize(hx.const(integers), hx.const(scale), dtype="fp16")
    graph = hx.graph(hx.matmul(hx.input("x", (2, 48), "fp16"), weight))
    asset = read_asset(emit_asset(graph), "f")
    assert not any(BLOCKS in o.name for o in asset.function().body.operations)
    feed = {"x": rng.standard_normal((2, 48)).astype(np.float16)}
    np.testing.assert_array_equal(hx.compile(graph)(feed), hx.compile(import_asset(asset))(feed))


def test_what_is_smaller_whole_is_written_whole() -> None:
    weight = hx.gather(hx.const(np.arange(200, dtype=np.float32)), hx.const(np.array([[3, 5], [7, 9]])), axis=0)
    graph = hx.graph(hx.matmul(hx.input("x", (2, 2)), weight))
    asset = read_asset(emit_asset(graph), "f")
    assert not any(LUT in o.name for o in asset.function().body.operations)
    np.testing.assert_array_equal(hx.compile(import_asset(asset))(np.eye(2, dtype=np.float32)), [[3, 5], [7, 9]])


@pytest.mark.parametrize("element", sorted(set(BITS) - {"f4E2M1FN"}))
@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_small_elements_are_packed_as_they_are_read(element: str, count: int) -> None:
    bits = BITS[element]
    low = -(1 << bits - 1) if element.startswith("si") else 0
    array = np.random.default_rng(count).integers(low, low + (1 << bits), count)
    back = numbers(memoryview(packed(array, element)), element, (count,))
    np.testing.assert_array_equal(back.astype(np.int64), array)
