"""What single operations of Core AI compute, against NumPy; the whole of them is in test_coreai_cases.py."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from assets import Function
from hexane.emit.coreai.bytecode import OperationRecord, WrittenBody, WrittenValue
from hexane.importers.coreai import import_asset, read_asset
from hexane.importers.coreai.bodies import bodies_that_disagree

RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)


def u32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint32)


def s32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def run(f: Function, results: dict[str, WrittenValue], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    net = hx.compile(import_asset(read_asset(f.finish(results).bytes(), "f")), threads=1)
    got = net(feeds)
    return got if isinstance(got, dict) else {next(iter(results)): got}


def scalar(number: int) -> np.ndarray:
    return np.array(number, np.int32)


CASES: dict[str, tuple[str, list[np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "slice": ("primitive.slice", [s32(0, -2, 0), s32(2, 2**31 - 1, 4), s32(1, 1, 2)], lambda x: x[0:2, -2:, 0:4:2]),
    "backwards": (
        "primitive.slice",
        [s32(0, -1, 3), s32(2, -4, -(2**31)), s32(1, -1, -2)],
        lambda x: x[:, ::-1, 3::-2],
    ),
    "reshape": ("primitive.reshape", [s32(4, -1)], lambda x: x.reshape(4, -1)),
    "transpose": ("primitive.transpose", [u32(2, 0, 1)], lambda x: x.transpose(2, 0, 1)),
    "expand_dims": ("primitive.expand_dims", [s32(0, -1)], lambda x: x[None, ..., None]),
    "reverse": ("primitive.reverse", [s32(1)], lambda x: x[:, ::-1]),
    "tile": ("tile", [u32(2, 1, 3, 1)], lambda x: np.tile(x, (2, 1, 3, 1))),
    "reduce_mean": ("reduce_mean", [s32(0, 2)], lambda x: x.mean((0, 2), keepdims=True)),
    "reduce_product": ("reduce_product", [s32(-1)], lambda x: x.prod(-1, keepdims=True)),
    "broadcast_to": ("primitive.broadcast_to", [u32(5, 2, 3, 4)], lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
    "softmax": ("softmax", [scalar(1)], lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "argsort": ("primitive.argsort", [scalar(1), np.array(True), np.array(True)], lambda x: np.argsort(-x, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operation_computes_what_numpy_does(name: str) -> None:
    op, operands, want = CASES[name]
    f = Function()
    x, expected = f.input("x", X.shape), want(X)
    element = "f32" if expected.dtype == np.float32 else "si32"
    y = f.op(op, x, *[f.const(a) for a in operands], result=f.value(expected.shape, element))
    np.testing.assert_allclose(run(f, {"y": y}, {"x": X})["y"], expected, rtol=1e-5, atol=1e-6)


def test_shapes_of_open_axes_follow_the_input() -> None:
    f = Function()
    x = f.input("x", (None, 3))
    shape = f.op("primitive.get_shape", x, result=f.value((2,), "ui32"))
    doubled = f.op("primitive.concat", f.const(scalar(1)), x, x, result=f.value((None, 6)))
    back = f.op("primitive.slice", doubled, f.const(s32(0, 0)), shape, f.const(s32(1, 1)), result=f.value((None, 3)))
    asset = read_asset(f.finish({"y": back}).bytes(), "f")
    with pytest.raises(hx.Error, match="need its shape, as in --input-shape x:1x3"):
        import_asset(asset)
    with pytest.raises(hx.Error, match="need one that fits"):
        import_asset(asset, shapes={"x": (4, 5)})
    numbers = np.arange(15, dtype=np.float32).reshape(5, 3)
    net = hx.compile(import_asset(asset, shapes={"x": (5, 3)}))
    np.testing.assert_array_equal(net(numbers), numbers)


def test_a_state_lives_from_call_to_call() -> None:
    f = Function()
    x, s = f.input("x", (3,)), f.state("total", (3,))
    token = f.op("dataflow.create_token", result=WrittenValue(f.writer.token()))
    before, read = WrittenValue(x.type), WrittenValue(f.writer.token())
    f.operations.append(OperationRecord("dataflow.read_handle_v1", (s, token), (before, read)))
    after = f.op("primitive.add", before, x)
    f.op("dataflow.write_handle", s, after, read, result=WrittenValue(f.writer.token()))
    net = hx.compile(import_asset(read_asset(f.finish({"y": after}).bytes(), "f")))
    for i in (1, 2, 3):
        np.testing.assert_array_equal(net(np.ones(3, np.float32)), np.full(3, i))
    np.testing.assert_array_equal(net.read_state("total"), np.full(3, 3))


def test_a_loop_is_written_out() -> None:
    """while i < 4: x = x * 2"""
    f = Function()
    x, zero = f.input("x", (2,)), f.const(np.array(0, np.int32))
    count = zero.type

    def carried() -> tuple[WrittenValue, WrittenValue]:
        return WrittenValue(count), WrittenValue(x.type)

    i, a = carried()
    four, smaller = f.writer.constant(np.array(4, np.int32), "si32"), f.value((), "bool")
    before = WrittenBody((i, a), [
        four, OperationRecord("primitive.greater_v1", (four.results[0], i), (smaller,)),
        OperationRecord("controlflow.condition_v1", (smaller, i, a)),
    ])  # fmt: skip
    j, b = carried()
    one, (k, c) = f.writer.constant(np.array(1, np.int32), "si32"), carried()
    after = WrittenBody((j, b), [
        one, OperationRecord("primitive.add_v1", (j, one.results[0]), (k,)), OperationRecord("primitive.add_v1", (b, b), (c,)),
        OperationRecord("dataflow.yield_v1", (k, c)),
    ])  # fmt: skip
    results = carried()
    f.operations.append(OperationRecord("controlflow.while_v1", (zero, x), results, bodies=(before, after)))
    got = run(f, {"y": results[1]}, {"x": np.array([1, 3], np.float32)})["y"]
    np.testing.assert_array_equal(got, [16, 48])


def test_what_hexane_does_not_have_is_told_at_once() -> None:
    f = Function()
    x = f.input("x", (2,))
    y = f.op("primitive.unheard_of", x)
    z = f.op("metal.metal4_kernel", y)
    with pytest.raises(
        hx.Error, match=r"2 kinds of operations cannot be imported:\n  primitive\.unheard_of: .*\n  metal"
    ):
        run(f, {"z": z}, {})


@pytest.mark.parametrize("sizes", [[2], [2, 3, 4]])
def test_operands_that_do_not_fit_are_an_error(sizes: list[int]) -> None:
    f = Function()
    x = f.input("x", (1, 3))
    y = f.op("primitive.broadcast_in_dims", x, f.const(np.array(sizes, np.uint32)), f.const(s32(0, 1)))
    with pytest.raises(hx.Error, match="broadcast_in_dims: its operands do not fit"):
        run(f, {"y": y}, {})


def test_palettes_and_blocks_become_their_numbers() -> None:
    indices = RNG.integers(0, 4, (4, 6)).astype(np.uint8)
    table = RNG.standard_normal((2, 1, 4, 1)).astype(np.float32)
    f = Function()
    f.input("x", (1,))
    dense = f.op("primitive.lut_to_dense", f.const(indices), f.const(table), f.const(scalar(0)), result=f.value((4, 6)))
    data, scale, offset = (
        RNG.integers(-8, 8, (4, 6)).astype(np.int8),
        *(RNG.random((4, 2)).astype(np.float32) for _ in "ab"),
    )
    blocks = f.op(
        "primitive.blockwise_shift_scale", f.const(data), f.const(scale), f.const(offset), result=f.value((4, 6))
    )
    got = run(f, {"dense": dense, "blocks": blocks}, {"x": np.zeros(1, np.float32)})
    np.testing.assert_array_equal(got["dense"], table[np.arange(4)[:, None] // 2, 0, indices, 0])
    wide = np.repeat(scale, 3, 1) * (data - np.repeat(offset, 3, 1))
    np.testing.assert_allclose(got["blocks"], wide, rtol=1e-6)


@pytest.mark.parametrize(("inside", "count"), [("primitive.exp", 1), ("relu", 0)])
def test_a_body_that_computes_something_else_is_told(inside: str, count: int) -> None:
    f = Function()
    x = f.input("x", (2, 3))
    inner = Function(f.writer)
    a = inner.value((2, 3))
    zero = inner.const(np.zeros((2, 3), np.float32))
    y = inner.op(inside, a) if inside != "relu" else inner.op("primitive.maximum", a, zero)
    body = WrittenBody((a,), [*inner.operations, OperationRecord("dataflow.yield_v1", (y,))])
    z = f.op("relu", x, bodies=(body,), isolated=True)
    found = bodies_that_disagree(read_asset(f.finish({"z": z}).bytes(), "f"))
    assert len(found) == count
    assert all("relu at" in line for line in found)


@pytest.mark.parametrize("keeps_larger", [True, False])
def test_the_body_of_a_reduction_to_an_index_says_which_element_it_keeps(keeps_larger: bool) -> None:
    f = Function()
    x = f.input("x", (2, 5))
    inner = Function(f.writer)
    old, new = inner.value(()), inner.value(())
    pair = (new, old) if keeps_larger else (old, new)
    better = inner.op("primitive.greater", *pair, result=inner.value((), "bool"))
    body = WrittenBody((old, new), [*inner.operations, OperationRecord("dataflow.yield_v1", (better,))])
    first, zero = f.const(np.float32(0)), f.const(np.array(0, np.uint32))
    y = f.op(
        "primitive.reduce_index", x, f.const(scalar(1)), first, zero, result=f.value((2, 1), "ui32"),
        bodies=(body,), isolated=True,
    )  # fmt: skip
    feed = RNG.standard_normal((2, 5)).astype(np.float32)
    got = run(f, {"y": y}, {"x": feed})["y"]
    np.testing.assert_array_equal(got[:, 0], (np.argmax if keeps_larger else np.argmin)(feed, 1))
