"""Weights are written in the encoding that is asked for, and the program computes with what they decode to."""

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress, find_weights
from hexane.compression.request import FIXED_TEXT
from hexane.emit.mil import emit_mil
from hexane.graph import Array, Graph
from hexane.lowering.mil_ops import written
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.fold import fold_node
from hexane.ops.reference import run_reference
from hexane.targets import load_target
from hexane.targets.query import load_chip
from remembered import quantised_once


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


HOST = load_target("host")
PALETTES = ["palette1", "palette2", "palette3", "palette4", "palette6", "palette8", "palette4:g16", "palette2:g1"]
BLOCKWISE = ["blockwise4:b32", "blockwise8:b16"]
VECTORS = ["palette4:v2", "palette6:v4"]
MODES = ["int8", *PALETTES, *VECTORS, *BLOCKWISE]


def normal(*shape: int, dtype: str = "float16", size: float = 0.1) -> Array:
    made: Array = (np.random.default_rng(sum(shape)).standard_normal(shape) * size).astype(dtype)
    return made


def network(dtype: str = "float16") -> Graph:
    x = hx.input("x", (1, 32, 8, 8), dtype)
    y = hx.relu(hx.conv(x, normal(48, 32, 3, 3, dtype=dtype), normal(48, dtype=dtype), pad=1))
    y = hx.conv(y, normal(96, 12, 2, 2, dtype=dtype), groups=4, strides=2)
    y = hx.reduce_mean(y, axes=(2, 3), keep_dims=False)
    return hx.graph(hx.linear(hx.relu(hx.matmul(y, normal(96, 80, dtype=dtype))), normal(100, 80, dtype=dtype)))


def upsampler(dtype: str = "float32") -> Graph:
    x = hx.input("x", (1, 32, 5, 5), dtype)
    y = hx.relu(hx.conv_transpose(x, normal(32, 48, 2, 2, dtype=dtype), normal(48, dtype=dtype), strides=2))
    return hx.graph(hx.conv_transpose(y, normal(48, 16, 3, 3, dtype=dtype), groups=3, pad=1))


def embedding() -> Graph:
    return hx.graph(hx.relu(hx.gather(normal(300, 32), hx.input("ids", (7,), "int32"), axis=0)))


def decompressed(graph: Graph) -> Graph:
    return graph.rewrite(lambda node, inputs: fold_node(node) if is_encoded(node) else None)


