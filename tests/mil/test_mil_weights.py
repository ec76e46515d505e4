"""Weights that are stored smaller than they are read: written as they are stored, and read back as the same
constants."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.dtypes import DTYPES
from hexane.emit.mil import emit_mil
from hexane.graph import Array, Graph, constant
from hexane.graph.origins import source_scope
from hexane.importers.mil import load_mil
from hexane.mil.tree import HEADER
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.reference import run_reference
from hexane.targets.query import load_chip
from mil_programs import assert_read_back

H13 = load_chip("h13")
SCALES = np.linspace(0.01, 0.02, 32, dtype=np.float32)


def rows() -> hx.Tensor:
    return hx.input("x", (4, 64), "fp16")


def image() -> hx.Tensor:
    return hx.input("x", (1, 16, 8, 8), "fp16")


def integers(low: int, high: int, *shape: int, kind: str = "int8") -> Array:
    return np.random.default_rng(high).integers(low, high, shape).astype(kind)


def scaled(data: Array, scale: Array | float, zero: Array | None = None, axis: int = 0) -> hx.Tensor:
    return hx.dequantize(data, np.asarray(scale, np.float32), zero, axis=axis, dtype="fp16")


def picked(entries: int, *shape: int) -> hx.Tensor:
    table = np.random.default_rng(entries).standard_normal(entries).astype(np.float16)
    return hx.gather(table, integers(0, entries, *shape, kind="int32"), axis=0)


def pruned(*shape: int, keep: float = 0.3) -> Array:
    rng = np.random.default_rng(7)
    kept: Array = np.where(rng.random(shape) < keep, rng.standard_normal(shape), 0.0).astype(np.float16)
    return kept


def grouped(shape: tuple[int, ...], blocks: tuple[int, ...], entries: int) -> hx.Tensor:
    tables = np.random.default_rng(entries).standard_normal((*blocks, entries)).astype(np.float16)
    return hx.decode_palette(integers(0, entries, *shape, kind="uint8"), tables)


def of_int8(shape: tuple[int, ...], blocks: tuple[int, ...], entries: int) -> hx.Tensor:
    tables = integers(-127, 128, *blocks, entries)
    scales = np.random.default_rng(entries).uniform(0.001, 0.01, (*blocks, 1)).astype(np.float16)
    return hx.decode_scaled_palette(integers(0, entries, *shape, kind="uint8"), tables, scales)


def vectors(shape: tuple[int, ...], blocks: tuple[int, ...], entries: int, size: int, axis: int = 0) -> hx.Tensor:
    """shape: of the indices."""
    tables = np.random.default_rng(entries).standard_normal((*blocks, entries, size)).astype(np.float16)
    return hx.decode_vectors(integers(0, entries, *shape, kind="uint8"), tables, axis=axis)


def blocks(shape: tuple[int, ...], count: tuple[int, ...], low: int, high: int) -> hx.Tensor:
    scales = np.random.default_rng(high).uniform(0.01, 0.1, count).astype(np.float16)
    return hx.decode_blocks(integers(low, high, *shape), scales)


def masked(entries: int, shape: tuple[int, ...], blocks: tuple[int, ...] = (), keep: float = 0.3) -> hx.Tensor:
    """Palettes of 0 and other numbers, which few of the indices name."""
    rng = np.random.default_rng(entries)
    picks = np.where(rng.random(shape) < keep, rng.integers(1, entries, shape), 0)
    picks.reshape(-1)[: entries - 1] = np.arange(1, entries)
    tables = rng.standard_normal((*blocks, entries)).astype(np.float16)
    tables[..., 0] = 0
    if blocks:
        return hx.decode_palette(picks.astype(np.uint8), tables)
    return hx.gather(tables, picks.astype(np.int32), axis=0)


AFFINE, BLOCKS, PALETTE = "constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_lut_to_dense"
SPARSE, MASKED = "constexpr_sparse_to_dense", "constexpr_lut_to_sparse"
CASES: dict[str, tuple[Callable[[], hx.Tensor], str, float]] = {  # op, bits of an element
    "int8": (lambda: hx.conv(image(), scaled(integers(-128, 128, 32, 16, 3, 3), SCALES)), AFFINE, 8),
    "int8 of one scale": (
        lambda: hx.conv(image(), scaled(integers(-128, 128, 32, 16, 3, 3), 0.01, np.int8(3))),
        AFFINE,
        8,
    ),
    "uint8 with zero points": (
        lambda: hx.matmul(
            rows(), scaled(integers(0, 256, 64, 32, kind="uint8"), SCALES, np.arange(32, dtype=np.uint8), 1)
        ),
        AFFINE,
        8,
    ),
    "int4": (lambda: hx.matmul(rows(), scaled(integers(-8, 8, 64, 32), SCALES, axis=1)), BLOCKS, 4),
    "uint4 with a zero point": (
        lambda: hx.matmul(rows(), scaled(integers(0, 16, 64, 32, kind="uint8"), 0.25, np.uint8(8))),
        BLOCKS,
        4,
    ),
    "a palette of 7": (lambda: hx.conv(image(), picked(7, 32, 16, 3, 3)), PALETTE, 3),
    "a palette of 64": (lambda: hx.matmul(rows(), picked(64, 64, 32)), PALETTE, 6),
    "three tenths of numbers": (lambda: hx.conv(image(), pruned(32, 16, 3, 3)), SPARSE, 1 + 0.32 * 16),
    "three tenths of numbers in a matmul": (lambda: hx.matmul(rows(), pruned(64, 32)), SPARSE, 1 + 0.32 * 16),
    "a palette of 11": (lambda: hx.matmul(rows(), picked(11, 64, 32)), PALETTE, 4),
    "palettes of 8 output channels": (lambda: hx.conv(image(), grouped((32, 16, 3, 3), (4, 1, 1, 1), 16)), PALETTE, 4),
    "palettes of columns": (lambda: hx.matmul(rows(), grouped((64, 32), (1, 2), 64)), PALETTE, 6),
    "palettes of blocks": (lambda: hx.matmul(rows(), grouped((64, 32), (2, 4), 8)), PALETTE, 3),
    "a palette with a table of int8": (lambda: hx.conv(image(), of_int8((32, 16, 3, 3), (1, 1, 1, 1), 16)), PALETTE, 4),
    "tables of int8 for blocks": (lambda: hx.matmul(rows(), of_int8((64, 32), (2, 4), 64)), PALETTE, 6),
    "pairs of output channels": (
        lambda: hx.conv(image(), vectors((16, 16, 3, 3), (1, 1, 1, 1), 16, 2)),
        PALETTE,
        2,
    ),
    "vectors of 4 columns": (lambda: hx.matmul(rows(), vectors((64, 32), (1, 1), 64, 4, axis=1)), PALETTE, 1.5),
    "pairs of rows from palettes of groups": (
        lambda: hx.matmul(rows(), vectors((32, 48), (2, 4), 8, 2)),
        PALETTE,
        1.5,
    ),
    "int4 in blocks of input channels": (
        lambda: hx.conv(image(), blocks((32, 16, 3, 3), (32, 4, 1, 1), -8, 8)),
        BLOCKS,
        4 + 16 / 36,
    ),
    "int4 in blocks of rows and columns": (lambda: hx.matmul(rows(), blocks((64, 32), (4, 8), -8, 8)), BLOCKS, 4.25),
    "int8 in blocks": (lambda: hx.matmul(rows(), blocks((64, 32), (2, 32), -128, 128)), BLOCKS, 8.5),
    "int8 in blocks of one channel": (lambda: hx.matmul(rows(), blocks((64, 32), (1, 32), -128, 128)), BLOCKS, 8.25),
    "0 and 15 others": (lambda: hx.conv(image(), masked(16, (32, 16, 3, 3))), MASKED, 1 + 0.32 * 4),
    "0 and 16 others": (lambda: hx.matmul(rows(), masked(17, (64, 32))), MASKED, 1 + 0.32 * 4),
    "0 and 2 others": (lambda: hx.matmul(rows(), masked(3, (64, 32))), MASKED, 1 + 0.32),
    "0 and 64 others": (lambda: hx.matmul(rows(), masked(65, (64, 32))), MASKED, 1 + 0.35 * 6),
    "0 and 255 others": (lambda: hx.matmul(rows(), masked(256, (64, 64))), MASKED, 1 + 0.36 * 8),
    "0 and others for each 8 channels": (
        lambda: hx.conv(image(), masked(8, (32, 16, 3, 3), (4, 1, 1, 1))),
        MASKED,
        1 + 0.32 * 3,
    ),
    "a palette of 256": (lambda: hx.conv(image(), picked(256, 32, 16, 3, 3)), PALETTE, 8),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_stay_as_small_as_they_are_stored(name: str) -> None:
    make, op, bits = CASES[name]
    graph = hx.graph(make())
    mil = emit_mil(graph, H13)
    assert mil.text.count(f" = {op}(") == 1
    assert_read_back(mil)
    decoders = ("dequantize", "gather", "decode_palette", "decode_scaled_palette", "decode_vectors", "decode_blocks")
    stored = decoders if op != SPARSE else ("const",)
    weight = max((node.types[0] for node in graph.nodes if node.op in stored), key=lambda t: t.size)
    assert len(mil.weights) < weight.size * bits / 8 + 2048
    x = {p.name: np.random.default_rng(0).standard_normal(p.shape).astype(np.float16) for p in hx.compile(graph).inputs}
    (got,), (want,) = (run_reference(g, x).values() for g in (mil.graph, graph))
    np.testing.assert_allclose(got, want, rtol=2**-9, atol=2**-9 * np.abs(want).max())


def test_weights_that_other_ops_read_are_written_as_floats() -> None:
    w = scaled(integers(-128, 128, 4, 64), 0.5)
    mil = emit_mil(hx.graph(rows() + w), H13)
    assert "constexpr" not in mil.text
    assert_read_back(mil)


def test_scales_of_channels_are_in_the_file() -> None:
    text = emit_mil(hx.graph(CASES["int8"][0]()), H13).text
    assert text.count("BLOBFILE") == 2


def test_a_reader_that_looks_at_the_elements_gets_them() -> None:
    """A slope for each channel, stored with a scale."""
    body = """
    func main<ios18>(tensor<fp16, [1, 2, 3]> x) {
        tensor<fp16, [2]> a = constexpr_affine_dequantize()[quantized_data = tensor<int8, [2]>([1, -2]),
            zero_point = int8(0), scale = fp16(0x1p-2), axis = int32(0), name = string("a")];
        tensor<fp16, [1, 2, 3]> y = prelu(x = x, alpha = a)[name = string("y")];
    } -> (y);
