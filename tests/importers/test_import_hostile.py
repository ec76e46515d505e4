"""Model files are untrusted: whatever they hold, import_onnx raises Error and nothing else."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx import import_onnx, translate

DATA = np.arange(16, dtype=np.float32)


def model(**changes: Any) -> onnx.ModelProto:
    """z = relu(x + w), with parts of the graph replaced."""
    parts: dict[str, Any] = {
        "nodes": [helper.make_node("Add", ["x", "w"], ["y"], name="sum"), helper.make_node("Relu", ["y"], ["z"])],
        "name": "test",
        "inputs": [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16])],
        "outputs": [helper.make_empty_tensor_value_info("z")],
        "initializer": [numpy_helper.from_array(DATA, "w")],
        **changes,
    }
    graph = helper.make_graph(*[parts.pop(k) for k in ("nodes", "name", "inputs", "outputs")], **parts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tensor(**fields: Any) -> TensorProto:
    return TensorProto(
        **{"name": "w", "data_type": TensorProto.FLOAT, "dims": [16], "raw_data": DATA.tobytes(), **fields}
    )


GOOD = model().SerializeToString()


@pytest.mark.parametrize(
    "content", [b"", b"hello, world\n", GOOD[:-7], GOOD[:10], b"\xff" * 100, b"\x08\x08"], ids=repr
)
def test_a_file_that_is_no_model_is_refused(content, tmp_path):
    (tmp_path / "m.onnx").write_bytes(content)
    for source in (tmp_path / "m.onnx", content):
        with pytest.raises(Error, match=r"\[import\]"):
            import_onnx(source)


@pytest.mark.parametrize("name", ["", "missing.onnx"])
def test_a_path_that_cannot_be_read_is_refused(name, tmp_path):
    with pytest.raises(Error, match=r"need (a readable|the) ONNX file"):
        import_onnx(tmp_path / name)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (tensor(raw_data=b"1234567"), "got 7 bytes of data, need 64"),
        (tensor(dims=[1 << 40, 1 << 40]), "need less"),
        (tensor(dims=[-16]), "need integers that are not negative"),
        (tensor(dims=[1] * 9), "need at most 8"),
        (tensor(data_type=77), "element type: got 77"),
        (tensor(data_type=TensorProto.STRING), "got strings, need numbers"),
        (tensor(data_type=TensorProto.COMPLEX64), "got COMPLEX64"),
        (tensor(name=""), "empty or there twice"),
        (TensorProto(name="w", data_type=1, dims=[16], float_data=[1.0]), "got 1 values in float_data, need 16"),
        (
            TensorProto(name="w", data_type=3, dims=[16], int32_data=[300] * 16),
            "got the values 300 to 300 in int32_data, need -128 to 127",
        ),
        (TensorProto(name="w", data_type=2, dims=[16], int32_data=[-1] * 16), "need 0 to 255 for uint8"),
        (TensorProto(name="w", data_type=10, dims=[16], int32_data=[1 << 16] * 16), "need 0 to 65535 for fp16"),
        (TensorProto(name="w", data_type=1, dims=[16], segment=TensorProto.Segment(begin=0, end=4)), "segments"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_weight_that_contradicts_itself_is_refused(weight, message):
    with pytest.raises(Error, match=message):
        import_onnx(model(initializer=[weight]))


def relu(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Relu", [x], [y])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": [relu("x", "z"), relu("x", "z")]}, "Relu#1: got the output name 'z' twice"),
        ({"nodes": [relu("x", "w"), relu("x", "z")]}, "Relu#0: got the output name 'w' twice"),
        ({"nodes": [relu("x", "x"), relu("x", "z")]}, "Relu#0: got the output name 'x' twice"),
        ({"nodes": [relu("missing", "z")]}, "Relu#0: got the input 'missing', which nothing defines"),
        ({"nodes": [relu("b", "a"), relu("a", "b"), relu("x", "z")]}, "Relu#0: depends on its own output"),
        ({"nodes": [relu("z", "z")]}, "depends on its own output"),
        ({"nodes": [helper.make_node("Relu", [], ["z"])]}, "got 0 inputs, need 1 to 1"),
        ({"nodes": [helper.make_node("Add", ["x", ""], ["z"])]}, "input y: got none"),
        ({"nodes": [helper.make_node("Concat", ["x", ""], ["z"], axis=0)]}, "got none"),
        ({"nodes": [helper.make_node("Cast", ["x"], ["z"])]}, "'to': got none"),
        ({"nodes": [helper.make_node("Cast", ["x"], ["z"], to=1.5)]}, "wrong type"),
        ({"outputs": [helper.make_empty_tensor_value_info("nowhere")]}, "output 'nowhere', which nothing defines"),
        ({"outputs": [helper.make_empty_tensor_value_info("z")] * 2}, "output 'z' twice"),
        ({"outputs": []}, "without outputs"),
        ({"initializer": [numpy_helper.from_array(DATA, "w")] * 2}, "there twice"),
        ({"inputs": [helper.make_tensor_value_info("x", 1, [16])] * 2}, "input name 'x'"),
        ({"inputs": [helper.make_tensor_value_info("", 1, [16])]}, "input name ''"),
        ({"inputs": [helper.make_tensor_value_info("x", 1, [-5])]}, "need integers that are not negative"),
        ({"inputs": [helper.make_tensor_value_info("x", 1, [1 << 50])]}, "need less"),
        ({"inputs": [helper.make_tensor_value_info("x", 0, [16])]}, "element type: got 0"),
        ({"inputs": [helper.make_tensor_value_info("x", 8, [16])]}, "got strings, need numbers: Hexane computes no"),
        ({"inputs": [helper.make_tensor_sequence_value_info("x", 1, [16])]}, "got no tensor"),
        ({"inputs": [helper.make_tensor_value_info("x", 1, [15])]}, "need shapes that broadcast"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_graph_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(Error, match=message):
        import_onnx(model(**changes))


def test_names_that_are_not_utf8_are_refused():
    with pytest.raises(Error, match="need UTF-8"):
        import_onnx(GOOD.replace(b"Relu", b"R\xffl\xff"))


def test_functions_that_double_at_every_level_are_refused(monkeypatch):
    monkeypatch.setattr(translate, "MAX_INLINED", 1000)
    functions = []
    for i in range(40):
        inner = f"f{i + 1}" if i < 39 else "Relu"
        domain = "d" if i < 39 else ""
        body = [
            helper.make_node(inner, ["x"], ["a"], domain=domain),
            helper.make_node(inner, ["a"], ["y"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
        functions.append(helper.make_function("d", f"f{i}", ["x"], ["y"], body, opsets))
    bomb = model(nodes=[helper.make_node("f0", ["x"], ["z"], domain="d")])
    bomb.functions.extend(functions)
    with pytest.raises(Error, match="from functions and branches, need fewer"):
        import_onnx(bomb)


def test_functions_nested_without_end_are_refused():
    nested = model(nodes=[helper.make_node("f0", ["x"], ["z"], domain="d")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    for i in range(2000):
        body = [helper.make_node(f"f{i + 1}", ["x"], ["y"], domain="d")]
        nested.functions.append(helper.make_function("d", f"f{i}", ["x"], ["y"], body, opsets))
    with pytest.raises(Error, match="nested too deeply"):
        import_onnx(nested)


def input_of(dtype: int, *dims: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("x", dtype, dims)


@pytest.mark.parametrize(
    ("op", "attrs", "x", "others", "message"),
    [
        ("Clip", {"min": float("inf")}, input_of(TensorProto.INT64, 4), {}, "bounds as attributes, need floats"),
        ("DeformConv", {"strides": [1]}, input_of(1, 1, 1, 4, 4), {"w": np.ones((1, 1, 2, 2)), "o": np.ones((1, 8, 3, 3))},
         "need those of two axes"),
        ("RoiAlign", {"output_height": 0, "sampling_ratio": 1}, input_of(1, 1, 1, 4, 4),
         {"r": np.ones((1, 4)), "b": np.zeros(1, np.int64)}, "need positive ones"),
        ("STFT", {}, input_of(1, 1, 9, 1), {"s": np.int64(2), "w": np.float32(1)}, "need a vector"),
    ],
)  # fmt: skip
def test_damaged_attributes_and_shapes_of_ops_are_refused(op, attrs, x, others, message):
    arrays = [numpy_helper.from_array(np.float32(a) if np.asarray(a).dtype == np.float64 else np.asarray(a), k)
              for k, a in others.items()]  # fmt: skip
    proto = model(nodes=[helper.make_node(op, ["x", *others], ["z"], **attrs)], inputs=[x], initializer=arrays)
    proto.opset_import[0].version = 7 if op == "Clip" else 19
    with pytest.raises(Error, match=message):
        import_onnx(proto)


def test_a_grid_of_any_size_is_not_materialised():
    grid = helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 1 << 16, 1 << 16, 2])
    node = helper.make_node("GridSample", ["x", "g"], ["z"], mode="nearest")
    import_onnx(model(nodes=[node], inputs=[input_of(1, 1, 1, 4, 4), grid], initializer=[]))


def test_small_files_do_not_ask_for_much_memory():
    """Range, EyeLike and pooling windows of any size fit a few bytes."""
    big = numpy_helper.from_array(np.int64(1 << 40), "w")
    one = numpy_helper.from_array(np.int64(1), "one")
    nodes = [helper.make_node("Range", ["one", "w", "one"], ["z"])]
    with pytest.raises(Error, match="need at most"):
        import_onnx(model(nodes=nodes, initializer=[big, one]))


# ---- external data ----


def external(location: str, offset: str = "0", length: str = "64") -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=text)
    return model(initializer=[weight])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """models/m.onnx may read models/*; secret.bin lies beside the folder."""
    inside = tmp_path / "models"
    (inside / "deep").mkdir(parents=True)
    for path in (inside / "w.bin", inside / "deep" / "w.bin", tmp_path / "secret.bin"):
        path.write_bytes(DATA.tobytes() * 2)
    (inside / "link.bin").symlink_to("../secret.bin")
    (inside / "near.bin").symlink_to("w.bin")
    (inside / "out").symlink_to("..")
    os.link(tmp_path / "secret.bin", inside / "hard.bin")
    os.mkfifo(inside / "pipe")
    return inside


def weight_of(proto: onnx.ModelProto, folder: Path) -> Any:
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    graph = import_onnx(folder / "m.onnx")
    (found,) = (n.data for n in graph.nodes if n.op == "const")
    return found


@pytest.mark.parametrize("location", ["w.bin", "deep/w.bin", "./w.bin"])
def test_external_data_inside_the_folder_is_read(location, folder):
    np.testing.assert_array_equal(weight_of(external(location), folder), DATA)


def test_external_data_starts_at_its_offset(folder):
    np.testing.assert_array_equal(weight_of(external("w.bin", "32"), folder), np.roll(DATA, -8))


@pytest.mark.parametrize(
    "location",
    ["", ".", "../secret.bin", "deep/../w.bin", "deep/../../secret.bin", "{folder}/w.bin", "/etc/passwd", "link.bin", "near.bin",
     "out/secret.bin", "hard.bin", "pipe", "deep", "missing.bin", "w.bin/", "w.bin/x", "..\\secret.bin", "a\0b", "x" * 300],
)  # fmt: skip
def test_external_data_never_leaves_the_folder(location, folder):
    if location == "w.bin/":  # the same file: pure paths have no trailing slash
        np.testing.assert_array_equal(weight_of(external(location), folder), DATA)
        return
    with pytest.raises(Error, match=r"initializer 'w': external data"):
        weight_of(external(location.format(folder=folder)), folder)


@pytest.mark.parametrize(
    ("offset", "length"),
    [("65", "64"), ("128", "64"), ("-1", "64"), ("0", "60"), ("0", "-64"), ("1e3", "64"), ("9" * 30, "64"), ("٣", "64")],
)  # fmt: skip
def test_external_data_outside_its_file_is_refused(offset, length, folder):
    with pytest.raises(Error, match="external data"):
        weight_of(external("w.bin", offset, length), folder)


def sized(count: int, location: str = "w.bin", offset: int = 0) -> onnx.ModelProto:
    """Adds external data of `count` floats to its input."""
    proto = external(location, str(offset), str(4 * count))
    proto.graph.initializer[0].dims[:] = [count]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = count
    return proto


@pytest.mark.parametrize("offset", [0, 4, 4096, 5000])
def test_large_external_data_does_not_change_with_its_file(offset, folder):
    data = np.arange(1 << 16, dtype=np.float32)
    (folder / "w.bin").write_bytes(bytes(offset) + data.tobytes())
    found = weight_of(sized(data.size, offset=offset), folder)
    (folder / "w.bin").write_bytes(b"")
    np.testing.assert_array_equal(found, data)


def test_external_data_with_holes_beyond_all_memory_is_refused(folder):
    count = 1 << 38
    with (folder / "w.bin").open("wb") as file:
        file.truncate(4 * count)
    with pytest.raises(Error, match="need at most this machine's"):
        weight_of(sized(count), folder)


def test_a_model_file_beyond_what_protobuf_reads_is_refused(tmp_path):
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Error, match="need large weights as external data"):
        import_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("convert", [lambda m: m, lambda m: m.SerializeToString()], ids=["proto", "bytes"])
def test_external_data_without_a_folder_is_refused(convert, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(Error, match="need the model as a file"):
        import_onnx(convert(external("w.bin")))


# ---- mutants ----


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randrange(1, 9)]


def change_numbers(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 7, 127))


@pytest.mark.parametrize("mutate", [flip_bits, cut, change_numbers])
def test_damaged_files_raise_nothing_but_errors(mutate: Callable[[bytearray, random.Random], None]):
    seed = 20
    print(f"seed {seed}")
    rng = random.Random(seed)
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])
    weight = numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), "w")
    sizes = numpy_helper.from_array(np.array([1, 2, 5, 7]), "s")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], group=1),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 1]),
        helper.make_node("Resize", ["b", "", "", "s"], ["c"], mode="linear"),
        helper.make_node("Shape", ["c"], ["d"]),
        helper.make_node("Reshape", ["c", "d"], ["z"]),
    ]
    whole = model(nodes=nodes, inputs=[images], initializer=[weight, sizes]).SerializeToString()
    for _ in range(700):
        data = bytearray(whole)
        mutate(data, rng)
        try:
            graph = import_onnx(bytes(data))
        except Error:
            continue
        assert all(isinstance(port.value, Value) for port in graph.outputs)


def test_a_name_with_nul_is_refused() -> None:
    named = [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z\0"])]
    ports = {
        "output": {"nodes": named, "outputs": [helper.make_empty_tensor_value_info("z\0")]},
        "input": {
            "nodes": [helper.make_node("Add", ["x\0", "w"], ["z"])],
            "inputs": [helper.make_tensor_value_info("x\0", TensorProto.FLOAT, [16])],
        },
    }
    for what, changes in ports.items():
        with pytest.raises(Error, match=f"{what} .*got NUL in the name"):
            import_onnx(model(**changes))
