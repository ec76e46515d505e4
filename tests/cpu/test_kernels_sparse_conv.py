"""sparse_conv: the bits of a convolution with the whole weight, and its errors."""

from typing import Any

import numpy as np
import pytest
from tests.support.kernels import run, run_every_cut, same_bits

import hexane as hx
from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops.records.sparse_product import END, sparse
from instruction_sets import assert_passes_on, on_others

SLOTS = {
    "none": (),
    "in registers": (("add", 0, 0, 4), ("relu", 0, 0, -1)),
    "in memory": (("silu", 0, 0, -1), ("add", 0, 0, 4), ("clip", -0.5, 2.0, -1)),
}


def pruned(rng: np.random.Generator, shape: tuple[int, ...], zeros: float) -> np.ndarray:
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) < zeros] = 0
    weight[rng.random(shape) < 0.02] = -0.0
    return weight


def rows_of(weight: np.ndarray) -> np.ndarray:
    """(out, kernel.. * in), of (out, in, kernel..)."""
    return np.moveaxis(weight, 1, -1).reshape(len(weight), int(np.prod(weight.shape[1:])))


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, window: dict[str, tuple[int, ...]], slots: Any = ()
) -> tuple[np.ndarray, np.ndarray]:
    """By sparse_conv, cut in every way, with a constant weight and with one that is not, and by conv."""
    spatial = weight.ndim - 2
    window = {"strides": (1,) * spatial, "dilations": (1,) * spatial, "pads": (0,) * 2 * spatial} | window
    pads = np.reshape(window["pads"], (spatial, 2)).sum(1)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], window["dilations"], strict=True)]
    size = [(n + p - r) // s + 1 for n, p, r, s in zip(x.shape[1:-1], pads, reach, window["strides"], strict=True)]
    shape = (x.shape[0], *size, len(weight))
    extra = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    got, again, want = (np.full(shape, 7, np.float32) for _ in range(3))
    operands = [x, *sparse(rows_of(weight)), bias, extra]
    attrs = {**window, "columns": len(weight), "kernel_sizes": weight.shape[2:], "epilogue": slots}
    run("sparse_conv", operands, [again], attrs, constants=[1, 2])
    run_every_cut("sparse_conv", operands, [got], **attrs)
    assert same_bits(got, again)
    shifted = tuple((op, a, b, operand - (operand > 0)) for op, a, b, operand in slots)
    run("conv", [x, weight, bias, extra], [want], {**window, "groups": 1, "epilogue": shifted}, constants=[1])
    return got, want


# Images, weights (out, in, kernel..) and windows: of one pixel, in place or copied, and of several segments.
WINDOWS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 9, 10, 24), (70, 24, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 9, 10, 24), (70, 24, 3, 3), {"pads": (1, 0, 1, 1), "strides": (2, 2)}),
    ((1, 9, 10, 24), (33, 24, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ((1, 9, 10, 24), (130, 24, 5, 1), {}),
    ((1, 21, 20, 3), (64, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((1, 7, 6, 512), (65, 512, 3, 2), {"pads": (1, 1, 0, 1)}),
    ((2, 9, 10, 40), (200, 40, 1, 1), {}),
    ((1, 20, 20, 40), (100, 40, 1, 1), {}),
    ((2, 9, 10, 40), (72, 40, 1, 1), {"strides": (2, 2)}),
    ((2, 9, 10, 40), (72, 40, 1, 1), {"pads": (1, 0, 0, 2)}),
    ((3, 1, 1, 600), (150, 600, 1, 1), {}),
    ((3, 3, 3, 24), (64, 24, 3, 3), {}),
    ((2, 17, 24), (80, 24, 3), {"pads": (1, 1)}),
    ((2, 30, 24), (16, 24, 4), {"strides": (2,), "dilations": (3,)}),
    ((1, 4, 24), (3, 24, 4), {}),
    ((1, 5, 6, 0), (5, 0, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 5, 6, 4), (0, 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((0, 5, 6, 4), (8, 4, 3, 3), {}),
]


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("window", range(len(WINDOWS)))
def test_a_convolution_has_the_bits_of_the_whole_weight(window: int, zeros: float) -> None:
    image, shape, attrs = WINDOWS[window]
    rng = np.random.default_rng(window)
    weight, x = pruned(rng, shape, zeros), rng.standard_normal(image).astype(np.float32)
    bias = rng.standard_normal(len(weight)).astype(np.float32)
    for slots in SLOTS.values():
        assert same_bits(*convolve(x, weight, bias, attrs, slots))
    assert same_bits(*convolve(x, weight, None, attrs))


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions_have_the_bits_of_the_whole_weight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spatial = int(rng.integers(1, 3))

    def some(least: int, most: int, count: int = spatial) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(least, most + 1, count)))

    kernel, dilations, strides, pads = some(1, 3), some(1, 2), some(1, 3), some(0, 2, 2 * spatial)
    size = [(k - 1) * d + int(rng.integers(1, 12)) for k, d in zip(kernel, dilations, strict=True)]
    channels, columns = int(rng.choice([1, 3, 16, 40, 129])), int(rng.choice([1, 15, 16, 48, 64, 65, 150, 256]))
    weight = pruned(rng, (columns, channels, *kernel), rng.choice([0.3, 0.5, 0.8, 0.95]))
    wide = rng.standard_normal((int(rng.integers(1, 3)), *size, 2, channels)).astype(np.float32)
    x = wide[..., 1, :] if seed % 3 else np.ascontiguousarray(wide[..., 1, :])  # pixels with room between them
    bias = rng.standard_normal(columns).astype(np.float32) if seed % 2 else None
    slots = list(SLOTS.values())[seed % len(SLOTS)]
    assert same_bits(*convolve(x, weight, bias, {"strides": strides, "dilations": dilations, "pads": pads}, slots))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_zero_of_the_weight_meets_infinities_and_nan(kernel: int) -> None:
    """As the whole weight does: 0 times infinity is NaN."""
    rng = np.random.default_rng(kernel)
    weight = pruned(rng, (70, 24, kernel, kernel), 0.7)
    weight[5] = 0
    x = rng.standard_normal((1, 6, 7, 24)).astype(np.float32)
    x[0, 3, 2, 1], x[0, 0, 0, 9], x[0, 5, 6, 4] = np.inf, np.nan, -np.inf
    got, want = convolve(x, weight, None, {})
    assert np.isnan(want).any()
    np.testing.assert_array_equal(got, want)


def operands(**changed: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    masks, numbers = sparse(np.eye(8, 54, dtype=np.float32))
    found = {
        "x": np.ones((1, 5, 5, 6), np.float32), "masks": masks, "numbers": numbers, "bias": np.ones(8, np.float32),
        "columns": 8, "kernel_sizes": (3, 3), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "epilogue": (),
    } | changed  # fmt: skip
    return [found.pop(name) for name in ("x", "masks", "numbers", "bias")], found


def beyond() -> np.ndarray:
    masks = operands()[0][1].copy()
    masks[0, 5, 1] = 1  # of column 8
    return masks


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"numbers": np.zeros(7 + END, np.float32)}, "numbers: got 23, need 24, one for each bit of the masks and 16 more"),
    ({"numbers": np.zeros(9 + END, np.float32)}, "numbers: got 25, need 24"),
    ({"numbers": np.zeros((1, 24), np.float32)}, "ranks: got 2, 3 and 2"),
    ({"masks": beyond(), "numbers": np.zeros(9 + END, np.float32)}, "masks: got a bit of a column after the last one"),
    ({"masks": np.zeros((1, 53, 8), np.uint8)}, r"masks: got \(1, 53, 8\), need \(1, 54, 8\) for 8 columns"),
    ({"kernel_sizes": (3, 2)}, r"masks: got \(1, 54, 8\), need \(1, 36, 8\)"),
    ({"kernel_sizes": (3,)}, "kernel_sizes: got 1 values, need 2"),
    ({"kernel_sizes": (3, 0)}, "kernel_sizes: got 0, need 1"),
    ({"columns": -1}, "columns: got -1, need 0 or more"),
    ({"columns": 1 << 62}, "got"),
    ({"columns": 65}, r"need \(2, 54, 8\) for 65 columns"),
    ({"columns": 9}, "channels: got x 6, weight"),
    ({"strides": (1, 0)}, "strides: got 0, need 1"),
    ({"x": np.ones((6, 6), np.float32)}, "ranks: got 2 for x"),
    ({"bias": np.ones(7, np.float32)}, "bias"),
]


@pytest.mark.parametrize("constants", [[1, 2], []], ids=["constant", "changing"])
@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], told: str, constants: list[int]) -> None:
    """Before the convolution, or when it is asked for where the weight is no constant."""
    arrays, attrs = operands(**changed)
    with pytest.raises(Error, match=told):
        run("sparse_conv", arrays, [np.zeros((1, 3, 3, 8), np.float32)], attrs, constants=constants)


