"""Programs built to break the compiler: memory that is shared, overwritten or empty, passes that meet. Each once failed
or was meant to; all are compared with the reference, with and without the passes that touch them."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane.dtypes import FP32
from hexane.graph import Array, Graph
from hexane.ops.reference import run_reference
from hexane.runtime.model import PortType
from hexane.runtime.open_model import OpenModel


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def feeds_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(11)
    return {
        str(v.node.attrs["name"]): np.asarray(rng.integers(-3, 4, v.shape)).astype(v.dtype.numpy) for v in graph.inputs
    }


def assert_computes(outputs: Any, updates: Sequence[hx.Tensor] = (), calls: int = 1) -> None:
    """The compiled graph gives what the reference gives, in several calls where there are states."""
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


# ---- dtypes without kernels ----


@pytest.mark.parametrize("dtype", ["fp8e4m3", "uint64"])
def test_a_dtype_that_no_kernel_takes_is_refused_when_compiled(dtype: str) -> None:
    with pytest.raises(
        hx.Error, match=rf"abs: got {dtype}->{dtype} .*fp32->fp32.*; cast first .*test_adversarial\.py:\d+"
    ):
        hx.compile(hx.abs(hx.input("x", (3,), dtype)))


@pytest.mark.parametrize("dtype", ["int4", "uint1"])
def test_a_dtype_smaller_than_a_byte_is_refused_when_compiled(dtype: str) -> None:
    with pytest.raises(
        hx.Error, match=rf"\[input at test_adversarial\.py:\d+\] got the dtype {dtype}, need one of whole"
    ):
        hx.compile(hx.reshape(hx.input("x", (4,), dtype), shape=(2, 2)))


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "uint16", "int8"])
def test_any_dtype_of_whole_bytes_is_cast_and_moved(dtype: str) -> None:
    x = hx.input("x", (2, 3), dtype)
    moved = hx.concat(hx.transpose(x), hx.reshape(x, shape=(3, 2))[::2], axis=0)
    graph = hx.graph([moved, hx.cast(hx.cast(moved, dtype="fp32") + 1.0, dtype=dtype)])
    values = np.arange(6).reshape(2, 3).astype(graph.inputs[0].dtype.numpy)
    want = run_reference(graph, {"x": values})
    for name, array in hx.compile(graph, threads=1)(values).items():
        assert array.tobytes() == want[name].tobytes()


# ---- channels last ----


def square_image() -> hx.Tensor:
    """Channels, rows, columns and images are equally many, so shapes do not show that two axes are confused."""
    return hx.conv(hx.input("x", (4, 4, 4, 4)), normal(4, 4, 3, 3), pad=1)


LAYOUTS: dict[str, Callable[[hx.Tensor], Any]] = {
    "a bias for rows": lambda y: y + normal(4, 1),
    "a bias for columns": lambda y: y + normal(4),
    "a bias for images": lambda y: y + normal(4, 1, 1, 1),
    "a bias for channels": lambda y: y + normal(1, 4, 1, 1),
    "scales for rows, then channels": lambda y: (y * normal(4, 1)) * normal(4, 1, 1),
    "a wider operand": lambda y: y + hx.const(normal(2, 1, 4, 1, 1)),
    "a value of lower rank that moved": lambda y: y + hx.reduce_sum(y, axes=(0,), keep_dims=False),
    "a value of one element": lambda y: y * hx.reduce_max(y) - hx.reduce_min(y, keep_dims=False),
    "reduced to rows": lambda y: hx.reduce_sum(y, axes=(1, 3), keep_dims=False) + normal(4),
    "reduced to channels": lambda y: hx.reduce_sum(y, axes=(0, 2, 3), keep_dims=False) + normal(4),
    "reduced to channels and rows": lambda y: hx.reduce_max(y, axes=(3,), keep_dims=False) + normal(4, 1),
    "reduced to rows and columns": lambda y: hx.reduce_max(y, axes=(1,), keep_dims=False) * normal(4, 4),
    "reduced and kept": lambda y: y - hx.reduce_mean(y, axes=(1,)) + hx.reduce_mean(y, axes=(2,)),
    "argmax of channels": lambda y: [hx.reduce_argmax(y, axis=1), hx.reduce_argmin(y, axis=3, keep_dims=True)],
    "softmax of channels": lambda y: hx.softmax(y, axis=1) + hx.log_softmax(y, axis=2),
    "sums along channels": lambda y: hx.cumsum(y, axis=1, exclusive=True, reverse=True) + hx.cumsum(y, axis=3),
    "slopes for channels": lambda y: hx.prelu(y, np.abs(normal(4, 1, 1))),
    "slopes for columns": lambda y: hx.prelu(y, np.abs(normal(4))),
    "a choice for channels": lambda y: hx.select(normal(4, 1, 1) > 0, y, hx.neg(y)),
    "a choice by a moved value": lambda y: hx.select(y > 0.0, normal(4, 1), y),
    "a choice of what is smaller": lambda y: hx.select(y > 0.0, hx.const(1.0), hx.const(normal(4, 1))),
    "a norm of rows": lambda y: hx.batch_norm(y, normal(4), np.abs(normal(4)) + 1, axis=2),
    "a norm of the last axis": lambda y: hx.layer_norm(y, normal(4), normal(4)),
    "a norm of images": lambda y: hx.instance_norm(y, normal(4)) + hx.local_response_norm(y, size=3, axis=1, alpha=0.5),
    "a pad of each axis": lambda y: hx.pad(y, begin=(0, 1, 2, 0), end=(1, 0, -1, 2), mode="constant", value=3.0),
    "a slice of each axis": lambda y: y[1:3, ::2, 1:, :3],
    "channels joined": lambda y: hx.concat(y, hx.const(normal(4, 2, 4, 4)), hx.exp(y * 0.1), axis=1),
    "rows joined to what did not move": lambda y: hx.concat(y, hx.input("z", (4, 4, 3, 4)), axis=2),
    "channels split": lambda y: [hx.relu(p) for p in hx.split(y, axis=1, split_sizes=(1, 3))],
    "channels stacked": lambda y: hx.stack(y, hx.relu(y), axis=1),
    "transposed to and fro": lambda y: hx.transpose(hx.relu(hx.transpose(y, perm=(0, 2, 3, 1))), perm=(0, 3, 1, 2)),
    "transposed otherwise": lambda y: hx.relu(hx.transpose(y, perm=(1, 3, 0, 2))),
    "rows and columns merged": lambda y: hx.softmax(hx.reshape(y, shape=(4, 4, 16))) @ normal(16, 3),
    "channels merged": lambda y: hx.relu(hx.reshape(y, shape=(4, 16, 4))),
    "channels in two": lambda y: hx.relu(hx.reshape(y, shape=(4, 2, 2, 4, 4))),
    "axes added": lambda y: hx.relu(hx.expand_dims(y, axes=(1,))) + hx.expand_dims(y, axes=(2,)),
    "flattened": lambda y: hx.linear(hx.flatten(y), normal(3, 64)),
    "a product of images": lambda y: y @ hx.relu(y) + hx.matmul(y, y, transpose_x=True),
    "shuffled": lambda y: [hx.pixel_shuffle(y, upscale_factor=2), hx.space_to_depth(y, block_size=2)],
    "gathered": lambda y: hx.gather(y, np.array([3, 1, 1]), axis=1) + hx.reverse(y, axes=(1, 2))[:, :3],
    "tiled": lambda y: hx.tile(hx.relu(y), reps=(1, 2, 1, 2)),
    "cast and compared": lambda y: [hx.cast(hx.round(y), dtype="int32"), hx.greater(y, normal(4, 1, 1))],
    "pooled, and read plain": lambda y: [hx.max_pool(y, kernel_sizes=2), hx.transpose(hx.avg_pool(y, kernel_sizes=3))],
    "channels last by the user": lambda y: hx.conv(y, normal(4, 4, 1, 1), layout="nhwc") + normal(1, 4, 1, 1),
    "channels last by the user, biased": lambda y: hx.conv(y, normal(4, 4, 1, 1), layout="nhwc") + normal(4),
    "channels last by the user, scaled": lambda y: hx.conv(y, normal(4, 4, 1, 1), layout="nhwc") * normal(4, 1, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_op_behind_a_convolution_keeps_its_axes(name: str) -> None:
    assert_computes(LAYOUTS[name](square_image()))


# ---- threads ----


def test_threads_that_bring_the_same_shapes_share_one_compilation() -> None:
    compiled: list[hx.Model] = []

    def specialise(shapes: Any, _: Any) -> hx.Model:
        compiled.append(hx.compile(hx.relu(hx.input("x", shapes["x"])), threads=1))
        return compiled[-1]

    net = OpenModel((PortType("x", (None,), FP32),), ("relu",), frozenset(), specialise, hx.Memory())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: net(np.full(3 + i % 2, i, np.float32)), range(64)))
    assert len(compiled) == 2
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(3 + i % 2, i, np.float32))
