"""Palettes whose tables are integers of 8 bits with a scale for each table."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress, find_weights
from hexane.compression.tables import int8_tables
from hexane.emit.mil import emit_mil
from hexane.graph import Array, Graph, Node, Value
from hexane.importers.mil import load_mil_file
from hexane.ops.encodings import is_encoded
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.emitted import save_mil_as
from hexane.targets import load_target
from hexane.targets.query import load_chip
from remembered import quantised_once
from stored_weights import numbers, with_whole


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


UNKNOWN = "counts as folded: tables of int8 are known to stream only with activations of int8"
BITS = (2, 3, 4, 6, 8)


def weight(*shape: int, dtype: str = "float32", size: float = 0.1) -> Array:
    made: Array = (np.random.default_rng(sum(shape)).standard_normal(shape) * size).astype(dtype)
    return made


def network(dtype: str = "float32") -> Graph:
    x = hx.relu(hx.conv(hx.input("x", (1, 16, 8, 8), dtype), weight(32, 16, 3, 3, dtype=dtype), pad=1))
    y = hx.reduce_mean(x, axes=(2, 3), keep_dims=False)
    y = hx.linear(hx.matmul(y, weight(32, 160, dtype=dtype)), weight(48, 160, dtype=dtype))
    image = hx.reshape(y, shape=(1, 48, 1, 1))
    return hx.graph(hx.conv_transpose(image, weight(48, 48, 2, 2, dtype=dtype)))


def stored(graph: Graph) -> list[Value]:
    return [node.values[0] for node in graph.nodes if is_encoded(node)]


def operands(node: Node) -> list[Array]:
    return [v.node.data for v in node.inputs if v is not None and v.node.data is not None]


@pytest.mark.parametrize("group", ["", ":g8", ":g16"])
@pytest.mark.parametrize("bits", BITS)
def test_each_number_gets_the_nearest_entry_of_the_rounded_table(bits: int, group: str) -> None:
    graph = network("float16")
    made = compress(graph, hx.Compression(f"palette{bits}{group}:int8"), load_target("host"))
    values = stored(made)
    assert len(values) == 4
    for before, value in zip(find_weights(graph), values, strict=True):
        _, integers, scales = operands(value.node)
        was = before.whole.node.data
        assert was is not None
        groups = was.shape[before.axis] // int(group[2:]) if group else 1
        assert (integers.dtype, scales.dtype) == (np.int8, np.float16)
        assert integers.shape[-1] == 1 << bits
        assert scales.size == integers.size // (1 << bits) == groups
        assert int(np.abs(integers.astype(int)).max()) <= 127
        tables = (integers.astype(np.float16) * scales).reshape(groups, -1).astype(np.float64)
        parts = (np.split(a, groups, before.axis) for a in (was, numbers(value)))
        for table, old, new in zip(tables, *parts, strict=True):
            nearest = np.abs(old.astype(np.float64)[..., None] - table).min(-1)
            np.testing.assert_array_equal(np.abs(old.astype(np.float64) - new), nearest)


@pytest.mark.parametrize("size", [1e-8, 1e-6, 0.02, 3.0, 20000.0])
def test_scales_are_numbers_of_fp16_and_so_are_all_products(size: float) -> None:
    rng = np.random.default_rng(3)
    tables = np.clip(rng.standard_normal((40, 16)) * size, -65504, 65504).astype(np.float16)
    tables[0], tables[1] = 0, 65504 if size > 1 else 0
    integers, scales = int8_tables(tables, rng.integers(0, 100, tables.shape))
    assert (scales > 0).all()
    made = integers.astype(np.float16) * scales
    assert np.isfinite(made).all()
    large = size > 1e-5  # smaller ones have few digits in fp16, too
    step = np.abs(tables.astype(np.float64)).max(1, keepdims=True) / (120 if large else 60)
    assert (np.abs(made.astype(np.float64) - tables) <= np.maximum(step, 2.0**-24)).all()


def test_the_scale_is_no_worse_than_the_one_that_makes_the_largest_entry_127() -> None:
    rng = np.random.default_rng(0)
    tables, counts = (rng.standard_normal((200, 16)) * 0.1).astype(np.float16), rng.integers(1, 1000, (200, 16))

    def error(integers: Array, scales: Array) -> Array:
        made = integers.astype(np.float16) * scales
        found: Array = (counts * (made.astype(np.float64) - tables) ** 2).sum(1)
        return found

    plain = (np.abs(tables.astype(np.float64)).max(1, keepdims=True) / 127).astype(np.float16)
    simple = error(np.clip(np.rint(tables / plain.astype(np.float64)), -127, 127), plain)
    found = error(*int8_tables(tables, counts))
    assert (found <= simple).all()
    assert found.sum() < 0.6 * simple.sum()


@pytest.mark.parametrize("target", ["host", "h11", "h13", "h16g"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", ["palette4:int8", "palette4:g8:int8", "palette2:g16:int8", "palette8:int8"])
def test_a_program_computes_with_the_decompressed_weights_to_the_bit(mode: str, dtype: str, target: str) -> None:
    graph = network(dtype)
    made = compress(graph, hx.Compression(mode), load_target(target))
    x = np.random.default_rng(4).standard_normal((1, 16, 8, 8)).astype(dtype)
    want = hx.compile(with_whole(made, stored(made)), target=target)(x)
    np.testing.assert_array_equal(hx.compile(graph, target=target, compress=mode)(x), want)


@pytest.mark.parametrize(("mode", "kept"), [("palette4:int8", 4), ("palette2:g16:int8", 4), ("palette6:g8:int8", 8)])
def test_a_cpu_keeps_indices_in_four_or_eight_bits(mode: str, kept: int) -> None:
    decisions = hx.compile(network(), compress=mode).program.decisions
    said = [(d.verdict, d.reason) for d in decisions if d.stage == "keep_encoded"]
    assert said[:3] == [(f"palette, {kept} bits", "decoded as it is read")] * 3
    assert said[3] == (f"palette, {kept} bits", "decoded in each call")


@pytest.mark.parametrize("mode", ["palette4:int8", "palette8:g16:int8"])
def test_rows_of_an_embedding_are_decoded_from_few_bits(mode: str) -> None:
    graph = hx.graph(hx.gather(weight(320, 64), hx.input("ids", (5,), "int32"), axis=0))
    made = compress(graph, hx.Compression(mode), load_target("host"))
    (value,) = stored(made)
    ids = np.array([0, 319, 17, 17, 5], np.int32)
    net = hx.compile(graph, compress=mode)
    assert [d.stage for d in net.program.decisions if d.stage == "keep_encoded"] == ["keep_encoded"]
    np.testing.assert_array_equal(net(ids), numbers(value)[ids])


@pytest.mark.parametrize(
    ("target", "does"), [("h12", UNKNOWN), ("h13", UNKNOWN), ("h16g", UNKNOWN), ("host", "stays in few bits on")]
)
@pytest.mark.parametrize(
    ("mode", "tables"), [("palette4:int8", 1 * (16 + 2)), ("palette4:g8:int8", 4 * (16 + 2)), ("palette4:g8", 4 * 32)]
)
def test_decisions_have_the_bytes_of_indices_integers_and_scales(
    mode: str, tables: int, target: str, does: str
) -> None:
    decision = compress(network(), hx.Compression(mode), load_target(target)).decisions[0]
    assert decision.verdict == mode
    said = does if mode.endswith(":int8") or target == "host" else ""
    assert decision.reason.startswith(f"9216 -> {4608 // 2 + tables} bytes; {said}")
    layer = compile_compressed(network(), hx.Compression(mode), hx.Options(target=target))[0].layers[0]
    assert layer.bytes_after == 4608 // 2 + tables
    assert not (layer.streams and mode.endswith(":int8"))


def test_layers_get_modes_of_their_own_and_a_group_that_does_not_fit_is_said() -> None:
    asked = hx.Compression("none", per_layer={"conv at*": "palette4:g16:int8", "linear*": "palette4:g32:int8"})
    made = compress(network(), asked, load_target("h13"))
    said = [(d.verdict, "one table, since 48 channels are no multiple of 32" in d.reason) for d in made.decisions]
    assert said == [("palette4:g16:int8", False), ("whole", False), ("palette4:g32:int8", True), ("whole", False)]


def test_scales_that_fp16_does_not_hold_are_rounded_once_with_their_tables() -> None:
    """A network of another's weights: entries in fp16 are the products, not products of rounded scales."""
    rng = np.random.default_rng(2)
    indices, integers = rng.integers(0, 16, (64, 64)).astype(np.uint8), rng.integers(-127, 128, (2, 1, 16))
    scales = rng.uniform(0.001, 0.01, (2, 1, 1)).astype(np.float32)
    weights = hx.decode_scaled_palette(indices, integers.astype(np.int8), scales)
    decoded = numbers(weights.value)
    np.testing.assert_array_equal(
        decoded,
        np.take_along_axis(
            (integers * scales).astype(np.float32).repeat(32, 0).reshape(64, 16), indices.astype(int), 1
        ),
    )
    x = rng.standard_normal((2, 64)).astype(np.float32)
    for target in ("host", "h13"):
        got, want = (hx.compile(hx.linear(hx.input("x", (2, 64)), w), target=target)(x) for w in (weights, decoded))
        np.testing.assert_array_equal(got, want)


