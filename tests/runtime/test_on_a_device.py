"""The whole way of a network to a device and back, through a device that runs the MIL it gets on the CPU."""

import asyncio
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine, stand_in_engine
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array
from hexane.program import View
from hexane.runtime.chip import chip_program
from hexane.runtime.engine import OnEngine, find_engine
from hexane.targets.query import load_chip
from networks import small_networks


@pytest.fixture(params=["plan", "stand-in"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _core.Device:
    made = plan_engine() if request.param == "plan" else stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (made, ""))
    return made


def weights(*shape: int) -> Array:
    """Small integers: sums of them are exact in fp16, in any order."""
    return (np.arange(np.prod(shape)).reshape(shape) % 3 - 1).astype(np.float32)


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


GRAPHS = [
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


def feeds(graph: hx.Graph) -> dict[str, Array]:
    numbers = {str(v.node.attrs["name"]): (v, weights(*v.shape) + np.float32(i)) for i, v in enumerate(graph.inputs)}
    return {name: array.astype(v.dtype.numpy) for name, (v, array) in numbers.items()}


def outputs(net: object, *args: object, **kwargs: object) -> dict[str, Array]:
    result = net(*args, **kwargs)  # type: ignore[operator]
    return result if isinstance(result, dict) else {"y": result}


def compiled(model: object, **options: object) -> hx.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.FallbackWarning)
        warnings.simplefilter("ignore", hx.HazardWarning)
        return hx.compile(model, target="h13", **options)  # type: ignore[arg-type, return-value]


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


def with_state() -> hx.Graph:
    """A cache of 12 rows of which each call writes one; all of it is read, before and after."""
    x, position = hx.input("x", (1, 8)), hx.input("position", (), "int32")
    cache = hx.state("cache", (12, 8), init=weights(12, 8))
    written = hx.write_state(cache, hx.relu(x) * 2.0, position, axis=0)
    scores = hx.matmul(x, hx.transpose(written, perm=(1, 0)))
    return hx.graph({"y": hx.relu(scores), "before": cache + 1.0})


def test_states_last_in_the_surface_that_the_device_reads(engine: _core.Device) -> None:
    net, cpu = compiled(with_state(), device="ane"), compiled(with_state(), device="cpu")
    for round_trip in range(2):
        for i in (0, 3, 11):
            x = weights(1, 8) + np.float32(i)
            got, want = (m(x=x, position=np.int32(i)) for m in (net, cpu))
            for name in want:
                np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name} {round_trip} {i}")
        np.testing.assert_array_equal(net.read_state("cache"), cpu.read_state("cache"))
        for model in (net, cpu):
            model.reset_state()
        np.testing.assert_array_equal(net.read_state("cache"), weights(12, 8))
    for model in (net, cpu):
        model.write_state("cache", weights(12, 8) * 3)
    np.testing.assert_array_equal(net.read_state("cache"), weights(12, 8) * 3)
    assert net.program is not None
    (state,) = [b for b in net.program.buffers if b.kind == "state"]
    assert state.surface
    copied = [s for s in net.program.steps if s.kernel == "copy" and s.inputs[0].type.shape == (12, 8)]  # type: ignore[union-attr]
    assert not copied


def recurrent() -> hx.Graph:
    """States that programs compute anew: a cell, one that the host reads as well, and two that change places."""
    x = hx.input("x", (1, 8))
    cell, total = hx.state("cell", (1, 8)), hx.state("total", (1, 8), init=weights(1, 8))
    a, b = hx.state("a", (2, 3, 5), init=weights(2, 3, 5)), hx.state("b", (2, 3, 5))
    after = hx.write_state(cell, hx.tanh(hx.matmul(x, weights(8, 8)) + hx.matmul(cell, weights(8, 8).T)), np.int32(0))
    added = hx.write_state(total, total + hx.relu(x), np.int32(0))
    both = [hx.write_state(a, b + 1.0, np.int32(0)), hx.write_state(b, a * 1.0, np.int32(0))]
    y = {"after": after * 2.0, "before": cell + 1.0, "host": hx.round(hx.sinh(hx.clip(added, alpha=0.0, beta=1.0)))}
    return hx.graph(y, updates=both)


