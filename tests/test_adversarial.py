"""Programs built to break the compiler: memory that is shared, overwritten or empty, passes that meet. Each once failed or
was meant to; all are compared with the reference, with and without the passes that touch them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.graph import Array, Graph
from hexane.reference import run_reference


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def feeds_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    return {
        str(v.node.attrs["name"]): np.asarray(rng.integers(-3, 4, v.shape)).astype(v.dtype.numpy) for v in graph.inputs
    }


def assert_computes(outputs: Any, updates: Sequence[hx.Tensor] = (), calls: int = 1) -> None:
    """What is compiled does what the reference does, in several calls where states remember."""
    graph = hx.graph(outputs, updates)
    net = hx.compile(graph, threads=1)
    feeds, states = feeds_of(graph), {}
    for _ in range(calls):
        want = run_reference(graph, feeds, states)
        got = net(feeds)
        for name, array in want.items():
            assert_close(got if isinstance(got, np.ndarray) else got[name], array)


# ---- nothing in it ----


def test_a_padded_convolution_of_no_channels_is_its_bias() -> None:
    x = hx.input("x", (1, 0, 5, 11))
    assert_computes(hx.conv(x, np.zeros((2, 0, 1, 3), "f"), bias=normal(2), pad=(0, 0, 1, 2)))


def test_an_empty_concatenation_stays_inside_its_memory() -> None:
    x = hx.input("x", (0, 3, 4))
    y = hx.concat(hx.exp(x), hx.tanh(x), axis=1)
    assert_computes([hx.transpose(y), hx.concat(hx.relu(x[:, :0]), hx.neg(x[:, :0]), axis=1)])


def test_a_convolution_of_no_batches_is_empty() -> None:
    x = hx.input("x", (0, 3, 5, 5))
    assert_computes([hx.conv(x, normal(4, 3, 2, 2)), hx.conv_transpose(x, normal(3, 4, 2, 2), groups=1)])


def test_no_coordinates_gather_nothing() -> None:
    x = hx.input("x", (1, 0))
    assert_computes(hx.gather_nd(x, np.zeros((3, 1), np.int64)))


def test_a_transposed_convolution_of_nothing_is_refused() -> None:
    with pytest.raises(hx.Error, match="need positive extents"):
        hx.conv_transpose(hx.input("x", (1, 1, 0, 3)), normal(1, 1, 3, 3), strides=2)


def test_the_error_function_of_a_constant_scalar_is_folded() -> None:
    assert_computes(hx.input("x", (3,)) + hx.gelu(hx.erf(hx.const(0.25))))


# ---- memory that is shared ----


def image() -> hx.Tensor:
    return hx.conv(hx.input("x", (1, 3, 6, 5)), normal(4, 3, 3, 3), pad=1)


def twice_in_a_concat() -> Any:
    y = hx.exp(hx.input("x", (2, 3)) * 0.5)
    return hx.concat(y, y, hx.neg(y), axis=1)


def concat_of_concats() -> Any:
    x = hx.input("x", (2, 3))
    inner = hx.concat(hx.exp(x), hx.tanh(x), axis=0)
    return hx.concat(inner, hx.concat(hx.neg(inner), inner, axis=1), axis=1)


def concat_that_is_an_output_and_read_on() -> Any:
    x = hx.input("x", (2, 3))
    a, b = hx.exp(x), hx.tanh(x)
    joined = hx.concat(a, b, axis=1)
    return [joined, hx.relu(joined), hx.relu(a), hx.reshape(joined, shape=(12,)), hx.reshape(joined, shape=(3, 4))]


def reshape_of_what_is_embedded() -> Any:
    x = hx.input("x", (2, 3))
    a = hx.exp(x)
    return [hx.concat(a, hx.tanh(x), axis=1), hx.reshape(a, shape=(6,)), a]


def in_place_over_what_a_view_still_reads() -> Any:
    x = hx.input("x", (4, 4))
    a = hx.exp(x)
    window = a[1:3]
    b = hx.relu(a)
    return [b * 2.0, window + hx.transpose(b)[:2]]


def in_place_over_what_a_concat_still_reads() -> Any:
    x = hx.input("x", (2, 3))
    a = hx.exp(x)
    b = hx.tanh(a)
    c = hx.neg(b)
    return hx.concat(c, a, b, axis=0)


def concat_of_one() -> Any:
    a = hx.exp(hx.input("x", (2, 3)))
    joined = hx.concat(a, axis=0)
    return [hx.neg(joined), hx.tanh(a), joined]


def concat_with_nothing() -> Any:
    a = hx.exp(hx.input("x", (2, 3)))
    joined = hx.concat(a, a[:, :0], hx.relu(a[:, :0]), axis=1)
    return [hx.neg(joined), hx.tanh(a)]


def concat_of_an_input_a_constant_and_a_view() -> Any:
    x = hx.input("x", (2, 3))
    return [hx.concat(x, hx.const(normal(2, 3)), hx.transpose(hx.exp(hx.input("y", (3, 2)))), axis=0), x]


def both_operands_in_one_buffer() -> Any:
    a = hx.exp(hx.input("x", (4, 4)) * 0.5)
    return [a + hx.transpose(a), hx.maximum(a[:2], a[2:])]


def the_same_operand_twice() -> Any:
    a = hx.exp(hx.input("x", (4, 4)) * 0.5)
    b = a * a
    return b - b


def outputs_that_are_one_value() -> Any:
    x = hx.input("x", (2, 6))
    a = hx.exp(x)
    flat = hx.reshape(a, shape=(12,))
    return [flat, a, a, flat, hx.reshape(flat, shape=(3, 4)), x, hx.reshape(x, shape=(12,)), hx.const(normal(2))]


def an_output_read_through_a_view_later() -> Any:
    a = hx.exp(hx.input("x", (2, 6)))
    return [a, hx.relu(a), hx.tanh(hx.transpose(a)), hx.softmax(a[:, ::2])]


def a_broadcast_that_is_an_operand_of_everything() -> Any:
    a = hx.broadcast_to(hx.exp(hx.input("x", (3, 1))), shape=(2, 3, 4))
    return [hx.relu(a), a + 1.0, hx.reshape(a, shape=(6, 4)), hx.matmul(a, normal(4, 2)), hx.concat(a, a, axis=0), a]


def channels_split_and_joined_again() -> Any:
    y = image()
    a, b, c = hx.split(y, axis=1, split_sizes=(1, 0, 3))
    return hx.conv(hx.concat(hx.relu(c), b, hx.exp(a), c, axis=1), normal(2, 7, 1, 1))


def dense_connections() -> Any:
    y = image()
    for _ in range(3):
        y = hx.concat(y, hx.relu(hx.conv(y, normal(2, y.shape[1], 3, 3), pad=1)), axis=1)
    return [y, hx.max_pool(y, kernel_sizes=2)]


def a_residual_inside_a_concat() -> Any:
    y = image()
    z = hx.relu(hx.conv(y, normal(4, 4, 3, 3), pad=1) + y)
    return hx.concat(y, z, axis=1)


def two_convolutions_added() -> Any:
    y = image()
    a, b = hx.conv(y, normal(4, 4, 1, 1)), hx.conv(y, normal(4, 4, 3, 3), pad=1)
    return hx.relu(hx.relu(a) + b) + hx.tanh(y)


def activations_one_after_the_other() -> Any:
    y = image()
    for op in (hx.relu, hx.tanh, hx.square, hx.sigmoid, hx.neg, hx.exp):
        y = op(y)
    return y


def an_intermediate_that_is_an_output() -> Any:
    y = image()
    z = y + normal(4, 1, 1)
    return [hx.relu(z), z, hx.relu(z) + y]


def several_results_of_which_some_are_unused() -> Any:
    values, indices = hx.topk(hx.exp(hx.input("x", (3, 7))), k=3)
    more, _ = hx.topk(hx.input("x2", (3, 7)), k=2)
    return [hx.neg(values), hx.concat(more, values, axis=1), indices]


SHARING = (
    twice_in_a_concat, concat_of_concats, concat_that_is_an_output_and_read_on, reshape_of_what_is_embedded,
    in_place_over_what_a_view_still_reads, in_place_over_what_a_concat_still_reads, concat_of_one, concat_with_nothing,
    concat_of_an_input_a_constant_and_a_view, both_operands_in_one_buffer, the_same_operand_twice, outputs_that_are_one_value,
    an_output_read_through_a_view_later, a_broadcast_that_is_an_operand_of_everything, channels_split_and_joined_again,
    dense_connections, a_residual_inside_a_concat, two_convolutions_added, activations_one_after_the_other,
    an_intermediate_that_is_an_output, several_results_of_which_some_are_unused,
)  # fmt: skip


@pytest.mark.parametrize("make", SHARING, ids=lambda f: f.__name__)
def test_shared_memory_keeps_what_is_still_read(make: Callable[[], Any]) -> None:
    assert_computes(make())


# ---- states ----


def state(name: str = "s", shape: tuple[int, ...] = (6, 2)) -> hx.Tensor:
    return hx.state(name, init=normal(*shape))


def write(old: hx.Tensor, update: Any, at: int = 0, axis: int = 0) -> hx.Tensor:
    return hx.write_state(old, update, hx.const(np.array(at, np.int32)), axis=axis)


def written_and_read_before_and_after() -> Any:
    s = state()
    w = write(s, hx.input("x", (2, 2)), 1)
    return [s * 2.0, w * 3.0, s, w, hx.reshape(s, shape=(12,)), hx.transpose(w)]


def written_twice_with_views_between() -> Any:
    s = state()
    x = hx.input("x", (2, 2))
    first = write(s, x)
    view = hx.transpose(first)[:, 1:]
    second = write(first, hx.neg(x), 3)
    return [view * 2.0, second, view, first, hx.reshape(second, shape=(3, 4)), s[::2]]


def shifted_onto_itself() -> Any:
    s = state()
    return write(write(s, s[1:], 0), hx.input("x", (1, 2)), 5)


def shifted_up() -> Any:
    s = state()
    return write(s, s[:-2], 2)


def transposed_onto_itself() -> Any:
    s = state(shape=(4, 4))
    return write(s, hx.transpose(s))


def reversed_onto_itself() -> Any:
    s = state()
    return write(s, hx.reverse(s, axes=(0,)))


def one_state_written_into_another() -> Any:
    a, b = state("a"), state("b")
    wrote = write(a, b[:3], 1)
    return [write(b, wrote[2:4], 0) + a, wrote]


def swapped() -> Any:
    a, b = state("a"), state("b")
    return [write(a, b * 1.0), write(b, a * 1.0)]


def a_product_of_old_and_new() -> Any:
    s = state(shape=(4, 4))
    x = hx.input("x", (4, 4))
    new = write(s, hx.tanh(x))
    return hx.matmul(x, new) + hx.matmul(x, s)


def a_product_of_old_and_an_activation_of_new() -> Any:
    s = state(shape=(4, 4))
    x = hx.input("x", (4, 4))
    return hx.relu(hx.matmul(x, hx.transpose(s)) + hx.exp(write(s, hx.tanh(x))))


def a_bias_made_from_what_is_written() -> Any:
    s = state(shape=(4, 4))
    x = hx.input("x", (4, 4))
    return hx.matmul(x, s) + write(s, hx.tanh(x))[0]


def an_image_that_remembers() -> Any:
    s = state(shape=(1, 3, 6, 5))
    y = hx.conv(s, normal(3, 3, 3, 3) * 0.1, pad=1)
    new = write(s, hx.tanh(y + hx.input("x", (1, 3, 6, 5))))
    return [y, hx.max_pool(new, kernel_sizes=2), hx.concat(new, y, axis=1)]


def the_old_times_the_new() -> Any:
    s = state(shape=(4,))
    return hx.tanh(s * write(s, hx.input("x", (1,)), 2))


def a_counter_that_says_where() -> Any:
    at, log = hx.state("at", (1,), "int32"), state()
    wrote = hx.write_state(log, hx.input("x", (1, 2)), at)
    return [wrote, hx.write_state(at, (at + 1) % 6, hx.const(np.array(0, np.int32)))]


def a_state_that_says_where_it_is_written() -> Any:
    s = hx.state("s", dtype="int32", init=np.array([2, 0, 1]))
    return hx.write_state(s, (s[:1] + 1) % 3, s[0])


STATES = (
    the_old_times_the_new, a_counter_that_says_where, a_state_that_says_where_it_is_written,
    written_and_read_before_and_after, written_twice_with_views_between, shifted_onto_itself, shifted_up,
    transposed_onto_itself, reversed_onto_itself, one_state_written_into_another, swapped, a_product_of_old_and_new,
    a_product_of_old_and_an_activation_of_new, a_bias_made_from_what_is_written, an_image_that_remembers,
)  # fmt: skip


@pytest.mark.parametrize("make", STATES, ids=lambda f: f.__name__)
def test_a_state_is_read_before_it_is_overwritten(make: Callable[[], Any]) -> None:
    assert_computes(make(), calls=3)