def test_few_distinct_numbers_take_fewer_bits() -> None:
    w = np.random.default_rng(0).choice(np.float32([-127, -64, 0, 1]), (64, 64)) / 128
    graph = hx.graph(hx.matmul(hx.input("x", (2, 64)), w))
    made = compress(graph, hx.Compression("palette8:int8"), load_chip("h16g"))
    (value,) = stored(made)
    np.testing.assert_array_equal(numbers(value), w)  # multiples of 1 / 128
    assert made.decisions[0].reason.startswith(f"8192 -> {4096 // 4 + 4 + 2} bytes")


def test_auto_chooses_none() -> None:
    for target in ("h13", "host"):
        made, _ = compile_compressed(network(), hx.Compression(tolerance=0.05), hx.Options(target=target))
        assert not any(layer.encoding.endswith(":int8") for layer in made.layers)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", ["", ":g16"])
def test_mil_has_an_int8_lut_and_apples_reader_and_decoder_agree(bits: int, group: str, tmp_path: Path) -> None:
    """The bytes at the offsets of the text, through Apple's own reader and decoders and through NumPy."""
    w = weight(80, 96)
    graph = compress(
        hx.graph(hx.matmul(hx.input("x", (2, 80)), w)), hx.Compression(f"palette{bits}{group}:int8"), load_chip("h16g")
    )
    mil = emit_mil(graph, load_chip("h16g"))
    lut = re.findall(r"(\S+) = constexpr_blockwise_shift_scale\(data = \S+, scale = \S+\)", mil.text)
    assert len(lut) == 1
    assert len(re.findall(rf" = constexpr_lut_to_dense\(indices = \S+, lut = {lut[0]}\)", mil.text)) == 1
    after = int(graph.decisions[0].reason.partition("-> ")[2].partition(" ")[0])
    assert after - 20 <= len(mil.weights) < after + 512  # a small table stands in the text
    save_mil_as(mil, tmp_path / "m.mil")
    (again,), (value,) = stored(load_mil_file(tmp_path / "m.mil")), stored(graph)
    assert again.node.op == value.node.op
    want = numbers(again)
    np.testing.assert_array_equal(want, numbers(value).astype(np.float16))

    apple = pytest.importorskip("coremltools.libmilstoragepython", reason="coremltools is not installed")
    decoder = pytest.importorskip("coremltools.converters.mil.mil.ops.defs.iOS18.compression")
    (tmp_path / "w.bin").write_bytes(mil.weights)
    reader = apple._BlobStorageReader(str(tmp_path / "w.bin"))
    found = re.findall(r"const\(\)\[.*?tensor<(\w+), \[([\d, ]+)\]>\(BLOBFILE\(.*?offset = uint64\((\d+)\)", mil.text)
    at = {kind: int(offset) for kind, _, offset in found}
    blocks = (1, 6) if group else (1, 1)
    picks = np.array(getattr(reader, f"read_uint{bits}_data")(at[f"uint{bits}"])).reshape(w.shape).astype(np.uint8)
    integers = np.array(
        reader.read_int8_data(at["int8"]) if "int8" in at else _in_text(mil.text, "int8", int), np.int8
    ).reshape(*blocks, 1 << bits, 1)
    scales = (
        np.array(reader.read_fp16_data(at["fp16"])).view(np.float16)
        if "fp16" in at
        else np.array(_in_text(mil.text, "fp16", float.fromhex), np.float16)
    ).reshape(*blocks, 1, 1)
    table = decoder.constexpr_blockwise_shift_scale.decompress(integers, scales, None)
    got = decoder.constexpr_lut_to_dense.decompress(picks, table, None)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))
    by_hand = (integers.astype(np.float64) * scales).astype(np.float16)[..., 0]
    column = np.arange(96) // (96 // blocks[1])
    np.testing.assert_array_equal(by_hand[0, column[None, :], picks], want)


