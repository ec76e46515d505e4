"""Models on Core ML's public API, against a strict stand-in for the framework: never tried on a Mac."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from coreml_stand_in import CoreMLStandIn, coreml_stand_in
from hexane.runtime import coreml_library
from hexane.runtime.coreml_model import CoreMLModel

RNG = np.random.default_rng(5)
# A package computes in fp16; activations are of the order of 1000, sums of 64 products.
RELATIVE = 4e-3


@pytest.fixture
def mac() -> Iterator[CoreMLStandIn]:
    with coreml_stand_in() as made:
        yield made


def network(dtype: str = "fp32") -> hx.Graph:
    """Pixels from 0 to 255 through a product and an activation; two outputs."""
    x = hx.input("x", (3, 64), dtype)
    weight = RNG.standard_normal((32, 64)).astype(np.float16 if dtype == "fp16" else np.float32)
    y = hx.linear(x, hx.const(weight))
    return hx.graph({"wide": y, "kept": hx.relu(y)})


def pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.float32)


def on_coreml(model: Any, **options: Any) -> CoreMLModel:
    made = hx.compile(model, **({"device": "coreml"} | options))
    assert isinstance(made, CoreMLModel)
    return made


def close_to(got: Any, need: Any) -> None:
    np.testing.assert_allclose(got, need, rtol=0, atol=RELATIVE * max(1.0, float(np.abs(need).max())))


def test_a_graph_gives_what_the_cpu_gives(mac: CoreMLStandIn) -> None:
    graph, x = network(), pixels(3, 64)
    net, need = on_coreml(graph), hx.compile(graph, target="host")(x)
    got = net(x)
    assert [str(p) for p in net.inputs] == ["x: fp32[3, 64]"]
    assert list(got) == ["wide", "kept"]
    for name in need:
        assert got[name].dtype == np.float32
        close_to(got[name], need[name])
    assert net.copied_outputs == frozenset()
    assert net.device == "coreml (cpu_and_ne)"


def test_a_package_is_loaded_as_it_is(mac: CoreMLStandIn, tmp_path: Path) -> None:
    graph, x = network(), pixels(3, 64)
    hx.save_coreml(graph, tmp_path / "Net.mlpackage")
    net = on_coreml(str(tmp_path / "Net.mlpackage"))
    close_to(net(x)["kept"], hx.compile(graph, target="host")(x)["kept"])


@pytest.mark.parametrize(("name", "number"), [("cpu", 0), ("cpu_and_gpu", 1), ("all", 2), ("cpu_and_ne", 3), ("", 3)])
def test_compute_units_reach_core_ml(mac: CoreMLStandIn, name: str, number: int) -> None:
    on_coreml(network(), device=hx.Device("coreml", compute_units=name))
    assert mac.ask("units") == number


def test_strided_inputs_are_given_without_a_copy_and_outputs_of_core_mls_own_are_copied(mac: CoreMLStandIn) -> None:
    graph, wide = network(), pixels(64, 6)
    x = wide.T[::2]
    net, need = on_coreml(graph), hx.compile(graph, target="host")(np.ascontiguousarray(x))
    assert coreml_library.viewable(x) is x
    mac.set(uses_backings=0)
    close_to(net(x)["wide"], need["wide"])
    assert net.copied_outputs == {"wide", "kept"}


@pytest.mark.parametrize("view", ["reversed", "broadcast", "unaligned"])
def test_arrays_that_core_ml_refuses_are_copied(mac: CoreMLStandIn, view: str) -> None:
    x = pixels(3, 64)
    if view == "reversed":
        x = x[:, ::-1]
    elif view == "broadcast":
        x = np.broadcast_to(x[:1], (3, 64))
    else:
        raw = np.empty(x.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
        x = raw[1:].view(np.float32).reshape(3, 64)
    graph = network()
    close_to(on_coreml(graph)(x)["wide"], hx.compile(graph, target="host")(np.ascontiguousarray(x))["wide"])


def test_ports_of_other_dtypes_are_converted(mac: CoreMLStandIn) -> None:
    i = hx.input("i", (4,), "int64")
    table = RNG.standard_normal((10, 8)).astype(np.float32)
    net = on_coreml(hx.graph({"y": hx.gather(hx.const(table), i, axis=0), "next": hx.add(i, hx.const(np.int64(1)))}))
    got = net(np.array([0, 9, 3, 3]))
    close_to(got["y"], table[[0, 9, 3, 3]])
    assert got["next"].dtype == np.int64
    assert list(got["next"]) == [1, 10, 4, 4]
    with pytest.raises(hx.InputError, match=r"\[call\] input 'i': got values from 0 to 4294967296, need .* int32"):
        net(np.array([0, 2**32, 1, 1]))


def test_wrong_arrays_are_refused_before_core_ml_sees_them(mac: CoreMLStandIn) -> None:
    net = on_coreml(network())
    with pytest.raises(hx.InputError, match=r"\[call\] input 'x': got fp32\[3, 63\], need fp32\[3, 64\]"):
        net(pixels(3, 63))
    with pytest.raises(hx.InputError, match=r"\[call\] input 'x': got fp64\[3, 64\], need fp32\[3, 64\]"):
        net(pixels(3, 64).astype(np.float64))
    with pytest.raises(hx.InputError, match=r"\[call\] inputs: got 0, need 1"):
        net()


def test_bound_calls_write_where_they_were_told_to(mac: CoreMLStandIn) -> None:
    graph, x, kept = network(), pixels(3, 64), np.empty((3, 32), np.float32)
    bound = on_coreml(graph).bind(x=x, kept=kept)
    for _ in range(2):
        x[...] = pixels(3, 64)
        bound()
        close_to(kept, hx.compile(graph, target="host")(x)["kept"])
    assert bound.outputs["kept"] is kept
    with pytest.raises(hx.InputError, match="overlaps"):
        on_coreml(graph).bind(x=x, kept=x.reshape(-1)[:96].reshape(3, 32))


@pytest.mark.parametrize("columns", [64, 40])
@pytest.mark.parametrize("new_arrays", [0, 1])
def test_fp16_ports_that_are_left_out_are_in_pixel_buffers(mac: CoreMLStandIn, columns: int, new_arrays: int) -> None:
    mac.set(new_arrays=new_arrays)
    x = hx.input("x", (2, 3, columns), "fp16")
    graph = hx.graph({"twice": hx.add(x, x), "kept": hx.relu(x)})
    net = on_coreml(graph)
    bound = net.bind()
    rows = -(-2 * columns // 64) * 64  # as the stand-in and CoreVideo lay out a row
    for array in (*bound.inputs.values(), *bound.outputs.values()):
        assert array.dtype == np.float16
        assert array.strides == (3 * rows, rows, 2)
    for _ in range(2):
        bound.inputs["x"][...] = given = (pixels(2, 3, columns) - 128).astype(np.float16)
        got = bound()
        np.testing.assert_array_equal(got["twice"], 2 * given)
        np.testing.assert_array_equal(got["kept"], np.maximum(given, 0))
        assert net.copied_outputs == frozenset()
    mac.set(uses_backings=0)
    bound.inputs["x"][...] = -given
    np.testing.assert_array_equal(bound()["twice"], -2 * given)
    assert net.copied_outputs == {"twice", "kept"}


def test_a_pixel_buffer_lives_as_long_as_its_array(mac: CoreMLStandIn) -> None:
    x = hx.input("x", (4, 6), "fp16")
    net = on_coreml(hx.graph({"y": hx.relu(x)}))
    bound = net.bind()
    view = bound.inputs["x"]
    view[...] = 3
    bound()
    del bound
    gc.collect()
    view += 1
    assert view.tolist() == [[4.0] * 6] * 4
    np.testing.assert_array_equal(net(np.array(view)), view)  # other calls have memory of their own


def test_a_pixel_buffer_may_end_with_the_prediction_that_reads_it(mac: CoreMLStandIn) -> None:
    gc.collect()
    before = mac.ask("live")
    x = hx.input("x", (4, 6), "fp16")
    net = on_coreml(hx.graph({"y": hx.relu(x)}))
    loaded, result, ended = net._on.loaded, np.empty((4, 6), np.float16), threading.Event()
    buffer = loaded.new_buffer((4, 6))
    buffer.array[...] = 3
    inputs = coreml_library.Views({"x": buffer.array}, {"x": buffer})
    loaded.start(inputs, coreml_library.Views({"y": result}), lambda _: ended.set())
    del buffer, inputs
    assert ended.wait(20)
    assert (result == 3).all()
    del net, loaded
    for _ in range(500):  # the thread of the stand-in lets its objects go after it has answered
        gc.collect()
        if mac.ask("live") == before:
            break
        time.sleep(0.01)
    assert (mac.ask("live") - before, mac.ask("faults")) == (0, 0)


@pytest.mark.parametrize("trouble", ["refuse_locks", "moves"])
def test_a_pixel_buffer_that_does_not_stay_is_an_error(mac: CoreMLStandIn, trouble: str) -> None:
    net = on_coreml(hx.graph({"y": hx.relu(hx.input("x", (4, 6), "fp16"))}))
    bound = net.bind()
    mac.set(**{trouble: 64})
    with pytest.raises(hx.DeviceError, match=r"evaluate: got a pixel buffer that CoreVideo has moved or does not lock"):
        bound()
    mac.set(**{trouble: 0})
    bound.inputs["x"][...] = 2
    assert (bound()["y"] == 2).all()
    mac.set(refuse_locks=1)
    with pytest.raises(hx.InputError, match=r"\[bind\] inputs: got none for x, need all"):
        net.bind()
    assert mac.ask("faults") == 0


def test_ports_without_a_pixel_buffer_need_an_array(mac: CoreMLStandIn) -> None:
    x, z = hx.input("x", (4, 6), "fp16"), hx.input("z", (4, 6))
    net = on_coreml(hx.graph({"y": hx.relu(x), "w": hx.relu(z)}))
    with pytest.raises(hx.InputError, match=r"\[bind\] inputs: got none for z, need all"):
        net.bind()
    assert net.bind(z=np.ones((4, 6), np.float32)).outputs["w"].flags.c_contiguous
    mac.set(macos=1100)
    with pytest.raises(hx.InputError, match=r"\[bind\] inputs: got none for x, need all"):
        net.bind(z=np.ones((4, 6), np.float32))
    given = np.full((4, 6), -1, np.float16)
    assert (net.bind(x=given, z=np.ones((4, 6), np.float32))()["y"] == 0).all()


def counter() -> hx.Graph:
    total = hx.state("total", (1, 32), "fp32")
    after = hx.add(total, hx.input("x", (1, 32)))
    return hx.graph({"y": hx.relu(after)}, [hx.write_state(total, after)])


def test_states_are_of_one_caller(mac: CoreMLStandIn) -> None:
    net = on_coreml(counter())
    other, x = net.context(), np.full((1, 32), 3, np.float32)
    assert net.state_names == ("total",)
    assert [net(x)[0, 0] for _ in range(3)] == [3, 6, 9]
    assert other(x)[0, 0] == 3
    assert net.read_state("total")[0, 5] == 9
    net.write_state("total", np.full((1, 32), 100, np.float32))
    assert net(x)[0, 0] == 103
    net.reset_state()
    assert net(x)[0, 0] == 3


def test_states_before_macos_15_are_refused_by_name(mac: CoreMLStandIn) -> None:
    mac.set(macos=1404)
    with pytest.raises(hx.DeviceError, match=r"\[coreml\] load: got com.apple.CoreML 3: the model is of a version"):
        on_coreml(counter())


def test_calls_run_while_their_caller_waits_for_others(mac: CoreMLStandIn) -> None:
    graph, xs = network(), [pixels(3, 64) for _ in range(6)]
    need = [hx.compile(graph, target="host")(x)["kept"] for x in xs]
    net = on_coreml(graph)

    async def all_of_them() -> Any:
        return await asyncio.gather(*(net.run_async(x) for x in xs))

    for macos in (2600, 1300):  # Core ML's own, and a thread of Hexane's
        mac.set(macos=macos)
        net = on_coreml(graph)
        for got, wanted in zip(asyncio.run(all_of_them()), need, strict=True):
            close_to(got["kept"], wanted)


def test_calls_from_several_threads_wait_for_each_other(mac: CoreMLStandIn) -> None:
    net, x = on_coreml(network()), pixels(3, 64)
    need = net(x)["wide"]
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: net(x)["wide"], range(12)):
            np.testing.assert_array_equal(got, need)


def test_what_core_ml_raises_becomes_an_error_of_the_place(mac: CoreMLStandIn) -> None:
    net = on_coreml(network())
    mac.set(**{"raise": 1})
    with pytest.raises(hx.DeviceError, match=r"\[coreml\] evaluate: got NSInvalidArgumentException: as it was asked"):
        net(pixels(3, 64))
    mac.set(**{"raise": 0})
    mac.lines.append("refuse the plan is not built")
    with pytest.raises(hx.DeviceError, match=r"\[coreml\] load: .*the plan is not built; `hexane check FILE`") as found:
        on_coreml(network())
    assert found.value.stage == "load"


def test_images_are_refused(mac: CoreMLStandIn, tmp_path: Path) -> None:
    x = hx.input("x", (1, 3, 8, 8))
    hx.save_coreml(hx.graph({"y": hx.relu(x)}), tmp_path / "Net.mlpackage", images={"x": "rgb"})
    with pytest.raises(hx.UnsupportedError, match=r"\[coreml\] input 'x': got a feature .* kind image, need an array"):
        on_coreml(str(tmp_path / "Net.mlpackage"))


def test_nothing_is_left_behind(mac: CoreMLStandIn) -> None:
    gc.collect()
    before = mac.ask("live")
    net = on_coreml(network())
    folder, context = net._on.loaded.compiled.folder, net.context()
    assert folder.exists()
    net.submit(pixels(3, 64)).result()
    bound = net.bind(x=pixels(3, 64))
    bound()
    net.close()
    context.close()
    with pytest.raises(hx.Error, match="closed"):
        net.read_state("s")
    del net, context, bound
    gc.collect()
    assert not folder.exists()
    for _ in range(500):  # the thread of the stand-in lets its objects go after it has answered
        if mac.ask("live") == before:
            break
        time.sleep(0.01)
    assert (mac.ask("live") - before, mac.ask("faults")) == (0, 0)


def test_the_plan_names_devices_of_each_operation() -> None:
    with coreml_stand_in({"relu": ("cpu", "cpu,gpu")}) as mac:
        plan = on_coreml(network()).compute_plan()
        (relu,) = [op for op in plan if op.op == "ios16.relu"]
        assert (relu.preferred, relu.supported, relu.cost) == ("cpu", ("cpu", "gpu"), 0.125)
        assert all(op.preferred == "" and op.cost is None for op in plan if op.op == "ios16.const")
        mac.set(macos=1300)
        with pytest.raises(hx.DeviceError, match=r"\[coreml\] plan: got an older system, need macOS 14.4"):
            on_coreml(network()).compute_plan()


def test_the_probe_says_what_a_system_lacks(mac: CoreMLStandIn) -> None:
    assert all(found == "yes" for _, _, found, _ in mac.api.probe())
    mac.set(macos=1404)
    lacking = {name: need for _, name, found, need in mac.api.probe() if not found}
    assert lacking["-[MLModel newState]"] == "15"
    assert "-[MLModel modelDescription]" not in lacking


@pytest.mark.skipif(coreml_library.missing() == "", reason="this machine has Core ML")
def test_other_systems_say_what_to_use_instead() -> None:
    with pytest.raises(hx.Error, match=r"\[compile\] Core ML: got \w+ on \w+, need a Mac; device='cpu' runs the same"):
        hx.compile(network(), device="coreml")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"numerics": "engine", "target": "M1"}, r"\[compile\] numerics: got it for the device 'coreml'"),
        ({"dtype": "bf16"}, r"\[compile\] dtype: got 'bf16' for the device 'coreml'"),
        ({"dtype": "auto"}, r"\[compile\] dtype: got 'auto' for the device 'coreml'"),
        ({"threads": 2, "contexts": 3}, r"\[compile\] threads, contexts: got it for the device 'coreml'"),
        ({"fallback": "error"}, r"\[compile\] fallback: got it for the device 'coreml'"),
    ],
)
def test_options_that_core_ml_does_not_follow_are_errors(options: dict[str, Any], error: str) -> None:
    with pytest.raises(hx.Error, match=error):
        hx.compile(network(), device="coreml", **options)


def test_compute_units_need_core_ml() -> None:
    with pytest.raises(hx.Error, match=r"\[compile\] compute_units: got it for the device 'cpu', need 'coreml'"):
        hx.Device("cpu", compute_units="all")
    with pytest.raises(hx.Error, match=r"\[compile\] compute_units: got 'gpu', need one of"):
        hx.Device("coreml", compute_units="gpu")


def test_a_call_that_fails_later_raises_where_it_is_awaited(
    mac: CoreMLStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = on_coreml(network()), pixels(3, 64)
    mac.set(**{"raise": 1})
    with pytest.raises(hx.DeviceError, match=r"\[coreml\] evaluate: got com.apple.CoreML 0: as it was asked for"):
        asyncio.run(net.run_async(x))
    mac.set(**{"raise": 0})
    monkeypatch.setattr(type(net._on), "taken", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        net.submit(x).result(timeout=20)


@pytest.mark.parametrize(
    ("inputs", "outputs", "error"),
    [
        ({"z": (3, 64)}, {"wide": (3, 32)}, "there is no input z"),
        ({}, {"wide": (3, 32)}, "Required input feature not passed"),
        ({"x": (64, 3)}, {"wide": (3, 32)}, "does not match the shape"),
        ({"x": (3, 64)}, {"other": (3, 32)}, "there is no output other"),
        ({"x": (3, 64)}, {"wide": (32, 3)}, "does not match the shape"),
    ],
)
def test_the_stand_in_refuses_what_core_ml_refuses(
    mac: CoreMLStandIn, inputs: dict[str, Any], outputs: dict[str, Any], error: str
) -> None:
    loaded = on_coreml(network())._on.loaded
    sides = [coreml_library.Views({n: np.ones(s, np.float32) for n, s in side.items()}) for side in (inputs, outputs)]
    with pytest.raises(hx.DeviceError, match=error):
        loaded.predict(*sides)


def test_a_state_of_another_model_is_refused(mac: CoreMLStandIn) -> None:
    net, other = on_coreml(counter())._on, on_coreml(counter())._on
    with pytest.raises(hx.DeviceError, match="the state is another model's"):
        net.loaded.predict(net.given([np.ones((1, 32), np.float32)]), net.results(), other._state)
    with pytest.raises(hx.DeviceError, match="a model with states needs a state"):
        net.loaded.predict(net.given([np.ones((1, 32), np.float32)]), net.results())


def test_a_function_of_several_needs_macos_15(mac: CoreMLStandIn, tmp_path: Path) -> None:
    x = hx.input("x", (1, 4))
    two = {"main": hx.graph({"y": hx.relu(x)}), "other": hx.graph({"y": hx.sigmoid(x)})}
    hx.save_coreml(two, tmp_path / "Net.mlpackage")
    mac.set(macos=1404)
    with pytest.raises(hx.DeviceError, match=r"function main: got an older system, need macOS 15 or later"):
        on_coreml(str(tmp_path / "Net.mlpackage"))
