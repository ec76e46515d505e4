"""Files that onnxruntime's optimisers wrote: those of each level, and of transformers.optimizer, give onnxruntime's
numbers; and so do quantised networks whose ops onnxruntime has fused into its own."""

import logging
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

import hexane as hx
from architectures import ARCHITECTURES
from hexane import _core
from hexane.errors import Error
from hexane.importers.onnx.handlers.microsoft_nchwc import block_of
from onnx_export import export
from torch_blocks import LEVELS, NETWORKS, Feeds, by_transformers, optimised

Model = tuple[onnx.ModelProto, Feeds]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The optimisers log each fusion that they do not find."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def exported(name: str) -> Model:
    """An architecture of tests/support/architectures.py as an ONNX file."""
    proto = export(ARCHITECTURES[name]()).proto
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "Swish":  # onnxruntime has none of ONNX's domain
            gate = f"{node.output[0]}_gate"
            nodes.append(helper.make_node("Sigmoid", node.input, [gate]))
            node = helper.make_node("Mul", [node.input[0], gate], node.output)
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    rng, feeds = np.random.default_rng(0), {}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT32:
            feeds[value.name] = rng.integers(0, 2, shape).astype(np.int32)
        else:
            feeds[value.name] = rng.integers(0, 256 if value.name == "image" else 2, shape).astype(np.float32)
    return proto, feeds


@cache
def network(name: str) -> Model:
    return NETWORKS[name]() if name in NETWORKS else exported(name)


