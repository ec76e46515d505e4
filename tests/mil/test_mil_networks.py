"""Whole networks: emitted for h13, read back and run piece by piece, they give the bits of the program that is compiled
at once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Graph, Value
from hexane.importers.mil import load_mil
from hexane.importers.onnx import import_onnx
from hexane.runtime.mil import Piece, emit_pieces
from hexane.stages.segments.join import SegmentParts
from hexane.targets.query import load_chip
from mil_programs import assert_read_back
from networks import small_networks

NETWORKS = (
    *small_networks(),
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "mobilenet_v2_100_224", "randwire",
    "resnet18_224", "resnet8", "resnet8_bn", "transformer", "unet_128", "yolo_160",
)  # fmt: skip
H13 = load_chip("h13")


def run(net: hx.Model, feeds: dict[str, Array]) -> dict[str, Array]:
    results = net(feeds)
    return results if isinstance(results, dict) else {net.outputs[0].name: results}


def run_pieces(graph: Graph, pieces: tuple[Piece, ...], feeds: dict[str, Array]) -> dict[str, Array]:
    """Piece after piece, each engine's from its text; what crosses is fp16 there, and in the model's dtypes on the
    host."""
    parts = SegmentParts(graph, [piece.segment for piece in pieces])
    values: dict[Value, Array] = {v: feeds[str(v.node.attrs["name"])] for v in graph.inputs}
    for piece, own in zip(pieces, parts.graphs(), strict=True):
        if piece.mil is None:
            net = hx.compile(own, threads=1)
            found = run(net, {f"%{i}": values[v].astype(v.dtype.numpy) for i, v in enumerate(piece.inputs)})
            values |= {v: found[f"%{i}"] for i, v in enumerate(piece.outputs)}
            continue
        assert_read_back(piece.mil)
        net = hx.compile(load_mil(piece.mil.text, piece.mil.weights), target="h13", io="fp16", threads=1)
        given = {p.name: values[v].astype(p.dtype.numpy) for p, v in zip(piece.mil.inputs, piece.inputs, strict=True)}
        found = run(net, given)
        values |= {v: found[p.name] for p, v in zip(piece.mil.outputs, piece.outputs, strict=True)}
    return {p.name: values[p.value].astype(p.value.dtype.numpy) for p in graph.outputs}


@pytest.mark.filterwarnings("ignore::hexane.errors.FallbackWarning", "ignore::hexane.errors.HazardWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_read_back_gives_the_same_bits(name: str, model_file: Callable[[str], Path]) -> None:
    path = model_file(name)
    graph, pieces = emit_pieces(import_onnx(path), H13)
    whole = hx.compile(path, target="h13", threads=1)
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.standard_normal(p.shape).astype(p.dtype.numpy) for p in whole.inputs}
    expected = run(whole, feeds)
    for output, array in run_pieces(graph, pieces, feeds).items():
        np.testing.assert_array_equal(array, expected[output])


def test_a_network_with_states_is_refused_by_name() -> None:
    state = hx.state("sum", (1, 4))
    y = state + hx.input("x", (1, 4))
    graph = hx.graph({"y": y}, updates=[hx.write_state(state, y, np.int64(0))])
    with pytest.raises(hx.Error, match=r"got a state, which programs in files cannot keep"):
        emit_pieces(graph, load_chip("h13"))
