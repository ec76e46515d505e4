"""A large model is split before protobuf parses it: the same graph, from any bytes."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest

import hexane as hx
from hexane.importers.onnx.split import split


def model(rows: int = 600, functions: bool = False) -> onnx.ModelProto:
    helper, proto = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(rows)
    weights = [rng.standard_normal((rows, 500)).astype("f"), rng.standard_normal((500, 3)).astype("f")]
    ports = [helper.make_tensor_value_info(n, proto.FLOAT, [1, d]) for n, d in (("x", rows), ("y", 3))]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])]
    named = [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    result = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], named[::-1]))
    if functions:
        body = helper.make_node("Relu", ["a"], ["b"])
        result.functions.append(helper.make_function("local", "f", ["a"], ["b"], [body], [helper.make_opsetid("", 17)]))
        result.opset_import.append(helper.make_opsetid("local", 1))
    return result


@pytest.mark.parametrize("functions", [False, True])
def test_nodes_and_weights_are_parsed_one_by_one_and_large_weights_not_at_all(functions: bool) -> None:
    proto = model(functions=functions)
    parts = split(memoryview(proto.SerializeToString()))
    assert parts is not None
    rest = onnx.ModelProto.FromString(parts.rest)
    assert not rest.graph.node
    assert not rest.graph.initializer
    assert rest.graph.input == proto.graph.input
    assert rest.functions == proto.functions
    assert list(parts.nodes) == list(parts.nodes[:]) == list(proto.graph.node)
    small, large = parts.initializers
    assert small.raw is None
    assert small.proto == proto.graph.initializer[0]
    assert large.raw == proto.graph.initializer[1].raw_data
    assert not large.proto.raw_data
    assert large.proto.name == "w0"


def test_a_file_bytes_and_a_proto_give_the_same_graph(tmp_path: Path) -> None:
    proto = model()
    onnx.save(proto, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((1, 600)).astype("f")
    results = [hx.compile(m, threads=1)(x) for m in (tmp_path / "m.onnx", proto.SerializeToString(), proto)]
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_array_equal(results[1], results[2])


def test_detached_data_of_the_wrong_size_is_refused() -> None:
    proto = model()
    proto.graph.initializer[1].dims[0] = 599
    with pytest.raises(hx.Error, match=r"initializer 'w0': got 1200000 bytes of data, need 1198000"):
        hx.compile(proto.SerializeToString())


@pytest.mark.parametrize("cut", [1, 1000, 500_000, 1_199_000])
def test_a_truncated_model_is_refused(cut: int) -> None:
    data = model().SerializeToString()
    with pytest.raises(hx.Error):
        hx.compile(data[:-cut])


def test_what_is_not_plainly_one_graph_is_left_whole() -> None:
    data = model().SerializeToString()
    for whole in (data + data, b"\x00" * (2 << 20), b"\xff" * (2 << 20), data[: 1 << 19]):
        assert split(memoryview(whole)) is None


@pytest.mark.parametrize("part", ["node", "initializer"])
def test_a_part_that_does_not_parse_is_refused(part: str) -> None:
    proto = model()
    getattr(proto.graph, part)[-1].doc_string = "here"
    data = proto.SerializeToString()
    with pytest.raises(hx.Error, match="that do not parse"):
        hx.compile(data.replace(b"\x04here", b"\x7fhere"))


def test_damaged_bytes_end_in_an_error_or_a_graph() -> None:
    whole = model().SerializeToString()
    ends = np.r_[0:300, len(whole) - 600 : len(whole)]  # where the structure is
    num_compiled = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        data = bytearray(whole)
        for at in rng.choice(ends, 3):
            data[at] = rng.integers(256)
        with suppress(hx.Error):
            hx.compile(bytes(data), threads=1)
            num_compiled += 1
    assert 0 < num_compiled < 40
