"""Pruned weights with a palette of what is left: a mask, an index for each number that is not 0, and tables."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress, find_weights
from hexane.emit.mil import emit_mil
from hexane.graph import Array, Graph, Value
from hexane.importers.mil import load_mil_file
from hexane.ops.encodings import encoding_of
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.emitted import save_mil_as
from hexane.targets import load_target
from hexane.targets.query import load_chip
from stored_weights import numbers, pruned, pruned_network, with_whole

pytestmark = pytest.mark.filterwarnings("ignore")

UNKNOWN = "counts as folded: no source says that a chip streams a mask with indices"
BITS = (1, 2, 3, 4, 6, 8)


def stored(graph: Graph) -> list[Value]:
    """The weights of products."""
    found = [node.inputs[1] for node in graph.nodes if node.op in ("conv", "linear", "matmul")]
    return [v for v in found if v is not None]


@pytest.mark.parametrize("group", ["", ":g8"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("part", [0.5, 0.8])
def test_the_smallest_part_becomes_0_and_others_the_nearest_entry(part: float, bits: int, group: str) -> None:
    mode = f"sparse:{part}+palette{bits}{group}"
    graph = pruned_network()
    made = compress(graph, hx.Compression(mode), load_target("host"))
    for before, value in zip(find_weights(graph), stored(made), strict=True):
        was, now = before.whole.node.data, numbers(value)
        assert was is not None
        gone = np.zeros(was.size, bool)
        gone[np.argsort(np.abs(was).reshape(-1), kind="stable")[: np.ceil(part * was.size).astype(int)]] = True
        gone = gone.reshape(was.shape)
        assert not now[gone].any()
        masked = encoding_of(value).masked_bits
        assert masked == bits or (masked == 6 and bits == 8 and group)  # few numbers are left in a group
        axis = before.axis
        count = was.shape[axis] // 8 if group else 1
        for old, new, zero in zip(*(np.split(a, count, axis) for a in (was, now, gone)), strict=True):
            entries = np.unique(new[~zero])
            assert len(entries) <= (1 << bits) - (bits in (4, 8))
            apart = np.abs(old[~zero].astype(np.float16)[:, None] - entries.astype(np.float64)).min(1)
            np.testing.assert_array_equal(apart, np.abs(old[~zero].astype(np.float16).astype(np.float64) - new[~zero]))


def test_few_distinct_numbers_lose_nothing() -> None:
    w = pruned((64, 64), 0.6)
    w[w != 0] = np.random.default_rng(0).choice(np.float32([-2, -0.5, 0.25, 1]), np.count_nonzero(w))
    graph = hx.graph(hx.linear(hx.input("x", (2, 64)), w))
    for mode in ("sparse+palette2", "sparse:0.5+palette2", "sparse+palette4", "sparse+palette2:g16"):
        (value,) = stored(compress(graph, hx.Compression(mode), load_target("host")))
        np.testing.assert_array_equal(numbers(value), w)


@pytest.mark.parametrize("target", ["host", "h11", "h13", "h16g"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", ["sparse:0.6+palette4", "sparse:0.6+palette2", "sparse:0.6+palette8:g8"])
def test_a_program_computes_with_the_decompressed_weights_to_the_bit(mode: str, dtype: str, target: str) -> None:
    graph = pruned_network(dtype=dtype)
    made = compress(graph, hx.Compression(mode), load_target(target))
    x = np.random.default_rng(4).standard_normal((1, 16, 8, 8)).astype(dtype)
    want = hx.compile(with_whole(made, stored(made)), target=target)(x)
    np.testing.assert_array_equal(hx.compile(graph, target=target, compress=mode)(x), want)


@pytest.mark.parametrize(("bits", "kept"), [(1, 4), (2, 4), (3, 4), (4, 4), (6, 8), (8, 8)])
def test_a_cpu_keeps_indices_in_four_or_eight_bits(bits: int, kept: int) -> None:
    net = hx.compile(pruned_network(), compress=f"sparse:0.5+palette{bits}")
    said = [d.verdict for d in net.program.decisions if d.stage == "keep_encoded"]
    assert said == [f"palette, {kept} bits"] * 2


@pytest.mark.parametrize(
    ("target", "does"), [("h12", UNKNOWN), ("h13", UNKNOWN), ("h16g", UNKNOWN), ("host", "stays in few bits on")]
)
def test_decisions_have_the_mode_and_the_bytes_of_mask_indices_and_table(target: str, does: str) -> None:
    decision = compress(pruned_network(), hx.Compression("sparse:0.75+palette4"), load_target(target)).decisions[0]
    assert decision.verdict == "sparse:0.75+palette4"
    assert decision.reason.startswith(f"9216 -> {4608 // 8 + 1152 // 2 + 2 * 16} bytes; {does}")
    made, _ = compile_compressed(pruned_network(), hx.Compression("sparse:0.75+palette4"), hx.Options(target=target))
    assert (made.layers[0].bytes_after, made.layers[0].streams) == (4608 // 8 + 1152 // 2 + 2 * 16, False)


def test_zeros_that_are_there_are_used_and_no_other_number_becomes_0() -> None:
    graph = pruned_network(0.7)
    made = compress(graph, hx.Compression("sparse+palette4"), load_target("h13"))
    for before, value, decision in zip(find_weights(graph), stored(made), made.decisions, strict=True):
        assert before.whole.node.data is not None
        np.testing.assert_array_equal(numbers(value) == 0, before.whole.node.data == 0)
        assert decision.reason.endswith(UNKNOWN)


@pytest.mark.parametrize(
    ("make", "mode", "said"),
    [
        (
            lambda: pruned_network(0.3),
            "sparse+palette4",
            r"a palette alone: (29|3\d)% of its numbers are 0, a mask needs half",
        ),
        (lambda: pruned_network(1.0), "sparse+palette4", "a palette alone: all of its numbers are 0"),
        (
            lambda: hx.graph(hx.gather(pruned((300, 32)), hx.input("ids", (7,), "int32"), axis=0)),
            "sparse:0.5+palette4",
            "a palette alone: the rows of an embedding have no mask",
        ),
        (
            lambda: hx.graph(hx.linear(hx.input("x", (2, 64)), np.float32(pruned((64, 64)) > 0.1))),
            "sparse:0.5+palette4",
            "a palette alone: a mask saves nothing",
        ),
        (
            lambda: hx.graph(hx.linear(hx.input("x", (2, 80)), pruned((60, 80)))),
            "sparse:0.5+palette4:g16",
            "one table, since 60 channels are no multiple of 16; counts as folded",
        ),
    ],
)
def test_what_a_weight_has_instead_is_said(make: Any, mode: str, said: str) -> None:
    graph = make()
    made = compress(graph, hx.Compression(mode), load_target("h13"))
    assert re.search(said, made.decisions[0].reason), made.decisions[0].reason
    if "alone" in said:
        assert UNKNOWN not in made.decisions[0].reason
        same = compress(graph, hx.Compression("palette4"), load_target("h13")).decisions[0].reason
        assert made.decisions[0].reason.partition(" bytes")[0] == same.partition(" bytes")[0]


@pytest.mark.parametrize("mode", ["palette4", "palette4:g8"])
def test_a_palette_alone_stays_one_where_its_first_entry_would_be_0(mode: str) -> None:
    """Chips are known to stream it, and not with a mask."""
    w = np.random.default_rng(3).choice(np.float32([0, 0, 0, 0.25, 0.5]), (64, 64))
    graph = hx.graph(hx.matmul(hx.input("x", (2, 64)), w))
    made = compress(graph, hx.Compression(mode), load_chip("h16g"))
    mil = emit_mil(made, load_chip("h16g"))
    assert " = constexpr_lut_to_dense(" in mil.text
    assert made.decisions[0].reason.endswith("; streams")
    (value,) = stored(made)
    np.testing.assert_array_equal(numbers(value), w)


def test_auto_chooses_none() -> None:
    for target in ("h13", "host"):
        made, _ = compile_compressed(pruned_network(0.8), hx.Compression(tolerance=0.05), hx.Options(target=target))
        assert not any("+" in layer.encoding for layer in made.layers)


def decoded(mask: Array, named: Array, table: Array, group: int) -> Array:
    """Number by number, in the order of memory; group: rows that share a table."""
    found, at = np.zeros(mask.shape, np.float16), iter(named.tolist())
    for place in np.ndindex(*mask.shape):
        if mask[place]:
            found[place] = table[place[0] // group, next(at)]
    return found


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", ["", ":g16"])
def test_mil_has_it_jointly_and_apples_reader_and_decoder_agree(bits: int, group: str, tmp_path: Path) -> None:
    """The bytes at the offsets of the text, through Apple's own reader and decoder and through one of ours."""
    w = pruned((80, 96))
    mode = f"sparse:0.6+palette{bits}{group}"
    graph = compress(hx.graph(hx.linear(hx.input("x", (2, 96)), w)), hx.Compression(mode), load_chip("h16g"))
    mil = emit_mil(graph, load_chip("h16g"))
    assert mil.text.count(" = constexpr_lut_to_sparse(") == mil.text.count(" = constexpr_sparse_to_dense(") == 1
    after = int(graph.decisions[0].reason.partition("-> ")[2].partition(" ")[0])
    assert after <= len(mil.weights) < after + 512
    save_mil_as(mil, tmp_path / "m.mil")
    (again,) = stored(load_mil_file(tmp_path / "m.mil"))
    (value,) = stored(graph)
    want = numbers(value).astype(np.float16)
    np.testing.assert_array_equal(numbers(again), want)

    apple = pytest.importorskip("coremltools.libmilstoragepython", reason="coremltools is not installed")
    decoder = pytest.importorskip("coremltools.converters.mil.mil.ops.defs.iOS18.compression")
    (tmp_path / "w.bin").write_bytes(mil.weights)
    reader = apple._BlobStorageReader(str(tmp_path / "w.bin"))
    found = re.findall(r"const\(\)\[.*?tensor<(\w+), \[([\d, ]+)\]>\(BLOBFILE\(.*?offset = uint64\((\d+)\)", mil.text)
    at = {(kind, tuple(map(int, shape.split(", ")))): int(offset) for kind, shape, offset in found}
    count = int(np.count_nonzero(want))
    kind = f"uint{bits}"
    mask = np.array(reader.read_uint1_data(at["uint1", w.shape]))[: w.size].reshape(w.shape).astype(np.uint8)
    named = np.array(getattr(reader, f"read_{kind}_data")(at[kind, (count,)]))[:count].astype(np.uint8)
    blocks = (5, 1) if group else (1, 1)
    lut = [v for (k, s), v in at.items() if k == "fp16" and s == (*blocks, 1 << bits, 1)]
    if lut:
        table = np.array(reader.read_fp16_data(lut[0])).view(np.float16).reshape(*blocks, 1 << bits, 1)
    else:  # up to ten numbers stand in the text
        (said,) = re.findall(r"tensor<fp16, \[\d, 1, \d, 1\]>\((\[.*?\])\)\]", mil.text)
        table = np.array([float.fromhex(n) for n in re.findall(r"-?0x[\w.+-]+", said)], np.float16)
        table = table.reshape(*blocks, 1 << bits, 1)
    np.testing.assert_array_equal(decoded(mask, named, table[:, 0, :, 0], 80 // blocks[0]), want)
    places, kept = decoder.constexpr_lut_to_sparse.decompress(mask, named, table, None)
    got = decoder.constexpr_sparse_to_dense.decompress(kept, places)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("sparse:0.4+palette4", r"mode: got 'sparse:0.4\+palette4', need a part of zeros from 0.5 to below 1"),
        ("sparse:1.0+palette4", r"mode: got 'sparse:1.0\+palette4', need none, .*did you mean 'sparse:0.5\+p"),
        ("sparse:0.5+palette5", "need none, .*did you mean 'sparse:0.5"),
        ("sparse:0.5+int8", "need none"),
        ("sparse:0.5+", "need none"),
        ("+palette4", "need none"),
        ("palette4+sparse", "need none"),
        ("sparse+palette4+palette4", "need none"),
        ("sparse+sparse+palette4", "need none"),
        ("int8+palette4", "need none"),
        ("sparse:0.5+palette4:g0", "need none"),
    ],
)
def test_what_is_wrong_is_said(mode: str, said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.Compression(mode)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_weights_that_are_not_finite_are_refused_with_their_place(bad: float) -> None:
    w = pruned((64, 64), 0.7)
    w[3, 4] = bad
    with pytest.raises(hx.Error, match=r"\[compress\] linear at test_sparse_palettes.py:\d+: got the weight "):
        hx.compile(hx.linear(hx.input("x", (2, 64)), w), compress="sparse:0.5+palette4")