"""
    graph = load_mil(f"{HEADER}{{{body}}}")
    (y,) = run_reference(graph, {"x": -np.ones((1, 2, 3), np.float16)}).values()
    np.testing.assert_array_equal(y[0, :, 0], np.float16([-0.25, 0.5]))


def test_bytes_with_a_scale_have_their_arguments_in_square_brackets() -> None:
    """The form of their opset: with arguments in round ones the engine's compiler says InvalidMILProgram."""
    text = emit_mil(hx.graph(hx.matmul(rows(), scaled(integers(-128, 128, 64, 32), 0.5))), H13).text
    (line,) = (line.strip() for line in text.splitlines() if f"= {AFFINE}(" in line)
    assert line == (
        "tensor<fp16, [64, 32]> constexpr_affine_dequantize_0 = constexpr_affine_dequantize()[axis = int32(0), "
        'name = string("constexpr_affine_dequantize_0"), quantized_data = tensor<int8, [64, 32]>(BLOBFILE('
        'path = string("@model_path/weights/weights.bin"), offset = uint64(64))), scale = fp16(0x1p-1), '
        "zero_point = int8(0)];"
    )


@pytest.mark.parametrize(
    "form",
    [
        '(quantized_data = tensor<int8, [2]>([1, -2]), zero_point = int8(0), scale = fp16(0x1p-2), axis = int32(0))[name = string("a")]',
        '()[quantized_data = d, zero_point = int8(0), scale = fp16(0x1p-2), axis = int32(0), name = string("a")]',
    ],
    ids=["round brackets", "a name"],
)
def test_bytes_with_a_scale_in_another_form_are_refused(form: str) -> None:
    body = f"""
    func main<ios18>(tensor<fp16, [2]> x) {{
        tensor<int8, [2]> d = const()[name = string("d"), val = tensor<int8, [2]>([1, -2])];
        tensor<fp16, [2]> a = constexpr_affine_dequantize{form};
        tensor<fp16, [2]> y = add(x = x, y = a)[name = string("y")];
    }} -> (y);
"""
    with pytest.raises(hx.Error, match=r"need constants in square ones: constexpr_affine_dequantize\(\)\[..\]"):
        load_mil(f"{HEADER}{{{body}}}")


