"""Scales of blocks that are fitted to calibration inputs: the layers' outputs come nearer, on other inputs as well."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.compression import compress, find_weights, importance
from hexane.graph import Array, Graph
from hexane.ops.encodings import encoding_of
from hexane.options import Options
from hexane.runtime.compile_graphs import compile_compressed
from hexane.targets import load_target

pytestmark = pytest.mark.filterwarnings("ignore")

Feed = dict[str, Array]


def normal(*shape: int, size: float = 0.1) -> Array:
    made: Array = (np.random.default_rng(sum(shape)).standard_normal(shape) * size).astype(np.float32)
    return made


class Layer:
    """A network of one layer, and the axis of its input's channels."""

    def __init__(
        self, shape: tuple[int, ...], axis: int, weight: Array, make: Callable[[hx.Tensor, Array], hx.Tensor]
    ) -> None:
        self.shape, self.axis, self.weight = shape, axis, weight
        self.graph = hx.graph(make(hx.input("x", shape), weight))

    def feeds(self, seed: int, outliers: bool = True, count: int = 16) -> list[Feed]:
        """One of sixteen channels has 100 times the numbers of the others, a different one each time."""
        rng = np.random.default_rng(seed)
        sizes = np.ones(self.shape[self.axis])
        if outliers:
            sizes[[16 * k + (5 * k + 5) % 16 for k in range(len(sizes) // 16)]] = 100
        sizes = sizes.reshape([-1 if i == self.axis % len(self.shape) else 1 for i in range(len(self.shape))])
        return [{"x": (rng.standard_normal(self.shape) * sizes).astype(np.float32)} for _ in range(count)]

    def mean_squares(self, feeds: list[Feed]) -> Array:
        x = np.moveaxis(np.stack([feed["x"] for feed in feeds]).astype(np.float64), self.axis % len(self.shape) + 1, 0)
        found: Array = (x**2).mean(axis=tuple(range(1, x.ndim)))
        return found


def layer(name: str) -> Layer:
    if name == "linear":
        return Layer((4, 128), 1, normal(64, 128), hx.linear)
    if name == "linear of one scale a channel":
        return Layer((4, 100), 1, normal(64, 100), hx.linear)
    if name == "matmul":
        return Layer((4, 128), 1, normal(128, 64), hx.matmul)
    if name == "matmul of a transposed input":
        return Layer((128, 4), 0, normal(128, 64), lambda x, w: hx.matmul(x, w, transpose_x=True))
    if name == "matmul of a transposed weight":
        return Layer((4, 128), 1, normal(64, 128), lambda x, w: hx.matmul(x, w, transpose_y=True))
    if name == "matrices":
        return Layer((3, 4, 64), 2, normal(3, 64, 32), hx.matmul)
    if name == "matrices of one scale a channel":
        return Layer((3, 4, 50), 2, normal(3, 50, 32), hx.matmul)
    if name == "conv":
        return Layer((1, 64, 6, 6), 1, normal(32, 64, 3, 3), lambda x, w: hx.conv(x, w, pad=1))
    if name == "conv of channels last":
        return Layer((1, 6, 6, 64), 3, normal(32, 64, 3, 3), lambda x, w: hx.conv(x, w, pad=1, layout="nhwc"))
    if name == "conv of groups":
        return Layer((1, 192, 6, 6), 1, normal(32, 96, 3, 3), lambda x, w: hx.conv(x, w, pad=1, groups=2))
    if name == "conv of groups of one scale a channel":
        return Layer((1, 80, 6, 6), 1, normal(32, 40, 3, 3), lambda x, w: hx.conv(x, w, pad=1, groups=2))
    if name == "conv_transpose":
        return Layer((1, 64, 5, 5), 1, normal(64, 32, 2, 2), lambda x, w: hx.conv_transpose(x, w, strides=2))
    assert name == "conv_transpose of groups"
    return Layer((1, 64, 5, 5), 1, normal(64, 16, 3, 3), lambda x, w: hx.conv_transpose(x, w, pad=1, groups=2))


LAYERS = [
    "linear",
    "linear of one scale a channel",
    "matmul",
    "matmul of a transposed input",
    "matmul of a transposed weight",
    "matrices",
    "matrices of one scale a channel",
    "conv",
    "conv of channels last",
    "conv of groups",
    "conv of groups of one scale a channel",
    "conv_transpose",
    "conv_transpose of groups",
]


def of_weight(name: str, channels: Array, weight: Array) -> Array:
    """The number of each input channel at each weight that multiplies it."""
    if name.startswith("conv of groups"):
        first, second = np.split(channels, 2)
        groups = np.repeat(np.stack([first, second]), len(weight) // 2, axis=0)
        return np.broadcast_to(groups[:, :, None, None], weight.shape)
    axis = {"matmul": -2, "matmul of a transposed input": -2, "conv_transpose": 0, "conv_transpose of groups": 0}
    axis |= {"matrices": -2, "matrices of one scale a channel": -2, "conv": 1, "conv of channels last": 1}
    place = axis.get(name, -1) % weight.ndim
    return np.broadcast_to(channels.reshape([-1 if i == place else 1 for i in range(weight.ndim)]), weight.shape)


def stored(graph: Graph, asked: hx.Compression) -> list[Array]:
    """The numbers of each weight after it is decoded."""
    made, _ = compile_compressed(graph, asked, Options())
    found = [encoding_of(value).decode().node.data for _, value in made.weights]
    assert all(data is not None for data in found)
    return [np.asarray(data, np.float64) for data in found]


def error(graph: Graph, asked: hx.Compression, feeds: list[Feed]) -> float:
    """The relative error of the outputs for all feeds."""
    whole, net = hx.compile(graph), hx.compile(graph, compress=asked)
    want, got = (np.stack([run(**feed) for feed in feeds]) for run in (whole, net))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("mode", ["blockwise4:b32", "blockwise8:b32"])
@pytest.mark.parametrize("name", LAYERS)
def test_no_output_channel_has_a_larger_error_times_the_mean_squares(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean squares are those of NumPy. Without rows before, they are what the scales are fitted to."""
    monkeypatch.setattr(importance, "ROWS_BEFORE", 0)
    made = layer(name)
    feeds = made.feeds(1)
    counts = of_weight(name, made.mean_squares(feeds), made.weight)
    (before,) = stored(made.graph, hx.Compression(mode))
    (after,) = stored(made.graph, hx.Compression(mode, calibration=feeds))
    was, now = (counts * (numbers - made.weight) ** 2 for numbers in (before, after))
    (weight,) = find_weights(made.graph)
    others = tuple(i for i in range(made.weight.ndim) if i != weight.axis)
    assert (now.sum(axis=others) <= was.sum(axis=others) * (1 + 1e-4)).all()
    assert now.sum() < 0.75 * was.sum()


@pytest.mark.parametrize("mode", ["blockwise4:b32", "blockwise8:b32"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_come_nearer_where_some_channels_are_large_on_other_inputs_too(name: str, mode: str) -> None:
    made = layer(name)
    seen, others = made.feeds(1), made.feeds(2)
    plain, fitted = hx.Compression(mode), hx.Compression(mode, calibration=seen)
    assert error(made.graph, fitted, seen) < 0.85 * error(made.graph, plain, seen)
    assert error(made.graph, fitted, others) < 0.85 * error(made.graph, plain, others)


@pytest.mark.parametrize("name", LAYERS)
def test_no_output_channel_gets_worse_on_the_calibration_inputs_where_neighbours_are_alike(name: str) -> None:
    """Numbers that are positive and alike along every axis, so that the mean squares alone say little."""
    made = layer(name)
    feeds = made.feeds(1, outliers=False)
    for feed in feeds:
        wave = np.cumsum(feed["x"], axis=made.axis)
        feed["x"] = np.abs(wave + 2 * feed["x"].mean()).astype(np.float32)
    whole = hx.compile(made.graph)
    modes = hx.Compression("blockwise"), hx.Compression("blockwise", calibration=feeds)
    plain, fitted = (hx.compile(made.graph, compress=asked) for asked in modes)
    last = made.axis if name.startswith("conv") else -1
    before, after = (
        np.moveaxis(np.stack([net(**feed) - whole(**feed) for feed in feeds]), last % plain(**feeds[0]).ndim + 1, 0)
        for net in (plain, fitted)
    )
    was, now = ((one.reshape(len(one), -1).astype(np.float64) ** 2).sum(1) for one in (before, after))
    if name == "conv_transpose of groups":  # the groups share the weight's output channels
        was, now = (one.reshape(2, -1).sum(0) for one in (was, now))
    assert (now <= was * (1 + 1e-3)).all()
    assert now.sum() < was.sum()


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("name", LAYERS)
def test_channels_of_one_size_lose_next_to_nothing_on_other_inputs(name: str, count: int) -> None:
    made = layer(name)
    seen, others = made.feeds(1, outliers=False, count=count), made.feeds(2, outliers=False)
    plain, fitted = hx.Compression("blockwise"), hx.Compression("blockwise", calibration=seen)
    assert error(made.graph, fitted, others) < 1.05 * error(made.graph, plain, others)


@pytest.mark.parametrize("name", ["linear", "conv of groups", "matrices"])
def test_nothing_changes_without_inputs_or_for_inputs_of_zeros(name: str) -> None:
    made = layer(name)
    plain = compress(made.graph, hx.Compression("blockwise"), load_target("host"))
    want = [node.data for node in plain.nodes if node.data is not None]
    zeros = [{"x": np.zeros(made.shape, np.float32)}]
    for asked in (hx.Compression("blockwise"), hx.Compression("blockwise", calibration=zeros)):
        got, _ = compile_compressed(made.graph, asked, Options())
        for a, b in zip(want, [node.data for node in got.graph.nodes if node.data is not None], strict=True):
            np.testing.assert_array_equal(a, b)
        assert "fitted" not in str(got.graph.decisions[0])


def test_a_decision_says_that_scales_were_fitted() -> None:
    made = layer("conv")
    asked = hx.Compression("blockwise", calibration=made.feeds(1))
    (decision,) = [d for d in hx.compile(made.graph, compress=asked).program.decisions if d.stage == "compress"]
    assert "bytes; scales fitted to activations in 32 of 32 output channels; stays in few bits" in str(decision)


def test_blocks_of_channels_that_are_always_0_get_the_scales_of_their_weights() -> None:
    made = layer("linear")
    feeds = made.feeds(1, outliers=False)
    for feed in feeds:
        feed["x"][:, :32] = 0  # a block
        feed["x"][:, 40] = 0  # a channel among others
    plain, fitted = (
        stored(made.graph, asked)[0]
        for asked in (hx.Compression("blockwise"), hx.Compression("blockwise", calibration=feeds))
    )
    np.testing.assert_array_equal(plain[:, :32], fitted[:, :32])
    assert (plain[:, 32:] != fitted[:, 32:]).any()
    apart = np.abs(fitted - made.weight)
    assert np.isfinite(fitted).all()
    assert apart[:, 40].max() < np.abs(made.weight).max() / 2


def test_embeddings_and_layers_of_other_modes_stay_as_they_are() -> None:
    table, weight, head = normal(300, 64), normal(64, 64), normal(100, 64)
    y = hx.gather(table, hx.input("ids", (7,), "int32"), axis=0)
    graph = hx.graph(hx.linear(hx.relu(hx.linear(y, weight)), head))
    feeds = [{"ids": np.arange(7, dtype=np.int32) + i} for i in range(9)]
    plain = stored(graph, hx.Compression("blockwise"))
    fitted = stored(graph, hx.Compression("blockwise", calibration=feeds))
    np.testing.assert_array_equal(plain[0], fitted[0])
    assert (plain[1] != fitted[1]).any()
    assert (plain[2] != fitted[2]).any()
    made, _ = compile_compressed(graph, hx.Compression("palette4", calibration=feeds), Options())
    assert not any("fitted" in str(decision) for decision in made.graph.decisions)


def test_auto_keeps_fitted_scales_in_the_layers_that_ask_for_blocks() -> None:
    first, second = normal(64, 128), normal(64, 64)
    graph = hx.graph(hx.linear(hx.relu(hx.linear(hx.input("x", (4, 128)), first)), hx.const(second)))
    feeds = layer("linear").feeds(1)
    where = next(node.where for node in graph.nodes if node.op == "linear")
    alone = stored(graph, hx.Compression("none", per_layer={where: "blockwise"}, calibration=feeds))
    auto = stored(graph, hx.Compression("auto", per_layer={where: "blockwise"}, calibration=feeds, tolerance=0.5))
    np.testing.assert_array_equal(auto[0], alone[0])
    assert (auto[0] != stored(graph, hx.Compression("none", per_layer={where: "blockwise"}))[0]).any()


def test_layers_that_share_a_weight_count_together() -> None:
    weight = hx.const(normal(64, 128))
    x, y = hx.input("x", (4, 128)), hx.input("y", (8, 128))
    graph = hx.graph({"a": hx.linear(x, weight), "b": hx.linear(y, weight)})
    one = hx.graph(hx.linear(hx.input("x", (12, 128)), weight))
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(128) % 16 == 5, 100, 1)
    rows = (rng.standard_normal((12, 128)) * sizes).astype(np.float32)
    (shared,) = stored(graph, hx.Compression("blockwise", calibration=[{"x": rows[:4], "y": rows[4:]}]))
    (alone,) = stored(one, hx.Compression("blockwise", calibration=[{"x": rows}]))
    assert (shared != alone).mean() < 0.01  # sums in another order


def test_squares_beyond_fp16_are_sums_in_fp32() -> None:
    graph = hx.graph(hx.linear(hx.input("x", (4, 128), "fp16"), normal(64, 128).astype(np.float16)))
    feeds = [{"x": (feed["x"] * 10).astype(np.float16)} for feed in layer("linear").feeds(1)]
    (plain,) = stored(graph, hx.Compression("blockwise"))
    (fitted,) = stored(graph, hx.Compression("blockwise", calibration=feeds))
    assert np.isfinite(fitted).all()
    assert (plain != fitted).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused(bad: float) -> None:
    made = layer("linear")
    feeds = made.feeds(1)
    feeds[3]["x"][2, 7] = bad
    said = r"\[compress\] calibration: got (nan|inf) as the sum of squares of an input channel of linear at"
    with pytest.raises(hx.Error, match=said):
        hx.compile(made.graph, compress=hx.Compression("blockwise", calibration=feeds))