def test_the_reference_is_a_convolution_with_the_whole_weight() -> None:
    op, conv = hx.ops.OPS["cpu.sparse_conv"].ref, hx.ops.OPS["conv"].ref
    rng = np.random.default_rng(0)
    weight, x = pruned(rng, (70, 6, 3, 2), 0.5), rng.standard_normal((2, 6, 7, 8)).astype(np.float32)
    window = {"strides": (1, 2), "dilations": (2, 1), "pad": (1, 0, 1, 1), "layout": "nchw"}
    assert op is not None
    assert conv is not None
    y = op(x, *sparse(rows_of(weight)), weight[:, 0, 0, 0], columns=70, kernel_sizes=(3, 2), **window)
    np.testing.assert_allclose(y, conv(x, weight, weight[:, 0, 0, 0], groups=1, **window), rtol=1e-5, atol=1e-5)


def network(seed: int) -> tuple[Graph, np.ndarray]:
    """Pruned convolutions among other ops, in either layout."""
    rng = np.random.default_rng(seed)
    spatial = int(rng.integers(1, 3))
    layout = ["nchw", "nhwc"][seed % 2]
    size = tuple(map(int, rng.integers(3, 12, spatial)))
    axis = 1 if layout == "nchw" else -1
    values = [hx.input("x", (2, 48, *size) if layout == "nchw" else (2, *size, 48))]

    def conv(x: hx.Tensor, columns: int, kernel: int, **attrs: Any) -> hx.Tensor:
        shape = (columns, x.shape[axis] // attrs.get("groups", 1), *[kernel] * spatial)
        weight = pruned(rng, shape, rng.choice([0.0, 0.55, 0.9]))
        bias = [rng.standard_normal(columns).astype(np.float32)] if rng.random() < 0.5 else []
        return hx.conv(x, weight, *bias, layout=layout, **attrs)

    def scales(x: hx.Tensor) -> np.ndarray:
        shape = [1] * x.type.rank
        shape[axis] = x.shape[axis]
        return rng.standard_normal(shape).astype(np.float32)

    ways = [
        lambda x: conv(x, int(rng.choice([96, 128])), 1),
        lambda x: hx.relu(conv(x, x.shape[axis], 3, pad=1)) + x,
        lambda x: hx.clip(conv(x, 96, 3, pad=2, dilations=2), alpha=0.0, beta=6.0),
        lambda x: hx.silu(conv(x, 64, 3, pad=1, strides=2)),
        lambda x: conv(x, x.shape[axis], 1) * scales(x),
        lambda x: conv(x, x.shape[axis], 3, pad=1, groups=x.shape[axis]),
        lambda x: conv(x, x.shape[axis], 1, groups=2),
        lambda x: conv(conv(x, 200, 1), 48, 1),
    ]
    for way in rng.integers(0, len(ways), 5):
        values.append(ways[way](values[-1]))
    x = rng.standard_normal(values[0].shape).astype(np.float32)
    return hx.graph({"y": values[-1], "z": values[2]}), x


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_have_the_bits_of_whole_weights(seed: int) -> None:
    graph, x = network(seed)
    want = hx.compile(graph, threads=1, memory=hx.Memory(whole_weights=True))
    assert "sparse_conv" not in [step["kernel"] for step in want.steps]
    net = hx.compile(graph, threads=1 + seed % 2, memory=hx.Memory(rows=2) if seed % 3 == 2 else hx.Memory())
    for name, array in want(x).items():
        np.testing.assert_array_equal(net(x)[name], array)


@pytest.mark.parametrize("memory", [hx.Memory(rows=2), hx.Memory(sram=700_000)], ids=["rows", "sram"])
def test_rows_through_rings_have_the_bits_of_whole_weights(memory: hx.Memory) -> None:
    rng = np.random.default_rng(0)
    x = y = hx.input("x", (1, 16, 64, 64))
    for _ in range(3):
        y = hx.relu(hx.conv(y, pruned(rng, (64, y.shape[1], 3, 3), 0.6), pad=1))
    graph, given = hx.graph(hx.reduce_mean(y, axes=(2, 3))), rng.standard_normal(x.shape).astype(np.float32)
    net, at_once = hx.compile(graph, memory=memory), hx.compile(graph, memory=hx.Memory(whole_weights=True))
    assert [step["kernel"] for step in net.steps].count("sparse_conv") == 3
    assert net.memory["arena"] < 0.5 * at_once.memory["arena"]
    np.testing.assert_array_equal(net(given), at_once(given))


def test_a_weight_of_two_convolutions_is_stored_once() -> None:
    weight = pruned(np.random.default_rng(0), (64, 64, 3, 3), 0.6)
    x, shared = hx.input("x", (1, 64, 9, 8)), hx.const(weight)
    graph = hx.graph({"y": hx.conv(x, shared, pad=1), "z": hx.conv(x, shared, strides=2)})
    net = hx.compile(graph)
    assert [step["kernel"] for step in net.steps].count("sparse_conv") == 2
    assert net.memory["weights"] < 0.5 * weight.nbytes


@on_others
def test_each_instruction_set_has_the_bits_of_the_whole_weight(name: str) -> None:
    assert_passes_on(name, "(bits_of or infinities) and not instruction_set", [__file__])