@pytest.mark.parametrize("entries", [2, 3, 4, 5, 6, 8, 9, 10, 16, 17, 18, 33, 64, 65, 66, 200, 256, 257])
@pytest.mark.parametrize("unnamed", [0, 1, 3])
def test_palettes_with_a_mask_read_back_whatever_their_tables_hold(entries: int, unnamed: int) -> None:
    """Entries that no index names, zeros among them, change how many bits an index needs."""
    rng = np.random.default_rng(entries)
    last = max(entries - unnamed, 2)
    picks = np.where(rng.random((64, 64)) < 0.4, rng.integers(1, last, (64, 64)), 0).astype(np.int32)
    for zeros in (0, unnamed):
        table = rng.standard_normal(entries).astype(np.float16)
        table[0] = 0
        table[entries - zeros :] = 0
        graph = hx.graph(hx.matmul(rows(), hx.gather(table, picks, axis=0)))
        mil = emit_mil(graph, H13)
        assert_read_back(mil)
        assert (f" = {MASKED}(" in mil.text) == (2 < entries <= 256)


def test_a_palette_that_begins_with_another_number_has_no_mask() -> None:
    for first in (np.float16(-0.0), np.float16(1)):
        table = np.array([first, 0.5, 0, 2], np.float16)
        mil = emit_mil(hx.graph(hx.matmul(rows(), hx.gather(table, (pruned(64, 32) > 0) * np.int32(3), axis=0))), H13)
        assert f" = {PALETTE}(" in mil.text
        assert_read_back(mil)


