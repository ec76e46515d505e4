"""Targets unlike this machine: whatever they say about layouts, epilogues and alignment, networks compute the same."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.importers.onnx import import_onnx
from hexane.lowering.layouts import first_perm, last_perm
from hexane.ops.reference import run_reference
from hexane.pipeline import compile_graph, lower
from hexane.targets import Target, load_target, read_target
from hexane.targets.tables import FOLDER
from networks import small_networks
from random_graphs import KINDS, random_graph

HOST = load_target("host")
# This machine, except for the fields that a target changes.
TOYS = {
    "channels_first": ("channels_last = false",),
    "no_residual": ("residual_epilogue = false",),
    "aligned_to_16": ("alignment = 16",),
    "all_of_it": ("channels_last = false", "residual_epilogue = false", "alignment = 16"),
}


def toy(name: str) -> Target:
    """The host's file with these lines in the place of its own."""
    text = (FOLDER / "host.toml").read_text()
    for line in TOYS[name]:
        text, changed = re.subn(rf"(?m)^{line.split()[0]} = .*$", line, text)
        assert changed == 1
    return read_target(text, name=name)


TARGETS = {name: toy(name) for name in TOYS}
GENERATED = ("autoencoder", "ds_cnn", "mobilenet_v2_035_96", "randwire", "resnet18_224", "resnet8", "resnet8_bn",
             "transformer", "unet_128", "yolo_160")  # fmt: skip
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def run(graph: Graph, feeds: dict[str, Array], target: Target, dtype: str = "") -> dict[str, Array]:
    program = _core.Program(emit_plan(compile_graph(graph, target, hx.Options(dtype=dtype))), 1)
    return dict(zip([p["name"] for p in program.outputs], program.run(feeds), strict=True))


def feeds_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}


def assert_same(kind: str, got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        if kind.endswith("exact"):
            np.testing.assert_array_equal(got[name], array)
        else:
            assert_close(got[name], array)


@each_target
@pytest.mark.parametrize("name", small_networks())
def test_a_small_network_is_right(name: str, target: Target, model_file: Callable[[str], Path]) -> None:
    graph = import_onnx(model_file(name))
    feeds = feeds_of(graph)
    assert_same("", run(graph, feeds, target), run_reference(graph, feeds))


@each_target
@pytest.mark.parametrize("name", small_networks())
def test_a_small_network_in_fp16_rounds_as_the_host_does(
    name: str, target: Target, model_file: Callable[[str], Path]
) -> None:
    graph = import_onnx(model_file(name))
    got, want = (run(graph, feeds_of(graph), t, "fp16") for t in (target, HOST))
    for port in want:
        np.testing.assert_allclose(got[port], want[port], rtol=2e-2, atol=2e-2)


@each_target
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fp16"])  # its layers: test_fp16_layers.py
@pytest.mark.parametrize("seed", range(12))
def test_a_random_graph_is_right(kind: str, seed: int, target: Target) -> None:
    graph, feeds = random_graph(seed, kind)
    assert_same(kind, run(graph, feeds, target), run_reference(graph, feeds))


@pytest.mark.slow
@each_target
@pytest.mark.parametrize("name", GENERATED)
def test_a_network_is_right(name: str, target: Target, model_file: Callable[[str], Path]) -> None:
    graph = import_onnx(model_file(name))
    feeds = feeds_of(graph)
    assert_same("", run(graph, feeds, target), run(graph, feeds, HOST))


def images() -> Graph:
    """Every op that images go through, on one image, whose sum is one more op between them."""
    x = hx.input("x", (2, 4, 6, 5))
    weight, small = np.arange(64, dtype=np.float32).reshape(4, 4, 2, 2) / 64 - 0.5, {"height": 3, "width": 7}
    scales = {"scale_h": 2.0, "scale_w": 5 / 7}
    window = {"kernel_sizes": 2, "strides": 2}
    return hx.graph(
        {
            "conv": hx.relu(hx.conv(x, weight)),
            "conv_transpose": hx.conv_transpose(x, weight, strides=2) + 1.0,
            "max_pool": hx.exp(hx.max_pool(x, **window)),
            "avg_pool": hx.avg_pool(x, **window) * 2.0,
            "nearest": hx.resize_nearest_neighbor(x, **small, **scales),
            "bilinear": hx.resize_bilinear(x, **small, **scales),
            "instance_norm": hx.instance_norm(x),
            "last": hx.conv(hx.transpose(x, perm=(0, 2, 3, 1)), weight, layout="nhwc"),
        }
    )


@each_target
def test_every_op_of_images_reads_them_in_its_order_of_axes(target: Target) -> None:
    graph = images()
    assert_same("", run(graph, feeds_of(graph), target), run_reference(graph, feeds_of(graph)))


def test_images_stay_channels_first_between_kernels() -> None:
    x = hx.input("x", (1, 4, 6, 5))
    y = hx.conv(hx.relu(hx.max_pool(x, kernel_sizes=2)), np.ones((4, 4, 1, 1), np.float32))
    lowered = lower(hx.graph(y), TARGETS["channels_first"])
    (relu,) = (n for n in lowered.nodes if n.op == "relu")
    assert relu.types[0].shape == (1, 4, 5, 4)
    perms = [n.attrs["perm"] for n in lowered.nodes if n.op == "transpose"]
    assert perms == [last_perm(4), first_perm(4)] * 2


def test_a_target_without_residuals_absorbs_activations_only() -> None:
    x = hx.input("x", (1, 4, 6, 5))
    graph = hx.graph(hx.relu(hx.conv(hx.relu(hx.conv(x, weights())), weights()) + x))
    slots = {
        name: [s.op for n in lower(graph, target).nodes for s in n.attrs.get("epilogue", ())]
        for name, target in (("host", HOST), ("no_residual", TARGETS["no_residual"]))
    }
    assert slots == {"host": ["relu", "add", "relu"], "no_residual": ["relu", "relu"]}


def weights() -> Array:
    return np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)


def test_buffers_are_aligned_as_the_target_says() -> None:
    graph = hx.graph(hx.matmul(hx.softmax(hx.input("x", (3, 3))), np.ones((3, 1), np.float32)))
    program = compile_graph(graph, TARGETS["aligned_to_16"])
    assert all(offset % 16 == 0 for offset in program.offsets)
    assert program.extents["arena"].bytes < compile_graph(graph, HOST).extents["arena"].bytes
