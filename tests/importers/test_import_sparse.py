"""Sparse initializers and sparse constants of ONNX files are dense weights."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from hexane.errors import Error
from hexane.quant.network import read_network
from onnx_models import by_onnxruntime

RNG = np.random.default_rng(3)
WEIGHT = (RNG.standard_normal((6, 5)) * (RNG.random((6, 5)) < 0.3)).astype(np.float32)
X = RNG.standard_normal((2, 6)).astype(np.float32)


def sparse(array: Any, name: str = "w", *, pairs: bool = False) -> onnx.SparseTensorProto:
    places = np.flatnonzero(array)
    indices = np.argwhere(array) if pairs else places
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64), ""), array.shape)


def model(weight: onnx.SparseTensorProto, *, constant: bool = False, body: bool = False) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=weight))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5))
    given = [] if constant else [weight]
    if body:  # in both branches of an If
        branches = {name: helper.make_graph(nodes, name, [], [y], sparse_initializer=given)
                    for name in ("then_branch", "else_branch")}  # fmt: skip
        true = numpy_helper.from_array(np.array(True), "true")
        nodes = [helper.make_node("Constant", [], ["c"], value=true), helper.make_node("If", ["c"], ["y"], **branches)]
        given = []
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    graph = helper.make_graph(nodes, "test", [x], [y], sparse_initializer=given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_a_sparse_weight_gives_the_numbers_of_onnxruntime(constant: bool, pairs: bool, tmp_path: Path) -> None:
    proto = model(sparse(WEIGHT, pairs=pairs), constant=constant)
    want = by_onnxruntime(model(sparse(WEIGHT), constant=constant), {"x": X})[0]
    onnx.save(proto, tmp_path / "m.onnx")
    for source in (proto, proto.SerializeToString(), tmp_path / "m.onnx"):
        np.testing.assert_allclose(hx.compile(source)(X), want, rtol=0, atol=1e-6)


def test_a_subgraph_has_sparse_initializers() -> None:
    np.testing.assert_allclose(hx.compile(model(sparse(WEIGHT), body=True))(X), X @ WEIGHT, rtol=0, atol=1e-6)


def test_a_weight_without_nonzero_elements_is_zero() -> None:
    np.testing.assert_array_equal(hx.compile(model(sparse(np.zeros((6, 5), np.float32))))(X), np.zeros((2, 5), "f"))


def test_a_sparse_weight_is_split_from_a_large_file(tmp_path: Path) -> None:
    weight = np.zeros((6, 5), np.float32)
    weight[2, 3] = 1.5
    proto = model(sparse(weight))
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 19, np.float32), "unread"))
    onnx.save(proto, tmp_path / "m.onnx")
    np.testing.assert_array_equal(hx.compile(tmp_path / "m.onnx")(X), X @ weight)


def test_quantisation_and_compression_read_sparse_weights_as_dense_ones() -> None:
    network = read_network(model(sparse(WEIGHT)))
    assert not network.proto.graph.sparse_initializer
    np.testing.assert_array_equal(network.constants["w"], WEIGHT)
    np.testing.assert_allclose(hx.compile(network.proto)(X), X @ WEIGHT, rtol=0, atol=1e-6)


def changed(**fields: Any) -> onnx.SparseTensorProto:
    result = sparse(WEIGHT)
    for name, array in fields.items():
        getattr(result, name).CopyFrom(numpy_helper.from_array(np.asarray(array), "w" if name == "values" else ""))
    return result


COUNT = np.count_nonzero(WEIGHT)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (changed(indices=np.arange(COUNT) * 0), "indices that do not ascend"),
        (changed(indices=np.arange(COUNT)[::-1].copy()), "indices that do not ascend"),
        (changed(indices=np.arange(COUNT) - 1), "indices outside the shape"),
        (changed(indices=np.arange(COUNT) + 30), "indices outside the shape"),
        (changed(indices=np.arange(COUNT, dtype=np.int32)), "need n values and n or"),
        (changed(indices=np.arange(COUNT + 1)), "need n values and n or"),
        (changed(values=np.ones((COUNT, 1), np.float32)), "need n values and n or"),
    ],
)
def test_a_sparse_tensor_that_is_damaged_is_an_error(
    weight: onnx.SparseTensorProto, message: str, constant: bool
) -> None:
    with pytest.raises(Error, match=message):
        hx.compile(model(weight, constant=constant))


@pytest.mark.parametrize("constant", [False, True])
def test_a_few_stored_elements_cannot_ask_for_much_memory(constant: bool) -> None:
    weight = sparse(WEIGHT)
    weight.dims[:] = (1 << 15, 1 << 15)
    with pytest.raises(Error, match="got sparse tensors of 4294967296 bytes when dense, need at most 67108864"):
        hx.compile(model(weight, constant=constant))


def test_the_limit_counts_all_sparse_initializers() -> None:
    proto = model(sparse(WEIGHT))
    for i in range(3):
        extra = sparse(WEIGHT, f"extra{i}")
        extra.dims[:] = (1 << 13, 1 << 10)
        proto.graph.sparse_initializer.append(extra)
    with pytest.raises(Error, match=r"sparse initializer 'extra1': got sparse tensors of \d+ bytes"):
        hx.compile(proto)
