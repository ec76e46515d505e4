"""A converted model and its original: where they part, and whether by precision or by conversion."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import in_this_process
from hexane import sources
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Graph
from hexane.report.two_models import TwoModels, compare_models, open_other
from networks import small_networks

RNG = np.random.default_rng(4)
PHOTO = RNG.integers(0, 256, (1, 3, 16, 16)).astype(np.float32)
STEM, DEEP = (RNG.standard_normal(s).astype(np.float32) * 0.2 for s in ((8, 3, 3, 3), (8, 8, 3, 3)))


def network(middle: Callable[[Tensor], Tensor] = hx.relu, name: str = "x", dtype: str = "fp32") -> Graph:
    x = hx.input(name, PHOTO.shape, dtype)
    weights = [w.astype(np.float16 if dtype == "fp16" else np.float32) for w in (STEM, DEEP)]
    h = hx.relu(hx.conv(x, weights[0], pad=1))
    h = middle(hx.conv(h, weights[1], pad=1))
    return hx.graph(hx.reduce_mean(h, axes=(2, 3)))


def compared(first: Graph, second: Graph, tolerance: float = 0.01) -> TwoModels:
    def fed(graph: Graph) -> dict[str, np.ndarray]:
        return {str(v.node.attrs["name"]): PHOTO.astype(v.dtype.numpy) for v in graph.inputs}

    return compare_models(("a", first, fed(first)), ("b", second, fed(second)), tolerance)


def test_equal_networks_of_other_names_share_all_results() -> None:
    found = compared(network(), network(name="image"))
    assert found.ok
    assert found.sides is None
    assert found.shared == found.total == 5
    assert found.lines[0] == "a computes what b does: relative L2 at most 0.01 in 1 output"
    assert " results have an equal in b, within " in found.lines[2]


def test_the_op_that_a_converter_changed_is_named_on_both_sides() -> None:
    found = compared(network(lambda h: hx.leaky_relu(h, alpha=0.3)), network())
    assert not found.ok
    assert found.sides is not None
    first, second = found.sides
    assert [op.split()[0] for op in first.ops] == ["leaky_relu", "reduce_mean"]
    assert [op.split()[0] for op in second.ops] == ["relu", "reduce_mean"]
    assert first.last.startswith("conv")
    assert found.cause.startswith("conversion: the ops differ")


def test_a_quantised_model_that_clips_is_not_called_a_wrong_conversion() -> None:
    def quantised(h: Tensor) -> Tensor:
        return hx.dequantize(hx.quantize(hx.relu(h), np.float32(0.05), dtype="int8"), np.float32(0.05))

    found = compared(network(quantised), network())
    assert not found.ok
    assert (
        found.cause
        == "quantisation: a rounds here to integers and clips what is beyond their range, the other does not"
    )


def test_compressed_weights_are_not_called_a_wrong_conversion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The region of the difference may have no decoding op: a softmax enlarges what the products changed."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    sizes = {"w1": (64, 128), "w2": (128, 32)}
    weights = [numpy_helper.from_array(RNG.standard_normal(s).astype(np.float32), n) for n, s in sizes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "mm1"),
        helper.make_node("MatMul", ["a", "w2"], ["b"], "mm2"),
        helper.make_node("Softmax", ["b"], ["y"], "softmax"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, 64]), ("y", [4, 32]))]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    feeds = {"x": RNG.standard_normal((4, 64)).astype(np.float32) * 0.02}
    original = sources.open_network(tmp_path / "m.onnx", where="compare").graph()
    for mode in ("palette8", "int8"):
        command = ("compress", tmp_path / "m.onnx", "--mode", mode, "--force", "-o", tmp_path / "c.onnx")
        assert in_this_process(capsys)(*command).code == 0
        packed = sources.open_network(tmp_path / "c.onnx", where="compare").graph()
        for first, second in (("c", "m"), ("m", "c")):
            graphs = {"c": packed, "m": original}
            found = compare_models((first, graphs[first], feeds), (second, graphs[second], feeds), 0.0001)
            assert found.cause.startswith("compressed weights: c stores the weights of mm1 and mm2 in fewer bits; its")
            tolerance = float(found.cause.split("--tolerance ")[1].split()[0])
            assert compare_models((first, graphs[first], feeds), (second, graphs[second], feeds), tolerance).ok


def test_other_weights_are_told_from_other_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    first = network()
    monkeypatch.setitem(globals(), "DEEP", DEEP * np.float32(1.03))
    assert compared(first, network()).cause.startswith("weights: a and b have other weights in")
    assert compared(first, network(lambda h: hx.leaky_relu(h, alpha=0.3))).cause.startswith("conversion: ")


def test_a_number_that_fp16_does_not_hold_is_precision_and_no_conversion() -> None:
    def squared(h: Tensor) -> Tensor:
        return hx.sqrt(hx.reduce_mean(h * h, axes=(1,), keep_dims=True))  # squares beyond 65504

    found = compared(network(squared, dtype="fp16"), network(squared))
    assert not found.ok
    assert found.sides is not None
    assert found.sides[0].ops[0].startswith("mul")
    assert found.cause.startswith("precision: the ops of a give what b gives, if they are computed exactly")


def test_ops_without_an_exact_result_are_not_called_a_wrong_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("hexane.report.two_models.evaluate_exactly", refused)
    found = compared(network(lambda h: hx.leaky_relu(h, alpha=0.3)), network())
    assert found.cause.startswith("not told whether by precision or by conversion: 2 ops of a have no exact result")


def test_another_layout_is_the_same_value() -> None:
    def turned(h: Tensor) -> Tensor:
        last = hx.relu(hx.transpose(h, perm=(0, 2, 3, 1)))
        return hx.transpose(last, perm=(0, 3, 1, 2)) + 1.0

    found = compared(network(turned), network())
    assert found.sides is not None
    assert [op.split()[0] for op in found.sides[0].ops] == ["add", "reduce_mean"]
    assert [op.split()[0] for op in found.sides[1].ops] == ["reduce_mean"]


def test_a_package_is_compared_with_the_onnx_model_that_it_was_made_of(tmp_path: Path) -> None:
    import onnx

    onnx.save(small_networks()["mobile-17"], tmp_path / "net.onnx")
    hx.save_coreml(str(tmp_path / "net.onnx"), tmp_path / "net.mlpackage", compute="fp16")
    module = sources.open_network(tmp_path / "net.mlpackage", where="compare")
    graph = module.graph()
    feeds = {str(v.node.attrs["name"]): RNG.random(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    other, given = open_other(sources.open_network(tmp_path / "net.onnx", where="compare"), feeds)
    found = compare_models(("net.mlpackage", graph, feeds), ("net.onnx", other, given), 0.01)
    assert found.ok, found.lines
    assert found.record()["ok"] is True
    with pytest.raises(Error, match=r"--with: got the inputs a, b, need"):
        open_other(sources.open_network(tmp_path / "net.onnx", where="compare"), {"a": PHOTO, "b": PHOTO})