def feed(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    return {
        str(v.node.attrs["name"]): (
            rng.standard_normal(v.shape) if v.dtype.kind == "float" else rng.integers(0, 300, v.shape)
        ).astype(v.dtype.numpy)
        for v in graph.inputs
    }


NETWORKS: dict[str, Callable[[], Graph]] = {
    "fp16": network,
    "fp32": lambda: network("float32"),
    "embedding": embedding,
    "transposed": upsampler,
    "transposed fp16": lambda: upsampler("float16"),
}
CHIPS = ["h11", "h12", "h13", "h16g"]


def on_host_and_a_chip() -> list[Any]:
    """Each mode of each network; quick are those on the host and on two of the chips in turn."""
    found = []
    for place, (mode, (name, make)) in enumerate(product(MODES, NETWORKS.items())):
        for i, target in enumerate(["host", *CHIPS]):
            marks = [] if i == 0 or (i + place) % 2 == 0 else [pytest.mark.slow]
            found.append(pytest.param(mode, target, make, id=f"{mode}-{target}-{name}", marks=marks))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mode", "target", "make"), on_host_and_a_chip())
def test_a_program_computes_with_the_decompressed_weights_to_the_bit(
    mode: str, target: str, make: Callable[[], Graph]
) -> None:
    graph = make()
    whole = decompressed(compress(graph, hx.Compression(mode), load_target(target)))
    assert not any(is_encoded(node) for node in whole.nodes)
    got, want = hx.compile(graph, target=target, compress=mode), hx.compile(whole, target=target)
    np.testing.assert_array_equal(got(**feed(graph)), want(**feed(graph)))


def test_ieee_numerics_scale_sums_of_integers_on_a_chip() -> None:
    """The engine's layers apply the scale of int8 weights to the accumulator, which rounds once less."""
    graph = network()
    whole = decompressed(compress(graph, hx.Compression("int8"), load_target("h16g")))
    got = hx.compile(graph, target="h16g", compress="int8", numerics="ieee")(**feed(graph))
    want = hx.compile(whole, target="h16g", numerics="ieee")(**feed(graph))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize(
    ("mode", "kind", "bits"),
    [("int8", "integers", 8), ("palette3", "palette", 3), ("palette8", "palette", 8), ("palette6:g4", "palette", 6)],
)
def test_weights_become_their_encoding(mode: str, kind: str, bits: int) -> None:
    made = compress(network(), hx.Compression(mode), HOST)
    encoded = [encoding_of(node.values[0]) for node in made.nodes if is_encoded(node)]
    assert [(e.kind, e.bits) for e in encoded] == [(kind, bits)] * 4
    before, after = (run_reference(g, feed(made)) for g in (network(), made))
    for name, want in before.items():
        assert np.linalg.norm(after[name] - want) < 0.5 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (lambda x, w: hx.matmul(x, w), 1),
        (lambda x, w: hx.matmul(x, w, transpose_y=True), 0),
        (lambda x, w: hx.linear(x, w), 0),
        (lambda x, w: hx.matmul(x, hx.transpose(w, perm=(1, 0))), 1),
    ],
    ids=["matmul", "transposed matmul", "linear", "constant that is transposed"],
)
def test_scales_are_those_of_output_channels(make: Callable[[hx.Tensor, hx.Tensor], hx.Tensor], axis: int) -> None:
    made = compress(
        hx.graph(make(hx.input("x", (2, 64), "fp16"), hx.const(normal(64, 64)))), hx.Compression("int8"), HOST
    )
    (node,) = (node for node in made.nodes if is_encoded(node))
    assert node.attrs["axis"] == axis
    assert node.inputs[1] is not None
    assert node.inputs[1].shape == (64,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hx.matmul(hx.input("x", (2, 64), "fp16"), normal(64, 32)),
        lambda: hx.matmul(hx.input("x", (2, 64), "fp16"), hx.param("w", normal(64, 64))),
        lambda: hx.input("x", (64, 64), "fp16") + normal(64, 64),
        lambda: hx.matmul(hx.input("x", (64, 64), "fp16"), hx.input("y", (64, 64), "fp16")),
        lambda: hx.gather(normal(64, 64), hx.input("i", (3,), "int32"), axis=1),
        lambda: hx.matmul(hx.input("x", (2, 64), "fp64"), normal(64, 64, dtype="float64")),
    ],
    ids=["small", "param", "no weight", "computed", "columns", "fp64"],
)
def test_other_operands_are_left_alone(make: Callable[[], hx.Tensor]) -> None:
    graph = hx.graph(make())
    assert find_weights(graph) == []
    assert compress(graph, hx.Compression("int8"), HOST) is graph


def test_what_is_encoded_already_stays_so() -> None:
    once = compress(network(), hx.Compression("palette4"), HOST)
    assert find_weights(once) == []


def test_int4_is_the_palette_that_the_facts_call_so() -> None:
    decisions = [compress(network(), hx.Compression(mode), HOST).decisions for mode in ("int4", "palette4")]
    assert decisions[0] == decisions[1]


