"""Long sums are about as close to the exact result as onnxruntime's, and the same for any number of threads.

A running total loses digits as it grows. Kernels add blocks of terms, and then the blocks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.importers.onnx import import_onnx
from onnx_models import by_onnxruntime, model, node

PEER = 2.0  # times onnxruntime's error
FLOOR = 2.0**-22  # of the result: two units in the last place
LENGTHS = (10_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.slow))

Data = Callable[..., Array]
Made = tuple[Any, dict[str, Array], dict[str, Array], Array]  # node, inputs, constants, exact result


def of_both_signs(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def of_one_sign(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).uniform(0, 1, shape).astype(np.float32)


def around_1000(*shape: int) -> Array:
    return 1000 + of_both_signs(*shape)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def matmul(rows: int, columns: int, constant: bool) -> Callable[[Data, int], Made]:
    def make(data: Data, k: int) -> Made:
        x, y = data(rows, k), data(k, columns)
        feeds, constants = ({"x": x}, {"y": y}) if constant else ({"x": x, "y": y}, {})
        return node("MatMul", "x y", "out"), feeds, constants, wide(x) @ wide(y)

    return make


def transposed(data: Data, k: int) -> Made:
    x, y = data(1, k), data(32, k)
    return node("Gemm", "x y", "out", transB=1), {"x": x, "y": y}, {}, wide(x) @ wide(y).T


def einsum(data: Data, k: int) -> Made:
    x, y = data(16, k), data(16, k)
    return node("Einsum", "x y", "out", equation="bk,bk->b"), {"x": x, "y": y}, {}, (wide(x) * wide(y)).sum(1)


def conv(channels: int, groups: int) -> Callable[[Data, int], Made]:
    """Each output is a sum of k terms; six neighbouring pixels."""

    def make(data: Data, k: int) -> Made:
        taps = k * groups // channels
        x, w = data(1, channels, taps + 5), data(channels, channels // groups, taps)
        split_x, split_w = wide(x).reshape(groups, -1, taps + 5), wide(w).reshape(groups, -1, channels // groups, taps)
        pixels = [np.einsum("gct,goct->go", split_x[..., i : i + taps], split_w) for i in range(6)]
        want = np.stack([p.ravel() for p in pixels], -1)[None]
        return node("Conv", "x w", "out", group=groups), {"x": x}, {"w": w}, want

    return make


def over(op: str, exact: Callable[[Array], Array], along: int, **attrs: Any) -> Callable[[Data, int], Made]:
    """A function of lines of k numbers, which lie along that axis."""

    def make(data: Data, k: int) -> Made:
        lines = data(8, k)
        x = lines if along else np.ascontiguousarray(lines.T)
        want = exact(wide(lines))
        return node(op, "x", "out", **attrs), {"x": x}, {}, want if along else want.T

    return make


def summed(data: Data, k: int) -> Made:
    x = data(8, k)
    made = node("ReduceSum", "x axes", "out", keepdims=1)
    return made, {"x": x}, {"axes": np.array([1])}, wide(x).sum(1, keepdims=True)


def log_sum_exp(x: Array) -> Array:
    top = x.max(1, keepdims=True)
    return np.log(np.exp(x - top).sum(1, keepdims=True)) + top


def normal(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def layer_norm(data: Data, k: int) -> Made:
    x, scale = data(8, k), np.ones(k, np.float32)
    return node("LayerNormalization", "x scale", "out"), {"x": x}, {"scale": scale}, normal(wide(x))


def instance_norm(data: Data, k: int) -> Made:
    x, scale, shift = data(1, 8, k), np.ones(8, np.float32), np.zeros(8, np.float32)
    return node("InstanceNormalization", "x s b", "out"), {"x": x}, {"s": scale, "b": shift}, normal(wide(x))


def average_pool(data: Data, k: int) -> Made:
    x = data(1, 8, k + 3)
    want = np.stack([wide(x)[..., i : i + k].mean(-1) for i in range(4)], -1)
    return node("AveragePool", "x", "out", kernel_shape=[k]), {"x": x}, {}, want


def cumsum(data: Data, k: int) -> Made:
    x = data(8, k)
    return node("CumSum", "x axis", "out"), {"x": x}, {"axis": np.array(1)}, wide(x).cumsum(1)


MADE = {
    "matmul": matmul(7, 20, constant=False),
    "matmul_constant": matmul(7, 20, constant=True),
    "row_times_matrix": matmul(1, 70, constant=False),
    "row_times_constant": matmul(1, 70, constant=True),
    "matrix_times_column": matmul(20, 1, constant=False),
    "row_times_transposed": transposed,
    "einsum": einsum,
    "conv": conv(16, 1),
    "conv_depthwise": conv(8, 8),
    "conv_groups_of_four": conv(8, 2),
    "reduce_sum": summed,
    "reduce_mean": over("ReduceMean", lambda x: x.mean(1, keepdims=True), 1, axes=[1]),
    "reduce_mean_of_columns": over("ReduceMean", lambda x: x.mean(1, keepdims=True), 0, axes=[0]),
    "reduce_l1": over("ReduceL1", lambda x: np.abs(x).sum(1, keepdims=True), 1, axes=[1]),
    "reduce_l2": over("ReduceL2", lambda x: np.sqrt((x * x).sum(1, keepdims=True)), 1, axes=[1]),
    "reduce_log_sum_exp": over("ReduceLogSumExp", log_sum_exp, 1, axes=[1]),
    "softmax": over("Softmax", lambda x: np.exp(x - log_sum_exp(x)), 1, axis=1),
    "softmax_of_columns": over("Softmax", lambda x: np.exp(x - log_sum_exp(x)), 0, axis=0),
    "log_softmax": over("LogSoftmax", lambda x: x - log_sum_exp(x), 1, axis=1),
    "layer_norm": layer_norm,
    "instance_norm": instance_norm,
    "average_pool": average_pool,
    "cumsum": cumsum,
}


def error(got: Array, want: Array) -> float:
    """The root of the mean square, of the largest magnitude."""
    return float(np.sqrt(np.mean((wide(got) - want) ** 2)) / np.abs(want).max())


def by_threads(graph: Any, *inputs: Array) -> Array:
    """The result, which has the same bits on one thread and on two."""
    first, second = (np.asarray(hx.compile(graph, threads=n)(*inputs)) for n in (1, 2))
    assert first.tobytes() == second.tobytes()
    return first


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("data", [of_both_signs, of_one_sign, around_1000])
@pytest.mark.parametrize("name", MADE)
def test_a_long_sum_is_as_close_as_onnxruntimes(name: str, data: Data, k: int) -> None:
    made, feeds, constants, want = MADE[name](data, k)
    proto = model([made], feeds, ["out"], constants, opset=17)
    got = by_threads(import_onnx(proto), *feeds.values())
    ours, peers = error(got, want), error(by_onnxruntime(proto, feeds)[0], want)
    print(f"{name} {data.__name__} {k}: {ours:.2e}, onnxruntime {peers:.2e}")
    assert ours <= np.fmax(PEER * peers, FLOOR)  # where onnxruntime before 1.24 has no number, the floor


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("data", [of_both_signs, of_one_sign, around_1000])
def test_rms_norm_of_a_long_row_is_exact_but_for_rounding(data: Data, k: int) -> None:
    x = data(4, k)
    want = wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5)
    got = by_threads(hx.graph(hx.rms_norm(hx.input("x", x.shape), axes=(1,), epsilon=1e-5)), x)
    assert error(got, want) <= FLOOR


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("k", LENGTHS[:2])
def test_attention_to_many_keys_is_exact_but_for_rounding(queries: int, k: int) -> None:
    rng = np.random.default_rng(1)
    query, key, value = (rng.standard_normal((2, n, 8)).astype(np.float32) for n in (queries, k, k))
    value += 10
    inputs = [hx.input(name, a.shape) for name, a in (("query", query), ("key", key), ("value", value))]
    graph = hx.graph(hx.scaled_dot_product_attention(*inputs))
    scores = wide(query) @ wide(key).swapaxes(1, 2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ wide(value)
    assert error(by_threads(graph, query, key, value), want) <= 2 * FLOOR


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("k", LENGTHS[:2])
def test_fp16_products_round_once_however_long(rows: int, k: int) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.uniform(0, 1, shape).astype(np.float16) for shape in ((rows, k), (k, 20)))
    x /= np.float16(k / 64)
    graph = hx.graph(hx.matmul(hx.input("x", x.shape, x.dtype), hx.input("y", y.shape, y.dtype)))
    got, want = by_threads(graph, x, y), wide(x) @ wide(y)
    assert np.abs(wide(got) - want).max() <= 0.501 * np.spacing(np.abs(want).max().astype(np.float16))
