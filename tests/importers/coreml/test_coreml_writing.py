"""Packages that Hexane writes: read back, and taken by Apple's own tools."""

import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import architectures
import hexane as hx
from hexane import sources
from hexane.compression import compress
from hexane.emit.coreml.forms import form_of
from hexane.emit.coreml.package import save_model, write_model
from hexane.emit.coreml.prepare import in_precision
from hexane.errors import HazardWarning
from hexane.graph import Array, Graph
from hexane.importers.coreml.model import open_model
from hexane.ops import LEAVES
from hexane.targets import load_target
from networks import small_networks
from random_graphs import random_graph
from turns import share

Feeds = Mapping[str, Array]
ZOO = ("bert", "convnext", "densenet", "efficientnet", "gpt2", "mobilenet_v3", "shufflenet_v2", "squeezenet", "swin",
       "vit", "whisper_encoder")  # fmt: skip


@pytest.fixture(scope="module")
def accepted() -> Callable[[Path], Any]:
    """Rebuilds a package with coremltools, which checks the types of every op; the program it makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apple = pytest.importorskip("coremltools", reason="coremltools is not installed")
    from coremltools.converters.mil.frontend.milproto.load import load

    logging.getLogger("coremltools").setLevel(logging.CRITICAL)

    def rebuild(path: Path) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec = apple.models.MLModel(str(path), skip_model_load=True).get_spec()
        return load(spec, spec.specificationVersion, file_weights_dir=os.fspath(path / "Data/com.apple.CoreML/weights"))

    return rebuild


def written(graph: Graph, folder: Path, compute: str = "fp32", **options: Any) -> Path:
    path = folder / "net.mlpackage"
    save_model(write_model({"main": graph}, compute=compute, **options), path)
    return path


def read(path: Path, function: str = "main") -> Graph:
    return open_model(path).graph(function, {}, {})


def results(graph: Graph, feeds: Feeds) -> list[Array]:
    """What the CPU computes, of feeds in the dtypes of the ports."""
    given = [np.asarray(feeds[n]).astype(v.dtype.numpy).reshape(v.shape)
             for n, v in zip(graph.input_names(), graph.inputs, strict=True)]  # fmt: skip
    found = hx.compile(graph)(*given)
    return [np.asarray(v) for v in (found.values() if isinstance(found, dict) else [found])]


def drawn(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {
        name: rng.integers(0, 2, v.shape) if v.dtype.kind != "float" else rng.uniform(-1, 1, v.shape)
        for name, v in zip(graph.input_names(), graph.inputs, strict=True)
    }


def assert_same_bits(graph: Graph, path: Path, feeds: Feeds) -> None:
    for want, got in zip(results(graph, feeds), results(read(path), feeds), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)


def is_in_core_ml(graph: Graph) -> bool:
    """Whether no op has to be written as others."""
    return all(node.op in LEAVES or form_of(node) is not None for node in graph.nodes)


# ---- networks ----


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ZOO)
def test_a_network_computes_the_same_bits_when_it_is_read_back(name: str, compute: str, tmp_path: Path) -> None:
    graph = getattr(architectures, name)()
    direct = in_precision(graph, compute)
    path = written(graph, tmp_path, compute)
    if name == "mobilenet_v3" and compute == "fp16":  # hard_swish is several ops, each rounded
        for want, got in zip(results(direct, drawn(graph)), results(read(path), drawn(graph)), strict=True):
            np.testing.assert_allclose(want, got, atol=2e-3)
        return
    assert_same_bits(graph if compute == "fp32" else direct, path, drawn(graph))


@pytest.mark.parametrize("name", small_networks())
def test_an_onnx_file_goes_through_a_package(name: str, tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    onnx.save(small_networks()[name], tmp_path / "net.onnx")
    graph = sources.open_network(tmp_path / "net.onnx", where="test").graph()
    path = written(graph, tmp_path)
    assert_same_bits(graph, path, drawn(graph))
    accepted(path)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_random_graphs_go_through_packages(compute: str, tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    """Graphs of ops that Core ML has keep every bit; others keep fp32's digits, or fp16's."""
    same = close = refused = 0
    for seed in share(range(240)):
        graph, feeds = random_graph(seed, "fp32", steps=8)
        if not graph.inputs:
            continue
        try:
            path = written(graph, tmp_path, compute)
        except hx.Error as error:
            assert "cannot be written for Core ML" in str(error), seed  # noqa: PT017
            refused += 1
            continue
        direct = in_precision(graph, compute)
        exact = is_in_core_ml(direct)
        for want, got in zip(results(direct, feeds), results(read(path), feeds), strict=True):
            assert (want.dtype, want.shape) == (got.dtype, got.shape), seed
            if exact:
                np.testing.assert_array_equal(want, got, err_msg=str(seed))
            else:
                top = max(1.0, float(np.abs(want.astype(np.float64)).max(initial=0)))
                np.testing.assert_allclose(
                    want, got, atol=(1e-5 if compute == "fp32" else 0.05) * top, err_msg=str(seed)
                )
        accepted(path)
        same, close = same + exact, close + (not exact)
    assert same >= 3
    assert close >= 3
    assert refused < same + close


def test_pixels_and_large_variances_keep_their_bits(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((8, 3, 3, 3)) / 5).astype(np.float32)
    per = [rng.standard_normal(8).astype(np.float32) for _ in range(3)]
    h = hx.conv(hx.input("image", (1, 3, 32, 32)), w, per[0], strides=2, pad=(0, 1, 0, 1))
    h = hx.batch_norm(h, per[1] * 100, np.full(8, 1.5e5, np.float32), per[2] + 1, per[0], epsilon=1e-5)
    h = hx.max_pool(hx.relu(h), kernel_sizes=3, strides=2, pad=1, ceil_mode=True)
    h = hx.upsample_nearest_neighbor(h, scale_factor_height=2.0, scale_factor_width=2.0)
    graph = hx.graph({"scores": hx.softmax(hx.reduce_mean(h, axes=(2, 3), keep_dims=False))})
    path = written(graph, tmp_path)
    assert_same_bits(graph, path, {"image": rng.integers(0, 256, (1, 3, 32, 32))})
    accepted(path)


# ---- dtypes, ports and names ----


def test_a_large_group_norm_has_no_tensor_of_whole_groups(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    """In torch's spelling. A group of 102,400 numbers is wider than engines take."""
    x = hx.input("x", (1, 8, 160, 160))
    y = hx.instance_norm(hx.reshape(x, shape=(1, 2, -1)), np.ones(2, np.float32), np.zeros(2, np.float32))
    graph = hx.graph({"y": hx.reshape(y, shape=x.shape)})
    path = written(graph, tmp_path, "fp16")
    assert max(extent for node in read(path).nodes for t in node.types for extent in t.shape) == 160
    feeds = {"x": np.random.default_rng(2).normal(3000, 4000, x.shape)}
    (got,) = results(read(path), feeds)
    rows = feeds["x"].astype(np.float16).astype(np.float64).reshape(1, 2, -1)
    want = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True)
    np.testing.assert_allclose(got, want.reshape(x.shape), atol=0.01)
    accepted(path)