STATES = ("cell", "total", "a", "b")


@pytest.mark.parametrize("io", ["", "fp16"])
def test_states_that_programs_compute_stay_where_they_are_written(io: str, engine: _core.Device) -> None:
    net, cpu = compiled(recurrent(), device="ane", io=io), compiled(recurrent(), device="cpu", io=io)
    kind = net.inputs[0].dtype.numpy.type

    def check(i: int) -> None:
        x = (weights(1, 8) + np.float32(i)).astype(kind) * kind(0.25)
        got, want = net(x), cpu(x)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name} in call {i}")
        for name in STATES:
            np.testing.assert_array_equal(net.read_state(name), cpu.read_state(name), err_msg=f"{name} after call {i}")

    for i in range(5):
        check(i)
    for model in (net, cpu):
        model.write_state("cell", weights(1, 8))
        model.write_state("b", weights(2, 3, 5) * 3)
    check(5)
    for model in (net, cpu):
        model.reset_state()
    np.testing.assert_array_equal(net.read_state("a"), weights(2, 3, 5))
    for i in range(2):
        check(i)
    assert net.program is not None
    assert len(net.program.swaps) == len(STATES)
    assert not [s for s in net.program.steps if s.node.op == "write_state"]


def test_outputs_of_a_program_are_of_one_size(engine: _core.Device) -> None:
    """Constraint 2 of docs/mil.md; a state that is one of them still changes places."""
    x = hx.input("x", (1, 64, 16, 16))
    total = hx.state("total", (1, 64, 1, 16))
    rows = hx.reduce_max(x, axes=(2,), keep_dims=True)
    graph = hx.graph({"large": hx.relu(x), "small": hx.write_state(total, hx.maximum(total, rows), np.int32(0)) * 2.0})
    net, cpu = compiled(graph, device="ane"), compiled(graph, device="cpu")
    for i in range(3):
        array = weights(1, 64, 16, 16) * np.float32(i)
        got, want = net(array), cpu(array)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    assert net.program is not None
    (step,) = (s for s in net.program.steps if s.kernel == "program")
    sizes = [net.program.buffers[v.buffer].bytes for v in step.outputs]
    assert len(sizes) == 3
    assert len(set(sizes)) == 1
    assert len(net.program.swaps) == 1


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_swaps_of_other_memories_are_refused(engine: _core.Device) -> None:
    on_engine = OnEngine(engine, load_chip("h13"), qos=21)
    program = chip_program(recurrent(), load_chip("h13"), on_engine=on_engine)
    made, sections = on_engine.in_order(program), emit_plan(program)
    state, after = (program.buffers[i].space for i in program.swaps[0])
    for swap, words in [
        ((after, state), "need a state and an arena of its size"),
        ((state, "none"), "got the space 'none'"),
    ]:
        with pytest.raises(hx.Error, match=words):
            _core.Program(sections, 1, None, made, [swap])


def test_bound_calls_go_on_with_the_states_of_each_other(engine: _core.Device) -> None:
    net, cpu = compiled(recurrent(), device="ane", io="fp16"), compiled(recurrent(), device="cpu", io="fp16")
    calls = [net.bind(), net.bind()]
    for i in range(5):
        x = (weights(1, 8) * i).astype(np.float16)
        call = calls[i % 2]
        call.inputs["x"][...] = x
        call()
        for name, want in cpu(x).items():
            np.testing.assert_array_equal(call.outputs[name], want, err_msg=f"{name} {i}")


def test_a_call_that_fails_leaves_computed_states_as_they_were(engine: _core.Device) -> None:
    net = compiled(recurrent(), device="ane", io="fp16")
    x = weights(1, 8).astype(np.float16)
    net(x)
    before = {name: net.read_state(name) for name in STATES}
    with net.surfaces["x"].access(), pytest.raises(hx.DeviceError):
        net.bind()()
    for name in STATES:
        np.testing.assert_array_equal(net.read_state(name), before[name])
    cpu = compiled(recurrent(), device="cpu", io="fp16")
    want = [cpu(x), cpu(x)][1]
    for name, got in net(x).items():
        np.testing.assert_array_equal(got, want[name])