MASKED_TEXT = """
        tensor<uint1, [32, 64]> m = const()[name = string("m"), val = tensor<uint1, [32, 64]>({places[0]})];
        tensor<uint{bits}, [{count}]> i = const()[name = string("i"), val = tensor<uint{bits}, [{count}]>({places[1]})];
        tensor<{kind}, {shape}> t = const()[name = string("t"), val = tensor<{kind}, {shape}>({places[2]})];
        tensor<uint1, [32, 64]> n, tensor<{kind}, [{count}]> v = constexpr_lut_to_sparse(indices_mask = m, indices_nonzero_data = i, lut = t)[name = string("n")];
        tensor<{kind}, [32, 64]> w = constexpr_sparse_to_dense(nonzero_data = v, mask = {mask})[name = string("w")];"""


def masked_text(mask: Array, named: Array, lut: Array, bits: int, use: str = "n") -> tuple[str, bytes]:
    """A program with a weight of joint form, and its file."""
    kind = {2: "fp16", 4: "fp32"}[lut.itemsize]
    stored = [("uint1", mask.astype(DTYPES["uint1"].numpy)), (f"uint{bits}", named.astype(DTYPES[f"uint{bits}"].numpy))]
    file, offsets = _core.blob_write([*stored, (kind, lut)])
    places = [f'BLOBFILE(path = string("@model_path/w.bin"), offset = uint64({at}))' for at in offsets]
    weight = MASKED_TEXT.format(bits=bits, count=named.size, places=places, shape=list(lut.shape), kind=kind, mask=use)
    body = f"""
    func main<ios18>(tensor<{kind}, [2, 32]> x) {{{weight}
        tensor<{kind}, [2, 64]> y = matmul(x = x, y = w, transpose_x = bool(false), transpose_y = bool(false))[name = string("y")];
    }} -> (y);
"""
    return f"{HEADER}{{{body}}}", file


def unmasked(mask: Array, named: Array, lut: Array) -> Array:
    """An independent decoder: number by number, in the order of memory."""
    found, at = np.zeros(mask.shape, lut.dtype), iter(named.tolist())
    blocks = [d // n for d, n in zip(mask.shape, lut.shape, strict=False)]
    for place in np.ndindex(*mask.shape):
        if mask[place]:
            found[place] = lut[(*(i // d for i, d in zip(place, blocks, strict=True)), next(at), 0)]
    return found


@pytest.mark.parametrize("blocks", [(1, 1), (4, 1), (1, 8), (2, 2)])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_joint_text_of_others_is_read_as_a_palette(bits: int, blocks: tuple[int, int], keep: float) -> None:
    """All entries are in use, as in files of Core ML's tools. 256 numbers and 0 have no indices of a byte."""
    rng = np.random.default_rng(bits)
    mask = rng.random((32, 64)) < keep
    named = rng.integers(0, 1 << bits, int(mask.sum())).astype(np.uint8)
    named[0] = (1 << bits) - 1
    lut = rng.standard_normal((*blocks, 1 << bits, 1)).astype(np.float16)
    graph = load_mil(*masked_text(mask, named, lut, bits))
    (w,) = (v for node in graph.nodes for v in node.inputs[1:] if node.op == "matmul" and v is not None)
    assert encoding_of(w).masked_bits == (bits if keep < 0.5 and bits < 8 else None)
    assert is_encoded(w.node) == (bits < 8)
    found = encoding_of(w).decode().node.data
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint16), unmasked(mask, named, lut).view(np.uint16))
    mil = emit_mil(graph, H13)
    assert (f" = {MASKED}(" in mil.text) == (keep < 0.5 and bits < 8)
    assert_read_back(mil)
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    )
    places, numbers = apple.constexpr_lut_to_sparse.decompress(mask.astype(np.uint8), named, lut, None)
    np.testing.assert_array_equal(apple.constexpr_sparse_to_dense.decompress(numbers, places), found)


def test_joint_text_in_fp32_and_with_the_first_mask_is_read() -> None:
    mask, named = np.arange(2048).reshape(32, 64) % 4 == 0, np.arange(512, dtype=np.uint8) % 4
    lut = np.array([1, -2, 3, 1e-9], np.float32).reshape(1, 1, 4, 1)
    graph = load_mil(*masked_text(mask, named, lut, 2, use="m"))
    (w,) = (v for node in graph.nodes for v in node.inputs[1:] if node.op == "matmul" and v is not None)
    np.testing.assert_array_equal(encoding_of(w).decode().node.data, unmasked(mask, named, lut))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("count", 511), "got indices_nonzero_data uint2.511. for a mask with 512 ones, need as many"),
        (("entries", 2), "need blocks of one size and indices below 2"),
        (("width", 2), "need entries of one number each"),
        (("mask", 1), "got nonzero_data of another mask, need both results of constexpr_lut_to_sparse"),
    ],
)
def test_joint_text_that_does_not_fit_is_refused(change: tuple[str, int], said: str) -> None:
    what, to = change
    mask, named = np.arange(2048).reshape(32, 64) % 4 == 0, np.arange(512, dtype=np.uint8) % 4
    lut = np.ones((1, 1, to if what == "entries" else 4, to if what == "width" else 1), np.float16)
    text, file = masked_text(mask, named[: to if what == "count" else None], lut, 2)
    if what == "mask":
        ones = (np.arange(2048).reshape(32, 64) < 512).astype(int).tolist()
        other = (
            f'        tensor<uint1, [32, 64]> o = const()[name = string("o"), val = tensor<uint1, [32, 64]>({ones})];'
        )
        text = text.replace("mask = n)", "mask = o)").replace(
            "        tensor<fp16, [32, 64]> w", f"{other}\n        tensor<fp16, [32, 64]> w"
        )
    with pytest.raises(hx.Error, match=said):
        load_mil(text, file)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: hx.conv(image(), pruned(32, 16, 3, 3, keep=0.6)), "more numbers than zeros"),
        (lambda: hx.conv(image(), pruned(2, 16, 3, 3)), "small"),
        (lambda: rows() + pruned(4, 64, keep=0.0), "no weight of a product"),
        (lambda: hx.matmul(rows(), pruned(64, 32, keep=0.0)), "zeros alone"),
    ],
)
def test_weights_that_gain_nothing_are_written_whole(make: Callable[[], hx.Tensor], why: str) -> None:
    mil = emit_mil(hx.graph(make()), H13)
    assert "constexpr" not in mil.text, why
    assert_read_back(mil)


