"""Contexts: callers of one model with states and memory of their own, whose calls run beside each other."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from hexane import _core
from hexane.graph import Array
from on_a_device import compiled, weights
from onnx_models import model, node

RNG = np.random.default_rng(5)
QUERY, KEY, VALUE, OUT = (RNG.normal(0, 0.3, (32, 32)).astype(np.float32) for _ in range(4))
ROWS = 24


def decoder() -> hx.Graph:
    """Attention of one token over caches of keys and values, each call writing one row of both."""
    x, position, mask = hx.input("x", (1, 32)), hx.input("position", (), "int32"), hx.input("mask", (1, ROWS))
    key, value, out = hx.param("key", KEY), hx.param("value", VALUE), hx.param("out", OUT)
    keys = hx.write_state(hx.state("keys", (ROWS, 32)), x @ key, position, axis=0)
    values = hx.write_state(hx.state("values", (ROWS, 32)), x @ value, position, axis=0)
    scores = hx.softmax((x @ QUERY) @ hx.transpose(keys, perm=(1, 0)) + mask)
    return hx.graph({"y": hx.tanh((scores @ values) @ out)})


def token(conversation: int, position: int) -> dict[str, Array]:
    rng = np.random.default_rng(1000 * conversation + position)
    mask = np.where(np.arange(ROWS) <= position, 0, -1e9).astype(np.float32)[None]
    return {
        "x": rng.normal(0, 1, (1, 32)).astype(np.float32), "position": np.array(position, np.int32), "mask": mask
    }  # fmt: skip


def talk(caller: Any, conversation: int) -> list[bytes]:
    return [caller(token(conversation, i)).tobytes() for i in range(ROWS)]


def host() -> hx.Model:
    return hx.compile(decoder(), threads=1)


def chip() -> hx.Model:
    return compiled(decoder(), device="cpu")


@pytest.mark.parametrize("make", [host, chip])
def test_contexts_that_take_turns_give_what_separate_models_give(make: Any) -> None:
    net = make()
    callers = [net, net.context(), net.context()]
    want = [talk(make(), i) for i in range(3)]
    got: list[list[bytes]] = [[], [], []]
    for position in range(ROWS):
        for i, caller in enumerate(callers):
            got[i].append(caller(token(i, position)).tobytes())
    assert got == want
    assert want[0] != want[1]
    states = [caller.read_state("keys").tobytes() for caller in callers]
    assert len({*states}) == 3


def test_threads_on_contexts_of_several_models_give_the_same_bits() -> None:
    nets = [host(), chip(), hx.compile(decoder(), threads=2), hx.compile(decoder(), threads=1)]
    want = [talk(net.context(), i) for i, net in enumerate(nets)]

    def work(thread: int) -> bool:
        callers = [net.context() for net in nets]
        orders = [(k + thread) % 4 for k in range(4)]
        return all(talk(callers[k], k) == want[k] for _ in range(2) for k in orders)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_threads_that_share_a_context_wait_for_each_other() -> None:
    x = hx.input("x", (1, 64))
    count = hx.state("count", (1, 64))
    net = hx.compile({"y": hx.write_state(count, count + x, np.int32(0))}, threads=1)
    context = net.context()
    ones = np.ones((1, 64), np.float32)
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: float(context(ones)[0, 0]), range(400)))
    assert sorted(seen) == list(range(1, 401))
    assert not net.read_state("count").any()


def test_an_update_acts_on_all_contexts_and_on_those_made_later() -> None:
    net, other = host(), host()
    before = net.context()
    talk(before, 0)
    before.reset_state()
    for each in (net, other):
        each.update(out=OUT * 2, key=KEY.T.copy())
    want = talk(other, 1)
    assert talk(before, 1) == talk(net, 1) == talk(net.context(), 1) == want


def test_an_update_lies_between_two_calls_of_every_context() -> None:
    a, b = hx.param("w", np.ones((64, 64), np.float32)), hx.input("x", (8, 64))
    net = hx.compile({"y": b @ a, "z": hx.relu(b) @ a}, threads=1)
    stop, wrong = threading.Event(), []

    def run(context: hx.Context) -> None:
        ones = np.ones((8, 64), np.float32)
        while not stop.is_set():
            out = context(ones)
            found = {*out["y"].ravel().tolist(), *out["z"].ravel().tolist()}
            if len(found) != 1 or min(found) % 64:
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(net.context(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for factor in range(1, 60):
        net.update(w=np.full((64, 64), factor, np.float32))
        net.context().close()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_context_has_states_of_its_own_also_where_no_step_writes_them() -> None:
    w = np.random.default_rng(0).integers(-3, 4, (64, 48)).astype(np.float32)
    x = np.ones((32, 64), np.float32)
    net = hx.compile(hx.input("x", x.shape) @ hx.state("w", init=w), threads=1)
    one, two = net.context(), net.context()
    one.write_state("w", w * 2)
    np.testing.assert_array_equal(one(x), x @ (w * 2))
    for untouched in (net, two, net.context()):
        np.testing.assert_array_equal(untouched(x), x @ w)
    np.testing.assert_array_equal(one.read_state("w"), w * 2)
    one.reset_state()
    np.testing.assert_array_equal(one(x), x @ w)


def test_states_go_from_one_context_to_another(tmp_path: Any) -> None:
    net = host()
    one, two = net.context(), net.context()
    for i in range(3):
        one(token(0, i))
    one.save_states(tmp_path / "states")
    two.load_states(tmp_path / "states")
    assert one(token(0, 3)).tobytes() == two(token(0, 3)).tobytes()
    two.write_state("keys", np.zeros((ROWS, 32), np.float32))
    assert one(token(0, 4)).tobytes() != two(token(0, 4)).tobytes()
    assert one.state_names == net.state_names


def test_memory_of_a_context_is_arena_scratch_and_states() -> None:
    net = host()
    context = net.context()
    assert {k: v for k, v in context.memory.items() if k != "scratch"} == {
        k: v for k, v in net.memory.items() if k not in ("scratch", "weights")
    }
    assert context.memory["scratch"] == net.memory["scratch"]
    assert sum(context.memory.values()) == sum(net.memory.values()) - net.memory["weights"]
    assert context.memory["state"] == 2 * ROWS * 32 * 4
    one = net.unshared_bytes
    more = [net.context() for _ in range(10)]
    assert net.unshared_bytes - one == 10 * sum(context.memory.values())
    del more
    assert net.unshared_bytes == one


def test_a_bound_call_is_of_its_context() -> None:
    net = host()
    one, two = net.context(), net.context()
    feeds = [token(7, 0), token(8, 0)]
    calls = [caller.bind(**feed) for caller, feed in zip((one, two), feeds, strict=True)]
    want = [talk(net.context(), 7), talk(net.context(), 8)]
    for position in range(ROWS):
        for i in (0, 1):
            for name, array in token(7 + i, position).items():
                feeds[i][name][...] = array
            calls[i]()
            assert calls[i].outputs["y"].tobytes() == want[i][position]


def test_submitted_calls_of_contexts_run_beside_each_other_and_can_be_cancelled() -> None:
    net = host()
    contexts = [net.context() for _ in range(3)]

    async def conversation(i: int) -> list[bytes]:
        return [(await contexts[i].run_async(token(i, p))).tobytes() for p in range(ROWS)]

    async def all_of_them() -> list[list[bytes]]:
        return list(await asyncio.gather(*map(conversation, range(3))))

    assert asyncio.run(all_of_them()) == [talk(net.context(), i) for i in range(3)]

    begun, go = threading.Event(), threading.Event()

    class Slow:
        """An array that is there when somebody says so."""

        array = token(0, 0)["x"]
        __dlpack_device__ = array.__dlpack_device__

        def __dlpack__(self, **options: Any) -> Any:
            begun.set()
            assert go.wait(30)
            return self.array.__dlpack__(**options)

    contexts[0].reset_state()
    first = contexts[0].submit({**token(0, 0), "x": Slow()})
    assert begun.wait(30)
    second, third = (contexts[0].submit(token(0, i)) for i in (1, 2))
    assert second.cancel()
    go.set()
    first.result(30)
    third.result(30)
    assert not contexts[0].read_state("keys")[1].any()
    assert contexts[0].read_state("keys")[2].any()


def test_a_closed_context_says_so_and_a_context_keeps_the_weights() -> None:
    net = host()
    context, kept = net.context(), net.context()
    want = talk(net, 0)
    call = context.bind(**token(0, 0))
    context.close()
    context.close()
    for use in (lambda: context(token(0, 0)), lambda: context.memory, context.reset_state, lambda: context.bind()):
        with pytest.raises(hx.Error, match=r"\[context\] got a context that was closed, need a new one"):
            use()
    call()
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert talk(kept, 0) == want


def test_a_context_begins_with_first_contents_which_may_be_dropped() -> None:
    net = host()
    talk(net, 3)
    assert not net.context().read_state("keys").any()
    context = net.context()
    net.drop_initial_states()
    with pytest.raises(hx.Error, match="first contents have been dropped"):
        net.context()
    with pytest.raises(hx.Error, match="first contents have been dropped"):
        context.reset_state()
    assert context(token(0, 0)).shape == (1, 32)


def test_a_profile_is_of_one_context() -> None:
    net = host()
    one, two = net.context(), net.context()
    one.profile()
    for position in range(3):
        one(token(0, position))
        two(token(0, position))
    assert {step["calls"] for step in one.steps} == {3}
    assert {step["calls"] for step in (*two.steps, *net.steps)} == {0}


def test_contexts_of_a_model_on_a_device(engine: _core.Device) -> None:
    def graph() -> hx.Graph:
        x, position = hx.input("x", (1, 8)), hx.input("position", (), "int32")
        written = hx.write_state(hx.state("cache", (12, 8), init=weights(12, 8)), hx.relu(x) * 2.0, position, axis=0)
        cell = hx.state("cell", (1, 8))
        after = hx.write_state(cell, hx.tanh(hx.matmul(x, weights(8, 8)) + cell), np.int32(0))
        return hx.graph(
            {"y": hx.matmul(x, hx.transpose(written, perm=(1, 0))) * hx.param("scale", 2.0), "a": after * 2}
        )

    net, cpu = compiled(graph(), device="ane"), compiled(graph(), device="cpu")
    one, two = net.context(), net.context()
    others = [cpu.context(), cpu.context()]
    for i in range(12):
        if i == 6:
            for each in (net, cpu):
                each.update(scale=np.float32(3))
        if i == 8:
            late = net.context()
            want = cpu.context()(x=weights(1, 8), position=np.int32(3))
            assert {k: v.tobytes() for k, v in late(x=weights(1, 8), position=np.int32(3)).items()} == {
                k: v.tobytes() for k, v in want.items()
            }
        for k, (got, want_of) in enumerate(zip((one, two), others, strict=True)):
            feed = {"x": weights(1, 8) + np.float32(i * (k + 1)), "position": np.int32(i)}
            results = got(feed), want_of(feed)
            for name in results[0]:
                np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=f"{name} {i} {k}")


def test_an_open_model_says_which_models_have_contexts() -> None:
    open_axis = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    net = hx.compile(model([node("Add", "x x", "y")], {"x": open_axis}, ["y"]).SerializeToString(), threads=1)
    assert isinstance(net, hx.OpenModel)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(hx.UnsupportedError, match=r"specialised\(arrays\)\.context\(\)"):
        net.context()
    np.testing.assert_array_equal(net.specialised({"x": x}).context()(x), x + x)