@pytest.mark.parametrize(
    ("make", "axis"),
    [(lambda x, w: hx.matmul(x, w), 1), (lambda x, w: hx.linear(x, w), 0)],
    ids=["matmul", "linear"],
)
def test_groups_are_of_output_channels(make: Callable[[hx.Tensor, hx.Tensor], hx.Tensor], axis: int) -> None:
    """Each number is the entry of its group's table: decoded by hand."""
    w = normal(64, 64)
    graph = hx.graph(make(hx.input("x", (2, 64), "fp16"), hx.const(w)))
    made = compress(graph, hx.Compression("palette3:g8"), HOST)
    (node,) = (node for node in made.nodes if is_encoded(node))
    indices, tables = (v.node.data for v in node.inputs if v is not None)
    assert indices is not None
    assert tables is not None
    assert tables.shape == ((8, 1, 8) if axis == 0 else (1, 8, 8))
    want = np.empty_like(w)
    for i, j in np.ndindex(w.shape):
        want[i, j] = tables.reshape(8, 8)[(i, j)[axis] // 8, indices[i, j]]
    np.testing.assert_array_equal(fold_node(node)[0].node.data, want)  # type: ignore[index]
    per_group = np.moveaxis((want.astype(np.float64) - w) ** 2, axis, 0).reshape(8, -1).sum(1)
    whole = encoding_of(compress(graph, hx.Compression("palette3"), HOST).outputs[0].value.node.inputs[1]).decode()  # type: ignore[arg-type]
    assert whole.node.data is not None
    one_table = np.moveaxis((whole.node.data.astype(np.float64) - w) ** 2, axis, 0).reshape(8, -1).sum(1)
    assert (per_group <= one_table * (1 + 1e-3)).all()


def test_a_weight_whose_channels_are_no_multiple_of_the_group_gets_one_table() -> None:
    made = compress(network(), hx.Compression("palette4:g16"), load_target("h16g"))
    assert [node.op for node in made.nodes if is_encoded(node)] == [*["decode_palette"] * 3, "gather"]
    reason = "16000 -> 4032 bytes; one table, since 100 channels are no multiple of 16; streams"
    assert made.decisions[3].reason == reason


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (lambda x, w: hx.matmul(x, w), 1),
        (lambda x, w: hx.linear(x, w), 0),
        (lambda x, w: hx.conv_transpose(hx.reshape(x, shape=(1, 64, 4, 4)), hx.reshape(w, shape=(64, 64, 1, 1))), 1),
    ],
    ids=["matmul", "linear", "conv_transpose"],
)
def test_an_index_names_neighbouring_output_channels(make: Callable[[hx.Tensor, Array], hx.Tensor], axis: int) -> None:
    """Pairs of channels that rise and fall together are one number to each index."""
    alone = normal(64, 32) if axis == 1 else normal(32, 64)
    w = np.repeat(np.round(alone * 20) / 20, 2, axis).astype(np.float16)
    x = hx.input("x", (16, 64), "fp16")
    graph = hx.graph(make(x, hx.const(w) if axis == 0 else w))
    made = compress(graph, hx.Compression("palette4:v2"), HOST)
    (node,) = (node for node in made.nodes if is_encoded(node))
    assert node.op == "decode_vectors"
    assert node.attrs["axis"] == axis
    (decoded,) = fold_node(node) or ()
    assert decoded.node.data is not None
    np.testing.assert_array_equal(decoded.node.data.reshape(64, 64), w)


@pytest.mark.parametrize(
    ("shape", "mode", "said"),
    [
        ((66, 96), "palette4:v4", "one number for each index, since 66 channels are no multiple of 4"),
        (
            (64, 96),
            "palette8:v4",
            "one number for each index, since a table of vectors would take more than their indices",
        ),
        ((64, 96), "palette4:v4", ""),
    ],
)
def test_weights_without_vectors_get_the_palette_of_these_bits(shape: tuple[int, int], mode: str, said: str) -> None:
    graph = hx.graph(hx.linear(hx.input("x", (2, 96), "fp16"), normal(*shape)))
    made, one = (compress(graph, hx.Compression(m), load_target("h16g")) for m in (mode, mode[:8]))
    (decision,) = made.decisions
    if said:
        assert said + "; streams" in decision.reason
        assert made.outputs[0].value.node.inputs[1] == one.outputs[0].value.node.inputs[1]
    else:
        assert decision.reason == "12288 -> 896 bytes; folds on this chip: no bandwidth gained"


