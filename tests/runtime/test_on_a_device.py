"""The whole way of a network to a device and back, through a device that runs the MIL it gets on the CPU."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.program import View
from hexane.runtime.engine import find_engine
from hexane.system.cpu import cpu_instructions
from on_a_device import compiled, feeds, outputs, weights


def one_segment() -> hx.Graph:
    x = hx.input("x", (1, 3, 8, 7))
    return hx.graph({"y": hx.relu(hx.conv(x, weights(4, 3, 3, 3), pad=1))})


def several_ports() -> hx.Graph:
    """Names whose order is another on the device, tensors of ranks below four, rows with and without gaps."""
    z, a = hx.input("z", (1, 3, 4, 5)), hx.input("a", (6, 32))
    return hx.graph({"y": hx.relu(z + 1.0), "b": a * 2.0, "c": hx.transpose(a, perm=(1, 0)) - 1.0})


def through_the_host() -> hx.Graph:
    """sinh runs on no chip: an image goes to the host, where it is a convolution's neighbour, and back."""
    x = hx.input("x", (1, 3, 6, 5))
    y = hx.relu(hx.conv(x, weights(4, 3, 3, 3), pad=1))
    h = hx.round(hx.sinh(hx.clip(y, alpha=0.0, beta=1.0)))
    return hx.graph({"y": hx.relu(hx.conv(h, weights(2, 4, 1, 1))) + 1.0, "h": h})


def parts_on_both() -> hx.Graph:
    """What the host concatenates the engine reads, and the other way round."""
    x = hx.input("x", (1, 2, 3, 5))
    a, b = hx.relu(x), hx.abs(x)
    h = hx.concat(
        [hx.round(hx.sinh(hx.clip(a, alpha=0.0, beta=1.0))), hx.round(hx.sinh(hx.clip(b, alpha=0.0, beta=1.0)))], axis=1
    )
    return hx.graph({"y": hx.concat([hx.relu(h), h * 2.0], axis=1)})


def rows_without_gaps() -> hx.Graph:
    """The host's norm reads no rows with gaps, and the user gets what the program wrote as well."""
    y = hx.leaky_relu(hx.input("x", (2, 5)), alpha=0.5)
    return hx.graph({"y": y, "norm": hx.local_response_norm(y, size=5, axis=0)})


def first_rows() -> hx.Graph:
    """The host splits what a program reads whole: its first rows are no memory of their own."""
    x = hx.input("x", (3, 16))
    a, b = hx.split(x, split_sizes=(1, 2), axis=0)
    return hx.graph({"a": hx.relu(a), "whole": hx.relu(x), "b": hx.round(hx.sinh(hx.clip(b, alpha=0.0, beta=1.0)))})


def truths() -> hx.Graph:
    """What the engine compares the host reads as it is, and the other way round; no port of a program is bool."""
    x, n = hx.input("x", (2, 3, 1, 5)), hx.input("n", (5,), "int32")
    large = hx.greater(x, 1.0)
    y = hx.select(hx.greater(n, np.int32(0)), x * 2.0, hx.abs(x))
    return hx.graph({"y": y, "large": large, "host": hx.sinh(hx.cast(large, dtype="fp32"))})


def many_axes() -> hx.Graph:
    """Five axes between segments, of which a port has four."""
    x = hx.input("x", (2, 1, 3, 2, 4))
    return hx.graph({"y": hx.round(hx.sinh(hx.clip(hx.relu(x), alpha=0.0, beta=1.0))) * 2.0 + 1.0})


def numbers() -> hx.Graph:
    """Tensors of no axes at every port of a program: inputs, params, outputs."""
    x, n = hx.input("x", (2, 3)), hx.input("n", ())
    total = hx.reduce_sum(hx.relu(x), axes=(0, 1), keep_dims=False)
    return hx.graph({"y": total * n, "z": hx.abs(x) * hx.param("p", np.float32(2.0))})


def tokens(kind: str) -> hx.Graph:
    """Numbers of tokens, which no port can hold: the host looks up their rows."""
    rows = hx.gather(weights(20, 8), hx.input("ids", (1, 5), kind), axis=0)
    return hx.graph({"y": hx.relu(hx.matmul(rows, weights(8, 4)))})


