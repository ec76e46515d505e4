"""Well-known networks that Apple's own converter made assets of, against torch: `--apple-python PATH` of a Python with
torch and coreai-torch."""

from math import prod
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from apple_compress import compress_by_apple
from apple_convert import convert_networks
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.coreai.write import save_graph
from hexane.graph import Graph
from hexane.importers.coreai import import_asset, import_coreai, open_asset
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.targets.query import load_chip

TOLERANCE = 2e-6  # of the largest number of an output
# coreai-torch 0.4.3 divides by the size of the window where torch leaves the padding out (count_include_pad=False).
CONVERTED_WRONGLY = {("pools", "avg_pool2d_1")}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    if not convert_networks(request.config.getoption("--apple-python"), folder):
        pytest.skip("no torch or coreai-torch; --apple-python PATH names a Python that has them")
    return folder


def wrong_outputs(path: Path, graph: Graph, tolerance: float) -> list[str]:
    """Those that are further from torch's than the tolerance. graph: of the network at the path, or made of it."""
    function, wrong = open_asset(path.with_suffix(".aimodel")).function(), []
    with np.load(path) as data:
        feeds = {
            p.name: data[f"i{i}"].astype(v.dtype.numpy)
            for i, (p, v) in enumerate(zip(function.inputs, graph.inputs, strict=True))
        }
        got = hx.compile(graph, threads=1)(feeds)
        found = got if isinstance(got, dict) else {function.outputs[0].name: got}
        for i, (name, array) in enumerate(found.items()):
            want = data[f"o{i}"]
            error = np.abs(np.asarray(array, np.float64) - want).max() / max(np.abs(want).max(), 1e-6)
            if not error <= tolerance and (path.stem, name) not in CONVERTED_WRONGLY:
                wrong.append(f"{path.stem}: {name}: {error:.1e}")
    return wrong


def test_networks_that_apple_converted_compute_what_torch_does(converted: Path) -> None:
    paths = sorted(converted.glob("*.npz"))
    assert len(paths) >= 30
    assert [w for p in paths for w in wrong_outputs(p, import_coreai(p.with_suffix(".aimodel")), TOLERANCE)] == []


def test_networks_that_apple_converted_run_on_the_engine(converted: Path) -> None:
    """Each in a few segments: what Core AI takes apart is put together again."""
    for path in sorted(converted.glob("*.npz")):
        segments = hx.preflight(import_asset(open_asset(path.with_suffix(".aimodel"))), "h17s").segments
        assert segments is not None
        assert len(segments) <= 2, path.stem


def test_networks_that_apple_converted_leave_for_the_engine(converted: Path, tmp_path: Path) -> None:
    """In fp16 and in images, as near to torch as fp16 is. One product of rows with a constant is left, of `interpolate`,
    which is none of tokens."""
    wrong, products = [], []
    for path in sorted(converted.glob("*.npz")):
        save_graph(for_engine(import_coreai(path.with_suffix(".aimodel")), load_chip("h16")), tmp_path / "net.aimodel")
        back = import_coreai(tmp_path / "net.aimodel")
        wrong += wrong_outputs(path, back, 2e-2)
        for node in back.nodes:
            weight = node.inputs[1] if node.op in ("linear", "matmul") else None
            if weight is not None and weight.node.op == "const" and prod(node.types[0].shape[:-1]) > 1:
                products.append(path.stem)
    assert wrong == []
    assert products == ["interpolate"]


def test_weights_that_apple_compressed_stay_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Read, they compute what torch does; written again and read, the same bits, in no more bytes."""
    if not compress_by_apple(request.config.getoption("--apple-python"), tmp_path):
        pytest.skip("no torch, coreai-torch or coreai-opt; --apple-python PATH names a Python that has them")
    found = {}
    for path in sorted(tmp_path.glob("*.npz")):
        asset = path.with_suffix(".aimodel")
        graph = import_coreai(asset)
        weights = [encoding_of(node.values[0]) for node in graph.nodes if is_encoded(node)]
        found[path.stem] = sorted((w.kind, w.bits) for w in weights)
        with np.load(path) as data:
            got = hx.compile(graph, threads=1)(data["x"])
            np.testing.assert_allclose(got, data["y"], atol=TOLERANCE * np.abs(data["y"]).max(), rtol=0)
            size = save_graph(graph, tmp_path / "again.aimodel")
            assert size <= (asset / "main.mlirb").stat().st_size
            np.testing.assert_array_equal(hx.compile(tmp_path / "again.aimodel", threads=1)(data["x"]), got)
    assert found == {
        **{f"palette_w{bits}": [("palette", bits)] * 3 for bits in (4, 6, 8)},
        **{f"integers_w{bits}": [("integers", 8)] * 3 for bits in (4, 8)},
        "integers_w4_per_block": [("blocks", 4)] * 2,  # the preset leaves the convolution whole
    }
