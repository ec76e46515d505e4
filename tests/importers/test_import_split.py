"""A large model is split before protobuf parses it: the same graph, from any bytes."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest

import hexane as hx
from hexane.importers.onnx.file_bytes import FileBytes
from hexane.importers.onnx.load import read_model
from hexane.importers.onnx.split import split
from hexane.importers.onnx.tensors import read_tensor


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


def fields(proto: onnx.ModelProto) -> list[bytes]:
    """Its fields, serialised one by one; protobuf joins messages that lie one after the other."""
    return [one.SerializeToString() for name in ("ir_version", "opset_import", "functions", "graph", "producer_name")
            if (one := only(proto, name)).ByteSize()]  # fmt: skip


def only(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    one = onnx.ModelProto()
    one.CopyFrom(proto)
    for field in proto.DESCRIPTOR.fields:
        if field.name != name:
            one.ClearField(field.name)
    return one


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_large_weights_of_a_file_are_read_to_aligned_arrays(order: tuple[int, ...], tmp_path: Path) -> None:
    """Wherever they lie in the file, and in whatever order its fields are."""
    path = tmp_path / "m.onnx"
    for shift in range(5):
        proto = model()
        proto.graph.initializer[0].doc_string = "x" * shift
        proto.graph.initializer.reverse()
        path.write_bytes(b"".join(np.array(fields(proto), object)[list(order)]))
        want = onnx.load(path)
        file = read_model(path)
        assert file.proto.opset_import == want.opset_import
        assert list(file.nodes) == list(want.graph.node)
        for got, tensor in zip(file.initializers(), want.graph.initializer, strict=True):
            array = read_tensor(got.proto, None, got.raw)
            np.testing.assert_array_equal(array, onnx.numpy_helper.to_array(tensor))
            assert (got.raw is not None) == (tensor.name == "w0")
            assert got.raw is None or array.ctypes.data % 16 == 0


def test_data_in_two_fields_is_that_of_the_last(tmp_path: Path) -> None:
    """As protobuf has it; such a file is parsed whole."""
    proto = model()
    large = proto.graph.initializer[1]
    head = without_data(large)
    first, last = (onnx.TensorProto(raw_data=data) for data in (bytes(len(large.raw_data)), large.raw_data))
    message = head + first.SerializeToString() + last.SerializeToString()
    del proto.graph.initializer[1]
    graph = proto.graph.SerializeToString() + b"\x2a" + varint(len(message)) + message
    proto.ClearField("graph")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString() + b"\x3a" + varint(len(graph)) + graph)
    x = np.random.default_rng(1).standard_normal((1, 600)).astype("f")
    np.testing.assert_array_equal(hx.compile(path, threads=1)(x), hx.compile(model(), threads=1)(x))


def without_data(tensor: onnx.TensorProto) -> bytes:
    one = onnx.TensorProto()
    one.CopyFrom(tensor)
    one.ClearField("raw_data")
    return one.SerializeToString()


def varint(number: int) -> bytes:
    return bytes([*(number >> shift & 127 | 128 for shift in range(0, 28, 7)), number >> 28])


def test_a_file_that_is_cut_short_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    size = path.stat().st_size
    with open(path, "rb+") as file:
        read = FileBytes(file.fileno(), size, "[import] m.onnx")
        file.truncate(size // 2)
        with pytest.raises(hx.Error, match=r"\[import\] m.onnx: got \d+ bytes less than when it was opened"):
            split(read.data, read)


@pytest.mark.parametrize("cut", [1, 1000, 500_000])
def test_a_truncated_file_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString()[:-cut])
    with pytest.raises(hx.Error):
        hx.compile(path)


def test_a_compiled_file_holds_its_weights_once_beside_the_packed_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(60_000), path)  # 120 MB
    code = """
import resource, sys
import hexane as hx, onnx, hexane.importers.onnx
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
net = hx.compile(sys.argv[1], threads=1)
print(peak() - before)
"""
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 2.3 * path.stat().st_size


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


def test_damaged_bytes_end_in_an_error_or_a_graph_in_memory_and_in_a_file(tmp_path: Path) -> None:
    whole, path = model().SerializeToString(), tmp_path / "m.onnx"
    ends = np.r_[0:300, len(whole) - 600 : len(whole)]  # where the structure is
    num_compiled = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        data = bytearray(whole)
        for at in rng.choice(ends, 3):
            data[at] = rng.integers(256)
        path.write_bytes(data)
        compiled = [False, False]
        for i, source in enumerate((bytes(data), path)):
            with suppress(hx.Error):
                hx.compile(source, threads=1)
                compiled[i] = True
        assert compiled[0] == compiled[1]
        num_compiled += compiled[0]
    assert 0 < num_compiled < 40