def test_groups_of_all_channels_are_one_table() -> None:
    graph = hx.graph(hx.linear(hx.input("x", (2, 64), "fp16"), normal(64, 64)))
    net, one = (compress(graph, hx.Compression(m), HOST) for m in ("palette2:g64", "palette2"))
    x = {"x": normal(2, 64)}
    np.testing.assert_allclose(*(next(iter(run_reference(g, x).values())) for g in (net, one)), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "shape", "blocks"),
    [
        (lambda x, w: hx.matmul(x, w), (64, 96), (2, 96)),
        (lambda x, w: hx.matmul(x, w, transpose_y=True), (96, 64), (96, 2)),
        (lambda x, w: hx.matmul(x, w), (3, 64, 40), (3, 2, 40)),
        (lambda x, w: hx.linear(x, w), (96, 64), (96, 2)),
        (lambda x, w: hx.conv(hx.reshape(x, shape=(1, 64, 4, 4)), w), (8, 64, 3, 3), (8, 2, 1, 1)),
        (lambda x, w: hx.conv(hx.reshape(x, shape=(1, 4, 4, 64)), w, layout="nhwc"), (8, 64, 3, 3), (8, 2, 1, 1)),
        (lambda x, w: hx.gather(w, hx.cast(hx.reshape(x, shape=(-1,)), dtype="int32"), axis=0), (70, 64), (70, 2)),
    ],
    ids=["matmul", "transposed matmul", "batch", "linear", "conv", "channels last", "embedding"],
)
def test_blocks_are_of_input_channels(
    make: Callable[[hx.Tensor, hx.Tensor], hx.Tensor], shape: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    """Each number is its integer times its block's scale, and as near as that scale allows: decoded by hand."""
    w = normal(*shape)
    made = compress(hx.graph(make(hx.input("x", (16, 64), "fp16"), hx.const(w))), hx.Compression("blockwise"), HOST)
    (node,) = (node for node in made.nodes if is_encoded(node))
    integers, scales = (v.node.data for v in node.inputs if v is not None)
    assert node.op == "decode_blocks"
    assert integers is not None
    assert scales is not None
    assert scales.shape == blocks
    wide = np.empty(shape)
    for at in np.ndindex(shape):
        wide[at] = scales[tuple(i * n // d for i, n, d in zip(at, blocks, shape, strict=True))]
    np.testing.assert_array_equal(integers, np.clip(np.rint(w / wide.astype(np.float32)), -8, 7))
    np.testing.assert_array_equal(fold_node(node)[0].node.data, (integers * wide).astype(np.float16))  # type: ignore[index]


def test_a_weight_whose_inputs_are_no_multiple_of_the_block_gets_a_scale_for_each_output_channel() -> None:
    made = compress(network(), hx.Compression("blockwise4:b32"), load_target("h16g"))
    assert [node.op for node in made.nodes if is_encoded(node)] == [
        "dequantize",  # one block has all 32 input channels
        "dequantize",
        "decode_blocks",
        "dequantize",
    ]
    said = "a scale for each output channel, since 80 input channels are no multiple of 32; streams"
    assert made.decisions[3].reason == f"16000 -> 4200 bytes; {said}"


def test_a_block_of_all_input_channels_is_a_scale_for_each_output_channel() -> None:
    graph = hx.graph(hx.linear(hx.input("x", (2, 64), "fp16"), normal(100, 64)))
    made = compress(graph, hx.Compression("blockwise8:b64"), load_target("h14"))
    (node,) = (node for node in made.nodes if is_encoded(node))
    assert node.op == "dequantize"
    assert made.decisions[0].reason == "12800 -> 6600 bytes; streams"


def test_an_op_that_is_no_layer_keeps_the_whole_constant() -> None:
    x, w = hx.input("x", (64, 64), "fp16"), normal(64, 64)
    made = compress(hx.graph({"y": hx.matmul(x, w), "z": x + w}), hx.Compression("palette1"), HOST)
    found = run_reference(made, {"x": np.zeros((64, 64), np.float16)})
    np.testing.assert_array_equal(found["z"], w)


def test_layers_have_modes_of_their_own() -> None:
    asked = hx.Compression("palette4", per_layer={"conv at *": "int8", "lin*": "none"})
    made = compress(network(), asked, HOST)
    found = [(d.node.partition(" ")[0], d.verdict) for d in made.decisions]
    assert found == [("conv", "int8"), ("conv", "int8"), ("matmul", "palette4"), ("linear", "whole")]


@pytest.mark.parametrize(
    ("target", "mode", "said"),
    [
        ("h16g", "int8", "15360 -> 7840 bytes; streams"),
        ("h13", "int8", "15360 -> 7840 bytes; folds on this chip: no bandwidth gained"),
        ("h13", "palette4", "15360 -> 3872 bytes; streams"),
        ("h16g", "blockwise4:b32", "15360 -> 4320 bytes; streams"),
        ("h14", "blockwise4:b32", "15360 -> 4320 bytes; folds on this chip: no bandwidth gained"),
        ("h12", "palette4", "15360 -> 3872 bytes; folds on this chip: no bandwidth gained"),
        ("host", "palette4", "15360 -> 3872 bytes; stays in few bits on this CPU"),
    ],
)
def test_decisions_say_whether_weights_stream_or_fold(target: str, mode: str, said: str) -> None:
    decision = compress(network(), hx.Compression(mode), load_target(target)).decisions[2]
    assert decision.node.startswith("matmul at ")
    assert (decision.verdict, decision.reason) == (mode, said)


def test_a_transposed_convolution_never_streams() -> None:
    for decision in compress(upsampler(), hx.Compression("int8"), load_target("h16g")).decisions:
        assert decision.reason.endswith("folds on this chip: no bandwidth gained")


def test_an_embedding_never_streams() -> None:
    (decision,) = compress(embedding(), hx.Compression("int8"), load_target("h16g")).decisions
    assert decision.reason.endswith("folds: an embedding is no kernel of the engine")


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_keeps_the_decisions() -> None:
    net = hx.compile(network(), target="M4", compress="palette4")
    assert [d.verdict for d in net.program.decisions if d.stage == "compress"] == ["palette4"] * 4


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: hx.Compression("int5"),
            r"\[compress\] mode: got 'int5', need none, auto, int8, int4, .* palette4:g16 \(groups .*did you mean 'int",
        ),
        (lambda: hx.compile(network(), compress="palette5"), r"\[compress\] mode: got 'palette5'"),
        (lambda: hx.Compression("palette4:g0"), r"\[compress\] mode: got 'palette4:g0'.*did you mean 'palette4:g16'"),
        (lambda: hx.Compression("blockwise3:b32"), r"got 'blockwise3:b32'.*did you mean 'blockwise"),
        (lambda: hx.Compression("blockwise4:b0"), r"mode: got 'blockwise4:b0', need none"),
        (lambda: hx.compile(network(), compress="palette4:16"), r"\[compress\] mode: got 'palette4:16'"),
        (lambda: hx.compile(network(), compress=4), r"\[compress\] got 4, need an hx.Compression, none, auto, int8"),
        (lambda: hx.Compression(per_layer={"a": "b"}), r"per_layer\['a'\]: got 'b'"),
        (lambda: hx.Compression(tolerance=0), r"tolerance: got 0, need a number above 0"),
        (lambda: hx.Compression(tolerance=float("nan")), r"tolerance: got nan"),
        (
            lambda: hx.Compression(bytes="4 MB"),
            r"\[compress\] bytes: got '4 MB', need a number of bytes, such as 4096",
        ),
        (lambda: hx.Compression(bytes=-1), r"\[compress\] bytes: got -1, need a number of bytes"),
        (
            lambda: hx.compile(network(), compress=hx.Compression("int8", per_layer={"fc*": "none"})),
            r"got the pattern 'fc\*', which fits no layer, need one that fits one of: conv at ",
        ),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], object], said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        make()