def tokens_32() -> hx.Graph:
    return tokens("int32")


def tokens_64() -> hx.Graph:
    return tokens("int64")


def stored_small() -> hx.Graph:
    """Weights as they are stored: bytes and nibbles with a scale, indices of 3 and 6 bits, and numbers without the
    zeros between them."""
    x = hx.input("x", (4, 64))
    rng = np.random.default_rng(1)
    tables = [np.arange(1 << bits, dtype=np.float32) % 3 - 1 for bits in (3, 6)]
    stored = {
        "bytes": hx.dequantize(rng.integers(-2, 100, (64, 16)).astype(np.int8), np.float32(0.5)),
        "nibbles": hx.dequantize(rng.integers(-8, 8, (64, 16)).astype(np.int8), np.float32(0.5)),
        **{f"of_{t.size}": hx.gather(t, rng.integers(0, t.size, (64, 16)).astype(np.int32), axis=0) for t in tables},
        "sparse": np.where(rng.random((64, 16)) < 0.3, 2.0, 0.0).astype(np.float32),
    }
    return hx.graph({name: hx.matmul(x, w) for name, w in stored.items()})


GRAPHS = [
    stored_small,
    one_segment,
    several_ports,
    through_the_host,
    parts_on_both,
    rows_without_gaps,
    first_rows,
    truths,
    many_axes,
    tokens_32,
    tokens_64,
    numbers,
]


@pytest.mark.parametrize("io", ["", "fp16"])
@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_a_device_gives_the_bits_of_the_cpu(make: Callable[[], hx.Graph], io: str, engine: _core.Device) -> None:
    graph = make()
    net, cpu = compiled(graph, device="ane", io=io), compiled(graph, device="cpu", io=io)
    arrays = {k: a.astype(np.float16) if io and a.dtype == np.float32 else a for k, a in feeds(graph).items()}
    for scale in (1, -2):
        given = {k: (a * scale).astype(a.dtype) for k, a in arrays.items()}
        got, want = outputs(net, given), outputs(cpu, given)
        assert got.keys() == want.keys()
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
            assert got[name].dtype == want[name].dtype
    assert net.program is not None
    assert net.device.split()[2] == str(sum(s.device == "ane" for s in net.program.segments))


def test_programs_of_dropped_models_are_unloaded(engine: _core.Device) -> None:
    before = engine.counters
    net = compiled(one_segment(), device="ane")
    during = engine.counters
    assert [during[k] - before[k] for k in ("compiled", "loaded")] == [1, 1]
    del net
    assert engine.counters["loaded"] == before["loaded"]


def with_params() -> hx.Graph:
    x, w = hx.input("x", (1, 8, 1, 16)), hx.param("w", weights(8, 8))
    y = hx.reshape(x, shape=(8, 16))
    return hx.graph({"y": hx.relu(hx.matmul(w, y))})


def test_params_are_inputs_that_update_replaces(engine: _core.Device) -> None:
    net, cpu = compiled(with_params(), device="ane"), compiled(with_params(), device="cpu")
    x = feeds(with_params())["x"]
    np.testing.assert_array_equal(net(x), cpu(x))
    for model in (net, cpu):
        model.update(w=weights(8, 8).T * 2)
        model.reset_state()
    assert net(x).any()
    np.testing.assert_array_equal(net(x), cpu(x))
    with pytest.raises(hx.Error, match="shape: got"):
        net.update(w=weights(8, 9))


def test_a_bound_call_reads_and_writes_the_surfaces(engine: _core.Device) -> None:
    net, cpu = compiled(one_segment(), device="ane", io="fp16"), compiled(one_segment(), device="cpu", io="fp16")
    assert [s["kernel"] for s in net.steps] == ["program"]
    call, other = net.bind(), net.bind()
    x, y = call.inputs["x"], call.outputs["y"]
    assert x.strides == (3 * 8 * 64, 8 * 64, 64, 2)
    assert net.surfaces.keys() == {"x", "y"}
    for scale in (1, 3):
        given = (weights(1, 3, 8, 7) * scale).astype(np.float16)
        x[...] = given
        call()
        want = cpu(given)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(other.outputs["y"], want)
        np.testing.assert_array_equal(net.surfaces["y"].read(1, 2), want[:, 1:3])
    del net, call, other
    np.testing.assert_array_equal(y, want)
    x[...] = 0