def decoder_layer(dim: int, heads: int, length: int, hidden: int, norm: str) -> hx.Graph:
    """Norm, attention over a cache of keys and values, a gated MLP, with residuals."""
    size = dim // heads
    x, position = hx.input("x", (1, dim)), hx.input("position", (), "int32")
    rng = np.random.default_rng(3)

    def linear(x: hx.Tensor, rows: int, columns: int) -> hx.Tensor:
        return hx.matmul(x, (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32))

    def normed(x: hx.Tensor) -> hx.Tensor:
        if norm == "layer_norm":
            return hx.layer_norm(x, axes=(-1,), epsilon=2**-16)
        return hx.rms_norm(x, np.ones(dim, np.float32), axes=(-1,), epsilon=2**-16)

    n = normed(x)
    q, k, v = (hx.reshape(linear(n, dim, dim), shape=(heads, 1, size)) for _ in range(3))
    keys = hx.write_state(hx.state("keys", (heads, length, size)), k, position, axis=1)
    values = hx.write_state(hx.state("values", (heads, length, size)), v, position, axis=1)
    scores = hx.matmul(q, hx.transpose(keys, perm=(0, 2, 1))) * float(size**-0.5)
    later = hx.greater(np.arange(length, dtype=np.int32).reshape(1, 1, length), hx.reshape(position, shape=(1, 1, 1)))
    mixed = hx.matmul(hx.softmax(hx.select(later, np.float32(-1e4), scores), axis=-1), values)
    x = x + linear(hx.reshape(mixed, shape=(1, dim)), dim, dim)
    n = normed(x)
    gated = hx.silu(linear(n, dim, hidden)) * linear(n, dim, hidden)
    return hx.graph({"y": x + linear(gated, hidden, dim)})


OF_110M = (768, 12, 256, 2048)  # a layer of 12 heads of 64, as in a model of 110 million parameters


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("size", [(32, 2, 16, 64), pytest.param(OF_110M, marks=pytest.mark.slow)])
def test_a_decoder_layer_keeps_its_cache_on_the_device(size: tuple[int, ...], norm: str, engine: _core.Device) -> None:
    """MIL has no rms_norm: it is written as six ops, each of which rounds to fp16, where the CPU's rounds once. All else is equal."""
    net, cpu = (compiled(decoder_layer(*size, norm), device=device) for device in ("ane", "cpu"))
    rng = np.random.default_rng(0)
    for i in range(6):
        x = rng.standard_normal((1, size[0]), np.float32)
        results = [{"y": m(x=x, position=np.int32(i))} for m in (net, cpu)]
        for m, found in zip((net, cpu), results, strict=True):
            found |= {name: m.read_state(name) for name in ("keys", "values")}
        for name, want in results[1].items():
            tolerance = 0.0 if norm == "layer_norm" else 6 * 2**-11 * np.abs(want).max()
            np.testing.assert_allclose(results[0][name], want, rtol=0, atol=tolerance, err_msg=f"{name} {i}")
    assert engine.counters["loaded"] > 1
    assert net.program is not None
    caches = (size[1], size[2], size[0] // size[1])
    assert all(b.surface for b in net.program.buffers if b.kind == "state")
    copied = [s for s in net.program.steps if s.kernel == "copy" and s.inputs[0].type.shape == caches]  # type: ignore[union-attr]
    assert not copied


BENCHMARKS = [
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "randwire", "resnet8", "resnet8_bn", "transformer",
    "unet_128", "yolo_160", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet_v2_100_224", "resnet18_224")),
]  # fmt: skip


@pytest.mark.parametrize("name", [*small_networks(), *BENCHMARKS])
def test_networks_run_on_a_device(name: str, engine: _core.Device, model_file: Callable[[str], Path]) -> None:
    model = model_file(name)
    net, cpu = compiled(model, device="ane"), compiled(model, device="cpu")
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.uniform(-1, 1, p.shape).astype(np.float32) for p in net.inputs}
    got, want = outputs(net, arrays), outputs(cpu, arrays)
    for key in want:
        np.testing.assert_array_equal(got[key], want[key])