def by_onnxruntime(proto: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """As the file stands: nothing is optimised once more."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def by_hexane(proto: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.Model)
    got = net(feeds)
    return list(got.values()) if isinstance(got, dict) else [got]


def check_equal(proto: onnx.ModelProto, feeds: Feeds, error: float = 1e-5) -> None:
    for got, want in zip(by_hexane(proto, feeds), by_onnxruntime(proto, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=error * np.abs(want).max())


def ops_of(proto: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in proto.graph.node if node.domain.startswith("com.microsoft")}


# What level `extended` has to find in a network, so that the test does not hold of files without such ops.
FUSED = {
    "bert": {"SkipLayerNormalization", "FusedMatMul", "Gelu"},
    "bert13": {"SkipLayerNormalization", "FusedMatMul", "Gelu"},
    "gpt2": {"FastGelu", "FusedMatMul", "SkipLayerNormalization"},
    "gpt2_13": {"FastGelu", "FusedMatMul", "SkipLayerNormalization"},
    "vit": {"QuickGelu", "FusedMatMul", "SkipLayerNormalization"},
    "vit13": {"QuickGelu", "FusedMatMul", "SkipLayerNormalization"},
    "llama": {"QuickGelu", "FusedMatMul"},
    "convolutions": {"FusedConv"},
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [*NETWORKS, *ARCHITECTURES])
def test_a_file_of_each_level_has_onnxruntimes_numbers(name: str, level: str) -> None:
    proto, feeds = network(name)
    made = optimised(proto, level)
    if level == "extended":
        assert ops_of(made) >= FUSED.get(name, set())
    check_equal(made, feeds)


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("bert", "bert", {"Attention", "BiasGelu", "SkipLayerNormalization"}),
        ("bert13", "bert", {"Attention", "BiasGelu", "SkipLayerNormalization"}),
        ("gpt2", "gpt2", {"FastGelu", "SkipLayerNormalization"}),
        ("gpt2_13", "gpt2", {"FastGelu", "SkipLayerNormalization"}),
        ("vit", "vit", {"Attention", "QuickGelu", "SkipLayerNormalization"}),
        ("vit13", "vit", {"Attention", "QuickGelu", "SkipLayerNormalization"}),
        ("llama", "gpt2", {"SkipSimplifiedLayerNormalization"}),
    ],
)
def test_an_output_of_transformers_optimizer_has_onnxruntimes_numbers(name: str, kind: str, found: set[str]) -> None:
    proto, feeds = network(name)
    made = by_transformers(proto, kind, 0)
    assert ops_of(made) >= found
    check_equal(made, feeds)


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n not in ("densenet", "efficientnet")])  # the slowest
def test_transformers_optimizer_may_be_given_any_architecture(name: str) -> None:
    proto, feeds = network(name)
    check_equal(by_transformers(proto, "vit" if name in ("vit", "swin") else "bert", 0), feeds)


class OneInput(CalibrationDataReader):
    def __init__(self, feeds: Feeds) -> None:
        self.left = [feeds]

    def get_next(self) -> Feeds | None:
        return self.left.pop() if self.left else None


@cache
def quantised(name: str, kind: Any, dynamic: bool = False) -> Model:
    proto, feeds = network(name)
    with tempfile.TemporaryDirectory() as folder:
        source, target = (str(Path(folder) / f"{part}.onnx") for part in ("floats", "integers"))
        onnx.save(proto, source)
        if dynamic:
            quantize_dynamic(source, target)
        else:
            quantize_static(
                source, target, OneInput(feeds), per_channel=kind is QuantType.QInt8, activation_type=kind,
                weight_type=QuantType.QInt8,
            )  # fmt: skip
        return onnx.load(target), feeds


@pytest.mark.parametrize("level", ["extended", "all"])
@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize(
    ("name", "error"),
    # A mean of four integers lies half way between two in a quarter of all cases; onnxruntime averages floats.
    [("bert13", 1e-5), ("vit", 1e-5), ("mobilenet_v3", 1e-5), ("convolutions", 0.03)],
)
def test_a_quantised_file_has_onnxruntimes_numbers(name: str, error: float, kind: Any, level: str) -> None:
    proto, feeds = quantised(name, kind)
    made = optimised(proto, level)
    assert any(op.startswith("Q") for op in ops_of(made))
    check_equal(made, feeds, error)


@pytest.mark.parametrize("name", ["bert13", "gpt2"])
def test_a_file_quantised_when_it_runs_has_onnxruntimes_numbers(name: str) -> None:
    proto, feeds = quantised(name, None, dynamic=True)
    made = optimised(proto, "extended")
    assert ops_of(made) & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    check_equal(made, feeds, 1e-4)


def in_blocks(weight: Any, block: int) -> Any:
    """A weight (out, in, height, width) as the optimiser stores it on a machine whose blocks have so many channels."""
    out, read, *window = weight.shape
    inner = 1 if read < block else block
    padded = np.zeros((-(-out // block) * block, -(-read // inner) * inner, *window), np.float32)
    padded[:out, :read] = weight
    apart = padded.reshape(-1, block, padded.shape[1] // inner, inner, *window).transpose(0, 2, 4, 5, 3, 1)
    return np.ascontiguousarray(apart).reshape(padded.shape)


def of_blocks(block: int, channels: int) -> Model:
    """Two convolutions as level `all` writes them on a machine with such blocks, and plain ones at `original`."""
    rng = np.random.default_rng(0)
    weights = [
        rng.standard_normal((channels, 3, 3, 3), np.float32),
        rng.standard_normal((8, channels, 3, 3), np.float32),
    ]
    wide = -(-channels // block) * block
    bias = np.zeros(wide, np.float32)
    bias[:channels] = rng.standard_normal(channels)
    held = {"w0": in_blocks(weights[0], block), "w1": in_blocks(weights[1], block), "b": bias}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b"], ["h"], domain="com.microsoft.nchwc", activation="Relu"),
        helper.make_node("Conv", ["h", "w1"], ["g"], domain="com.microsoft.nchwc"),
        helper.make_node("ReorderOutput", ["g"], ["y"], domain="com.microsoft.nchwc", channels=8),
    ]
    plain = [
        helper.make_node("Conv", ["x", "w0", "b"], ["i"]),
        helper.make_node("Relu", ["i"], ["h"]),
        helper.make_node("Conv", ["h", "w1"], ["y"]),
    ]
    made = []
    for ops, tensors in ((nodes, held), (plain, {"w0": weights[0], "w1": weights[1], "b": bias[:channels]})):
        graph = helper.make_graph(
            ops, "blocks", [helper.make_tensor_value_info("x", 1, [1, 3, 9, 9])],
            [helper.make_tensor_value_info("y", 1, [1, 8, 5, 5])],
            [numpy_helper.from_array(a, n) for n, a in tensors.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
        made.append(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    feeds = {"x": rng.standard_normal((1, 3, 9, 9), np.float32)}
    return made[0], {**feeds, "want": by_onnxruntime(made[1], feeds)[0]}


@pytest.mark.parametrize("op", ["Conv", "ReorderInput"])
def test_blocks_without_their_opset_import_are_an_error(op: str) -> None:
    proto, _ = of_blocks(8, 24)
    if op == "ReorderInput":
        proto.graph.node.insert(0, helper.make_node(op, ["x"], ["i"], domain="com.microsoft.nchwc"))
    del proto.opset_import[1]
    with pytest.raises(hx.Error, match=f"{op}.*got no opset import of com.microsoft.nchwc, need one"):
        hx.compile(proto)


@pytest.mark.parametrize(("block", "channels"), [(8, 24), (16, 24), (8, 40), (16, 20), (8, 8)])
def test_weights_show_how_many_channels_a_block_has(block: int, channels: int) -> None:
    """Also of files that were written on another machine than this one."""
    proto, feeds = of_blocks(block, channels)
    want = feeds.pop("want")
    (got,) = by_hexane(proto, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("best", "block"), [("AVX3_SPR", 16), ("AVX2", 8), ("SSE4", 8), ("NEON_BF16", 16)])
def test_otherwise_a_block_is_that_of_onnxruntime_on_this_machine(monkeypatch: Any, best: str, block: int) -> None:
    monkeypatch.setattr(_core, "instruction_sets", lambda: [best, "SSE4"])
    assert block_of([], {}) == block


@pytest.mark.parametrize(("name", "fewer"), [("convolutions", 0), ("vit", 2)])
def test_quantize_reaches_the_layers_of_an_optimised_file(name: str, fewer: int) -> None:
    """FusedConv and FusedGemm are taken apart, so that all layers with weights become integers; products of two
    activations that became FusedMatMul do not."""
    proto, feeds = network(name)
    result = hx.quantize_model(optimised(proto, "extended"), [feeds])
    assert len(result.layers) == len(hx.quantize_model(proto, [feeds]).layers) - fewer
    assert not {"FusedConv", "FusedGemm"} & {n.op_type for n in result.model.graph.node}
    check_equal(result.model, feeds, 0.05)


def test_quantize_says_what_to_give_in_place_of_images_in_blocks() -> None:
    proto, feeds = network("convolutions")
    with pytest.raises(
        Error, match=r"com.microsoft.nchwc, whose weights .* give the model before onnxruntime optimised"
    ):
        hx.quantize_model(optimised(proto, "all"), [feeds])


def test_quantize_says_which_ops_keep_a_file_in_an_older_opset() -> None:
    proto, feeds = network("bert13")
    with pytest.raises(Error, match=r"ops of onnxruntime's optimisers \(.*Gelu.*\): give the model before they ran"):
        hx.quantize_model(optimised(proto, "extended"), [feeds], hx.Quantization("int16"))
