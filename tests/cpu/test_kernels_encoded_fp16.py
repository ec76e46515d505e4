"""Models in fp16: their weights stay in few bits, and results have the bits of decoded weights."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.cpu.test_decode import CONVOLUTIONS
from tests.cpu.test_kernels_encoded import MODES, WINDOWS, kernels, whole
from tests.support.remembered import quantised_once

import hexane as hx
from hexane.compression.compress import compress
from hexane.graph import Graph
from hexane.importers.onnx import import_onnx
from hexane.targets import load_target


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


Halves = Callable[..., np.ndarray]
DTYPES = [None, "fp16"]  # what the network is compiled for


def halves(seed: int) -> Halves:
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape).astype(np.float16)


def compressed(graph: Graph, mode: str) -> Graph:
    return compress(graph, hx.Compression(mode), load_target("host"))


def same_bits(graph: Graph, *inputs: np.ndarray, kernel: str = "", dtype: str | None = None) -> hx.Model:
    """A network of this graph, whose results have the bits of decoded weights on 1 and 2 threads."""
    want = hx.compile(whole(graph), threads=1, dtype=dtype)
    assert not {"encoded_matmul", "encoded_conv", "decode"} & {*kernels(want)}
    wanted = want(*inputs)
    for threads in (2, 1):
        net = hx.compile(graph, threads=threads, dtype=dtype)
        assert isinstance(net, hx.Model)
        assert not kernel or kernel in kernels(net)
        np.testing.assert_equal(net(*inputs), wanted)
    return net


@pytest.mark.parametrize("shape", [(72, 64), (48, 608), (24, 1152), (96, 1537)])
@pytest.mark.parametrize("mode", MODES)
def test_a_product_in_fp16_has_the_bits_of_the_decoded_weight(mode: str, shape: tuple[int, int]) -> None:
    columns, terms = shape
    make = halves(columns * terms)
    weight, bias = make(columns, terms), make(columns)
    for rows in ((1,), (3,), (2, 23)):
        x = hx.input("x", (*rows, terms), "fp16")
        y = hx.linear(x, weight, bias)
        z = hx.matmul(x, np.ascontiguousarray(weight.T)) + bias
        graph = hx.graph({"y": hx.relu(y + np.float16(0.25)) + hx.silu(y), "z": z})
        same_bits(compressed(graph, mode), make(*rows, terms), kernel="encoded_matmul")


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("mode", ["int8", "palette4", "palette4:g16", "palette6", "blockwise4:b32", "palette4:v2"])
def test_a_convolution_in_fp16_has_the_bits_of_the_decoded_weight(mode: str, window: int) -> None:
    size, kernel, attrs = WINDOWS[window]
    make = halves(window)
    y = hx.conv(hx.input("x", (2, 96, *size), "fp16"), make(64, 96, *kernel), make(64), **attrs)
    graph = compressed(hx.graph({"y": hx.relu(y + np.float16(0.25)) + hx.silu(y)}), mode)
    same_bits(graph, make(2, 96, *size), kernel="encoded_conv")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", range(len(CONVOLUTIONS)))
@pytest.mark.parametrize("mode", ["int8", "palette4", "palette2:g8", "palette8", "blockwise4:b16", "palette6:v4"])
@pytest.mark.parametrize("kind", ["fp16", "fp32"])
def test_a_weight_decoded_in_calls_has_the_bits_of_the_decoded_one(
    mode: str, at: int, dtype: str | None, kind: str
) -> None:
    size, shape, make = CONVOLUTIONS[at]
    weight, x = (halves(at)(*s).astype(hx.dtypes.dtype(kind).numpy) for s in (shape, (2, 64, *size)))
    graph = compressed(hx.graph({"y": hx.relu(make(hx.input("x", x.shape, kind), weight))}), mode)
    same_bits(graph, x, kernel="decode", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["fp16", "fp32"])
@pytest.mark.parametrize("mode", ["int8", "palette4", "palette8", "palette4:g8", "blockwise4:b32", "blockwise8:b32"])
def test_rows_of_an_embedding_in_fp16_have_the_bits_of_the_decoded_table(
    mode: str, kind: str, dtype: str | None, tmp_path: Path
) -> None:
    table = halves(3)(64, 960).astype(hx.dtypes.dtype(kind).numpy)
    graph = hx.graph({"y": hx.gather(hx.const(table), hx.input("ids", (2, 5), "int32"), axis=0)})
    small = compressed(graph, mode)
    net = same_bits(small, np.array([[0, 63, -1, 7, 8], [-64, 15, 16, 31, 32]], np.int32), dtype=dtype)
    assert any(d.stage == "keep_encoded" for d in net.program.decisions)
    net.save(tmp_path / "net.hxp")
    assert (tmp_path / "net.hxp").stat().st_size < 0.65 * 2 * table.size  # an index or integer takes a byte


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", [(), (64,), (64, 3)])
def test_what_reads_an_embedding_in_fp16_reads_rounded_numbers(scales: tuple[int, ...], dtype: str | None) -> None:
    rng = np.random.default_rng(len(scales))
    integers = hx.const(rng.integers(-128, 128, (64, 96)).astype(np.int8))
    scale = (rng.random(scales) / 50).astype(np.float16)
    if len(scales) == 2:
        table = hx.decode_blocks(integers, hx.const(scale))
    else:
        table = hx.dequantize(integers, hx.const(scale.astype(np.float32)), dtype="fp16")
    row = hx.gather(table, hx.input("ids", (7,), "int32"), axis=0)
    product = hx.linear(row * np.float16(3.3), halves(0)(48, 96))
    outputs = {"y": product, "z": (row + np.float16(0.7)) * halves(1)(96), "w": hx.cast(row, dtype="fp32") / 3.0}
    net = same_bits(hx.graph(outputs), rng.integers(0, 64, 7).astype(np.int32), dtype=dtype)
    assert any(d.stage == "keep_encoded" for d in net.program.decisions)


def random_network(seed: int) -> tuple[Graph, np.ndarray]:
    """Tokens: embeddings, products, norms and attention; or an image: convolutions of all kinds."""
    rng, make = np.random.default_rng(seed), halves(seed)
    width = 64
    if seed % 2:
        x = hx.input("x", (2, width, 6, 5), "fp16")

        def grouped(h: hx.Tensor) -> hx.Tensor:
            return hx.conv(h, make(width, 32, 3, 3) * np.float16(0.1), pad=1, groups=2)

        ways: list[Callable[[hx.Tensor], hx.Tensor]] = [
            lambda h: hx.conv(h, make(width, width, 3, 3) * np.float16(0.1), make(width), pad=1),
            lambda h: hx.conv(h, make(width, width, 1, 1) * np.float16(0.1)) + h,
            grouped,
            lambda h: hx.conv_transpose(h, make(width, width, 3, 3) * np.float16(0.1), pad=1),
            lambda h: h * make(width, 1, 1),
            lambda h: hx.silu(h),
            lambda h: hx.softmax(h, axis=1),
        ]
        values = make(*x.shape)
    else:
        ids = hx.input("ids", (2, 7), "int32")
        x = hx.gather(hx.const(make(100, width)), ids, axis=0)
        ways = [
            lambda h: hx.linear(h, make(width, width) * np.float16(0.2), make(width)),
            lambda h: hx.linear(hx.silu(hx.linear(h, make(192, width))), make(width, 192) * np.float16(0.1)) + h,
            lambda h: hx.matmul(h, make(width, width) * np.float16(0.2)) * make(width),
            lambda h: hx.layer_norm(h, make(width), make(width)),
            lambda h: hx.matmul(hx.softmax(hx.matmul(h, h, transpose_y=True) * np.float16(0.1), axis=-1), h),
            lambda h: hx.cast(hx.linear(hx.cast(h, dtype="fp32"), make(width, width).astype(np.float32)), dtype="fp16"),
        ]
        values = rng.integers(0, 100, ids.shape).astype(np.int32)
    made = [ways[seed // 2 % 2](x)]
    for way in rng.integers(0, len(ways), 5):
        made.append(ways[way](made[-1]))
    return hx.graph({"y": made[-1], "z": made[len(made) // 2]}), values


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_in_fp16_have_the_bits_of_the_decoded_weights(seed: int) -> None:
    graph, x = random_network(seed)
    mode = ["int8", "palette4:g8", "blockwise4:b32", "palette4:v2", "palette6", "palette4:int8"][seed // 2 % 6]
    net = same_bits(compressed(graph, mode), x, dtype=DTYPES[seed // 4 % 2])
    assert any(d.stage == "keep_encoded" for d in net.program.decisions)


@pytest.mark.parametrize(
    ("scale", "stays"), [(0.0501, False), (float(np.float16(0.05)), True), (510.0, True), (512.0, False), (3e-7, False)]
)
def test_scales_that_fp16_does_not_hold_leave_a_weight_whole(scale: float, stays: bool) -> None:
    """Numbers would be rounded twice, to fp32 and to fp16."""
    integers = hx.const(np.arange(64 * 64).reshape(64, 64).astype(np.int8))
    weight = hx.dequantize(integers, np.float32(scale), dtype="fp16")
    graph = hx.graph(hx.linear(hx.input("x", (3, 64), "fp16"), weight))
    net = same_bits(graph, halves(0)(3, 64) / np.float16(1024))
    assert ("encoded_matmul" in kernels(net)) == stays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("stored", "read"), [("fp16", "fp32"), ("fp32", "fp16")])
@pytest.mark.parametrize("mode", ["int8", "palette4", "palette4:g8", "palette6", "blockwise4:b32", "palette4:v2"])
def test_a_weight_that_is_cast_has_the_bits_of_the_decoded_one(
    mode: str, stored: str, read: str, dtype: str | None
) -> None:
    kinds = {name: hx.dtypes.dtype(name).numpy for name in (stored, read)}
    weight = halves(0)(64, 96).astype(kinds[stored])
    # Stored by the model itself: compress() would encode what is cast.
    small = compressed(hx.graph(hx.linear(hx.input("x", (1, 96), stored), weight)), mode)
    (product,) = [node for node in small.nodes if node.op == "linear"]
    value = hx.Tensor(product.inputs[1])
    graph = hx.graph(hx.linear(hx.input("x", (1, 96), read), hx.cast(hx.transpose(value, perm=(0, 1)), dtype=read)))
    net = same_bits(graph, halves(1)(1, 96).astype(kinds[read]), dtype=dtype)
    stays = mode.startswith("palette") or read == "fp16"
    assert ("encoded_matmul" in kernels(net)) == stays


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("scale", [0.0501, 3e-7, 500.3, 513.0])
def test_integers_that_are_decoded_in_fp32_and_cast_have_the_bits_of_numbers_rounded_twice(
    scale: float, groups: int
) -> None:
    """As an ONNX file of a network in fp16 has them whose scales are in fp32."""
    integers = np.arange(-128, 128, dtype=np.int8).repeat(2 * 3 * 16).reshape(64, -1)
    scales = (scale * np.linspace(0.9, 1, 64)).astype(np.float32)
    weight = hx.cast(hx.dequantize(hx.const(integers), hx.const(scales)), dtype="fp16")
    x = halves(0)(1, 128, 9) / np.float16(1024)
    if groups == 1:
        y = hx.matmul(hx.reshape(hx.input("x", x.shape, "fp16"), shape=(3, 384)), hx.transpose(weight, perm=(1, 0)))
    else:
        y = hx.conv(hx.input("x", x.shape, "fp16"), hx.reshape(weight, shape=(64, 64, 6)), groups=2)
    net = same_bits(hx.graph(y), x)
    assert bool({"encoded_matmul", "decode"} & {*kernels(net)}) == (scale < 512)


def test_the_smallest_products_are_rounded_as_whole_weights() -> None:
    """To subnormal numbers of fp16."""
    make = np.random.default_rng(0)
    integers = make.integers(-128, 128, (64, 64)).astype(np.int8)
    for scale in (2.0**-24, 3 * 2.0**-24, 2.0**-20 * 1.25):
        weight = hx.decode_blocks(hx.const(integers), hx.const(np.full((64, 2), scale, np.float16)))
        x = hx.input("x", (64, 64), "fp16")
        same_bits(hx.graph(hx.linear(x, weight)), np.eye(64, dtype=np.float16), kernel="encoded_matmul")


def model(form: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An ONNX model in fp16: an embedding, a product and a convolution; "quantised" has its own weights as int8."""
    rng, make = np.random.default_rng(0), halves(0)
    held: dict[str, np.ndarray] = {"b": make(96)}
    weights = {"table": (200, 96), "w1": (96, 192), "w2": (192, 96), "k": (64, 96, 3), "g": (64, 32, 3)}
    nodes = []
    for name, shape in weights.items():
        axis = 1 if name[0] == "w" else 0
        if form == "quantised":
            held |= {
                f"{name}.q": rng.integers(-127, 128, shape).astype(np.int8),
                f"{name}.s": (rng.random(shape[axis]) / 500).astype(np.float16),
            }
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", f"{name}.s"], [name], axis=axis))
        else:
            held[name] = make(*shape) * np.float16(0.1)
    nodes += [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Add", ["e", "x"], ["h"]),
        helper.make_node("MatMul", ["h", "w1"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["n"]),
        helper.make_node("Add", ["n", "b"], ["o"]),
        helper.make_node("Transpose", ["o"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["t", "k"], ["c"], pads=[1, 1]),
        helper.make_node("Conv", ["c", "g"], ["y"], pads=[1, 1], group=2),
    ]
    graph = helper.make_graph(
        nodes, "halves",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, [1, 5]),
         helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1, 5, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 64, 5])],
        [numpy_helper.from_array(a, name) for name, a in held.items()],
    )  # fmt: skip
    inputs = {"ids": rng.integers(0, 200, (1, 5)).astype(np.int32), "x": make(1, 5, 96)}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), inputs