def left_to_the_host() -> dict[str, hx.Tensor]:
    """What the chip runs and no program of its engine can have, between ops that one has."""
    x, z, w = hx.input("x", (1, 4, 6, 8)), hx.input("z", (2, 4, 6, 8)), hx.input("w", (4, 4, 1, 1))
    i8 = hx.input("i8", (2, 1, 2, 1, 3), "int8")
    mask = hx.param("mask", weights(4, 6, 8) > 0)
    return {
        "argmax": hx.reduce_argmax(hx.relu(x), axis=1),
        "conv": hx.relu(hx.conv(hx.abs(z), w)),
        "dequantize": hx.abs(hx.dequantize(i8, np.float32(0.5))),
        "masked": hx.select(mask, x, hx.relu(x)) + 1.0,
    }


LEFT = {
    "argmax": ("reduce_argmax", "int32[1, 6, 8] passes to others, which no port"),
    "conv": ("conv", "MIL cannot say it: got a weight that is computed and a batch of 2"),
    "dequantize": ("dequantize", "int8[2, 1, 2, 1, 3] passes from outside, which no port"),
    "masked": ("select", "bool[4, 6, 8] passes from outside, which no port"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_no_program_can_have_runs_on_the_host_alone(name: str, engine: _core.Device) -> None:
    op, reason = LEFT[name]
    graph = hx.graph({name: left_to_the_host()[name]})
    net, cpu = compiled(graph, device="ane"), compiled(graph, device="cpu")
    np.testing.assert_array_equal(outputs(net, feeds(graph))["y"], outputs(cpu, feeds(graph))["y"])
    assert net.program is not None
    assert [node.op for s in net.program.segments if s.device == "host" for node in s.nodes] == [op]
    assert any(s.device == "ane" for s in net.program.segments)
    said = [d for d in net.program.decisions if d.stage == "segment" and d.verdict == "host"]
    assert [d.node.partition(" at ")[0] for d in said] == [op]
    assert said[0].reason.startswith(reason)
    assert not [d for d in cpu.program.decisions if d.verdict == "host"]  # type: ignore[union-attr]


def test_fallback_error_names_what_no_program_can_have(engine: _core.Device) -> None:
    with pytest.raises(
        hx.Error, match=r"1 of 3 ops run on the host: conv at .*batch of 2.*; need ops that the engine takes"
    ):
        compiled(hx.graph(left_to_the_host()["conv"]), device="ane", fallback="error")
    compiled(hx.graph(left_to_the_host()["conv"]), device="cpu", fallback="error")


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
    given["z"].shape = (1, 3, 5, 4)
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
    assert compiled(one_segment(), device="cpu").device.startswith(f"cpu ({_core.isa()}), in the place of h13")
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
        ("gpu", "h13", "device: got 'gpu', need 'auto', 'cpu' or 'ane'"),
        ("ane", "host", "device: got 'ane' for host, need a chip as the target"),
    ]:
        with pytest.raises(hx.Error, match=words):
            hx.compile(one_segment(), target=target, device=device)
    for options in ({"numerics": "engine"}, {"numerics": "ieee"}, {"stream_rows": 1}):
        with pytest.raises(hx.Error, match="need the CPU for these"):
            compiled(one_segment(), device="ane", **options)
        assert "the CPU was asked for" in compiled(one_segment(), **options).device


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


def test_a_program_reads_the_surface_that_another_wrote(engine: _core.Device) -> None:
    q, k, v = (hx.input(name, (1, 2, 6, 8)) for name in "qkv")
    graph = hx.graph(hx.scaled_dot_product_attention(hx.relu(q), hx.relu(k), v) * 2.0)
    steps = [step for step in steps_of(graph, "fp16") if step[0] == "program"]
    assert len(steps) > 1
    for before, after in pairwise(steps):
        assert set(before[2]) & set(after[1])


def test_a_class_of_queues_is_a_number_up_to_63() -> None:
    for qos in (64, -1, True, "user-interactive"):
        with pytest.raises(hx.Error, match=r"qos: got .*, need an integer from 0 to 63"):
            hx.compile(one_segment(), target="h13", qos=qos)  # type: ignore[arg-type]
