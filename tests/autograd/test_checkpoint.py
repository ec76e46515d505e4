"""hx.checkpoint: the same gradients, bit for bit, in less arena."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.runtime.mil import emit_pieces
from hexane.targets.query import load_chip

RNG = np.random.default_rng(3)
ROWS, WIDTH = 256, 16
ACTIVATION = ROWS * WIDTH * 4  # bytes
X = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
Around = Callable[..., Any]


def plain(f: Callable[..., Any], *xs: hx.Tensor) -> Any:
    return f(*xs)


def weights(count: int, width: int = WIDTH) -> list[hx.Tensor]:
    rng = np.random.default_rng(4)
    return [hx.param(f"w{i}", (rng.standard_normal((width, width)) / 4).astype(np.float32)) for i in range(count)]


def layer(x: hx.Tensor, w: hx.Tensor) -> hx.Tensor:
    return x + hx.tanh(hx.matmul(hx.gelu(hx.matmul(hx.rms_norm(x, axes=(1,)), w)), w))


def gradients(made: dict[str, hx.Tensor], wrt: list[hx.Tensor], **options: Any) -> tuple[dict[str, Array], int]:
    """Outputs and gradients of the sum of their squares, and the bytes of the arena."""
    loss = sum((hx.reduce_sum(hx.square(y)) for y in made.values()), hx.const(np.float32(0)))
    found = hx.grad(loss, wrt)
    outputs = {**made, **{f"d{i}": g for i, g in enumerate(found)}}
    net = hx.compile(hx.graph(outputs), threads=1, **options)
    assert isinstance(net, hx.Model)
    return net({"x": X}), net.memory["arena"]


def check(network: Callable[[Around, hx.Tensor, list[hx.Tensor]], dict[str, hx.Tensor]], count: int) -> tuple[int, int]:
    """Bytes of the arena without checkpoints and with; the bits are the same."""
    arenas, results = [], []
    for around in (plain, hx.checkpoint):
        x, ws = hx.input("x", (ROWS, WIDTH)), weights(count)
        result, arena = gradients(network(around, x, ws), [x, *ws])
        arenas.append(arena)
        results.append(result)
    np.testing.assert_equal(results[1], results[0])
    return arenas[0], arenas[1]


def test_a_deep_chain_keeps_one_activation_of_each_checkpoint() -> None:
    def network(around: Around, x: hx.Tensor, ws: list[hx.Tensor]) -> dict[str, hx.Tensor]:
        for w in ws:
            x = around(lambda x, w=w: layer(x, w), x)
        return {"y": x}

    without, with_checkpoints = check(network, 12)
    assert without > 12 * 3 * ACTIVATION
    assert with_checkpoints < (12 + 8) * ACTIVATION


def test_checkpoints_inside_checkpoints_keep_the_square_root() -> None:
    def network(around: Around, x: hx.Tensor, ws: list[hx.Tensor]) -> dict[str, hx.Tensor]:
        for i in range(0, 16, 4):

            def four(x: hx.Tensor, i: int = i) -> hx.Tensor:
                for w in ws[i : i + 4]:
                    x = around(lambda x, w=w: layer(x, w), x)
                return x

            x = around(four, x)
        return {"y": x}

    _, nested = check(network, 16)
    assert nested < (4 + 4 + 8) * ACTIVATION


def test_several_results_and_values_that_are_read_outside() -> None:
    def network(around: Around, x: hx.Tensor, ws: list[hx.Tensor]) -> dict[str, hx.Tensor]:
        before = hx.sigmoid(x)  # read inside, outside, and twice

        def f(x: hx.Tensor, y: hx.Tensor) -> tuple[hx.Tensor, hx.Tensor, hx.Tensor]:
            a = hx.tanh(hx.matmul(x * before, ws[0]))
            b = hx.exp(a * y) + before + ws[0][:1]
            return a, b * a, y

        a, b, y = around(f, x, before + 1.0)
        named = around(lambda a: {"c": hx.tanh(a) * b, "d": hx.sin(a)}, a)
        (last,) = around(lambda v: [hx.cos(hx.sin(v))], named["c"] + named["d"])
        return {"a": a + before * x, "b": b, "y": y, "last": last}

    check(network, 2 - 1)


def test_one_tensor_that_two_checkpoints_start_from() -> None:
    def network(around: Around, x: hx.Tensor, ws: list[hx.Tensor]) -> dict[str, hx.Tensor]:
        def f(x: hx.Tensor, w: hx.Tensor) -> hx.Tensor:
            return hx.matmul(hx.gelu(hx.rms_norm(x, axes=(1,))), w)  # the first two ops are the same nodes in both

        return {"y": around(f, x, ws[0]) * around(f, x, ws[1]), "z": around(lambda x: x, x)}

    check(network, 2)


def test_convolutions_keep_their_layout() -> None:
    results = []
    for around in (plain, hx.checkpoint):
        x = hx.input("x", (ROWS, WIDTH))
        ws = [hx.param(f"k{i}", np.random.default_rng(i).standard_normal((c, d, 3, 3)).astype(np.float32) / 8)
              for i, (c, d) in enumerate(((8, 1), (8, 8), (8, 8)))]  # fmt: skip

        y = hx.reshape(x, shape=(1, 1, 64, 64))
        for w in ws:
            y = around(lambda y, w=w: hx.relu(hx.conv(y, w, pad=1)), y)
        loss = hx.reduce_sum(hx.square(hx.max_pool(y, kernel_sizes=2, strides=2)))
        net = hx.compile(hx.graph({f"d{i}": g for i, g in enumerate(hx.grad(loss, ws))}), threads=1)
        assert isinstance(net, hx.Model)
        results.append((net({"x": X}), sum(step["kernel"] in ("copy", "transpose") for step in net.steps)))
    (want, copies), (got, more) = results
    np.testing.assert_equal(got, want)
    assert more == copies


def test_a_dropout_drops_the_same_elements_again() -> None:
    results = []
    for around in (plain, hx.checkpoint):
        x, ws, stream = hx.input("x", (ROWS, WIDTH)), weights(1), hx.stream(7, "drop")
        y = around(lambda x, ws=ws, s=stream: hx.tanh(hx.dropout(hx.tanh(hx.matmul(x, ws[0])), s, p=0.5)), x)
        y = y * 2.0
        net = hx.compile(hx.graph({"y": y, "dx": hx.grad(hx.reduce_sum(hx.square(y)), x)}), threads=1)
        assert isinstance(net, hx.Model)
        results.append([net({"x": X}) for _ in range(3)])
    np.testing.assert_equal(results[1], results[0])
    assert not np.array_equal(results[1][0]["y"], results[1][1]["y"])


def test_a_gradient_of_a_gradient() -> None:
    results = []
    for around in (plain, hx.checkpoint):
        x = hx.input("x", (ROWS, WIDTH))
        y = around(lambda x: hx.tanh(hx.sin(x) * x), x)
        first = hx.grad(hx.reduce_sum(y), x)
        second = hx.grad(hx.reduce_sum(hx.square(first)), x)
        results.append(hx.compile(hx.graph({"second": second}))({"x": X}))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("memory", [hx.Memory(rows=1), hx.Memory(hold_ports=True)], ids=["rows", "ports"])
def test_other_ways_of_using_memory_have_the_same_bits(memory: hx.Memory) -> None:
    results = []
    for options in ({}, {"memory": memory}):
        x, ws = hx.input("x", (ROWS, WIDTH)), weights(3)
        y = x
        for w in ws:
            y = hx.checkpoint(layer, y, w)
        results.append(gradients({"y": y}, [x, *ws], **options)[0])
    np.testing.assert_equal(results[1], results[0])


def test_the_text_of_a_graph_keeps_what_is_computed_again() -> None:
    x, ws = hx.input("x", (ROWS, WIDTH)), weights(1)
    y = hx.checkpoint(layer, x, ws[0])
    graph = hx.graph({"y": y, "dx": hx.grad(hx.reduce_sum(hx.square(y)), x)})
    assert "checkpointed" in str(graph)
    again = hx.parse(str(graph), graph.constants())
    one, other = hx.compile(graph, threads=1), hx.compile(again, threads=1)
    assert isinstance(one, hx.Model)
    assert isinstance(other, hx.Model)
    assert [step["kernel"] for step in one.steps] == [step["kernel"] for step in other.steps]
    np.testing.assert_equal(other({"x": X}), one({"x": X}))


def test_a_chip_computes_it_once() -> None:
    kernels = []
    for around in (plain, hx.checkpoint):
        x = hx.input("x", (ROWS, WIDTH))
        y = around(lambda x: hx.tanh(hx.matmul(x, hx.tanh(x), transpose_y=True)), x)
        net = hx.compile(hx.graph({"dx": hx.grad(hx.reduce_sum(y), x)}), target="h13", device="cpu")
        assert isinstance(net, hx.Model)
        kernels.append([step["kernel"] for step in net.steps])
    assert kernels[1] == kernels[0]


def test_an_update_of_a_state_stays_right() -> None:
    """A state that a checkpoint starts from is read again before it is overwritten."""
    x, s = hx.input("x", (4,)), hx.state("s", init=np.ones(4, np.float32))
    y = hx.checkpoint(lambda x, s: hx.exp(hx.sin(x * s)), x, s)
    ds = hx.grad(hx.reduce_sum(y), s)
    net = hx.compile(hx.graph({"ds": ds}, [hx.write_state(s, s - ds, np.array(0))]), threads=1)
    assert isinstance(net, hx.Model)
    array, old = np.array([0.1, 0.2, 0.3, 0.4]), np.ones(4)
    for _ in range(3):
        want = np.exp(np.sin(array * old)) * np.cos(array * old) * array
        np.testing.assert_allclose(net(array.astype(np.float32)), want, rtol=1e-5)
        old = old - want
    np.testing.assert_allclose(net.read_state("s"), old, rtol=1e-5)


def test_random_ops_draw_once_and_states_are_written_once() -> None:
    results = []
    for around in (plain, hx.checkpoint):
        x, s = hx.input("x", (ROWS, WIDTH)), hx.state("s", (ROWS, WIDTH))
        stream = hx.stream(7, "noise")

        def f(x: hx.Tensor, s: hx.Tensor = s, stream: hx.Tensor = stream) -> hx.Tensor:
            noise = hx.bernoulli(hx.sigmoid(x), stream)
            written = hx.write_state(s, hx.stop_gradient(hx.sin(x) * noise + s), np.array(0))
            return hx.tanh(hx.stop_gradient(written) * x)

        y = around(f, x)
        net = hx.compile(hx.graph({"y": y, "dx": hx.grad(hx.reduce_sum(hx.square(y * x)), x)}), threads=1)
        assert isinstance(net, hx.Model)
        results.append([*(net({"x": X}) for _ in range(3)), net.read_state("s")])
    np.testing.assert_equal(results[1], results[0])


def test_ops_that_passes_fuse_are_fused_as_without_a_checkpoint() -> None:
    """silu written out: the backward pass reads the sigmoid, with a checkpoint too."""

    def network(around: Around, x: hx.Tensor, ws: list[hx.Tensor]) -> dict[str, hx.Tensor]:
        for w in ws:
            x = around(lambda x, w=w: hx.matmul(x * hx.sigmoid(x), w), x)
            x = around(lambda x: (x - hx.reduce_mean(x, axes=(1,))) * hx.sigmoid(x), x)
        return {"y": x}

    check(network, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: hx.checkpoint(lambda x: 3.0, x), "result of f: got float, need a tensor, or several in a list"),
        (lambda x: hx.checkpoint(lambda x: (x, None), x), "result 1 of f: got NoneType, need a tensor"),
        (lambda x: hx.checkpoint(lambda x: {"y": [x]}, x), "result 'y' of f: got list, need a tensor"),
        (lambda x: hx.checkpoint(lambda x, y: x, x, 2.0), "argument 1 of f: got float, need a tensor"),
        (lambda x: hx.checkpoint(lambda: x), "got no tensors for f"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_checkpoint_is_an_error(make: Callable[[hx.Tensor], Any], message: str) -> None:
    with pytest.raises(hx.Error, match=rf"\[checkpoint at .*\] .*{message}"):
        make(hx.input("x", (4,)))


def test_the_inside_of_a_checkpoint_may_be_a_constant() -> None:
    x = hx.input("x", (3,))
    inside = hx.checkpoint(lambda t: hx.relu(t) * 2, hx.const(np.array([1, -1, 3], np.float32)))
    net = hx.compile(hx.graph(x + inside))
    np.testing.assert_array_equal(net(np.ones(3, np.float32)), [3, 1, 7])


def test_a_constant_that_starts_from_an_input_is_no_program_of_a_chip() -> None:
    x = hx.input("x", (3,), "fp16")
    ends = hx.checkpoint(lambda t: (hx.param("w", np.ones(2, np.float16)), t), x)
    graph = hx.graph({"y": hx.relu(x), "w": ends[0]})
    _, pieces = emit_pieces(graph, load_chip("h13"))
    assert [[port.user_name for port in piece.mil.outputs] for piece in pieces if piece.mil is not None] == [["y"]]
    net = hx.compile(graph, target="h13", device="cpu")
    assert {name: list(a) for name, a in net(x=np.ones(3, np.float16)).items()} == {"y": [1, 1, 1], "w": [1, 1]}
