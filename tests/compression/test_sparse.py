"""Weights of which most numbers are 0: pruned or found so, stored as a mask and the numbers."""

import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress, find_weights
from hexane.emit.mil import emit_mil
from hexane.graph import Array, Graph
from hexane.importers.mil import load_mil_file
from hexane.ops.reference import run_reference
from hexane.options import Options
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.emitted import save_mil_as
from hexane.targets import load_target
from hexane.targets.query import load_chip
from stored_weights import pruned, pruned_network

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(graph: Graph) -> list[Array]:
    """The weights, as the layers read them."""
    return [w.whole.node.data for w in find_weights(graph) if w.whole.node.data is not None]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("zeros", [0.5, 0.75, 0.9])
def test_the_smallest_part_of_each_weight_becomes_0_and_the_rest_stays(zeros: float, dtype: str) -> None:
    graph = pruned_network(dtype=dtype)
    made = compress(graph, hx.Compression(f"sparse:{zeros}"), load_target("host"))
    for before, after in zip(numbers(graph), numbers(made), strict=True):
        gone = after == 0
        assert gone.sum() == np.ceil(zeros * before.size)
        np.testing.assert_array_equal(after[~gone], before[~gone])
        assert np.abs(before[gone]).max() <= np.abs(before[~gone]).min()


def test_equal_magnitudes_go_in_the_order_of_memory_and_one_number_stays() -> None:
    graph = hx.graph(hx.matmul(hx.input("x", (2, 64)), np.full((64, 64), -0.5, np.float32)))
    (half,) = numbers(compress(graph, hx.Compression("sparse:0.5"), load_target("host")))
    np.testing.assert_array_equal(half, np.repeat([0, -0.5], 32)[:, None] * np.ones(64))
    (least,) = numbers(compress(graph, hx.Compression("sparse:0.999999"), load_target("host")))
    assert np.flatnonzero(least).tolist() == [4095]


