"""A state that is replaced as a whole is computed where it lies, unless somebody still reads what it was."""

import numpy as np
import pytest

import hexane as hx

POSITION = np.array(0)


def kernels(net: hx.Model) -> list[str]:
    return [s["kernel"] for s in net.steps]


def compiled(outputs: dict[str, hx.Tensor], *updates: hx.Tensor) -> hx.Model:
    net = hx.compile(hx.graph(outputs, updates), threads=1)
    assert isinstance(net, hx.Model)
    return net


def test_an_elementwise_update_lies_over_the_state() -> None:
    x, s = hx.input("x", (4,)), hx.state("s", (4,))
    net = compiled({"y": x + 1.0}, hx.write_state(s, s * 0.5 + x, POSITION))
    assert "write_slice" not in kernels(net)
    for i in range(3):
        net(np.full(4, i, np.float32))
    np.testing.assert_array_equal(net.read_state("s"), np.full(4, 2.5, np.float32))


def test_a_product_that_does_not_read_the_state_is_computed_there() -> None:
    x, s = hx.input("x", (4, 4)), hx.state("s", (4, 4))
    net = compiled({"y": s + 1.0}, hx.write_state(s, hx.matmul(x, x), POSITION))
    assert "write_slice" not in kernels(net)
    array = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(net(array), np.ones((4, 4), np.float32))
    np.testing.assert_array_equal(net(array), array @ array + 1)


def test_a_product_that_reads_the_state_is_not() -> None:
    x, s = hx.input("x", (4, 4)), hx.state("s", init=np.eye(4, dtype=np.float32))
    net = compiled({"y": x + 1.0}, hx.write_state(s, hx.matmul(s, x), POSITION))
    assert "write_slice" in kernels(net)
    array = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
    for _ in range(3):
        net(array)
    np.testing.assert_allclose(net.read_state("s"), array @ array @ array, rtol=1e-6)


@pytest.mark.parametrize("late", [False, True])
def test_readers_of_the_old_contents_see_them(late: bool) -> None:
    """A reader that needs the update too comes after it."""
    x, s = hx.input("x", (4,)), hx.state("s", init=np.arange(4, dtype=np.float32))
    update = hx.exp(s + x)
    y = update - s if late else hx.reverse(s, axes=(0,)) * 2.0
    net = compiled({"y": y}, hx.write_state(s, update, POSITION))
    array = np.float32([0, 1, 0, -1])
    old = np.arange(4, dtype=np.float32)
    want = np.exp(old + array) - old if late else old[::-1] * 2
    np.testing.assert_allclose(net(array), want, rtol=1e-6)
    np.testing.assert_allclose(net.read_state("s"), np.exp(old + array), rtol=1e-6)


def test_a_part_of_a_state_is_written_from_elsewhere() -> None:
    x, s = hx.input("x", (1, 4)), hx.state("s", (3, 4))
    net = compiled({"y": s * 1.0}, hx.write_state(s, hx.relu(x), hx.input("at", (), "int32")))
    net(x=np.full((1, 4), 5, np.float32), at=np.array(2, np.int32))
    np.testing.assert_array_equal(net.read_state("s")[2], np.full(4, 5))


def test_constants_that_no_step_reads_have_no_memory() -> None:
    """The position of a write that is no step: its bytes lay over the first constant that is read."""
    x, s = hx.input("x", (4,), "int32"), hx.state("s", (4,), "int32")
    net = compiled({"y": x + hx.const(np.int32([7, 8, 9, 10]))}, hx.write_state(s, s + x, np.array(0)))
    np.testing.assert_array_equal(net(np.zeros(4, np.int32)), [7, 8, 9, 10])