def test_a_bound_call_copies_buffers_that_are_given(engine: _core.Device) -> None:
    net, cpu = compiled(several_ports(), device="ane", io="fp16"), compiled(several_ports(), device="cpu", io="fp16")
    arrays = {k: a.astype(np.float16) for k, a in feeds(several_ports()).items()}
    given = {"z": arrays["z"].copy(), "y": np.empty((1, 3, 4, 5), np.float16)}
    call = net.bind(**given)
    call.inputs["a"][...] = arrays["a"]
    for factor in (1, 2):
        given["z"][...] = arrays["z"] * factor
        call()
        want = cpu({**arrays, "z": given["z"]})
        np.testing.assert_array_equal(given["y"], want["y"])
        for name in ("b", "c"):
            np.testing.assert_array_equal(call.outputs[name], want[name])
    given["z"].resize((1, 3, 5, 4), refcheck=False)
    with pytest.raises(hx.Error, match="changed after bind"):
        call()


def test_a_surface_that_is_locked_is_refused(engine: _core.Device) -> None:
    net = compiled(one_segment(), device="ane", io="fp16")
    call = net.bind()
    for run in (call, lambda: net(weights(1, 3, 8, 7).astype(np.float16))):
        with (
            net.surfaces["x"].access(),
            pytest.raises(hx.DeviceError, match=r"a surface is locked|status=0x1 ") as raised,
        ):
            run()
        assert raised.value.stage == "evaluate"
    call()


def test_calls_are_awaited_and_run_beside_each_other(engine: _core.Device) -> None:
    nets = [compiled(make(), device="ane") for make in (one_segment, through_the_host)]
    arrays = [feeds(make()) for make in (one_segment, through_the_host)]
    wants = [outputs(net, given) for net, given in zip(nets, arrays, strict=True)]

    async def run() -> list[object]:
        return await asyncio.gather(
            *(net.run_async(given) for _ in range(5) for net, given in zip(nets, arrays, strict=True))
        )

    for i, got in enumerate(asyncio.run(run())):
        for name, want in wants[i % 2].items():
            np.testing.assert_array_equal(got[name] if isinstance(got, dict) else got, want)
    futures = [nets[0].submit(x=arrays[0]["x"] * np.float32(i)) for i in range(20)]
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(), nets[0](x=arrays[0]["x"] * np.float32(i)))
    with pytest.raises(hx.Error, match="got the inputs"):
        nets[0].submit(wrong=arrays[0]["x"]).result()


def test_threads_share_models_and_devices(engine: _core.Device) -> None:
    nets = [compiled(make(), device="ane") for make in GRAPHS]
    arrays = [feeds(make()) for make in GRAPHS]
    wants = [outputs(net, given) for net, given in zip(nets, arrays, strict=True)]

    def work(first: int) -> None:
        for i in range(first, first + 40):
            net, given, want = (side[i % len(nets)] for side in (nets, arrays, wants))
            for name, value in outputs(net, given).items():  # type: ignore[arg-type]
                np.testing.assert_array_equal(value, want[name])  # type: ignore[index]

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, i) for i in range(8)]:
            done.result()


