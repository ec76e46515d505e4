"""Chains of steps streamed row by row: the bits of whole steps, in less memory."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.targets import load_target

HOST = load_target("host")


def weights(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def inverted_residual(height: int = 20, stride: int = 1, residual: bool = False) -> hx.Graph:
    """MobileNetV2's block: six times as wide inside, a 3x3 window on each channel, narrow again."""
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 8, height, 12))
    y = hx.clip(hx.conv(x, weights(rng, 48, 8, 1, 1), bias=weights(rng, 48)), alpha=0.0, beta=6.0)
    y = hx.clip(hx.conv(y, weights(rng, 48, 1, 3, 3), pad=1, strides=stride, groups=48), alpha=0.0, beta=6.0)
    y = hx.conv(y, weights(rng, 8, 48, 1, 1), bias=weights(rng, 8))
    return hx.graph({"y": y + x if residual else y})


def random_chain(seed: int) -> hx.Graph:
    """Convolutions, pools and elementwise ops one after the other, on images of any height."""
    rng = np.random.default_rng(seed)
    channels, height = int(rng.integers(1, 9)), int(rng.integers(5, 40))
    y = hx.input("x", (1, channels, height, int(rng.integers(3, 12))))
    for _ in range(int(rng.integers(2, 7))):
        kind = int(rng.integers(5))
        window = {"strides": int(rng.integers(1, 3)), "dilations": int(rng.integers(1, 3))}
        if kind == 0:
            channels, before = int(rng.integers(1, 40)), channels
            y = hx.conv(y, weights(rng, channels, before, 1, 1), bias=weights(rng, channels))
        elif kind == 1:
            y = hx.conv(y, weights(rng, channels, 1, 3, 3), pad=int(rng.integers(1, 3)), groups=channels, **window)
        elif kind == 2:
            y = hx.conv(y, weights(rng, channels, channels, 3, 3), pad=2, **window)
        elif kind == 3:
            y = hx.max_pool(y, kernel_sizes=3, strides=1, pad=1)
        else:
            y = hx.tanh(y) if rng.integers(2) else y + weights(rng, 1, channels, 1, 1)
        if y.shape[2] < 3:
            break
    return hx.graph({"y": y} if rng.integers(2) else {"y": y, "sum": hx.reduce_sum(y, axes=(2, 3)) + 1.0})


def compiled(graph: hx.Graph, rows: int) -> Program:
    return compile_graph(graph, HOST, stream_rows=rows)


def run(program: Program, threads: int = 1) -> list[Any]:
    core = _core.Program(emit_plan(program), threads)
    rng = np.random.default_rng(3)
    return core.run([rng.standard_normal(port["shape"]).astype(np.float32) for port in core.inputs])


def assert_same_bits(graph: hx.Graph, streamed: Program) -> None:
    want = run(compiled(graph, 0))
    for threads in (1, 2):
        for a, b in zip(run(streamed, threads), want, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 50])
@pytest.mark.parametrize(
    ("height", "stride", "residual"), [(20, 1, False), (21, 2, False), (7, 1, True), (20, 2, False)]
)
def test_a_block_of_mobilenet_has_the_same_bits(height: int, stride: int, residual: bool, rows: int):
    graph = inverted_residual(height, stride, residual)
    assert_same_bits(graph, compiled(graph, rows))


@pytest.mark.parametrize("seed", range(60))
def test_random_chains_have_the_same_bits(seed: int):
    graph = random_chain(seed)
    for rows in (1, 2, 5):
        assert_same_bits(graph, compiled(graph, rows))


def test_random_chains_are_streamed_at_all():
    assert sum(bool(compiled(random_chain(seed), 1).loops) for seed in range(60)) > 15


def test_what_lies_between_the_steps_is_a_ring_of_a_few_rows():
    whole, streamed = compiled(inverted_residual(), 0), compiled(inverted_residual(), 1)
    (loop,) = streamed.loops
    rings = [step.outputs[0].ring for step in streamed.steps[loop.first : loop.first + len(loop.moves)]]
    assert rings == [1, 3, 1, 0]  # the input with channels last, what the window reads, what the last product reads
    assert streamed.extents["arena"].bytes < 0.35 * whole.extents["arena"].bytes


def test_a_value_with_two_readers_is_not_a_ring():
    x = hx.input("x", (1, 4, 16, 8))
    wide = hx.conv(x, np.ones((24, 4, 1, 1), np.float32))
    y = hx.conv(wide, np.ones((4, 24, 1, 1), np.float32)) + hx.conv(hx.tanh(wide), np.ones((4, 24, 1, 1), np.float32))
    graph = hx.graph({"y": y})
    streamed = compiled(graph, 1)
    assert all(view.ring == 0 for step in streamed.steps for view in step.outputs if view.type.shape[-1] == 24)
    assert_same_bits(graph, streamed)


def test_images_of_a_batch_are_not_streamed():
    x = hx.input("x", (2, 4, 16, 8))
    wide = hx.conv(x, np.ones((24, 4, 1, 1), np.float32))
    graph = hx.graph({"y": hx.conv(wide, np.ones((4, 24, 3, 3), np.float32), pad=1)})
    assert not compiled(graph, 1).loops


def test_compile_streams_where_it_is_told_to():
    graph = inverted_residual()
    x = np.random.default_rng(3).standard_normal((1, 8, 20, 12)).astype(np.float32)
    whole, streamed = hx.compile(graph, threads=1), hx.compile(graph, threads=1, stream_rows=2)
    assert streamed.memory["arena"] < whole.memory["arena"]
    assert streamed(x).tobytes() == whole(x).tobytes()


@pytest.mark.parametrize("rows", [-1, 1.5, True])
def test_a_wrong_number_of_rows_is_refused(rows: Any):
    with pytest.raises(hx.Error, match="stream_rows: got"):
        hx.compile(inverted_residual(), stream_rows=rows)