def test_integers_and_truths_pass_as_int32(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    tokens, mask, bytes_ = (
        hx.input("tokens", (2, 5), "int64"),
        hx.input("mask", (2, 5), "bool"),
        hx.input("b", (3,), "uint8"),
    )
    table = np.arange(60, dtype=np.float32).reshape(12, 5)
    rows = hx.gather(hx.const(table), tokens, axis=0)
    graph = hx.graph(
        {"rows": hx.select(hx.expand_dims(mask, axes=(2,)), rows, 0.0), "none": hx.logical_not(mask),
         "half": hx.real_div(tokens, 2), "bytes": hx.cast(bytes_, dtype="fp32") * 2.0}
    )  # fmt: skip
    path = written(graph, tmp_path)
    feeds = {"tokens": np.array([[0, 3, -1, 11, 2], [-7, 5, 4, 1, -12]]), "mask": np.eye(2, 5) > 0,
             "b": np.array([0, 128, 255])}  # fmt: skip
    got = read(path)
    assert {v.dtype.name for v in got.inputs} == {"int32"}
    for want, found in zip(results(graph, feeds), results(got, feeds), strict=True):
        np.testing.assert_array_equal(want, found)
    accepted(path)


@pytest.mark.parametrize("system", [None, 18])
def test_indices_that_count_from_the_end_are_defined_on_every_system(
    system: int | None, tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    x, i = hx.input("x", (4, 5)), hx.input("i", (3, 1), "int64")
    graph = hx.graph(
        {"axis": hx.gather(x, i, axis=1), "constant": hx.gather(x, np.array([-1, 2]), axis=0),
         "places": hx.gather_nd(x, i), "along": hx.gather_along_axis(x, hx.concat(i, i[:1], axis=0), axis=1),
         "written": hx.scatter_nd(x, i, np.ones((3, 5), np.float32))}
    )  # fmt: skip
    path = written(graph, tmp_path, system=system)
    accepted(path)
    assert_same_bits(graph, path, {"x": np.arange(20), "i": np.array([[-1], [0], [-4]])})
    used = [operation.op for operation in open_model(path).program("main").block.operations]
    assert used.count("select") == (3 if system else 0)  # two ops share theirs


def test_names_become_identifiers_and_single_numbers_arrays_of_one(
    tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    x, s = hx.input("x/0:in", (2, 2)), hx.input("tensor", ())
    graph = hx.graph({"3.out": x * s, "string": hx.reduce_sum(x, axes=(0, 1), keep_dims=False), "same": x})
    model = write_model({"main": graph}, compute="fp32")
    assert dict(model.renamed) == {"x/0:in": "x_0_in", "tensor": "tensor_0", "3.out": "_3_out", "string": "string_0"}
    save_model(model, tmp_path / "net.mlpackage")
    accepted(tmp_path / "net.mlpackage")
    got = read(tmp_path / "net.mlpackage")
    assert [str(v.type) for v in got.inputs] == ["fp32[2, 2]", "fp32[1]"]
    assert [p.name for p in got.outputs] == ["_3_out", "string_0", "same"]


def test_the_oldest_system_that_has_the_ops_is_named(tmp_path: Path) -> None:
    x = hx.input("x", (1, 4, 8, 8))
    cases = {
        15: hx.relu(x),
        16: hx.pixel_unshuffle(x, downscale_factor=2),
        17: hx.quantize(x, 0.5, dtype="int8"),
        18: hx.scaled_dot_product_attention(x, x, x),
    }
    for year, result in cases.items():
        model = write_model({"main": hx.graph({"y": result})}, compute="fp32")
        assert model.system == year
        assert model.spec.specificationVersion == year - 9
    half = hx.input("h", (4,), "fp16")
    assert write_model({"main": hx.graph({"y": hx.relu(half)})}).system == 16
    with pytest.raises(hx.Error, match=r"opset: got iOS15, need iOS17 or newer: .* needs iOS17"):
        write_model({"main": hx.graph({"y": cases[17]})}, system=15)
    with pytest.raises(hx.Error, match="need iOS16 or newer: ports in fp16 need iOS16"):
        write_model({"main": hx.graph({"y": hx.relu(half)})}, system=15)
    with pytest.raises(hx.Error, match="need iOS18 or newer: several functions need iOS18"):
        write_model({name: hx.graph({"y": cases[15]}) for name in "ab"}, system=15)
    expanded = write_model({"main": hx.graph({"y": cases[18]})}, compute="fp32", system=15)
    assert expanded.system == 15
    assert not any(node.op == "scaled_dot_product_attention" for node in expanded.graphs["main"].nodes)
    later = written(hx.graph({"y": cases[15]}), tmp_path, system=18)
    assert open_model(later).program("main").opset == 18


@pytest.mark.parametrize(("mode", "least"), [("int8", 16), ("palette4", 18), ("blockwise4:b32", 18)])
def test_a_system_that_lacks_an_encoding_is_refused(mode: str, least: int) -> None:
    """Written out, the weight would be larger than asked for."""
    weight = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    graph = hx.graph({"y": hx.matmul(hx.input("x", (1, 64)), hx.const(weight))})
    small = compress(graph, hx.Compression(mode), load_target("h16g"))
    for system in range(15, 19):
        if system >= least:
            assert write_model({"main": small}, compute="fp32", system=system).system == system
            continue
        with pytest.raises(hx.Error, match=rf"got iOS{system}, need iOS{least} or newer: the encoding of weight"):
            write_model({"main": small}, compute="fp32", system=system)


def test_all_ops_that_cannot_be_written_are_named_at_once() -> None:
    x = hx.input("x", (2, 3), "int32")
    graph = hx.graph(
        {"a": hx.bitwise_and(x, 3), "b": hx.reshape(x, shape=(1, 1, 1, 1, 2, 3)), "c": hx.bitwise_or(x, 1)}
    )
    with pytest.raises(
        hx.Error, match=r"3 kinds of ops(.|\n)*bitwise_and(.|\n)*got 6 axes, need at most 5(.|\n)*bitwise_or"
    ):
        write_model({"main": graph})


# ---- files ----


def test_apples_reader_finds_the_same_weights(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    pytest.importorskip("coremltools", reason="coremltools is not installed")
    rng = np.random.default_rng(2)
    w, b = rng.standard_normal((6, 3, 3, 3)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    for compute in ("fp32", "fp16"):
        path = written(hx.graph({"y": hx.conv(hx.input("x", (1, 3, 8, 8)), w, b)}), tmp_path, compute)
        (conv,) = accepted(path).functions["main"].find_ops(op_type="conv")
        kind = np.float32 if compute == "fp32" else np.float16
        np.testing.assert_array_equal(conv.weight.val, w.astype(kind))
        np.testing.assert_array_equal(conv.bias.val, b.astype(kind))


def test_equal_weights_are_in_the_file_once(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    x = hx.input("x", (1, 64))
    graph = hx.graph({"y": hx.linear(hx.relu(hx.linear(x, w)), w.copy()), "z": hx.linear(x, w + 1)})
    path = written(graph, tmp_path)
    size = (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    assert 2 * w.nbytes <= size < 2 * w.nbytes + 1024


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(hx.graph({"y": hx.relu(hx.input("x", (2,)))}), tmp_path)
    before = sorted((p, p.read_bytes()) for p in path.rglob("*") if p.is_file())

    def fails(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", fails)
    with pytest.raises(OSError, match="No space"):
        written(hx.graph({"y": hx.exp(hx.input("x", (2,)))}), tmp_path)
    monkeypatch.undo()
    assert sorted((p, p.read_bytes()) for p in path.rglob("*") if p.is_file()) == before
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlpackage"]
    written(hx.graph({"y": hx.exp(hx.input("x", (2,)))}), tmp_path)
    assert results(read(path), {"x": np.zeros(2)})[0].tolist() == [1, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlpackage"]


def test_a_folder_that_is_no_package_stays(tmp_path: Path) -> None:
    (tmp_path / "net.mlpackage").mkdir()
    (tmp_path / "net.mlpackage" / "thesis.txt").write_text("years of work")
    with pytest.raises(hx.Error, match="got a path that exists and is no package"):
        written(hx.graph({"y": hx.relu(hx.input("x", (2,)))}), tmp_path)
    assert (tmp_path / "net.mlpackage" / "thesis.txt").exists()


# ---- weights in few bits ----

ENCODINGS = {
    "int8": {"constexpr_affine_dequantize"},
    "palette3": {"constexpr_lut_to_dense"},
    "palette4:g16": {"constexpr_lut_to_dense"},
    "palette4:v2": {"constexpr_lut_to_dense"},
    "palette4:g16:int8": {"constexpr_blockwise_shift_scale", "constexpr_lut_to_dense"},
    "blockwise4:b32": {"constexpr_blockwise_shift_scale"},
    "sparse:0.5": {"constexpr_sparse_to_dense"},
    "sparse:0.5+palette4": {"constexpr_lut_to_sparse", "constexpr_sparse_to_dense"},
}


@pytest.mark.parametrize("target", [None, "M4"])
@pytest.mark.parametrize("mode", ENCODINGS)
def test_weights_stay_in_few_bits(
    mode: str, target: str | None, tmp_path: Path, accepted: Callable[[Path], Any]
) -> None:
    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((64, 32, 3, 3)) / 10, rng.standard_normal((48, 64)) / 8
    h = hx.relu(hx.conv(hx.input("x", (1, 32, 8, 8)), w.astype(np.float32), np.full(64, 0.1, np.float32), pad=1))
    h = hx.reduce_mean(h, axes=(2, 3), keep_dims=False)
    graph = hx.graph({"y": hx.linear(h, v.astype(np.float32))})
    path = tmp_path / "net.mlpackage"
    saved = hx.save_coreml(graph, path, compression=mode, target=target)
    x = rng.standard_normal((1, 32, 8, 8))
    for want, got in zip(results(saved.functions["main"], {"x": x}), results(read(path), {"x": x}), strict=True):
        np.testing.assert_array_equal(want, got)
    accepted(path)
    used = {operation.op for operation in open_model(path).program("main").block.operations}
    assert {op for op in used if op.startswith("constexpr_")} == ENCODINGS[mode]
    assert saved.system == (16 if mode == "int8" else 18)
    whole = hx.save_coreml(graph, tmp_path / "whole.mlpackage").bytes
    assert saved.bytes < 0.75 * whole


def test_sparse_weights_are_not_stored_with_their_zeros_for_an_old_system(tmp_path: Path) -> None:
    graph = hx.graph(
        {"y": hx.linear(hx.input("x", (2, 64)), hx.const(np.random.default_rng(0).random((64, 64), "f4")))}
    )
    with pytest.raises(hx.Error, match="got iOS16, need iOS18 or newer: sparse weights need iOS18"):
        hx.save_coreml(graph, tmp_path / "net.mlpackage", compression="sparse:0.5", opset="iOS16")


# ---- states ----


def test_states_keep_what_calls_write(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    """A cache that gets a row at a place, the rows before and after, and a sum that is replaced as a whole."""
    x, at = hx.input("x", (1, 4)), hx.input("at", (), "int64")
    cache, total = hx.state("cache", (6, 4), "fp32"), hx.state("total", (1, 4), "fp32")
    after, sums = hx.write_state(cache, x, at, axis=0), hx.write_state(total, total + x, 0)
    graph = hx.graph(
        {"rows": hx.reduce_sum(after, axes=(0,)), "before": hx.reduce_sum(cache, axes=(0,)), "total": sums}
    )
    path = written(graph, tmp_path, "fp16")
    accepted(path)
    assert [s.name for s in open_model(path).package.spec.description.state] == [
        "cache",
        "total_1",
    ]  # an output has the name
    net, again = hx.compile(in_precision(graph, "fp16")), hx.compile(path)
    for step in range(12):
        row = np.full((1, 4), step + 1, np.float32)
        want, got = net(row, np.array([step % 6], np.int32)), again(row, np.array([step % 6], np.int32))
        for name in ("rows", "before", "total"):
            np.testing.assert_array_equal(want[name], got[name])
    assert got["total"].tolist() == [[78.0] * 4]
    second = hx.save_coreml(path, tmp_path / "again.mlpackage")
    assert second.system == 18


def test_states_that_core_ml_does_not_have_are_named() -> None:
    x = hx.input("x", (2,))
    state = hx.state("s", (2,), "fp32")
    graph = hx.graph({"y": hx.write_state(state, state + x, 0)})
    with pytest.raises(hx.Error, match=r"state 's': got fp32\[2\], need fp16"):
        write_model({"main": graph}, compute="fp32")
    held = hx.state("s", np.ones(2, np.float32))
    with pytest.raises(hx.Error, match="got initial contents other than 0"):
        write_model({"main": hx.graph({"y": hx.write_state(held, held + x, 0)})})


# ---- images and labels ----


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_an_image_is_pixels(color: str, tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    channels = 1 if color == "gray" else 3
    graph = hx.graph({"y": hx.reduce_mean(hx.input("x", (1, channels, 4, 6)), axes=(2, 3), keep_dims=False)})
    bias = ":".join(str(-0.5 + 0.25 * i) for i in range(channels))
    path = tmp_path / "net.mlpackage"
    hx.save_coreml(graph, path, images={"x": f"{color},scale=1/255,bias={bias}"})
    accepted(path)
    picture = np.random.default_rng(1).integers(0, 256, (4, 6, 3) if channels == 3 else (4, 6)).astype(np.uint8)
    means = picture.reshape(24, channels).mean(0)[:: -1 if color == "bgr" else 1] / 255
    want = means + [-0.5 + 0.25 * i for i in range(channels)]
    np.testing.assert_allclose(np.asarray(hx.compile(path)(picture)).reshape(-1), want, atol=2e-3)


def test_a_classifier_has_its_labels(tmp_path: Path, accepted: Callable[[Path], Any]) -> None:
    x = hx.input("x", (1, 4))
    graph = hx.graph({"classLabel": hx.softmax(x), "double": x * 2.0})
    path = tmp_path / "net.mlpackage"
    with pytest.raises(hx.Error, match="got 3 labels and no output with as many numbers"):
        hx.save_coreml(graph, path, labels=["ant", "bee", "cat"])
    with pytest.raises(hx.Error, match="got 4 labels and 2 outputs with as many numbers"):
        hx.save_coreml(graph, path, labels=["ant", "bee", "cat", "dog"])
    hx.save_coreml(hx.graph({"p": hx.softmax(x)}), path, labels=["ant", "bee", "cat", "dog"])
    accepted(path)
    found = hx.compile(path)(np.array([[0, 1, 5, 2]], np.float32))
    assert isinstance(found, dict)
    assert found["classLabel"].tolist() == [2]
    np.testing.assert_allclose(found["classLabel_probs"].sum(), 1, rtol=1e-3)
    model = open_model(path)
    assert model.labels("main") == ("ant", "bee", "cat", "dog")
    assert model.package.spec.description.predictedProbabilitiesName == "classLabel_probs"


@pytest.mark.parametrize(
    ("images", "said"),
    [({"y": "rgb"}, "got no such input, need one of x"), ({"x": "cmyk"}, "got the color 'cmyk'"), ({"x": "gray"}, r"need \(1, 1, height"),
     ({"x": "rgb,scale=1/0"}, "got 'scale=1/0'"), ({"x": "rgb,bias=1:2"}, "bias: got 2 numbers, need 1 or 3")],
)  # fmt: skip
def test_an_image_that_cannot_be_is_named(images: dict[str, str], said: str, tmp_path: Path) -> None:
    graph = hx.graph({"y": hx.relu(hx.input("x", (1, 3, 4, 6)))})
    with pytest.raises(hx.Error, match=said):
        hx.save_coreml(graph, tmp_path / "net.mlpackage", images=images)


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64"])
def test_integers_beyond_int32_are_refused_by_name_or_only_ordered(dtype: str, tmp_path: Path) -> None:
    """They became the ends of int32 without a word."""
    x = hx.input("x", (4,), dtype)
    large = np.array([1, 2**31, 3, 4]).astype(dtype)
    for y in (x + hx.const(large), hx.mod(hx.reshape(x, shape=(2, 2)), hx.reshape(hx.const(large), shape=(2, 2)))):
        with pytest.raises(
            hx.Error, match=rf"\[emit\] (add|mod) at .*got the {dtype} constant 2147483648, need one of int32"
        ):
            hx.save_coreml(hx.graph({"y": y}), tmp_path / "m.mlpackage")
    none = hx.const(np.full(4, np.iinfo(dtype).max, dtype))
    first = hx.reduce_min(hx.select(hx.greater(x, 2), x, none), axes=(0,))
    hx.save_coreml(hx.graph({"y": first}), tmp_path / "m.mlpackage")
    with pytest.raises(hx.Error, match=r"output 'y': got the"):
        hx.save_coreml(hx.graph({"y": hx.select(hx.greater(x, 2), x, none)}), tmp_path / "n.mlpackage")


@pytest.mark.parametrize("op", ["pow", "cumprod", "square", "mul"])
def test_products_of_wide_integers_are_warned_of(op: str, tmp_path: Path) -> None:
    x = hx.input("x", (4,), "int64")
    y = {
        "pow": lambda: hx.pow(x, 3),
        "cumprod": lambda: hx.cumprod(x, axis=0),
        "square": lambda: hx.square(x),
        "mul": lambda: x * x,
    }
    with pytest.warns(HazardWarning, match=rf"{op} at .*wide integers in int32, where results beyond"):
        hx.save_coreml(hx.graph({"y": y[op]()}), tmp_path / "m.mlpackage")