def test_device_says_what_runs_and_why(engine: _core.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = compiled(one_segment())
    assert net.device.startswith(f"ane ({engine.name}): 1 program of h13, the rest on cpu (")
    assert compiled(one_segment(), device="cpu").device.startswith(f"cpu ({cpu_instructions()}), in the place of h13")
    with pytest.raises(hx.Error, match=r"\[save\] got a model with programs on \w+, need .*device='cpu'"):
        net.save(tmp_path / "m.hxp")
    assert net.program is not None
    sections = emit_plan(net.program)
    with pytest.raises(hx.Error, match="programs: got 0, need 1, one for each step of a device"):
        _core.Program(sections)
    monkeypatch.undo()
    auto = compiled(one_segment())
    assert "no Neural Engine here (" in auto.device
    assert auto.device.endswith("in the place of h13: its program in the engine's arithmetic, as far as it is known")


@pytest.mark.skipif(sys.platform == "darwin", reason="needs a machine without a Neural Engine")
def test_a_device_that_is_not_there_is_an_error() -> None:
    words = (
        r"\[compile\] device: got 'ane', need a Neural Engine: no Neural Engine here .*; 'cpu' runs the same program"
    )
    with pytest.raises(hx.Error, match=words):
        compiled(one_segment(), device="ane")


def test_devices_that_make_no_sense_are_refused(engine: _core.Device) -> None:
    for device, target, words in [
        ("gpu", "h13", "device: got 'gpu', need 'auto', 'cpu', 'ane' or 'coreml'"),
        ("ane", "host", "device: got 'ane' for host, need a chip as the target"),
    ]:
        with pytest.raises(hx.Error, match=words):
            hx.compile(one_segment(), target=target, device=device)
    for options in ({"numerics": "engine"}, {"numerics": "ieee"}, {"memory": hx.Memory(rows=1)}):
        with pytest.raises(hx.Error, match="need the CPU for it"):
            compiled(one_segment(), device="ane", **options)
        assert "options that need the CPU" in compiled(one_segment(), **options).device


def test_a_forked_process_is_told_to_make_its_own(engine: _core.Device) -> None:
    call = compiled(one_segment(), device="ane", io="fp16").bind()
    child = os.fork()
    if not child:
        try:
            call()
        except hx.Error as error:
            os._exit(0 if "forked process" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    call()


def test_the_engine_of_a_machine_runs_programs_of_its_own_chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libhexane_ane.dylib"
    library.write_bytes(b"no library")
    monkeypatch.setattr("hexane.runtime.engine.library_path", lambda: library)
    monkeypatch.setattr("hexane.runtime.engine.this_machine", lambda: "h13")
    monkeypatch.setenv("HEXANE_TARGET", "h17s")
    assert find_engine("h17s") == (None, "the engine of this machine is h13, not h17s")
    engine, why = find_engine("h13")
    assert engine is None
    assert why.startswith("no Neural Engine here: [device open]")
    monkeypatch.delenv("HEXANE_TARGET")
    net = hx.compile(one_segment())
    assert (net.target, "no Neural Engine here: [device open]" in net.device) == ("h13", True)
    assert hx.compile(one_segment(), device="cpu").target == "host"


def steps_of(graph: hx.Graph, io: str = "") -> list[tuple[str, list[int], list[int]]]:
    """Each step with the buffers it reads and writes that are surfaces."""
    program = compiled(graph, device="ane", io=io).program
    assert program is not None

    def surfaces(views: Sequence[View | None]) -> list[int]:
        return [v.buffer for v in views if v is not None and program.buffers[v.buffer].surface]

    return [(step.kernel, surfaces(step.inputs), surfaces(step.outputs)) for step in program.steps]


def test_the_host_computes_in_the_surfaces_of_programs(engine: _core.Device) -> None:
    steps = steps_of(through_the_host())
    first, second = (i for i, (kernel, _, _) in enumerate(steps) if kernel == "program")
    assert steps[second][1] == steps[second - 1][2] != []
    assert steps[second - 1][0] != "copy"
    assert any(steps[i][1] == steps[first][2] for i in range(first + 1, second))
    assert "copy" not in [kernel for kernel, _, _ in steps[first:]]


def test_a_program_reads_the_surface_that_another_wrote(engine: _core.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    retarget = import_module("hexane.passes.retarget.retarget")
    monkeypatch.setattr(retarget, "_cutting", lambda graph: set())  # a fused attention cuts
    q, k, v = (hx.input(name, (1, 2, 6, 8)) for name in "qkv")
    graph = hx.graph(hx.scaled_dot_product_attention(hx.relu(q), hx.relu(k), v) * 2.0)
    steps = [step for step in steps_of(graph, "fp16") if step[0] == "program"]
    assert len(steps) > 1
    for before, after in pairwise(steps):
        assert set(before[2]) & set(after[1])


def test_a_class_of_queues_is_a_number_up_to_63() -> None:
    for qos in (64, -1, True, "user-interactive"):
        with pytest.raises(hx.Error, match=r"qos: got .*, need an integer from 0 to 63"):
            hx.compile(one_segment(), target="h13", device=hx.Device(qos=qos))  # type: ignore[arg-type]