@pytest.mark.parametrize("mode", ["int8", "palette4", "palette4:g16", "blockwise"])
@pytest.mark.parametrize(("bad", "need"), [(np.nan, "finite"), (-np.inf, "finite"), (7e4, "within")])
def test_weights_that_are_not_finite_are_refused_with_their_place(bad: float, need: str, mode: str) -> None:
    w = normal(64, 64, dtype="float32")
    w[3, 4] = bad
    graph = hx.graph(hx.linear(hx.input("x", (2, 64)), w))
    with pytest.raises(hx.Error, match=rf"\[compress\] linear at test_compress.py:\d+: got the weight .*{need}"):
        hx.compile(graph, compress=mode)
    hx.compile(graph, compress=hx.Compression(mode, per_layer={"linear*": "none"}))


@pytest.mark.parametrize(
    ("mode", "op", "bits"),
    [("int8", "constexpr_affine_dequantize", 8)]
    + [(m, "constexpr_lut_to_dense", int(m[7])) for m in PALETTES]
    + [("palette4:v2", "constexpr_lut_to_dense", 2), ("palette6:v4", "constexpr_lut_to_dense", 1.5)]
    + [("blockwise4:b16", "constexpr_blockwise_shift_scale", 5)],
)
def test_mil_has_the_weights_as_small_as_they_are(mode: str, op: str, bits: float) -> None:
    graph = compress(network(), hx.Compression(mode), load_chip("h16g"))
    mil = emit_mil(graph, load_chip("h16g"))
    assert mil.text.count(f" = {op}(") == 4
    numbers = sum(w.whole.type.size for w in find_weights(network()))
    tables = 324 * 2 * 4 if mode == "palette2:g1" else 4 * 1024
    assert len(mil.weights) < numbers * bits / 8 + tables + 2048
    (got,), (want,) = (run_reference(g, feed(graph)).values() for g in (mil.graph, graph))
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=2**-8 * np.abs(want).max())


