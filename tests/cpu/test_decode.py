"""decode: weights of convolutions that stay in few bits and are decoded in each call."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.cpu.test_kernels_encoded import kernels, whole
from tests.support.kernels import run
from tests.support.remembered import quantised_once

import hexane as hx
from hexane.compression.compress import compress
from hexane.errors import Error
from hexane.targets import load_target


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


MODES = [
    "int8", "palette2:g8", "palette4", "palette6:g16", "palette8", "blockwise4:b16", "blockwise8:b8", "palette4:v2",
    "palette6:v4",
]  # fmt: skip

Make = Callable[[hx.Tensor, np.ndarray], hx.Tensor]
# The extents of the image, the weight, and what it is the weight of. The image has 64 channels.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], Make]] = [
    ((9, 7), (96, 16, 3, 3), lambda x, w: hx.conv(x, w, pad=1, groups=4)),
    ((9, 7), (256, 32, 1, 1), lambda x, w: hx.conv(x, w, strides=2, groups=2)),
    ((19,), (96, 32, 3), lambda x, w: hx.conv(x, w, pad=1, groups=2)),
    ((6, 5), (64, 48, 4, 4), lambda x, w: hx.conv_transpose(x, w, strides=2, pad=1)),
    ((6, 5), (64, 24, 3, 3), lambda x, w: hx.conv_transpose(x, w, strides=2, groups=2)),
    ((4, 5, 3), (48, 64, 3, 2, 3), lambda x, w: hx.conv(x, w, pad=1, strides=(1, 2, 1))),
    ((3, 2, 4), (64, 48, 2, 2, 2), lambda x, w: hx.conv_transpose(x, w, strides=2)),
]


@pytest.mark.parametrize("at", range(len(CONVOLUTIONS)))
@pytest.mark.parametrize("mode", MODES)
def test_a_convolution_has_the_bits_of_the_decoded_weight(mode: str, at: int) -> None:
    size, shape, make = CONVOLUTIONS[at]
    rng = np.random.default_rng(at)
    weight, x = (rng.standard_normal(s).astype(np.float32) for s in (shape, (2, 64, *size)))
    graph = hx.graph({"y": hx.relu(make(hx.input("x", x.shape), weight) + 0.25)})
    small = compress(graph, hx.Compression(mode), load_target("host"))
    want = hx.compile(whole(small), threads=1)(x)
    rows = {"memory": hx.Memory(rows=2)} if len(size) == 2 else {}
    for options in ({"threads": 1}, {"threads": 2}, {"threads": 1, **rows}):
        net = hx.compile(small, **options)
        assert kernels(net).count("decode") == 1
        np.testing.assert_array_equal(net(x), want)
    assert any(d.reason == "decoded in each call" for d in net.program.decisions)


def test_a_plan_and_its_memory_hold_the_few_bits(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    y = hx.input("x", (1, 128, 8, 8))
    x = rng.standard_normal(y.shape).astype(np.float32)
    for _ in range(4):
        y = hx.conv(y, rng.standard_normal((128, 64, 3, 3)).astype(np.float32), pad=1, groups=2)
    nets = [hx.compile(hx.graph(y), compress=mode) for mode in ("none", "int8")]
    sizes = []
    for i, net in enumerate(nets):
        net.save(tmp_path / f"{i}.hxp")
        sizes.append((tmp_path / f"{i}.hxp").stat().st_size)
    assert sizes[1] < 0.27 * sizes[0]
    np.testing.assert_array_equal(hx.load(tmp_path / "1.hxp")(x), nets[1](x))
    # One whole weight at a time.
    assert nets[1].memory["arena"] < nets[0].memory["arena"] + 1.2 * 128 * 64 * 9 * 4


@pytest.mark.parametrize(
    ("scales", "decodes"),
    [((64, 4, 1, 1), True), ((1, 4, 1, 1), True), ((64, 1, 1, 1), True), ((64, 1, 3, 1), False), ((1, 1, 3, 3), False)],
)
def test_scales_of_taps_stay_with_whole_weights(scales: tuple[int, ...], decodes: bool) -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(-128, 128, (64, 16, 3, 3)).astype(np.int8)
    weight = hx.decode_blocks(hx.const(integers), hx.const(rng.random(scales).astype(np.float32)))
    graph = hx.graph(hx.conv(hx.input("x", (1, 64, 7, 7)), weight, pad=1, groups=4))
    x = rng.standard_normal((1, 64, 7, 7)).astype(np.float32)
    net = hx.compile(graph)
    assert ("decode" in kernels(net)) == decodes
    np.testing.assert_array_equal(net(x), hx.compile(whole(graph), threads=1)(x))


def test_weights_of_each_channel_alone_and_of_small_devices_stay_whole() -> None:
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 512, 7, 7))
    own = hx.conv(x, rng.standard_normal((512, 1, 3, 3)).astype(np.float32), pad=1, groups=512)
    net = hx.compile(own, compress="int8")
    assert "decode" not in kernels(net)
    assert "folds on this CPU" in next(d.reason for d in net.program.decisions if d.stage == "compress")
    groups = hx.conv(x, rng.standard_normal((64, 256, 3, 3)).astype(np.float32), groups=2)
    assert "decode" in kernels(hx.compile(groups, compress="int8"))
    for memory in (hx.Memory(runtime="c99"), hx.Memory(sram="400K"), hx.Memory(whole_weights=True)):
        assert "decode" not in kernels(hx.compile(groups, compress="int8", memory=memory))
    small = compress(hx.graph(groups), hx.Compression("int8"), load_target("host"))
    assert "does not run" not in str(hx.fit(small, memory=hx.Memory(runtime="c99")))


def decoded(**changed: Any) -> np.ndarray:
    found = {"weight": np.zeros((8, 3), np.uint8), "numbers": np.ones((1, 8), np.float32), "out": (2, 8, 3),
             "bits": 4, "palette": 0, "axis": 1} | changed  # fmt: skip
    out = np.full(found.pop("out"), 7, np.float32)
    run("decode", [found.pop("weight"), found.pop("numbers")], [out], found)
    return out


@pytest.mark.parametrize("axis", [0, 1])
def test_runs_of_a_row_are_rounded_to_fp16(axis: int) -> None:
    rng = np.random.default_rng(axis)
    weight = rng.integers(-128, 128, (8, 3 * 1111)).astype(np.int8)
    scales = rng.standard_normal((1, 8)).astype(np.float32)
    shape = (8, 3333) if axis == 0 else (3, 8, 1111)
    out = np.empty(shape, np.float16)
    run("decode", [weight, scales], [out], {"bits": 8, "palette": 0, "axis": axis})
    want = (weight * scales.T).astype(np.float16)
    np.testing.assert_array_equal(out, want if axis == 0 else want.reshape(8, 3, 1111).swapaxes(0, 1))


def test_runs_of_a_row_lie_apart() -> None:
    """Of an odd number each; codes of 4 bits, of -8 to 7."""
    codes = np.arange(8 * 10).reshape(8, 10) % 16
    weight = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    scales = np.arange(1, 9, dtype=np.float32)[None]
    got = decoded(weight=weight, numbers=scales, out=(2, 8, 5))
    want = (np.where(codes < 8, codes, codes - 16) * scales.T).reshape(8, 2, 5)
    np.testing.assert_array_equal(got, want.swapaxes(0, 1))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bits": 3}, "bits: got 3, need 4 or 8"),
        ({"axis": 3}, "axis: got 3, need one of the 3 of the output"),
        ({"axis": -1}, "axis: got -1"),
        ({"axis": 0}, r"weight: got \(8, 3\)"),
        ({"out": (2, 9, 3)}, "need 9 rows, as axis 1 of the output"),
        ({"out": (2, 8, 4)}, r"weight: got \(8, 3\), need 4 bytes"),
        ({"numbers": np.ones((4, 8), np.float32)}, r"scales: got \(4, 8\)"),
        ({"palette": 1, "numbers": np.ones((1, 16, 2), np.float32)}, "need 8 rows, as axis 1 of the output"),
        ({"palette": 1, "numbers": np.ones((1, 17), np.float32)}, r"tables: got \(1, 17\), need 1 to 16 entries"),
    ],
)
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(Error, match=told):
        decoded(**changed)


def test_an_index_beyond_the_table_names_its_last_entry() -> None:
    weight = np.full((8, 3), 0xF1, np.uint8)
    got = decoded(weight=weight, palette=1, numbers=np.array([[1, 2, 4]], np.float32))
    assert sorted({*got.ravel()}) == [2, 4]


def test_rows_share_indices_of_vectors() -> None:
    tables = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    codes = np.array([[0, 1, 2, 9], [2, 2, 1, 0], [1, 0, 1, 0], [0, 0, 2, 1]], np.uint8)  # index 9 names the last
    got = decoded(weight=codes, numbers=tables, out=(2, 8, 2), bits=8, palette=1)
    whole = np.stack([2 * np.minimum(codes, 2), 2 * np.minimum(codes, 2) + 1], axis=1).reshape(8, 2, 2)
    np.testing.assert_array_equal(got, whole.swapaxes(0, 1))


def test_nothing_is_decoded_of_empty_weights() -> None:
    assert decoded(weight=np.zeros((8, 0), np.uint8), out=(0, 8, 3)).size == 0
    assert decoded(weight=np.zeros((8, 3), np.uint8)[:0], numbers=np.ones((1, 0), np.float32), out=(2, 0, 3)).size == 0