def test_a_weight_that_others_read_too_is_written_whole() -> None:
    x, w = hx.input("x", (64, 64), "fp16"), pruned(64, 64)
    mil = emit_mil(hx.graph({"y": hx.matmul(x, w), "z": x + w}), H13)
    assert "constexpr" not in mil.text
    assert_read_back(mil)


def test_zeros_with_a_sign_keep_it() -> None:
    w = pruned(64, 32)
    w.reshape(-1)[np.flatnonzero(w == 0)[:50]] = np.float16(-0.0)
    mil = emit_mil(hx.graph(hx.matmul(rows(), w)), H13)
    assert SPARSE in mil.text
    assert_read_back(mil)


FORMS = {
    PALETTE: (
        """
        tensor<uint{bits}, [32, 16]> i = const()[name = string("i"), val = tensor<uint{bits}, [32, 16]>({first})];
        tensor<fp16, [1, 1, {entries}, 1]> t = const()[name = string("t"), val = tensor<fp16, [1, 1, {entries}, 1]>({second})];
        tensor<fp16, [32, 16]> w = constexpr_lut_to_dense(indices = i, lut = t)[name = string("w")];"""
    ),
    SPARSE: (
        """
        tensor<uint1, [32, 32]> m = const()[name = string("m"), val = tensor<uint1, [32, 32]>({first})];
        tensor<fp16, [{entries}]> v = const()[name = string("v"), val = tensor<fp16, [{entries}]>({second})];
        tensor<fp16, [32, 32]> w = constexpr_sparse_to_dense(nonzero_data = v, mask = m)[name = string("w")];"""
    ),
}


@pytest.mark.parametrize(
    ("op", "bits"), [(PALETTE, 1), (PALETTE, 2), (PALETTE, 3), (PALETTE, 4), (PALETTE, 6), (SPARSE, 1)]
)
def test_what_is_read_as_it_is_stored_is_written_so(op: str, bits: int) -> None:
    """Text of others, with the file that they have, through the graph and back: the same form, and the same graph."""
    rng = np.random.default_rng(bits)
    columns = 16 if op == PALETTE else 32
    picks = rng.integers(0, 1 << bits, (32, columns)).astype(np.uint8) * (
        1 if op == PALETTE else rng.random((32, columns)) < 0.5
    )
    entries = 1 << bits if op == PALETTE else int(np.count_nonzero(picks))
    first, second = picks.astype(np.uint8), rng.standard_normal(entries).astype(np.float16)
    file, offsets = _core.blob_write([(f"uint{bits}", first), ("fp16", second)])
    places = [f'BLOBFILE(path = string("@model_path/w.bin"), offset = uint64({at}))' for at in offsets]
    weight = FORMS[op].format(bits=bits, entries=entries, first=places[0], second=places[1])
    body = f"""
    func main<ios18>(tensor<fp16, [2, 32]> x) {{{weight}
        tensor<fp16, [2, {columns}]> y = matmul(x = x, y = w, transpose_x = bool(false), transpose_y = bool(false))[name = string("y")];
    }} -> (y);
"""
    graph = load_mil(f"{HEADER}{{{body}}}", file)
    mil = emit_mil(graph, H13)
    assert f" = {op}(" in mil.text
    assert f"tensor<uint{bits}, [32, {columns}]>" in mil.text
    assert_read_back(mil)
    (w,) = (v for node in graph.nodes for v in node.inputs[1:] if node.op == "matmul" and v is not None)
    dense = second[first] if op == PALETTE else np.zeros((32, 32), np.float16)
    if op == SPARSE:
        dense[first.astype(bool)] = second
    found = w.node.data if w.node.op == "const" else next(iter(run_reference(hx.graph(hx.Tensor(w)), {}).values()))
    np.testing.assert_array_equal(found, dense)


