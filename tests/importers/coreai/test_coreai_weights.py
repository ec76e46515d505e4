"""Weights stored with few bits: written as Core AI's own operations, read as encoded constants of the graph."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from apple_runtime import has_apple_runtime, run_apple
from assets import Function
from hexane.compression import Compression
from hexane.compression.compress import compress
from hexane.emit.coreai.asset import save_asset
from hexane.emit.coreai.bytecode import WrittenValue
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.coreai.write import emit_asset, save_graph
from hexane.graph import Graph, Node, tensor_type
from hexane.importers.coreai import import_asset, import_coreai, open_asset, read_asset
from hexane.importers.coreai.numbers import BITS, DTYPE_OF, numbers, packed
from hexane.lowering.layers import lower
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.runtime.mil import emit_netplists, emit_pieces
from hexane.targets import load_target
from hexane.targets.query import load_chip

LUT, BLOCKS, SPARSE = "lut_to_dense", "blockwise_shift_scale", "build_sparse_with_bitmask"
# The operation of each mode, and the bits of a number with its share of tables and scales in fp32.
MODES = {
    "int8": (BLOCKS, 8.6), "blockwise4:b32": (BLOCKS, 5.3), "blockwise8:b16": (BLOCKS, 10.2),
    **{f"palette{bits}": (LUT, bits + 2.1 if bits == 8 else bits + 0.7) for bits in (1, 2, 3, 4, 6, 8)},
    "palette4:g32": (LUT, 4.8), "palette3:g16": (LUT, 3.8), "palette4:v2": (LUT, 3.0),
    "palette4:g32:int8": (LUT, 4.8), "palette6:int8": (LUT, 6.7), "sparse:0.6": (SPARSE, 14.1),
    "sparse:0.6+palette4": (LUT, 4.7), "sparse:0.6+palette3:g16": (LUT, 5.1),
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


def encoded(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if is_encoded(node)]


def same_bits(first: Graph, second: Graph) -> None:
    found = [hx.compile(g, threads=1)(feeds_of(first)) for g in (first, second)]
    want, got = (y if isinstance(y, dict) else {"y": y} for y in found)
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


@pytest.mark.parametrize("mode", [mode for mode in MODES if MODES[mode][0] != SPARSE])
def test_weights_come_back_encoded(mode: str) -> None:
    graph = compressed(mode)
    back = import_asset(read_asset(emit_asset(graph), "f"))
    # A palette of one table, or with a table of int8, which Core AI has in floats.
    palettes = ("gather", "decode_scaled_palette")
    want = ["decode_palette" if n.op in palettes else n.op for n in encoded(graph)]
    assert sorted(n.op for n in encoded(back)) == sorted(want)
    bits = [sorted(encoding_of(n.values[0]).bits for n in encoded(g)) for g in (back, graph)]
    assert bits[0] == bits[1]


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
    assert [n.op for n in encoded(back)] == ["decode_palette"]
    dense = tables[np.arange(64)[:, None] // 16, 0, np.minimum(indices, 4)]
    x = rng.standard_normal((2, 32)).astype(np.float32)
    np.testing.assert_allclose(hx.compile(back)(x), x @ dense.T, rtol=1e-5, atol=1e-5)


def test_for_a_chip_scales_become_fp16() -> None:
    """As in the chip's own programs, where fp16 keeps all digits that it has of them."""
    rng = np.random.default_rng(3)
    integers, scale = rng.integers(-127, 128, (48, 64)).astype(np.int8), (rng.random(64) + 1).astype(np.float32) / 100
    weight = hx.dequantize(hx.const(integers), hx.const(scale), axis=1)
    graph = for_engine(hx.graph(hx.matmul(hx.input("x", (2, 48)), weight)), load_chip("h16"))
    back = import_asset(read_asset(emit_asset(graph), "f"))
    assert [n.op for n in encoded(back)] == ["dequantize"]
    want = (integers * np.float16(scale).astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(numbers_of(back)[:, :, 0, 0], want.T)  # the product is a convolution of 1 x 1
    same_bits(graph, back)


def test_for_a_chip_scales_of_blocks_become_fp16() -> None:
    rng = np.random.default_rng(4)
    integers, scales = rng.integers(-8, 8, (64, 64)).astype(np.int8), (rng.random((64, 2)) + 1).astype(np.float32) / 100
    whole = hx.graph(hx.linear(hx.input("x", (2, 64)), hx.decode_blocks(hx.const(integers), hx.const(scales))))
    graph = for_engine(whole, load_chip("h16"))
    program = emit_asset(graph)
    assert len(program) < 64 * 64 / 2 + 64 * 2 * 2 + 2000
    back = import_asset(read_asset(program, "f"))
    assert [n.op for n in encoded(back)] == ["decode_blocks"]
    want = (integers * np.repeat(scales.astype(np.float16).astype(np.float32), 32, 1)).astype(np.float16)
    np.testing.assert_array_equal(numbers_of(back).reshape(64, 64), want)
    same_bits(graph, back)


def numbers_of(graph: Graph) -> Any:
    """What the only encoded weight stands for."""
    (node,) = encoded(graph)
    return encoding_of(node.values[0]).decode().node.data


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
@pytest.mark.parametrize("count", [1, 2, 7, 33, 300_001])
def test_small_elements_are_packed_as_they_are_read(element: str, count: int) -> None:
    bits = BITS[element]
    low = -(1 << bits - 1) if element.startswith("si") else 0
    array = np.random.default_rng(count).integers(low, low + (1 << bits), count)
    back = numbers(memoryview(packed(array, element)), element, (count,))
    np.testing.assert_array_equal(back.astype(np.int64), array)


def test_a_large_constant_is_no_copy_of_the_file() -> None:
    weight = np.random.default_rng(5).standard_normal((256, 128)).astype(np.float32)
    program = emit_asset(hx.graph(hx.linear(hx.input("x", (2, 128)), weight)))
    back = import_asset(read_asset(program, "f"))
    (layer,) = [node for node in back.nodes if node.op == "linear"]
    assert layer.inputs[1] is not None
    data = layer.inputs[1].node.data
    assert data is not None
    assert np.shares_memory(data, np.frombuffer(program, np.uint8))
    assert not data.flags.writeable
    np.testing.assert_array_equal(data, weight)


def test_a_transposed_constant_that_no_product_reads_is_transposed() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    f = Function()
    x, w = f.input("x", (4, 3)), f.const(weight)
    turned = f.op("primitive.transpose", w, f.const(np.array([1, 0], np.uint32)), result=f.value((4, 3)))
    program = f.finish({"y": f.op("primitive.add", x, turned, result=f.value((4, 3))), "turned": turned}).bytes()
    graph = import_asset(read_asset(program, "f"))
    assert "transpose" not in {node.op for node in graph.nodes}
    found = hx.compile(graph)(np.ones((4, 3), np.float32))
    np.testing.assert_array_equal(found["y"], weight.T + 1)
    np.testing.assert_array_equal(found["turned"], weight.T)


@pytest.mark.parametrize(("indices", "told"), [([[-1, 0]], "the index -1, need none below 0"),
                                               ([[0, 4]], "the index 4, need one below 4")])  # fmt: skip
def test_an_index_without_an_entry_is_an_error(indices: list[list[int]], told: str) -> None:
    f = Function()
    table = f.const(np.ones((1, 1, 4, 1), np.float32))
    stored = f.const(np.array(indices, np.int8)), table, f.const(np.zeros((), np.int16))
    with pytest.raises(hx.Error, match=told):
        product_with(f, f.op("primitive.lut_to_dense", *stored, result=f.value((1, 2))), (1, 2))


@pytest.mark.parametrize(("x", "batch", "kept"), [((5, 3, 8), (5,), 2), ((2, 5, 3, 8), (5,), 2), ((1, 3, 8), (5,), 3)])
@pytest.mark.parametrize("are_equal", [True, False])
def test_a_matrix_that_is_repeated_for_a_batch_is_one(
    x: tuple[int, ...], batch: tuple[int, ...], kept: int, are_equal: bool
) -> None:
    rng = np.random.default_rng(0)
    matrices = np.broadcast_to(rng.standard_normal((8, 4)).astype(np.float32), (*batch, 8, 4)).copy()
    matrices[-1, 0, 0] += 0 if are_equal else 1
    f = Function()
    shape = (*np.broadcast_shapes(x[:-2], batch), 3, 4)
    y = f.op("broadcasting_batch_matmul", f.input("x", x), f.const(matrices), result=f.value(shape),
             bodies=[f.body(f.value(x), f.value(matrices.shape))])  # fmt: skip
    graph = import_asset(read_asset(f.finish({"y": y}).bytes(), "f"))
    (weight,) = [n for n in graph.nodes if n.op == "const"]
    assert weight.types[0].rank == (kept if are_equal else 3)
    feed = {"x": rng.standard_normal(x).astype(np.float32)}
    np.testing.assert_allclose(hx.compile(graph)(feed), feed["x"] @ matrices, rtol=1e-5, atol=1e-5)


# ---- assets of others ----


def product_with(f: Function, weight: WrittenValue, shape: tuple[int, int], element: str = "f32") -> Graph:
    """x times a weight."""
    x = f.input("x", (3, shape[0]), element)
    y = f.op("primitive.batch_matmul", x, weight, result=f.value((3, shape[1]), element))
    return import_asset(read_asset(f.finish({"y": y}).bytes(), "f"))


def check_product(graph: Graph, dense: Any) -> None:
    """The bits of the same product with the decoded weight."""
    whole = hx.graph(hx.matmul(hx.input("x", (3, dense.shape[0]), str(dense.dtype)), hx.const(dense)))
    feed = {"x": np.random.default_rng(4).standard_normal((3, dense.shape[0])).astype(dense.dtype)}
    np.testing.assert_array_equal(hx.compile(graph, threads=1)(feed), hx.compile(whole, threads=1)(feed))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("blocks", [(1, 1), (1, 4), (2, 3)])
def test_palettes_stay_indices(blocks: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(5)
    indices, tables = rng.integers(0, 16, (8, 12)), rng.standard_normal((*blocks, 16, 1)).astype(dtype)
    f, element = Function(), "f32" if dtype == np.float32 else "f16"
    weight = f.op("primitive.lut_to_dense", f.const(indices, "ui4"), f.const(tables), f.const(np.int16(0)),
                  result=f.value((8, 12), element))  # fmt: skip
    graph = product_with(f, weight, (8, 12), element)
    assert [n.op for n in encoded(graph)] == ["decode_palette"]
    rows, columns = (np.arange(d) * n // d for d, n in zip((8, 12), blocks, strict=True))
    check_product(graph, tables[rows[:, None], columns[None], indices, 0])


@pytest.mark.parametrize(("blocks", "axis"), [((1, 1), 0), ((2, 1), 0), ((2, 3), 1)])
def test_palettes_of_vectors_stay_indices(blocks: tuple[int, int], axis: int) -> None:
    rng = np.random.default_rng(6)
    indices, tables = rng.integers(0, 16, (8, 12)), rng.standard_normal((*blocks, 16, 2)).astype(np.float32)
    shape = (16, 12) if axis == 0 else (8, 24)
    f = Function()
    weight = f.op("primitive.lut_to_dense", f.const(indices, "ui4"), f.const(tables), f.const(np.int16(axis)),
                  result=f.value(shape))  # fmt: skip
    graph = product_with(f, weight, shape)
    assert [n.op for n in encoded(graph)] == ["decode_vectors"]
    rows, columns = (np.arange(d) * n // d for d, n in zip((8, 12), blocks, strict=True))
    pairs = tables[rows[:, None], columns[None], indices]
    dense = np.moveaxis(pairs, 2, axis + 1).reshape(shape)
    check_product(graph, dense)


def test_palettes_of_vectors_are_written_as_they_are_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    tables = rng.standard_normal((2, 1, 11, 4)).astype(np.float32)
    weight = hx.decode_vectors(hx.const(rng.integers(0, 11, (16, 96)).astype(np.uint8)), hx.const(tables))
    graph = hx.graph(hx.linear(hx.input("x", (2, 96)), weight))
    size = save_graph(graph, tmp_path / "net.aimodel")
    assert size < 16 * 96 / 2 + 4 * 2 * 16 * 4 + 2000
    back = import_coreai(tmp_path / "net.aimodel")
    assert [n.op for n in encoded(back)] == ["decode_vectors"]
    same_bits(graph, back)


@pytest.mark.parametrize(
    ("element", "blocks", "zeros", "op"),
    [("si8", (1, 12), False, "dequantize"), ("si8", (1, 1), True, "dequantize"), ("ui8", (8, 1), True, "dequantize"),
     ("si4", (1, 12), True, "dequantize"), ("si4", (2, 12), False, "decode_blocks"), ("ui4", (4, 3), True, "decode_blocks"),
     ("si8", (4, 12), False, "decode_blocks"), ("ui8", (4, 12), False, None), ("ui2", (2, 1), True, "decode_blocks")],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_integers_stay_integers(element: str, blocks: tuple[int, int], zeros: bool, op: str | None, dtype: Any) -> None:
    """Of eight bits without a sign per block there is no form in the graph: these are decoded."""
    rng = np.random.default_rng(6)
    bits, is_signed = int(element[2:]), element.startswith("s")
    low = -(1 << bits - 1) if is_signed else 0
    data = rng.integers(low, low + (1 << bits), (8, 12))
    data[0, 0] = low + (1 << bits) - 1
    zero = rng.integers(low, low + (1 << bits), blocks) if zeros else np.zeros(blocks, np.int64)
    scale = (rng.random(blocks) + 0.1).astype(dtype)
    f, kind = Function(), "f32" if dtype == np.float32 else "f16"
    stored = np.int8 if is_signed else np.uint8
    operands = [f.const(data.astype(stored), element), f.const(scale), f.const(zero.astype(stored), element),
                f.const(np.zeros(blocks, dtype))]  # fmt: skip
    weight = f.op("primitive.blockwise_shift_scale", *operands, result=f.value((8, 12), kind))
    graph = product_with(f, weight, (8, 12), kind)
    assert [n.op for n in encoded(graph)] == ([op] if op else [])
    wide = [np.kron(a.astype(np.float64), np.ones([d // n for d, n in zip((8, 12), blocks, strict=True)]))
            for a in (zero, scale)]  # fmt: skip
    check_product(graph, ((data - wide[0]) * wide[1]).astype(dtype))


def test_offsets_behind_the_scale_and_scales_below_zero_are_decoded() -> None:
    data = np.arange(-48, 48).reshape(8, 12).astype(np.int8)
    for scale, offset in ((-0.5, 0.0), (0.5, 0.25)):
        f = Function()
        operands = [f.const(a) for a in (data, np.full((1, 1), scale, np.float32), np.zeros((1, 1), np.int8),
                                         np.full((1, 1), offset, np.float32))]  # fmt: skip
        graph = product_with(f, f.op("primitive.blockwise_shift_scale", *operands, result=f.value((8, 12))), (8, 12))
        assert not encoded(graph)
        check_product(graph, (data * np.float32(scale) + np.float32(offset)).astype(np.float32))


def test_an_infinite_scale_gives_infinities_and_nan_without_a_warning() -> None:
    data = np.arange(-48, 48).reshape(8, 12).astype(np.int8)
    f = Function()
    operands = [f.const(a) for a in (data, np.full((1, 1), -np.inf, np.float32), np.zeros((1, 1), np.int8),
                                     np.zeros((1, 1), np.float32))]  # fmt: skip
    graph = product_with(f, f.op("primitive.blockwise_shift_scale", *operands, result=f.value((8, 12))), (8, 12))
    (weight,) = [n.data for n in graph.nodes if n.op == "const" and np.isnan(n.data).any()]
    assert np.isnan(weight).sum() == 1
    assert np.isinf(weight).sum() == weight.size - 1


def test_weights_that_something_else_reads_are_decoded() -> None:
    """The sum of a decoded weight and a constant is a constant, as it is for a weight that is stored whole."""
    rng = np.random.default_rng(7)
    indices, table = rng.integers(0, 4, (8, 12)), rng.standard_normal((1, 1, 4, 1)).astype(np.float32)
    f = Function()
    weight = f.op("primitive.lut_to_dense", f.const(indices, "ui2"), f.const(table), f.const(np.int16(0)),
                  result=f.value((8, 12)))  # fmt: skip
    one = f.const(rng.standard_normal((8, 12)).astype(np.float32))
    graph = product_with(f, f.op("primitive.add", weight, one), (8, 12))
    assert [n.op for n in graph.nodes] == ["input", "const", "matmul"]


def sparse(f: Function, dense: Any, mask: Any, element: str) -> WrittenValue:
    """Numbers with a mask of their places, as an asset has them."""
    numbers = f.const(dense[mask], element)
    kind = f.writer.sparse_tensor(tensor_type(DTYPE_OF[element], dense.shape), int(mask.sum()))
    return f.op("primitive.build_sparse_with_bitmask", numbers, f.const(mask.astype(np.uint8), "ui1"),
                result=WrittenValue(kind))  # fmt: skip


def joint(kind: str, f: Function) -> tuple[WrittenValue, Any]:
    """A weight of 8 x 12 that is sparse and in palettes, or in integers with scales; and its numbers."""
    rng = np.random.default_rng(11)
    mask = rng.random((8, 12)) < 0.4
    of_numbers = f.writer.sparse_tensor(tensor_type("fp32", (8, 12)), int(mask.sum()))
    if kind == "integers":
        data, scales = rng.integers(-100, 100, (8, 12)).astype(np.int8), rng.random((8, 3)).astype(np.float32) + 1
        offsets = rng.integers(-9, 9, (8, 3)).astype(np.int8)
        packed = f.op("primitive.sparse_with_bitmask_blockwise_shift_scale", sparse(f, data, mask, "si8"), f.const(scales),
                      f.const(offsets), result=WrittenValue(of_numbers))  # fmt: skip
        want = (data - np.repeat(offsets, 4, 1).astype(np.float32)) * np.repeat(scales, 4, 1)
    else:
        indices, tables = rng.integers(0, 16, (8, 12)), rng.standard_normal((2, 1, 16, 1)).astype(np.float32)
        packed = f.op("primitive.lut_to_sparse_with_bitmask", sparse(f, indices, mask, "ui4"), f.const(tables),
                      f.const(np.int16(0)), result=WrittenValue(of_numbers))  # fmt: skip
        want = tables[np.arange(8)[:, None] // 4, 0, indices, 0]
    return f.op("primitive.sparse_with_bitmask_to_dense", packed, result=f.value((8, 12))), np.where(mask, want, 0)


@pytest.mark.parametrize("kind", ["palettes", "integers"])
def test_sparse_numbers_in_few_bits_are_decoded(kind: str) -> None:
    f = Function()
    weight, dense = joint(kind, f)
    check_product(product_with(f, weight, (8, 12)), dense.astype(np.float32))


def test_sparse_entries_of_several_numbers_are_decoded() -> None:
    rng = np.random.default_rng(12)
    mask, indices = rng.random((4, 12)) < 0.5, rng.integers(0, 4, (4, 12))
    table = rng.standard_normal((1, 1, 4, 2)).astype(np.float32)
    f = Function()
    kind = f.writer.sparse_tensor(tensor_type("fp32", (8, 12)), 2 * int(mask.sum()))
    packed = f.op("primitive.lut_to_sparse_with_bitmask", sparse(f, indices, mask, "ui2"), f.const(table),
                  f.const(np.int16(0)), result=WrittenValue(kind))  # fmt: skip
    weight = f.op("primitive.sparse_with_bitmask_to_dense", packed, result=f.value((8, 12)))
    want = np.where(np.repeat(mask, 2, 0), np.moveaxis(table[0, 0, indices], -1, 1).reshape(8, 12), 0)
    check_product(product_with(f, weight, (8, 12)), want)


@pytest.mark.slow
def test_apples_runtime_decodes_sparse_palettes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """It takes the operation for sparse integers as right, and has nothing to run it with."""
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    f = Function()
    weight, dense = joint("palettes", f)
    x = f.input("x", (3, 8))
    y = f.op("primitive.batch_matmul", x, weight, result=f.value((3, 12)))
    save_asset(tmp_path / "net.aimodel", f.finish({"y": y}).bytes(), {"assetVersion": "2.0"})
    feed = {"x": np.random.default_rng(4).standard_normal((3, 8)).astype(np.float32)}
    found = run_apple(python, tmp_path / "net.aimodel", feed, tmp_path)
    np.testing.assert_allclose(found["y"], feed["x"] @ dense, rtol=1e-4, atol=1e-3)


def test_rows_that_constants_pick_are_constants() -> None:
    rng = np.random.default_rng(8)
    indices, table = rng.integers(0, 4, (16, 12)), rng.standard_normal((1, 1, 4, 1)).astype(np.float32)
    f = Function()
    rows = f.op("primitive.lut_to_dense", f.const(indices, "ui2"), f.const(table), f.const(np.int16(0)),
                result=f.value((16, 12)))  # fmt: skip
    picked = f.op("primitive.gather_nd", rows, f.const(np.arange(8, dtype=np.int32)[:, None]), result=f.value((8, 12)))
    graph = product_with(f, picked, (8, 12))
    assert [n.op for n in graph.nodes] == ["input", "const", "matmul"]
    check_product(graph, table[0, 0, indices[:8], 0])


def test_a_palette_of_an_asset_is_one_in_mil(tmp_path: Path) -> None:
    save_graph(compressed("palette4:g16"), tmp_path / "net.aimodel")
    _, pieces = emit_pieces(import_coreai(tmp_path / "net.aimodel"), load_chip("h16"))
    text = "".join(piece.mil.text for piece in pieces if piece.mil is not None)
    assert text.count("= constexpr_lut_to_dense(") == 4


@pytest.mark.parametrize("mode", ["int8", "palette4", "palette4:g16", "blockwise4:b32"])
def test_a_netplist_has_whole_weights(mode: str) -> None:
    rng = np.random.default_rng(9)
    image = hx.input("image", (1, 32, 8, 8))
    graph = hx.graph(hx.conv(image, (rng.standard_normal((64, 32, 3, 3)) / 8).astype(np.float32)))
    back = import_asset(read_asset(emit_asset(compress(graph, Compression(mode), load_target("host"))), "f"))
    assert len(encoded(back)) == 1
    _, _, (net,) = emit_netplists(back, load_chip("h11"))
    assert net is not None
    assert len(net.weights) >= 2 * 64 * 32 * 9


def test_a_palette_of_one_table_is_a_layers_table() -> None:
    """As `gather` says the same; an index beyond the last entry names the last."""
    rng = np.random.default_rng(9)
    indices, table = rng.integers(0, 16, (32, 64)).astype(np.uint8), rng.standard_normal(12).astype(np.float32)
    x = hx.input("x", (4, 64))
    graphs = [
        hx.graph(hx.linear(x, hx.decode_palette(hx.const(indices), hx.const(table[None, None])))),
        hx.graph(hx.linear(x, hx.gather(hx.const(table), hx.const(np.minimum(indices, 11).astype(np.int32)), axis=0))),
    ]
    feed = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    for target in ("h13", "h16"):
        chip = load_chip(target)
        layers, others = ([n.op for n in lower(to_fp16(g, chip), chip).nodes if n.inputs] for g in graphs)
        assert layers == others
        assert "anec.gather" in layers
        one, other = (hx.compile(graph, target=target, threads=1) for graph in graphs)
        np.testing.assert_array_equal(one(feed), other(feed))
