"""Reports say what a chip does with weights that are stored compressed, by whomever."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress
from hexane.compression.stored import stored_decisions, stored_kernels
from hexane.graph import Graph
from hexane.targets.query import load_chip

pytestmark = pytest.mark.filterwarnings("ignore")


def network(mode: str, chip: str = "h16g") -> Graph:
    """As an importer gives it: nobody decided anything yet."""
    w = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float16)
    graph = hx.graph(hx.relu(hx.linear(hx.input("x", (2, 96), "fp16"), w)))
    made = compress(graph, hx.Compression(mode), load_chip(chip))
    return Graph(made.inputs, made.outputs)


@pytest.mark.parametrize(
    ("target", "mode", "said"),
    [
        ("h13", "int8", "1 of the network's folds: no bandwidth gained"),
        ("h13", "palette4", "1 of the network's streams"),
        ("h12", "palette4", "1 of the network's folds: no bandwidth gained"),
        ("h16g", "int8", "1 of the network's streams"),
        ("h14", "blockwise", "1 of the network's folds: no bandwidth gained"),
        ("h15", "blockwise", "1 of the network's streams"),
    ],
)
def test_check_says_whether_compressed_weights_stream(target: str, mode: str, said: str) -> None:
    report = hx.preflight(network(mode), target)
    assert report.weights_line.endswith(said)
    assert report.record()["compressed"] == {"stream": int("streams" in said), "fold": int("folds" in said)}


def test_check_says_nothing_of_whole_weights() -> None:
    assert "network's" not in hx.preflight(network("none"), "h13").weights_line


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("palette4", 3072 + 32),
        ("palette4:g16", 3072 + 4 * 32),
        ("palette4:v2", 1536 + 64),
        ("palette4:g16:int8", 3072 + 4 * (16 + 2)),
        ("palette3", 2304 + 16),
        ("int8", 6144 + 128),
        ("blockwise4:b32", 3072 + 192 * 2),
        ("blockwise8:b16", 6144 + 384 * 2),
    ],
)
def test_indices_of_a_palette_count_as_many_bits_as_they_have(mode: str, size: int) -> None:
    weights = hx.preflight(network(mode), "h16g").weights
    assert weights.engine_bytes == size


def test_explain_has_a_decision_for_each() -> None:
    program = hx.explain(network("int8"), "h13").program
    (decision,) = (d for d in program.decisions if d.stage == "weights")
    assert decision.node.startswith("linear at ")
    assert (decision.verdict, decision.reason) == ("int8", "folds on this chip: no bandwidth gained")


def test_what_compress_decided_is_not_said_again() -> None:
    w = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float16)
    net = hx.compile(hx.linear(hx.input("x", (2, 96), "fp16"), w), target="M4", compress="palette4")
    assert [d.stage for d in net.program.decisions if d.stage in ("weights", "compress")] == ["compress"]


def stored(integers: np.ndarray, zero: int = 0) -> hx.Tensor:
    x, scale = hx.input("x", (2, 96), "fp16"), np.float32(0.25)
    return hx.linear(x, hx.dequantize(integers, scale, np.int8(zero), dtype="fp16"))


BYTES = np.random.default_rng(0).integers(-127, 128, (64, 96)).astype(np.int8)


@pytest.mark.parametrize(
    "mode", ["blockwise4:b32", "blockwise8:b48", "palette4:g16", "palette4:v2", "palette4:g16:int8"]
)
def test_encodings_are_called_as_the_mode_that_makes_them(mode: str) -> None:
    assert [name for _, name, _ in stored_kernels(network(mode), load_chip("h16g"))] == [mode]


@pytest.mark.parametrize(("blocks", "name"), [(1, "palette4:v2"), (4, "palette4:v2:g16")])
def test_vectors_fold_on_every_chip(blocks: int, name: str) -> None:
    tables = np.zeros((blocks, 1, 16, 2), np.float16)
    weight = hx.decode_vectors(BYTES[:32].astype(np.uint8) & 15, tables)
    graph = hx.graph(hx.linear(hx.input("x", (2, 96), "fp16"), weight))
    found = [stored_kernels(graph, load_chip(chip)) for chip in ("h12", "h13", "h16g")]
    assert [(kind, streams) for ((_, kind, streams),) in found] == [(name, False)] * 3


@pytest.mark.parametrize(
    ("mode", "said"), [("sparse:0.5+palette4", "sparse+palette4"), ("sparse:0.7+palette2:g16", "sparse+palette2:g16")]
)
def test_palettes_with_a_mask_count_as_folded_whoever_stored_them(mode: str, said: str) -> None:
    graph, why = network(mode), "counts as folded: no source says that a chip streams a mask with indices"
    assert [(name, does) for _, name, does in stored_kernels(graph, load_chip("h16g"))] == [(said, False)]
    assert [(d.verdict, d.reason) for d in stored_decisions(graph, load_chip("h16g"))] == [(said, why)]


@pytest.mark.parametrize("mode", ["palette4:int8", "palette2:g16:int8"])
def test_palettes_with_tables_of_int8_count_as_folded_whoever_stored_them(mode: str) -> None:
    graph, why = network(mode), "counts as folded: tables of int8 are known to stream only with activations of int8"
    assert [(name, does) for _, name, does in stored_kernels(graph, load_chip("h16g"))] == [(mode, False)]
    assert [(d.verdict, d.reason) for d in stored_decisions(graph, load_chip("h16g"))] == [(mode, why)]


@pytest.mark.parametrize(
    ("target", "make", "name", "does"),
    [
        ("h14", lambda: stored(BYTES), "int8", True),
        ("h14", lambda: stored(BYTES, 3), "int8", False),
        ("h14", lambda: stored(BYTES // 16), "int4", False),
        ("h15", lambda: stored(BYTES // 16), "int4", True),
    ],
    ids=["bytes", "with a zero point", "four bits", "four bits where blocks stream"],
)
def test_integers_stream_where_the_chip_takes_them_as_they_are(
    target: str, make: Callable[[], hx.Tensor], name: str, does: bool
) -> None:
    ((_, found, streams),) = stored_kernels(hx.graph(make()), load_chip(target))
    assert (found, streams) == (name, does)