def with_vectors(indices: Array, tables: Array, axis: str, bits: int = 2) -> Graph:
    """Text of others: a weight whose indices name several numbers. axis: the argument, or none."""
    file, at = _core.blob_write([(f"uint{bits}", indices), (DTYPES_OF[tables.dtype.name], tables)])
    (kind, lut), shape = (f"uint{bits}", DTYPES_OF[tables.dtype.name]), list(indices.shape)
    i, t = (f'BLOBFILE(path = string("@model_path/w.bin"), offset = uint64({n}))' for n in at)
    size = tables.shape[-1]
    dense = [d * size if n == int(axis or 0) % indices.ndim else d for n, d in enumerate(shape)]
    argument = f", vector_axis = int32({axis})" if axis else ""
    body = f"""
    func main<ios18>(tensor<{lut}, {dense}> x) {{
        tensor<{kind}, {shape}> i = const()[name = string("i"), val = tensor<{kind}, {shape}>({i})];
        tensor<{lut}, {list(tables.shape)}> t = const()[name = string("t"), val = tensor<{lut}, {list(tables.shape)}>({t})];
        tensor<{lut}, {dense}> w = {PALETTE}(indices = i, lut = t{argument})[name = string("w")];
        tensor<{lut}, {dense}> y = add(x = x, y = w)[name = string("y")];
    }} -> (y);
"""
    return load_mil(f"{HEADER}{{{body}}}", file)


DTYPES_OF = {"float16": "fp16", "float32": "fp32"}
# The shape of indices, blocks along each of its axes, numbers of an entry, the axis along which they lie.
VECTORS = [
    ((6, 10), (1, 1), 2, "0"),
    ((6, 10), (3, 2), 4, "1"),
    ((6, 10), (1, 5), 3, "-2"),
    ((2, 4, 3, 3), (1, 2, 1, 1), 4, "1"),
    ((12,), (3,), 2, "0"),
]


@pytest.mark.parametrize(("shape", "count", "size", "axis"), VECTORS)
def test_tables_of_vectors_are_read_as_apple_decodes_them(
    shape: tuple[int, ...], count: tuple[int, ...], size: int, axis: str
) -> None:
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    ).constexpr_lut_to_dense
    indices = integers(0, 4, *shape, kind="uint8")
    tables = np.random.default_rng(size).standard_normal((*count, 4, size)).astype(np.float16)
    graph = with_vectors(indices, tables, axis)
    (stored,) = (v for node in graph.nodes if node.op == "add" for v in node.inputs if v and v.node.op != "input")
    assert stored.node.op == ("decode_vectors" if len(shape) > 1 else "const")
    want = apple.decompress(indices, tables, np.int32(axis))
    (got,) = run_reference(graph, {"x": np.zeros(want.shape, np.float16)}).values()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", ["", "2", "-3"])
def test_vectors_need_one_of_the_axes(axis: str) -> None:
    with pytest.raises(hx.Error, match=r"vector_axis: got .*, need one of -2\.\.1 for entries of 2 numbers"):
        with_vectors(integers(0, 4, 6, 10, kind="uint8"), np.ones((1, 1, 4, 2), np.float16), axis)


# Integers from low to below high, an offset, and the bits that are left: None where a byte does not hold it.
ASYMMETRIC = [
    ("uint4", 0, 16, 8, 4),
    ("uint4", 0, 16, 3, 8),
    ("int4", -8, 8, -2, 8),
    ("int8", -20, 20, 100, 8),
    ("int8", -100, 100, 100, None),
    ("uint8", 0, 256, 3, None),
]


def asymmetric(low: int, high: int, offset: int, bits: int | None) -> tuple[Array, Array, Array]:
    """As tools write them: integers, and an offset and a scale for each block of two rows and eight columns."""
    rng = np.random.default_rng(offset + 2)
    numbers = rng.integers(low, high, (32, 16))
    numbers[0, :2] = low, high - 1
    offsets = np.full((16, 2), offset) - (np.arange(32).reshape(16, 2) % 3 == 1 if bits == 8 else 0)
    return numbers, offsets, rng.uniform(0.01, 1, (16, 2)).astype(np.float16)


def decoded(numbers: Array, offsets: Array, scales: Array) -> Array:
    """Rounded once."""
    wide, exact = (blocks.repeat(2, 0).repeat(8, 1) for blocks in (offsets, scales.astype(np.float64)))
    result: Array = ((numbers - wide) * exact).astype(np.float16)
    return result