@pytest.mark.parametrize("target", ["host", "h11", "h12", "h13", "h16g"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_program_computes_with_the_pruned_weights_to_the_bit(dtype: str, target: str) -> None:
    graph = pruned_network(dtype=dtype)
    whole = compress(graph, hx.Compression("sparse:0.6"), load_target(target))
    x = np.random.default_rng(4).standard_normal((1, 16, 8, 8)).astype(dtype)
    memory = hx.Memory(whole_weights=True) if target == "host" else hx.Memory()  # whose kernels leave zeros out
    want = hx.compile(Graph(whole.inputs, whole.outputs), target=target, memory=memory)(x)
    np.testing.assert_array_equal(hx.compile(graph, target=target, compress="sparse:0.6")(x), want)


@pytest.mark.parametrize(
    ("target", "does"),
    [
        ("h13", "streams"),
        ("h16g", "streams"),
        ("h12", "folds on this chip: no bandwidth gained"),
        ("host", "stored without its zeros where this CPU computes in fp32"),
    ],
)
def test_decisions_have_the_bytes_of_mask_and_numbers(target: str, does: str) -> None:
    decision = compress(pruned_network(), hx.Compression("sparse:0.75"), load_target(target)).decisions[0]
    assert (decision.verdict, decision.reason) == ("sparse:0.75", f"9216 -> {4608 // 8 + 2 * 1152} bytes; {does}")


def test_zeros_that_are_there_are_used_and_nothing_changes() -> None:
    graph = pruned_network(0.7)
    made = compress(graph, hx.Compression("sparse"), load_target("h13"))
    for before, after, decision in zip(numbers(graph), numbers(made), made.decisions, strict=True):
        np.testing.assert_array_equal(before, after)
        size = before.size // 8 + 2 * np.count_nonzero(before)
        assert decision.reason == f"{2 * before.size} -> {size} bytes; streams"


def test_a_weight_of_few_zeros_stays_whole_and_the_decision_says_so() -> None:
    decision = compress(pruned_network(0.3), hx.Compression("sparse"), load_target("h13")).decisions[0]
    assert re.fullmatch(
        r"9216 -> 9216 bytes; whole: (29|3\d)% of its numbers are 0, a mask needs half", decision.reason
    )
    zeros = hx.graph(hx.matmul(hx.input("x", (2, 64)), np.zeros((64, 64), np.float32)))
    decision = compress(zeros, hx.Compression("sparse"), load_target("h13")).decisions[0]
    assert decision.reason == "8192 -> 8192 bytes; whole: all of its numbers are 0"


def test_an_embedding_is_neither_pruned_nor_masked() -> None:
    graph = hx.graph(hx.gather(pruned((300, 32)), hx.input("ids", (7,), "int32"), axis=0))
    made = compress(graph, hx.Compression("sparse:0.5"), load_target("h13"))
    np.testing.assert_array_equal(numbers(made)[0], numbers(graph)[0])
    assert made.decisions[0].reason == "19200 -> 19200 bytes; whole: the rows of an embedding have no mask"


def test_auto_takes_zeros_that_are_there() -> None:
    for target in ("h13", "host"):
        made, _ = compile_compressed(pruned_network(0.8), hx.Compression(tolerance=1e-7), Options(target=target))
        assert [layer.encoding for layer in made.layers] == ["sparse"] * 2
        assert made.error == 0


def test_mil_has_mask_and_numbers_and_reads_back(tmp_path: Path) -> None:
    graph = compress(pruned_network(dtype="float16"), hx.Compression("sparse:0.5"), load_chip("h16g"))
    mil = emit_mil(graph, load_chip("h16g"))
    assert mil.text.count(" = constexpr_sparse_to_dense(") == 2
    said = sum(int(d.reason.partition("-> ")[2].partition(" ")[0]) for d in graph.decisions)
    assert said <= len(mil.weights) < said + 1024
    save_mil_as(mil, tmp_path / "m.mil")
    for got, want in zip(numbers(load_mil_file(tmp_path / "m.mil")), numbers(graph), strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    x = {"x": np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float16)}
    (got,), (want,) = (run_reference(g, x).values() for g in (mil.graph, graph))
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=2**-8 * np.abs(want).max())


def test_apples_reader_and_decoder_agree(tmp_path: Path) -> None:
    """The bytes at the offsets of the text, through Apple's own decoder, are the pruned weight."""
    apple = pytest.importorskip("coremltools.libmilstoragepython", reason="coremltools is not installed")
    decoder = pytest.importorskip("coremltools.converters.mil.mil.ops.defs.iOS18.compression")
    w = pruned((80, 96))
    graph = compress(hx.graph(hx.linear(hx.input("x", (2, 96)), w)), hx.Compression("sparse:0.5"), load_chip("h16g"))
    mil = emit_mil(graph, load_chip("h16g"))
    (tmp_path / "w.bin").write_bytes(bytes(mil.weight_file))
    reader = apple._BlobStorageReader(str(tmp_path / "w.bin"))
    found = re.findall(r"tensor<(\w+), \[[\d, ]+\]>\(BLOBFILE\(.*?offset = uint64\((\d+)\)", mil.text)
    at = {kind: int(offset) for kind, offset in found}
    mask = np.array(reader.read_uint1_data(at["uint1"]))[: w.size].reshape(w.shape)
    kept = np.array(reader.read_fp16_data(at["fp16"])).view(np.float16)
    want = np.where(np.abs(w) >= np.sort(np.abs(w).reshape(-1))[w.size // 2], w, 0).astype(np.float16)
    np.testing.assert_array_equal(mask.astype(bool), want != 0)
    np.testing.assert_array_equal(kept, want[want != 0])
    got = decoder.constexpr_sparse_to_dense.decompress(kept, mask.astype(np.uint8))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("sparse:0.4", "mode: got 'sparse:0.4', need a part of zeros from 0.5 to below 1"),
        ("sparse:0.0", "mode: got 'sparse:0.0', need"),
        ("sparse:1.0", r"mode: got 'sparse:1.0', need none, .*did you mean 'sparse"),
        ("sparse:50", "mode: got 'sparse:50', need none"),
        ("sparse:-0.5", "mode: got 'sparse:-0.5', need none"),
    ],
)
def test_what_is_wrong_is_said(mode: str, said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.Compression(mode)


@pytest.mark.parametrize("mode", ["sparse", "sparse:0.5"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_weights_that_are_not_finite_are_refused_with_their_place(bad: float, mode: str) -> None:
    w = pruned((64, 64), 0.7)
    w[3, 4] = bad
    with pytest.raises(hx.Error, match=r"\[compress\] linear at test_sparse.py:\d+: got the weight "):
        hx.compile(hx.linear(hx.input("x", (2, 64)), w), compress=mode)