def _in_text(text: str, kind: str, number: Any) -> list[Any]:
    """Of a constant of few numbers, which stand in the text."""
    (said,) = re.findall(rf"val = tensor<{kind}, \[[\d, ]+\]>\(\[(.*?)\]\)\]", text)
    return [number(n.strip("[]")) for n in said.split(", ")]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("palette4:int4", "did you mean 'palette4:int8'"),
        ("palette1:int8", "need none"),
        ("palette4:v2:int8", "need none"),
        ("palette4:int8:g16", "need none"),
        ("palette4:g0:int8", "need none"),
        ("sparse:0.5+palette4:int8", "need none"),
        ("int8:int8", "need none"),
        ("blockwise4:b32:int8", "need none"),
    ],
)
def test_what_is_wrong_is_said(mode: str, said: str) -> None:
    with pytest.raises(hx.Error, match=rf"mode: got {mode!r}.*{said}".replace("+", r"\+")):
        hx.Compression(mode)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_weights_that_are_not_finite_are_refused_with_their_place(bad: float) -> None:
    w = weight(64, 64)
    w[3, 4] = bad
    with pytest.raises(hx.Error, match=r"\[compress\] linear at test_int8_tables.py:\d+: got the weight "):
        hx.compile(hx.linear(hx.input("x", (2, 64)), w), compress="palette4:int8")