@pytest.mark.parametrize(("kind", "low", "high", "offset", "bits"), ASYMMETRIC)
def test_blocks_with_offsets_stay_integers_where_a_byte_holds_what_is_left(
    kind: str, low: int, high: int, offset: int, bits: int | None
) -> None:
    numbers, offsets, scales = asymmetric(low, high, offset, bits)
    stored = [(kind, array.astype(DTYPES[kind].numpy)) for array in (numbers, offsets)]
    file, at = _core.blob_write([*stored, ("fp16", scales)])
    places = [f'BLOBFILE(path = string("@model_path/w.bin"), offset = uint64({n}))' for n in at]
    body = f"""
    func main<ios18>(tensor<fp16, [2, 32]> x) {{
        tensor<{kind}, [32, 16]> d = const()[name = string("d"), val = tensor<{kind}, [32, 16]>({places[0]})];
        tensor<{kind}, [16, 2]> o = const()[name = string("o"), val = tensor<{kind}, [16, 2]>({places[1]})];
        tensor<fp16, [16, 2]> s = const()[name = string("s"), val = tensor<fp16, [16, 2]>({places[2]})];
        tensor<fp16, [32, 16]> w = {BLOCKS}(data = d, scale = s, offset = o)[name = string("w")];
        tensor<fp16, [2, 16]> y = matmul(x = x, y = w, transpose_x = bool(false), transpose_y = bool(false))[name = string("y")];
    }} -> (y);
"""
    graph = load_mil(f"{HEADER}{{{body}}}", file)
    (w,) = (v for node in graph.nodes for v in node.inputs[1:] if node.op == "matmul" and v is not None)
    assert (encoding_of(w).bits if is_encoded(w.node) else None) == bits
    found = w.node.data if bits is None else next(iter(run_reference(hx.graph(hx.Tensor(w)), {}).values()))
    np.testing.assert_array_equal(found, decoded(numbers, offsets, scales))


@pytest.mark.parametrize(("kind", "low", "high", "offset", "bits"), ASYMMETRIC)
def test_apples_decoder_agrees_on_blocks_with_offsets(
    kind: str, low: int, high: int, offset: int, bits: int | None
) -> None:
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    ).constexpr_blockwise_shift_scale
    numbers, offsets, scales = asymmetric(low, high, offset, bits)
    byte = np.uint8 if kind.startswith("uint") else np.int8  # as coremltools holds four bits
    theirs = apple.decompress(numbers.astype(byte), scales, offsets.astype(byte))
    np.testing.assert_array_equal(decoded(numbers, offsets, scales), theirs)


@pytest.mark.parametrize("scale", [1e-6, 7e4])
def test_weights_whose_scale_fp16_does_not_keep_are_written_as_floats(scale: float) -> None:
    """1e-6 is 17 of the smallest steps of fp16, so that all weights would be off by a thirtieth."""
    mil = emit_mil(hx.graph(hx.matmul(rows(), scaled(integers(-1, 2, 64, 32), scale, axis=1))), H13)
    assert "constexpr" not in mil.text
    assert_read_back(mil)


def test_other_networks_of_the_process_change_no_text() -> None:
    """Equal constants are one in all networks, and have the sources of all: the key of a kept program is its text."""

    numbers = np.linspace(0, 1, 32, dtype=np.float16)

    def text(*sources: str) -> str:
        with source_scope(*sources):
            weight, offset = scaled(integers(-128, 128, 32, 64), 0.01, np.int8(0)), hx.const(numbers)
        return emit_mil(hx.graph({"y": hx.matmul(rows(), weight, transpose_y=True) + offset}), H13).text

    alone = text()
    with source_scope("a network that was here before"):
        held = scaled(integers(-128, 128, 32, 64), 0.01, np.int8(0)), constant(numbers, ("its layer",))
    assert text("the weight of this one") == alone
    assert text() == alone
    assert "const_0" in alone
    del held


# The shape of indices; blocks of tables; blocks of scales along the axes of the tables; numbers of an entry; what it is
# read as. coremltools has one scale for all tables, or one for each.
QUANTISED_TABLES = [
    ((6, 10), (3, 2), (1, 1, 1, 1), 1, "decode_scaled_palette"),
    ((6, 10), (3, 2), (3, 2, 1, 1), 1, "decode_scaled_palette"),
    ((6, 10), (3, 1), (1, 1, 1, 1), 1, "decode_scaled_palette"),
    ((8, 4, 3, 3), (4, 1, 1, 1), (4, 1, 1, 1, 1, 1), 1, "decode_scaled_palette"),
    ((6, 10), (3, 2), (3, 2, 4, 1), 1, "decode_palette"),
    ((6, 10), (3, 1), (3, 1, 1, 1), 2, "decode_vectors"),
    ((12,), (3,), (3, 1, 1), 1, "const"),
]