@pytest.mark.parametrize("mode", MODES)
def test_apples_reader_finds_the_weights_in_the_file(mode: str, tmp_path: Path) -> None:
    """The bytes at each offset that the text names are the integers or indices, and the scales or table."""
    apple = pytest.importorskip("coremltools.libmilstoragepython", reason="coremltools is not installed")
    weight = hx.linear(hx.input("x", (2, 96), "fp16"), normal(80, 96))
    graph = compress(hx.graph(weight), hx.Compression(mode), load_chip("h16g"))
    mil = emit_mil(graph, load_chip("h16g"))
    (tmp_path / "w.bin").write_bytes(bytes(mil.weight_file))
    reader = apple._BlobStorageReader(str(tmp_path / "w.bin"))
    (node,) = (node for node in graph.nodes if is_encoded(node))
    found = re.findall(r"tensor<(\w+), \[([\d, ]+)\]>\(BLOBFILE\(.*?offset = uint64\((\d+)\)", mil.text)
    read = {kind: _read(reader, kind, int(at)) for kind, _, at in found}
    first, second = (v.node.data for v in node.inputs[:2] if v is not None)
    assert first is not None
    assert second is not None
    if mode in BLOCKWISE:
        np.testing.assert_array_equal(read[f"int{mode[9]}"], first.reshape(-1))
        np.testing.assert_array_equal(read["fp16"], second.reshape(-1))
        return
    if mode == "int8":
        np.testing.assert_array_equal(read["int8"], first.reshape(-1))
        np.testing.assert_array_equal(read["fp16"], second.astype(np.float16))
        return
    if node.op in ("decode_palette", "decode_vectors"):
        first, second = second, first
    np.testing.assert_array_equal(read[f"uint{mode[7]}"], second.reshape(-1))
    if "fp16" in read:  # small tables are in the text
        np.testing.assert_array_equal(read["fp16"][: first.size], first.reshape(-1))


@pytest.mark.parametrize("mode", ["palette4", "palette4:g16", "palette1:g8", "palette8:g32", *VECTORS])
def test_apples_decoder_agrees(mode: str) -> None:
    """coremltools decompresses the operands that the text has to the numbers that programs compute with."""
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    ).constexpr_lut_to_dense
    graph = compress(
        hx.graph(hx.linear(hx.input("x", (2, 96), "fp16"), normal(96, 96))), hx.Compression(mode), load_chip("h16g")
    )
    (node,) = (node for node in emit_mil(graph, load_chip("h16g")).graph.nodes if is_encoded(node))
    form = written(node)
    assert form is not None
    indices, lut = (form.arguments[name].node.data for name in ("indices", "lut"))
    axis = form.arguments.get("vector_axis")
    got = apple.decompress(indices.astype(np.uint8), lut, None if axis is None else np.int32(axis))
    np.testing.assert_array_equal(got, fold_node(node)[0].node.data)  # type: ignore[index]


@pytest.mark.parametrize("mode", BLOCKWISE)
def test_apples_decoder_of_blocks_agrees(mode: str) -> None:
    apple = pytest.importorskip(
        "coremltools.converters.mil.mil.ops.defs.iOS18.compression", reason="coremltools is not installed"
    ).constexpr_blockwise_shift_scale
    graph = compress(
        hx.graph(hx.linear(hx.input("x", (2, 96), "fp16"), normal(96, 96))), hx.Compression(mode), load_chip("h16g")
    )
    (node,) = (node for node in emit_mil(graph, load_chip("h16g")).graph.nodes if is_encoded(node))
    form = written(node)
    assert form is not None
    data, scale = (form.arguments[name].node.data for name in ("data", "scale"))
    got = apple.decompress(data.astype(np.int8), scale, None)
    np.testing.assert_array_equal(got, fold_node(node)[0].node.data)  # type: ignore[index]


def _read(reader: Any, kind: str, at: int) -> Array:
    data = np.array(getattr(reader, f"read_{kind}_data")(at))
    return data.view(np.float16) if kind == "fp16" else data


def test_each_mode_that_a_message_names_is_one() -> None:
    """A message that lists modes lists only what a Compression takes, and says that other numbers are possible."""
    plain, forms = FIXED_TEXT.split("; and, also with other numbers, ")
    names = re.findall(r"[a-z]+[0-9]?", plain.partition("palette")[0]) + [f"palette{bit}" for bit in "123468"]
    names += re.findall(r"[a-z]+[0-9.:+][^ ,()]*:?[^ ,()]*", forms.removesuffix(" (docs/compression.md)"))
    assert plain.endswith("palette1, 2, 3, 4, 6 or 8")
    assert len(names) == 16
    for name in names:
        hx.Compression(name)
