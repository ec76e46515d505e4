"""encoded_matmul: the bits of a product with the decoded weight, and its errors."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.kernels import run
from tests.support.remembered import quantised_once

import hexane as hx
from hexane.compression.compress import compress
from hexane.errors import Error
from hexane.graph import Graph, Value
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.targets import load_target


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


MODES = [
    "int8", "palette1", "palette3", "palette4", "palette4:g8", "palette4:g16", "palette2:g24", "blockwise4:b2",
    "blockwise4:b32", "blockwise8:b32", "palette6", "palette6:g16", "palette6:g8", "palette8", "palette8:g24",
    "palette4:v2", "palette4:v4", "palette6:v2", "palette6:v4",
]  # fmt: skip
SHAPES = [(72, 64), (48, 608), (24, 1152), (96, 1537)]  # with sums of one block, of several, and an odd last term


def product(columns: int, terms: int, rows: tuple[int, ...], form: str = "linear") -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(columns * terms)
    weight = rng.standard_normal((columns, terms)).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    if form == "linear":
        x = hx.input("x", (*rows, terms))
        y = hx.linear(x, weight, bias)
    else:
        x = hx.input("x", (*rows[:-1], terms, rows[-1]))
        y = hx.matmul(x, np.ascontiguousarray(weight.T), transpose_x=True) + hx.const(bias)
    return hx.graph({"y": hx.relu(y + 0.25) + hx.silu(y)}), rng.standard_normal(x.shape).astype(np.float32)


def whole(graph: Graph) -> Graph:
    """With decoded weights."""

    def change(node: Any, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return (encoding_of(node.values[0]).decode(),) if is_encoded(node) else None

    return graph.rewrite(change)


def kernels(net: Any) -> list[str]:
    return [step["kernel"] for step in net.steps]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_a_product_has_the_bits_of_the_decoded_weight(mode: str, shape: tuple[int, int]) -> None:
    for rows, form in (((1,), "linear"), ((3,), "matmul"), ((2, 1), "linear"), ((2, 23), "matmul")):
        graph, x = product(*shape, rows, form)
        small = compress(graph, hx.Compression(mode), load_target("host"))
        want = hx.compile(whole(small), threads=1)
        assert "encoded_matmul" not in kernels(want)
        for threads in (1, 2):
            net = hx.compile(small, threads=threads)
            assert "encoded_matmul" in kernels(net)
            np.testing.assert_array_equal(net(x), want(x))


def pixels(size: tuple[int, ...], layout: str = "nchw") -> tuple[Graph, np.ndarray]:
    """An inverted residual: pixels multiplied by a wide matrix, depthwise windows, pixels multiplied back, plus x."""
    rng = np.random.default_rng(len(size))

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal((*shape, *[1] * len(size))).astype(np.float32)

    x = hx.input("x", (2, 64, *size) if layout == "nchw" else (2, *size, 64))
    h = hx.relu(hx.conv(x, weight(144, 64), rng.standard_normal(144).astype(np.float32), layout=layout))
    windows = np.tile(weight(144, 1), [3] * len(size))
    h = hx.clip(hx.conv(h, windows, pad=1, groups=144, layout=layout), alpha=0.0, beta=6.0)
    graph = hx.graph({"y": hx.conv(h, weight(64, 144), layout=layout) + x})
    return graph, rng.standard_normal(x.shape).astype(np.float32)


@pytest.mark.parametrize(
    "mode",
    [
        "int8",
        "palette2:g24",
        "palette4",
        "palette4:g8",
        "palette6",
        "palette8",
        "blockwise4:b16",
        "palette4:v4",
        "palette6:v2",
    ],
)
@pytest.mark.parametrize(
    ("size", "layout"),
    [((9, 7), "nchw"), ((9, 7), "nhwc"), ((1, 1), "nchw"), ((13,), "nchw"), ((3, 2, 4), "nchw")],
    ids=str,
)
def test_multiplied_pixels_have_the_bits_of_the_decoded_weight(mode: str, size: tuple[int, ...], layout: str) -> None:
    graph, x = pixels(size, layout)
    small = compress(graph, hx.Compression(mode), load_target("host"))
    want = hx.compile(whole(small), threads=1)
    for options in ({"threads": 1}, {"threads": 2}, {"threads": 1, "memory": hx.Memory(rows=2)}):
        net = hx.compile(small, **options)
        assert kernels(net).count("encoded_matmul") == 2
        assert len(net.steps) <= len(want.steps) or "memory" in options
        np.testing.assert_array_equal(net(x), want(x))


WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((9, 10), (3, 3), {"pad": 1}),
    ((9, 10), (3, 3), {"pad": (1, 0, 1, 1), "strides": 2}),
    ((9, 10), (3, 3), {"pad": 2, "dilations": 2}),
    ((9, 10), (5, 1), {}),
    ((21, 20), (7, 7), {"pad": 3, "strides": 2}),
    ((9, 10), (1, 1), {"strides": 2}),
    ((3, 3), (3, 3), {}),  # a single pixel
    ((17,), (3,), {"pad": 1}),
    ((30,), (4,), {"strides": 2}),
    ((4,), (4,), {}),
]


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize(
    "mode",
    [
        "int8",
        "palette2",
        "palette4",
        "palette4:g16",
        "palette6",
        "blockwise4:b32",
        "blockwise8:b16",
        "palette4:v2",
        "palette6:v4",
    ],
)
def test_a_convolution_has_the_bits_of_the_decoded_weight(mode: str, window: int) -> None:
    size, kernel, attrs = WINDOWS[window]
    rng = np.random.default_rng(window)
    weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96, *kernel), (64,)))
    y = hx.conv(hx.input("x", (2, 96, *size)), weight, bias, **attrs)
    x = rng.standard_normal((2, 96, *size)).astype(np.float32)
    small = compress(hx.graph({"y": hx.relu(y + 0.25) + hx.silu(y)}), hx.Compression(mode), load_target("host"))
    want = hx.compile(whole(small), threads=1)
    assert "encoded_conv" not in kernels(want)
    for threads in (1, 2):
        net = hx.compile(small, threads=threads)
        assert "encoded_conv" in kernels(net)
        np.testing.assert_array_equal(net(x), want(x))


@pytest.mark.parametrize("shape", [(64, 60, 3, 3), (40, 7, 5, 5)])
def test_a_convolution_whose_scales_differ_between_taps(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(-8, 8, shape).astype(np.int8)
    scales = rng.random((*shape[:2], *shape[2:])).astype(np.float32)[:, : 1 if shape[1] % 2 else 6]
    graph = hx.graph(
        hx.conv(hx.input("x", (1, shape[1], 8, 8)), hx.decode_blocks(hx.const(integers), hx.const(scales)), pad=1)
    )
    x = rng.standard_normal((1, shape[1], 8, 8)).astype(np.float32)
    net = hx.compile(graph, threads=2)
    assert "encoded_conv" in kernels(net)
    np.testing.assert_array_equal(net(x), hx.compile(whole(graph), threads=1)(x))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kernel_sizes": (3,)}, "kernel_sizes: got 1 values, need 2"),
        ({"kernel_sizes": (3, 0)}, "kernel_sizes: got 0, need 1"),
        ({"weight": np.zeros((8, 26), np.uint8)}, r"weight: got \(8, 26\), need 27 bytes"),
        ({"strides": (1, 0)}, "strides: got 0, need 1"),
        ({"x": np.ones((6, 6), np.float32)}, "ranks: got 2 for x"),
        ({"numbers": np.ones((4, 8), np.float32)}, r"scales: got \(4, 8\)"),
        ({"bias": np.ones(7, np.float32)}, "bias"),
    ],
)
def test_operands_of_a_convolution_that_do_not_fit_are_refused(changed: dict[str, Any], told: str) -> None:
    found = {
        "x": np.ones((1, 5, 5, 6), np.float32), "weight": np.zeros((8, 27), np.uint8), "numbers": np.ones((1, 8), np.float32),
        "bias": np.ones(8, np.float32), "bits": 4, "palette": 0, "kernel_sizes": (3, 3), "strides": (1, 1),
        "dilations": (1, 1), "pads": (0, 0, 0, 0), "epilogue": (),
    } | changed  # fmt: skip
    arrays = [found.pop(name) for name in ("x", "weight", "numbers", "bias")]
    with pytest.raises(Error, match=told):
        run("encoded_conv", arrays, [np.zeros((1, 3, 3, 8), np.float32)], found)


def random_image(seed: int) -> tuple[Graph, np.ndarray]:
    """Multiplied pixels among ops whose sums run over channels or rows, in either order of axes."""
    rng = np.random.default_rng(seed)
    size = tuple(map(int, rng.integers(1, 7, rng.integers(1, 3))))
    rank, ones = len(size) + 2, [1] * len(size)
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    values = [hx.input("x", (2, 64, *size))]

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def multiplied(x: hx.Tensor, columns: int) -> hx.Tensor:
        bias = [weight(columns)] if rng.random() < 0.5 else []
        return hx.conv(x, weight(columns, x.shape[1], *ones), *bias)

    def with_channels_last(x: hx.Tensor, change: Callable[[hx.Tensor], hx.Tensor]) -> hx.Tensor:
        return hx.transpose(change(hx.transpose(x, perm=last)), perm=first)

    ways: list[Callable[[hx.Tensor], hx.Tensor]] = [
        lambda x: multiplied(x, int(rng.choice([64, 96, 128]))),
        lambda x: multiplied(x, x.shape[1]) + x,
        lambda x: hx.conv(x, weight(64, x.shape[1], *[3] * len(size)), pad=1),
        lambda x: hx.conv(x, weight(x.shape[1], 1, *[3] * len(size)), pad=1, groups=x.shape[1]),
        lambda x: with_channels_last(x, lambda y: hx.softmax(y, axis=-1) * 2.0),
        lambda x: with_channels_last(x, lambda y: hx.linear(y, weight(96, y.shape[-1]))),
        lambda x: x * weight(x.shape[1], *ones),
        lambda x: x * hx.sigmoid(multiplied(hx.reduce_mean(x, axes=(*range(2, rank),), keep_dims=True), x.shape[1])),
        lambda x: hx.concat([x, hx.relu(x)], axis=1),
    ]
    for way in rng.integers(0, len(ways), 6):
        values.append(ways[way](values[-1]))
    outputs = {"y": values[-1], "sum": hx.reduce_sum(values[-1], axes=1), "z": hx.transpose(values[-2], perm=last)}
    return hx.graph(outputs), rng.standard_normal((2, 64, *size)).astype(np.float32)


@pytest.mark.parametrize("seed", range(15))
def test_random_networks_of_images_have_the_bits_of_the_decoded_weights(seed: int) -> None:
    graph, x = random_image(seed)
    mode = ["int8", "palette4:g8", "blockwise4:b32", "palette4:v2", "palette6:v4"][seed % 5]
    small = compress(graph, hx.Compression(mode), load_target("host"))
    memory = hx.Memory(rows=1 + seed % 2) if seed % 4 == 3 else hx.Memory()
    net, want = hx.compile(small, threads=1 + seed % 2, memory=memory), hx.compile(whole(small), threads=1)
    assert {"encoded_conv", "encoded_matmul"} & {*kernels(net)}
    for name, array in want(x).items():
        np.testing.assert_array_equal(net(x)[name], array)


@pytest.mark.parametrize("entries", [16, 64, 256])
def test_with_the_smallest_halves_a_product_has_the_bits_of_the_decoded_weight(entries: int) -> None:
    """fp16 holds them as subnormal numbers."""
    bits = 4 if entries == 16 else 8
    rng = np.random.default_rng(bits)
    table = np.exp2(rng.uniform(-24, 15, (2, entries))).astype(np.float16) * rng.choice([-1, 1], (2, entries))
    table[:, :3] = 0, 2.0**-24, -65504
    tables = table.astype(np.float32)
    codes = rng.integers(0, entries, (32, 50)).astype(np.uint8)
    weight = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    decoded = np.where(np.arange(32)[:, None] < 16, tables[0][codes], tables[1][codes])
    got = np.empty((1, 32), np.float32)
    for term in range(50):
        x = np.eye(50, dtype=np.float32)[term : term + 1]
        run(
            "encoded_matmul", [x, weight, tables], [got], {"bits": bits, "palette": 1, "transpose_x": 0, "epilogue": ()}
        )
        np.testing.assert_array_equal(got[0], decoded[:, term])


@pytest.mark.parametrize("mode", ["int8", "palette4", "palette8", "palette4:g8", "blockwise4:b32", "blockwise8:b32"])
def test_rows_of_an_embedding_have_the_bits_of_the_decoded_table(mode: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(3)
    ids = hx.input("ids", (2, 5), "int32")
    graph = hx.graph({"y": hx.gather(hx.const(rng.standard_normal((64, 960)).astype(np.float32)), ids, axis=0)})
    small = compress(graph, hx.Compression(mode), load_target("host"))
    net, want = hx.compile(small), hx.compile(whole(small))
    assert any(d.stage == "keep_encoded" for d in net.program.decisions)
    wanted = np.array([[0, 63, -1, 7, 8], [-64, 15, 16, 31, 32]], np.int32)
    np.testing.assert_array_equal(net(wanted), want(wanted))
    sizes = []
    for i, made in enumerate((net, want)):
        made.save(tmp_path / f"{i}.hxp")
        sizes.append((tmp_path / f"{i}.hxp").stat().st_size)
    assert sizes[0] < 0.5 * sizes[1]


@pytest.mark.parametrize(
    ("mode", "share"),
    [
        ("int8", 0.27),
        ("palette4", 0.15),
        ("blockwise4:b32", 0.18),
        ("palette6", 0.27),
        ("palette4:v2", 0.08),
        ("palette4:v4", 0.05),
    ],
)
def test_a_plan_keeps_the_few_bits(mode: str, share: float, tmp_path: Any) -> None:
    graph, x = product(256, 1024, (1,))
    nets = [hx.compile(graph), hx.compile(graph, compress=mode)]
    sizes = []
    for i, net in enumerate(nets):
        net.save(tmp_path / f"{i}.hxp")
        sizes.append((tmp_path / f"{i}.hxp").stat().st_size)
    assert sizes[1] < share * sizes[0]
    np.testing.assert_array_equal(hx.load(tmp_path / "1.hxp")(x), nets[1](x))


@pytest.mark.parametrize(
    ("mode", "stays"),
    [
        ("int8", True),
        ("palette4:g8", True),
        ("palette4:g12", False),
        ("palette6", True),
        ("palette6:g8", True),
        ("palette6:g4", False),
        ("palette8", True),
        ("palette4:v2", True),
        ("sparse:0.5", False),
        ("sparse:0.5+palette4", True),
        ("sparse:0.5+palette4:g8", True),
        ("sparse:0.5+palette4:g12", False),
    ],
)
def test_decisions_say_what_stays_in_few_bits(mode: str, stays: bool) -> None:
    graph, _ = product(96, 64, (1,))
    net = hx.compile(graph, compress=mode)
    said = [d.reason for d in net.program.decisions if d.stage == "compress"]
    assert ["stays in few bits" in reason for reason in said] == [stays]
    assert ("encoded_matmul" in kernels(net)) == stays
    assert stays == any(d.stage == "keep_encoded" for d in net.program.decisions)


@pytest.mark.parametrize(
    "mode", ["int8", "palette4", "palette4:g8", "palette6", "palette8", "blockwise4:b32", "palette4:v2", "palette6:v4"]
)
def test_in_fp16_the_bits_are_those_of_decoded_weights_that_are_rounded(mode: str) -> None:
    for graph, x in (product(96, 1537, (1,)), product(72, 64, (2, 23), "matmul"), pixels((9, 7)), random_image(3)):
        small = compress(graph, hx.Compression(mode), load_target("host"))
        want = hx.compile(whole(small), threads=1, dtype="fp16")(x)
        for threads in (1, 2):
            net = hx.compile(small, threads=threads, dtype="fp16")
            assert {"encoded_conv", "encoded_matmul"} & {*kernels(net)}
            np.testing.assert_equal(net(x), want)


@pytest.mark.parametrize(("scale", "stays"), [(510.0, True), (512.0, False), (3e-7, True)])
def test_in_fp16_weights_beyond_it_are_whole(scale: float, stays: bool) -> None:
    integers = np.arange(64 * 64).reshape(64, 64).astype(np.int8)
    graph = hx.graph(hx.linear(hx.input("x", (3, 64)), hx.dequantize(hx.const(integers), np.float32(scale))))
    net, want = hx.compile(graph, dtype="fp16"), hx.compile(whole(graph), dtype="fp16")
    assert ("encoded_matmul" in kernels(net)) == stays
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32) / 1024
    np.testing.assert_array_equal(net(x), want(x))


def operands(**changed: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    found = {
        "x": np.ones((2, 6), np.float32), "weight": np.zeros((8, 3), np.uint8), "numbers": np.ones((1, 8), np.float32),
        "bits": 4, "palette": 0, "transpose_x": 0, "epilogue": (),
    } | changed  # fmt: skip
    return [found.pop(name) for name in ("x", "weight", "numbers")], found


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bits": 3}, "bits: got 3, need 4 or 8"),
    (
        {"bits": 8, "palette": 1, "weight": np.zeros((8, 6), np.uint8), "numbers": np.ones((1, 257), np.float32)},
        "need 1 to 256 entries",
    ),
    ({"bits": 8}, r"weight: got \(8, 3\), need 6 bytes for each of its rows"),
    ({"weight": np.zeros((8, 4), np.uint8)}, r"weight: got \(8, 4\), need 3 bytes"),
    ({"weight": np.zeros((1, 8, 3), np.uint8)}, "ranks: got 2, 3 and 2"),
    ({"numbers": np.ones((4, 8), np.float32)}, r"scales: got \(4, 8\)"),
    ({"numbers": np.ones((2, 8), np.float32)}, r"scales: got \(2, 8\), .* even ones where there are several"),
    ({"numbers": np.ones((0, 8), np.float32)}, r"scales: got \(0, 8\)"),
    ({"numbers": np.ones((1, 7), np.float32)}, r"scales: got \(1, 7\), need \(blocks, 8\)"),
    ({"palette": 1, "numbers": np.ones((1, 17), np.float32)}, r"tables: got \(1, 17\), need 1 to 16 entries"),
    ({"numbers": np.ones((1, 8, 2), np.float32)}, "ranks: got 2, 2 and 3, need at least 2, 2 and 2"),
    ({"palette": 1, "numbers": np.ones((1, 4, 3), np.float32)}, "got vectors of 3 numbers, need 2 or 4"),
    ({"palette": 1, "numbers": np.ones((1, 17, 2), np.float32)}, r"tables: got \(1, 17, 2\), need 1 to 16 entries"),
    ({"palette": 1, "numbers": np.ones((2, 4, 2), np.float32)}, r"tables: got \(2, 4, 2\), .* multiple of 16 of 16"),
    ({"palette": 1, "numbers": np.ones((2, 4), np.float32)}, r"tables: got \(2, 4\), .* multiple of 8 of 8 columns"),
    ({"palette": 1, "numbers": np.ones((0, 4), np.float32)}, r"tables: got \(0, 4\)"),
]


@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], told: str) -> None:
    arrays, attrs = operands(**changed)
    with pytest.raises(Error, match=told):
        run("encoded_matmul", arrays, [np.zeros((2, 8), np.float32)], attrs)


def test_an_index_beyond_the_table_names_its_last_entry() -> None:
    arrays, attrs = operands(
        palette=1, weight=np.full((8, 3), 0xF1, np.uint8), numbers=np.array([[1, 2, 4]], np.float32)
    )
    y = np.zeros((2, 8), np.float32)
    run("encoded_matmul", arrays, [y], attrs)
    assert (y == 3 * 2 + 3 * 4).all()


@pytest.mark.parametrize("entries", [63, 65, 199])
def test_an_index_of_eight_bits_beyond_the_table_names_its_last_entry(entries: int) -> None:
    weight = np.tile(np.array([0, entries - 1, entries, 255, 1, 200], np.uint8), (8, 1))
    arrays, attrs = operands(bits=8, palette=1, weight=weight, numbers=np.arange(entries, dtype=np.float32)[None])
    y = np.zeros((2, 8), np.float32)
    run("encoded_matmul", arrays, [y], attrs)
    assert (y == 4 * (entries - 1) + 1).all()


def test_a_table_of_256_entries_that_fp16_does_not_hold() -> None:
    rng = np.random.default_rng(1)
    tables = rng.standard_normal((2, 256)).astype(np.float32)
    codes = rng.integers(0, 256, (32, 50)).astype(np.uint8)
    x = rng.standard_normal((3, 50)).astype(np.float32)
    arrays, attrs = operands(x=x, bits=8, palette=1, weight=codes, numbers=tables)
    got = np.zeros((3, 32), np.float32)
    run("encoded_matmul", arrays, [got], attrs)
    whole = np.where(np.arange(32)[:, None] < 16, tables[0][codes], tables[1][codes])
    np.testing.assert_allclose(got, x.astype(np.float64) @ whole.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("entries", [1, 7, 16, 33, 256])
def test_a_product_has_the_bits_of_vectors_of_numbers_that_fp16_does_not_hold(
    entries: int, size: int, groups: int
) -> None:
    """Also where an index is beyond the table: it names the last entry."""
    bits = 4 if entries <= 16 else 8
    rng = np.random.default_rng(entries)
    tables = rng.standard_normal((groups, entries, size)).astype(np.float32)
    codes = rng.integers(0, min(entries + 2, 1 << bits), (48 // size, 50)).astype(np.uint8)
    weight = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    whole = [tables[i // (48 // groups), np.minimum(codes[i // size], entries - 1), i % size] for i in range(48)]
    got = np.empty((1, 48), np.float32)
    for term in range(50):
        x = np.eye(50, dtype=np.float32)[term : term + 1]
        arrays, attrs = operands(x=x, weight=weight, numbers=tables, bits=bits, palette=1)
        run("encoded_matmul", arrays, [got], attrs)
        np.testing.assert_array_equal(got[0], np.array(whole)[:, term])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_vectors_along_the_terms_and_of_three_stay_with_whole_weights(axis: int, size: int) -> None:
    rng = np.random.default_rng(size)
    picks = rng.integers(0, 9, [96 // size if i == axis else 96 for i in range(2)]).astype(np.uint8)
    tables = rng.standard_normal((1, 1, 9, size)).astype(np.float32)
    weight = hx.decode_vectors(hx.const(picks), hx.const(tables), axis=axis)
    graph = hx.graph(hx.linear(hx.input("x", (2, 96)), weight))
    x = rng.standard_normal((2, 96)).astype(np.float32)
    net = hx.compile(graph)
    assert ("encoded_matmul" in kernels(net)) == (axis == 0 and size == 2)
    np.testing.assert_array_equal(net(x), hx.compile(whole(graph))(x))


def test_the_c99_runtime_has_whole_weights_where_an_index_names_several() -> None:
    graph, x = product(96, 64, (2,))
    small = compress(graph, hx.Compression("palette4:v2"), load_target("host"))
    net = hx.compile(small, memory=hx.Memory(runtime="c99"))
    assert "matmul" in kernels(net)
    np.testing.assert_array_equal(net(x), hx.compile(whole(small))(x))


@pytest.mark.parametrize("make", [lambda b: b[:0], lambda b: np.zeros((8, 0), np.uint8)])
def test_products_of_nothing(make: Callable[[np.ndarray], np.ndarray]) -> None:
    weight = make(np.zeros((8, 3), np.uint8))
    n, k = len(weight), 2 * weight.shape[1]
    arrays, attrs = operands(x=np.ones((2, k), np.float32), weight=weight, numbers=np.ones((1, n), np.float32))
    y = np.full((2, n), 7, np.float32)
    run("encoded_matmul", arrays, [y], attrs)
    assert not y.any()