def with_quantised_tables(indices: Array, tables: Array, scales: Array) -> Graph:
    """Text of others: a lut that a constexpr_blockwise_shift_scale makes."""
    file, at = _core.blob_write([("uint2", indices), ("int8", tables), ("fp16", scales)])
    kinds = (("uint2", indices.shape), ("int8", tables.shape), ("fp16", scales.shape))
    i, t, s = (
        f'const()[name = string("{name}"), val = tensor<{kind}, {list(shape)}>(BLOBFILE(path = '
        f'string("@model_path/w.bin"), offset = uint64({offset})))]'
        for name, (kind, shape), offset in zip("its", kinds, at, strict=True)
    )
    size = tables.shape[-1]
    dense = [d * size if n == 0 else d for n, d in enumerate(indices.shape)]
    axis = ", vector_axis = int32(0)" if size > 1 else ""
    body = f"""
    func main<ios18>(tensor<fp16, {dense}> x) {{
        tensor<uint2, {list(indices.shape)}> i = {i};
        tensor<int8, {list(tables.shape)}> t = {t};
        tensor<fp16, {list(scales.shape)}> s = {s};
        tensor<fp16, {list(tables.shape)}> l = {BLOCKS}(data = t, scale = s)[name = string("l")];
        tensor<fp16, {dense}> w = {PALETTE}(indices = i, lut = l{axis})[name = string("w")];
        tensor<fp16, {dense}> y = add(x = x, y = w)[name = string("y")];
    }} -> (y);
"""
    return load_mil(f"{HEADER}{{{body}}}", file)


@pytest.mark.parametrize(("shape", "count", "scaled", "size", "op"), QUANTISED_TABLES)
def test_tables_of_int8_are_read_as_apple_decodes_them(
    shape: tuple[int, ...], count: tuple[int, ...], scaled: tuple[int, ...], size: int, op: str
) -> None:
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    )
    indices, tables = integers(0, 4, *shape, kind="uint8"), integers(-128, 128, *count, 4, size)
    scales = np.random.default_rng(size).uniform(0.001, 0.01, scaled).astype(np.float16)
    graph = with_quantised_tables(indices, tables, scales)
    (stored,) = (v for node in graph.nodes if node.op == "add" for v in node.inputs if v and v.node.op != "input")
    assert stored.node.op == op
    lut = apple.constexpr_blockwise_shift_scale.decompress(tables, scales, None)
    want = apple.constexpr_lut_to_dense.decompress(indices, lut, np.int32(0) if size > 1 else None)
    found = stored.node.data if op == "const" else run_reference(hx.graph(hx.Tensor(stored)), {}).popitem()[1]
    np.testing.assert_array_equal(found.view(np.uint16), want.view(np.uint16))


def test_a_mask_over_tables_of_int8_is_read() -> None:
    """coremltools' palette of pruned weights with a quantised table."""
    rng = np.random.default_rng(0)
    mask, table = (rng.random((16, 8)) < 0.4).astype(np.uint8), integers(-127, 128, 1, 1, 4, 1)
    named = rng.integers(0, 4, int(mask.sum())).astype(np.uint8)
    file, at = _core.blob_write([("uint1", mask), ("uint2", named), ("int8", table)])
    m, n, t = (f'BLOBFILE(path = string("@model_path/w.bin"), offset = uint64({offset}))' for offset in at)
    body = f"""
    func main<ios18>(tensor<fp16, [16, 8]> x) {{
        tensor<uint1, [16, 8]> m = const()[name = string("m"), val = tensor<uint1, [16, 8]>({m})];
        tensor<uint2, [{named.size}]> n = const()[name = string("n"), val = tensor<uint2, [{named.size}]>({n})];
        tensor<int8, [1, 1, 4, 1]> t = const()[name = string("t"), val = tensor<int8, [1, 1, 4, 1]>({t})];
        tensor<fp16, [1, 1, 1, 1]> s = const()[name = string("s"), val = tensor<fp16, [1, 1, 1, 1]>([[[[0x1p-8]]]])];
        tensor<fp16, [1, 1, 4, 1]> l = {BLOCKS}(data = t, scale = s)[name = string("l")];
        tensor<uint1, [16, 8]> p, tensor<fp16, [{named.size}]> v = {MASKED}(indices_mask = m, indices_nonzero_data = n, lut = l)[name = string("v")];
        tensor<fp16, [16, 8]> w = {SPARSE}(nonzero_data = v, mask = p)[name = string("w")];
        tensor<fp16, [16, 8]> y = add(x = x, y = w)[name = string("y")];
    }} -> (y);
"""
    graph = load_mil(f"{HEADER}{{{body}}}", file)
    (got,) = run_reference(graph, {"x": np.zeros((16, 8), np.float16)}).values()
    want = np.zeros((16, 8), np.float16)
    want[mask == 1] = (table.reshape(-1) * np.float16(2**-8))[named]
    np.testing.assert_array_equal(got, want)