@pytest.mark.parametrize("mode", ["int8", "palette4", "blockwise4:b32", "own"])
def test_an_onnx_model_in_fp16_keeps_its_weights_in_few_bits(mode: str, tmp_path: Path) -> None:
    proto, inputs = model("quantised" if mode == "own" else "floats")
    net = hx.compile(proto, compress=None if mode == "own" else mode)
    assert isinstance(net, hx.Model)
    assert kernels(net).count("encoded_matmul") == 2
    assert {"encoded_conv", "decode"} <= {*kernels(net)}
    assert sum(d.stage == "keep_encoded" for d in net.program.decisions) == 5
    said = [d.reason for d in net.program.decisions if d.stage == "compress"]
    assert all("stays in few bits" in reason for reason in said)
    assert len(said) == (0 if mode == "own" else 5)
    graph = import_onnx(proto) if mode == "own" else compressed(import_onnx(proto), mode)
    want = hx.compile(whole(graph), threads=1)
    np.testing.assert_array_equal(net(**inputs), want(**inputs))
    sizes = []
    for i, made in enumerate((net, want)):
        made.save(tmp_path / f"{i}.hxp")
        sizes.append((tmp_path / f"{i}.hxp").stat().st_size)
    assert sizes[0] < (0.6 if mode in ("own", "int8") else 0.4) * sizes[1]
    np.testing.assert_array_equal(hx.load(tmp_path / "0.hxp")(**inputs), net(**inputs))
