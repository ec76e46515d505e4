"""Graphs written as Core AI assets: read back they compute the same, and Apple's runtime computes it too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from apple_runtime import has_apple_runtime, run_apple
from cases import CASES, IDS, arrays, graph_of
from hexane.emit.coreai.pixels import tokens_as_images
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.coreai.write import emit_asset, save_graph
from hexane.graph import Graph
from hexane.importers.coreai import import_asset, import_coreai, read_asset
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.ops.spec import Op
from hexane.targets.query import load_chip
from networks import small_networks
from random_graphs import random_graph

# What Core AI has no op for, or none whose size or numbers are known when the file is written.
NOT_WRITTEN = {
    "random", "random_uniform", "random_normal", "bernoulli", "dropout", "multinomial", "non_zero", "unique",
    "non_max_suppression", "shift_left", "shift_right", "bit_cast", "col2im", "max_pool_gradient", "interleave",
    "lookup", "running_sum", "quantized_matmul", "quantized_conv", "quantized_add", "quantized_mean",
    "q31_matmul", "q31_conv", "q31_add", "q31_mul", "q31_mean", "q31_avg_pool", "q31_softmax", "quantize_by_range",
}  # fmt: skip


def same(graph: Graph, feeds: dict[str, Any]) -> None:
    """What is read back has the same ports and, but for the order of sums, the same numbers."""
    back = import_asset(read_asset(emit_asset(graph), "f"))
    assert [(str(v.node.attrs["name"]), v.type) for v in back.inputs] == [
        (str(v.node.attrs["name"]), v.type) for v in graph.inputs
    ]
    with np.errstate(all="ignore"):
        want, got = run_reference(graph, feeds), run_reference(back, feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        close(got[name], array)


def close(got: Any, want: Any) -> None:
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    wide = [np.asarray(a, np.float64) for a in (got, want)]
    tolerance = 3e-3 if want.dtype.itemsize < 4 else 2e-5
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance * max(1.0, np.nanmax(np.abs(wide[1]), initial=0)))


@pytest.mark.parametrize(("op", "case"), CASES, ids=IDS)
def test_every_case_comes_back(op: Op, case: int) -> None:
    inputs = arrays(op, op.cases[case])
    graph = graph_of(op, op.cases[case], inputs)
    names = [str(v.node.attrs["name"]) for v in graph.inputs]
    feeds = dict(zip(names, [a for a in inputs if a is not None], strict=False))
    said = ""
    try:
        same(graph, feeds)
    except hx.Error as error:
        said = str(error)
    assert not said or ("no form in Core AI" in said and op.name in NOT_WRITTEN), said


SEEDS = [*range(40), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 300)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_of_small_integers_comes_back_with_the_same_numbers(seed: int) -> None:
    """Nothing in it rounds, whatever the ops are written in. 0 and -0 are equal: kernels of relu differ in it."""
    graph, feeds = random_graph(seed, "exact")
    try:
        program = emit_asset(graph)
    except hx.Error as error:
        if "no form in Core AI" not in str(error):
            raise
        pytest.skip("it has ops that Core AI does not have")
    found = [hx.compile(g, threads=1)(feeds) for g in (graph, import_asset(read_asset(program, "f")))]
    want, got = (y if isinstance(y, dict) else {"": y} for y in found)
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("pads", [(1, 1, 0, 1), (0, 0, 0, 0), (0, 2, 2, 0)])
@pytest.mark.parametrize("extents", [(8, 9), (7, 10)])
def test_windows_that_end_outside(extents: tuple[int, int], pads: tuple[int, ...], layout: str) -> None:
    x = hx.input("x", (1, 5, *extents) if layout == "nchw" else (1, *extents, 5))
    how: dict[str, Any] = {"kernel_sizes": 3, "strides": 3, "pad": pads, "ceil_mode": True, "layout": layout}
    averages = {f"mean{i}": hx.avg_pool(x, exclude_padding=bool(i), **how) for i in (0, 1)}
    feeds = {"x": np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)}
    same(hx.graph({"most": hx.max_pool(x, **how), **averages}), feeds)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_comes_back(seed: int) -> None:
    graph, feeds = random_graph(seed, "fp32")
    try:
        same(graph, feeds)
    except hx.Error as error:
        if "no form in Core AI" not in str(error):
            raise
        pytest.skip("it has ops that Core AI does not have")


@pytest.mark.parametrize("name", small_networks())
def test_a_network_comes_back_with_the_same_bits(name: str, model_file: Callable[[str], Path], tmp_path: Path) -> None:
    graph = import_onnx(model_file(name))
    save_graph(graph, tmp_path / "net.aimodel")
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    want, got = (hx.compile(g, threads=1)(feeds) for g in (graph, import_coreai(tmp_path / "net.aimodel")))
    for a, b in zip(*(found.values() if isinstance(found, dict) else [found] for found in (got, want)), strict=True):
        close(a, b)


def test_a_cache_is_written_at_a_place_that_is_an_input(tmp_path: Path) -> None:
    cache = hx.state("cache", (1, 6, 4))
    row, place = hx.input("row", (1, 1, 4)), hx.input("place", (), "int32")
    written = hx.write_state(cache, row, place, axis=1)
    graph = hx.graph({"sum": hx.reduce_sum(written, axes=(1,))}, [written])
    save_graph(graph, tmp_path / "cache.aimodel")
    nets = hx.compile(graph), hx.compile(tmp_path / "cache.aimodel")
    for i in (0, 3, 5):
        feeds = {"row": np.full((1, 1, 4), i + 1, np.float32), "place": np.array(i, np.int32)}
        np.testing.assert_array_equal(nets[0](feeds), nets[1](feeds))
    np.testing.assert_array_equal(nets[0].read_state("cache"), nets[1].read_state("cache"))


def test_lines_of_the_author_come_back() -> None:
    graph = hx.graph(hx.tanh(hx.input("x", (2,))))
    back = import_asset(read_asset(emit_asset(graph), "f"))
    assert [n.where for n in back.nodes if n.op == "tanh"] == [n.where for n in graph.nodes if n.op == "tanh"]


def decoder(tokens: int) -> Graph:
    """A function for so many tokens, with the weights of all of them."""
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    x = hx.input("x", (tokens, 64))
    cache = hx.write_state(hx.state("cache", (8, 48)), hx.matmul(x, weights), hx.input("at", (), "int32"), axis=0)
    return hx.graph({"y": hx.reduce_sum(cache, axes=(0,))}, [cache])


def test_functions_share_their_weights(tmp_path: Path) -> None:
    graphs = {"prompt": decoder(4), "extend": decoder(1)}
    size = save_graph(graphs, tmp_path / "net.aimodel")
    assert size < len(emit_asset(graphs["extend"])) + 2000
    for name, graph in graphs.items():
        rng = np.random.default_rng(2)
        feeds = {"x": rng.standard_normal(graph.inputs[0].shape).astype(np.float32), "at": np.array(3, np.int32)}
        nets = hx.compile(graph, threads=1), hx.compile(f"{tmp_path / 'net.aimodel'}#{name}", threads=1)
        np.testing.assert_array_equal(nets[0](feeds), nets[1](feeds))
        np.testing.assert_array_equal(nets[0].read_state("cache"), nets[1].read_state("cache"))


def test_an_asset_without_functions_is_an_error() -> None:
    with pytest.raises(hx.Error, match="without functions, need at least one"):
        emit_asset({})


@pytest.mark.slow
def test_apples_runtime_runs_each_function(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    x = hx.input("x", (3, 64))
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    graphs = {"product": hx.graph({"y": x @ weights}), "tanh": hx.graph({"y": hx.tanh(x @ weights)})}
    save_graph(graphs, tmp_path / "net.aimodel")
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    want = feeds["x"] @ weights
    for name, y in (("product", want), ("tanh", np.tanh(want))):
        got = run_apple(python, tmp_path / "net.aimodel", feeds, tmp_path, name)["y"]
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_apples_runtime_runs_windows_and_norms(layout: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 5, 8, 9) if layout == "nchw" else (1, 8, 9, 5))
    how: dict[str, Any] = {"kernel_sizes": 3, "strides": 3, "pad": (1, 1, 0, 1), "ceil_mode": True, "layout": layout}
    graph = hx.graph(
        {
            "most": hx.max_pool(x, **how),
            "mean": hx.avg_pool(x, exclude_padding=True, **how),
            "padded_mean": hx.avg_pool(x, exclude_padding=False, **how),
            "conv": hx.conv(x, rng.standard_normal((4, 5, 3, 3)).astype(np.float32), layout=layout),
            "norm": hx.local_response_norm(x, size=4, alpha=0.5),
        }
    )
    save_graph(graph, tmp_path / "net.aimodel")
    feeds = {"x": rng.standard_normal(x.shape).astype(np.float32)}
    want, got = run_reference(graph, feeds), run_apple(python, tmp_path / "net.aimodel", feeds, tmp_path)
    assert got.keys() == want.keys()
    for name, array in got.items():
        np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_what_has_no_form_is_named() -> None:
    x = hx.input("x", (4,), "int32")
    graph = hx.graph([hx.shift_left(x, x), hx.unique(x)[0]])
    with pytest.raises(hx.Error, match=r"kinds of ops have no form in Core AI:\n  .*shift_left"):
        emit_asset(graph)


def test_for_a_chip_the_inside_is_fp16_and_masks_are_finite(tmp_path: Path) -> None:
    x, mask = hx.input("x", (1, 2, 4, 4)), hx.input("mask", (1, 1, 4, 4), "bool")
    scores = hx.select(mask, hx.matmul(x, x), hx.const(np.float32(-np.inf)))
    graph = for_engine(hx.graph(hx.softmax(scores, axis=-1)), load_chip("h16"))
    save_graph(graph, tmp_path / "net.aimodel")
    back = import_coreai(tmp_path / "net.aimodel")
    assert {n.types[0].dtype.name for n in back.nodes if n.op == "matmul"} == {"fp16"}
    assert not any(
        n.data is not None and np.isinf(np.asarray(n.data, np.float64)).any() for n in back.nodes if n.op == "const"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", small_networks())
def test_apples_runtime_runs_what_was_written(
    name: str, model_file: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    graph = import_onnx(model_file(name))
    save_graph(graph, tmp_path / "net.aimodel")
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    want = run_reference(graph, feeds)
    for key, array in run_apple(python, tmp_path / "net.aimodel", feeds, tmp_path).items():
        np.testing.assert_allclose(array, want[key], rtol=1e-4, atol=1e-5 * max(1, np.abs(want[key]).max()))


@pytest.mark.parametrize("coordinates", ["align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(("from_", "to"), [((1, 1), (5, 7)), ((2, 3), (1, 1)), ((1, 3), (4, 1)), ((3, 1), (3, 6))])
def test_a_linear_resize_from_or_to_one_pixel_comes_back(
    coordinates: str, from_: tuple[int, int], to: tuple[int, int]
) -> None:
    x = np.random.default_rng(3).uniform(0, 255, (1, 2, *from_)).astype(np.float32)
    sizes = np.array([1, 2, *to], np.int64)
    node = helper.make_node(
        "Resize", ["x", "", "", "z"], ["y"], mode="linear", coordinate_transformation_mode=coordinates
    )
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [int(n) for n in sizes])
    model = helper.make_model(
        helper.make_graph([node], "g", [port], [made], [numpy_helper.from_array(sizes, "z")]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    same(import_onnx(model), {"x": x})


MEANS: dict[str, tuple[tuple[int, ...], Callable[[hx.Tensor], hx.Tensor]]] = {
    "a mean of 65,536": ((1, 256, 256), lambda x: hx.reduce_mean(x, axes=(1, 2))),
    "a global pool": ((1, 2, 128, 128), lambda x: hx.avg_pool(x, kernel_sizes=(128, 128))),
    "a pool of large numbers": ((1, 2, 9, 9), lambda x: hx.avg_pool(x * 2000.0, kernel_sizes=3, strides=2, pad=1)),
    "a group norm": ((1, 8, 128, 128), lambda x: hx.group_norm(x, num_groups=2)),
    "an instance norm": ((1, 2, 256, 256), lambda x: hx.instance_norm(x)),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_many_numbers_is_finite_in_fp16(name: str) -> None:
    """The sum of pixels of size 10, and their number, are beyond fp16."""
    shape, build = MEANS[name]
    x = (np.random.default_rng(4).standard_normal(shape) + 10).astype(np.float16)
    graph = hx.graph(build(hx.input("x", shape, "fp16")))
    back = hx.compile(import_asset(read_asset(emit_asset(graph), "f")))
    want = next(iter(run_reference(graph, {"x": x}).values())).astype(np.float64)
    got = np.asarray(back(x), np.float64)
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("size", [0.01, 300.0, 20000.0])
@pytest.mark.parametrize("keep", [False, True])
def test_a_norm_of_large_numbers_is_finite_in_fp16(size: float, keep: bool) -> None:
    """The square of 256 is beyond fp16, the root of the sum of squares is not."""
    x = (np.random.default_rng(5).standard_normal((3, 4)) * size / 4).astype(np.float16)
    graph = hx.graph(hx.reduce_l2_norm(hx.input("x", (3, 4), "fp16"), axes=1, keep_dims=keep))
    back = hx.compile(import_asset(read_asset(emit_asset(graph), "f")))
    want = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=keep)
    np.testing.assert_allclose(np.asarray(back(x), np.float64), want, rtol=3e-3)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("size", [1.0, 300.0, 20000.0])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_a_norm_between_products_of_tokens_holds_large_numbers(op: str, size: float) -> None:
    """It is written out on the channels of images."""
    rng = np.random.default_rng(6)
    weight = np.eye(32, dtype=np.float16)
    x = (rng.standard_normal((1, 16, 32)) * size / 2).astype(np.float16)
    y = hx.linear(hx.input("x", x.shape, "fp16"), hx.const(weight))
    graph = hx.graph(hx.linear(getattr(hx, op)(y, axes=(2,), epsilon=1e-5), hx.const(weight)))
    made = tokens_as_images(graph)
    assert "conv" in made.ops
    assert op not in made.ops
    got = next(iter(run_reference(made, {"x": x}).values())).astype(np.float64)
    wide = x.astype(np.float64)
    wide = wide - wide.mean(2, keepdims=True) if op == "layer_norm" else wide
    want = wide / np.sqrt((wide * wide).mean(2, keepdims=True) + 1e-5)
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


WRITTEN_FOR_CHIPS: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], Callable[[Any], Any]]] = {
    "l2_norm": (
        lambda x: hx.l2_norm(x * 300.0, axes=(1,)),
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
    ),
    "a sum over n - 1": (
        lambda x: hx.reduce_sum(x * 20.0, axes=(1,)) / 4095.0,
        lambda x: 20 * x.sum(1, keepdims=True) / 4095,
    ),
    "a sum of magnitudes over n": (
        lambda x: hx.reduce_l1_norm(x * 20.0, axes=(1,)) * (1 / 4096),
        lambda x: 20 * np.abs(x).mean(1, keepdims=True),
    ),
    "a sum of squares over n": (
        lambda x: hx.reduce_sum_square(x * 20.0, axes=(1,)) * (1 / 4096),
        lambda x: 400 * (x * x).mean(1, keepdims=True),
    ),
    "a mean of squares, one of them large": (
        lambda x: hx.reduce_mean(hx.square(hx.concat(x, x[:, :1] * 200.0, axis=1)), axes=(1,)),
        lambda x: np.square(np.concatenate([x, 200 * x[:, :1]], 1)).mean(1, keepdims=True),
    ),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", WRITTEN_FOR_CHIPS)
def test_what_is_written_for_a_chip_is_finite_in_fp16(name: str) -> None:
    build, formula = WRITTEN_FOR_CHIPS[name]
    x = (np.random.default_rng(8).standard_normal((2, 4096)) + 2).astype(np.float16).astype(np.float32)
    graph = for_engine(hx.graph(build(hx.input("x", x.shape))), load_chip("h17s"))
    assert {n.types[0].dtype.name for n in graph.nodes if n.op != "cast" and n.op not in ("input", "const")} == {"fp16"}
    got = np.asarray(hx.compile(import_asset(read_asset(emit_asset(graph), "f")))(x), np.float64)
    want = formula(x.astype(np.float64))
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_padded_max_pool_of_integers_is_read_back(dtype: str) -> None:
    x = hx.input("x", (1, 2, 5, 5), dtype)
    graph = hx.graph(hx.max_pool(x, kernel_sizes=(3, 3), strides=(2, 2), pad=(1, 1, 1, 1)))
    low = np.iinfo(dtype).min
    same(graph, {"x": np.random.default_rng(2).integers(low, low + 90, (1, 2, 5, 5)).astype(dtype)})
