"""Models with free dims: what their shapes share, what is kept, and who waits for a compilation."""

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from hexane import _core
from hexane.importers.onnx import split
from hexane.lowering import channel_scales
from onnx_models import model, node

WIDTH = 512
MIB = 1 << 20


def layers(count: int, width: int = WIDTH, path: Path | None = None) -> Any:
    """x -> relu(x @ w) count times, with any number of rows; weights of small whole numbers."""
    rng = np.random.default_rng(count)
    weights = {f"w{i}": rng.integers(-1, 2, (width, width)).astype(np.float32) for i in range(count)}
    nodes = []
    for i in range(count):
        nodes += [node("MatMul", f"x{i} w{i}", f"m{i}"), node("Clip", f"m{i} low high", f"x{i + 1}")]
    constants = weights | {"low": np.float32(-3), "high": np.float32(3)}
    proto = model(nodes, {"x0": np.zeros((1, width), np.float32)}, [f"x{count}"], constants)
    proto.graph.input[0].type.tensor_type.shape.dim[0].CopyFrom(onnx.TensorShapeProto.Dimension(dim_param="rows"))
    return proto, list(weights.values())


def meaning(x: Any, weights: list[Any]) -> Any:
    for w in weights:
        x = np.clip(x @ w, -3, 3)
    return x


def rows(count: int, width: int = WIDTH) -> Any:
    return np.random.default_rng(count).integers(-2, 3, (count, width)).astype(np.float32)


GROWTH = """
import sys
from pathlib import Path
import numpy as np
import hexane as hx

def private_bytes():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

hx.compile(sys.argv[1], threads=1)(np.ones((1, 16), np.float32))  # what the first compilation loads
before = private_bytes()
net = hx.compile(sys.argv[2], threads=1)
for count in range(1, 31):
    net(np.ones((count, 512), np.float32))
print(private_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs malloc_trim and /proc")
@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="AddressSanitizer keeps freed memory")
def test_thirty_shapes_take_the_weights_twice_at_most(tmp_path: Path) -> None:
    proto, weights = layers(25)
    size = sum(w.nbytes for w in weights)
    assert size == 25 * MIB
    onnx.save(layers(1, 16)[0], tmp_path / "small.onnx")
    onnx.save(proto, tmp_path / "m.onnx")
    # In a process of its own, where no memory is free yet.
    arguments = [sys.executable, "-c", GROWTH, str(tmp_path / "small.onnx"), str(tmp_path / "m.onnx")]
    grown = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert grown <= 2 * size + 12 * MIB, f"{grown / MIB:.1f} MiB for weights of {size / MIB:.0f} MiB"


def test_every_shape_computes_with_the_shared_weights() -> None:
    proto, weights = layers(3)
    net = hx.compile(proto, threads=1)
    for count in (1, 7, 30, 7):
        np.testing.assert_array_equal(net(rows(count)), meaning(rows(count), weights))


def test_a_large_file_is_read_once(tmp_path: Path) -> None:
    """Compiled models hold its weights as the file has them, so further shapes take them from there."""
    proto, weights = layers(20)
    onnx.save(proto, tmp_path / "m.onnx")
    net = hx.compile(tmp_path / "m.onnx", threads=1)
    np.testing.assert_array_equal(net(rows(2)), meaning(rows(2), weights))
    (tmp_path / "m.onnx").unlink()
    for count in (3, 40):
        np.testing.assert_array_equal(net(rows(count)), meaning(rows(count), weights))


def at_once(count: int, work: Callable[[int], object]) -> list[Any]:
    """The results of `work` in so many threads that begin together."""
    begin = threading.Barrier(count)

    def one(index: int) -> object:
        begin.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("external", [False, True], ids=["weights inside", "external weights"])
def test_threads_that_call_first_read_a_large_file_once(
    external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hexane.importers import onnx as importer

    proto, weights = layers(20)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=external, location="m.bin", size_threshold=0)
    net = hx.compile(tmp_path / "m.onnx", threads=1)
    reads: list[int] = []

    class Counted(importer.ReadModel):
        def __init__(self, *args: Any) -> None:
            reads.append(1)
            super().__init__(*args)

    monkeypatch.setattr(importer, "ReadModel", Counted)
    got = at_once(8, lambda index: net(rows(index + 1)))
    for index, one in enumerate(got):
        np.testing.assert_array_equal(one, meaning(rows(index + 1), weights))
    assert len(reads) == 1


def test_external_weights_are_kept_in_the_pool(tmp_path: Path) -> None:
    """They count as the file's: a small file with large weights beside it held them twice."""
    from hexane.importers.onnx import ReadModel

    proto, weights = layers(20)
    size = sum(w.nbytes for w in weights)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    assert (tmp_path / "m.onnx").stat().st_size < MIB
    assert size <= ReadModel(tmp_path / "m.onnx").size < size + MIB


def kept_copy(pool: _core.MemoryPool, array: Any, _: int) -> Any:
    return pool.keep(array.copy())


def test_threads_that_keep_equal_bytes_share_a_block() -> None:
    for seed in range(16):
        pool = _core.MemoryPool()
        array = np.random.default_rng(seed).integers(0, 256, 4 * MIB, np.uint8)
        kept = at_once(8, partial(kept_copy, pool, array))
        assert len({one.ctypes.data for one in kept}) == 1


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["of a large file", "of a small file"])
def test_weights_that_programs_hold_in_another_form(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of convolutions, and a matrix that is read transposed: a large file is read again for each shape."""
    from hexane.sources import onnx as source

    monkeypatch.setattr(source, "MOST_KEPT", most)
    rng = np.random.default_rng(3)
    weights = {
        "c": rng.integers(-1, 2, (64, 32, 3, 3)).astype(np.float32),
        "w": rng.integers(-1, 2, (100, 64)).astype(np.float32),
        "b": rng.integers(-1, 2, 100).astype(np.float32),
    }
    nodes = [
        node("Conv", "x c", "y", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", "y", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w b", "z", transB=1),
    ]
    proto = model(nodes, {"x": np.zeros((1, 32, 4, 4), np.float32)}, ["z"], weights)
    proto.graph.input[0].type.tensor_type.shape.dim[0].CopyFrom(onnx.TensorShapeProto.Dimension(dim_param="n"))
    onnx.save(proto, tmp_path / "m.onnx")
    net = hx.compile(tmp_path / "m.onnx", threads=1)
    for count in (1, 2, 3, 2):
        x = rng.integers(-2, 3, (count, 32, 4, 4)).astype(np.float32)
        want = hx.compile(tmp_path / "m.onnx", input_shapes={"x": x.shape}, threads=1)(x)
        np.testing.assert_array_equal(net(x), want)


def test_shapes_that_share_weights_update_and_save_their_own(tmp_path: Path) -> None:
    proto, weights = layers(2)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    x, y = rows(3), rows(5)
    net(y)
    model = net.specialised({"x0": x})
    model.save(tmp_path / "m.hxp")
    np.testing.assert_array_equal(hx.load(tmp_path / "m.hxp")(x), meaning(x, weights))
    whole = hx.compile(proto, input_shapes={"x0": x.shape}, threads=1)
    whole.save(tmp_path / "whole.hxp")
    assert (tmp_path / "whole.hxp").read_bytes() == (tmp_path / "m.hxp").read_bytes()
    model.profile()
    call = net.bind(x0=x)
    call()
    np.testing.assert_array_equal(call.outputs["x2"], meaning(x, weights))
    assert [step["calls"] for step in model.steps] == [1] * len(model.steps)
    np.testing.assert_array_equal(net(y), meaning(y, weights))


def test_a_param_of_a_shared_program_changes_in_that_program_only() -> None:
    from hexane import _core
    from hexane.emit.plan import emit_plan
    from hexane.pipeline import compile_graph
    from hexane.targets import load_target

    pool = _core.MemoryPool()
    w = np.random.default_rng(0).integers(-3, 4, (128, 128)).astype(np.float32)
    programs = []
    for count in (2, 3):
        y = hx.input("x", (count, 128)) @ hx.param("w", w) + hx.param("b", np.ones(128, np.float32))
        sections = emit_plan(compile_graph(hx.graph(y), load_target("host")))
        programs.append(_core.Program(sections, 1, pool))
    a, b = rows(2, 128), rows(3, 128)
    programs[0].update("w", 2 * w)
    np.testing.assert_array_equal(programs[0].run([a])[0], a @ (2 * w) + 1)
    np.testing.assert_array_equal(programs[1].run([b])[0], b @ w + 1)
    programs[0].update("b", np.zeros(128, np.float32))
    programs[0].update("w", w)
    np.testing.assert_array_equal(programs[0].run([a])[0], a @ w)
    np.testing.assert_array_equal(programs[1].run([b])[0], b @ w + 1)


def test_what_is_not_used_for_longest_is_let_go() -> None:
    proto, weights = layers(2, 64)
    net = hx.compile(proto, threads=1, memory=hx.Memory(variants=0))
    assert isinstance(net, hx.OpenModel)
    first = net.specialised({"x0": rows(3, 64)})
    assert net.specialised({"x0": rows(3, 64)}) is first
    bound = net.bind(x0=rows(3, 64))
    for count in (4, 5, 3):
        np.testing.assert_array_equal(net(rows(count, 64)), meaning(rows(count, 64), weights))
        assert "1 sets" in repr(net)
    assert net.specialised({"x0": rows(3, 64)}) is not first
    bound()
    np.testing.assert_array_equal(bound.outputs["x2"], meaning(rows(3, 64), weights))

    one = first.unshared_bytes
    net = hx.compile(proto, threads=1, memory=hx.Memory(variants=3 * one))
    assert isinstance(net, hx.OpenModel)
    models = {}
    for count in (1, 2, 3, 1, 2, 4, 5, 6, 7, 8):
        models[count] = net.specialised({"x0": rows(count, 64)})
    assert net.specialised({"x0": rows(8, 64)}) is models[8]
    assert net.specialised({"x0": rows(1, 64)}) is not models[1]


@pytest.mark.parametrize("value", [-1, 1.5, True, "a"])
def test_a_cache_of_no_number_of_bytes_is_refused(value: Any) -> None:
    with pytest.raises(hx.Error, match=r"\[memory\] variants: got"):
        hx.Memory(variants=value)


# ---- threads ----


def test_an_open_model_is_debugged_for_the_shapes_it_is_given() -> None:
    net = hx.compile(layers(2, 32)[0], target="h13", threads=1)
    assert isinstance(net, hx.OpenModel)
    assert net.device.startswith("none yet")
    x = np.ones((3, 32), np.float32)
    kept = net(x)
    assert "in the place of h13: its program in the engine's arithmetic" in net.device
    found = net.debug(x)
    assert found.ok
    assert len(found.layers) > 2
    assert found.layers[-1].type == "fp32[3, 32]"
    np.testing.assert_array_equal(net(x), kept)


def held(net: hx.OpenModel, rows_held: int) -> tuple[threading.Event, threading.Event, list[int]]:
    """Makes the compilation for `rows_held` rows wait. Returns two events, set when it begins and to let it go on, and
    the numbers of rows that were compiled."""
    began, go_on, compiled = threading.Event(), threading.Event(), list[int]()
    specialise = net._specialise

    def slow(shapes: Any, values: Any) -> hx.Model:
        count = shapes["x0"][0]
        compiled.append(count)
        if count == rows_held:
            began.set()
            assert go_on.wait(30)
        return specialise(shapes, values)

    net._specialise = slow
    return began, go_on, compiled


def in_thread(act: Callable[[], Any], results: list[Any]) -> threading.Thread:
    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_known_shapes_go_on_while_another_is_compiled_once_for_all_who_ask() -> None:
    proto, weights = layers(2, 64)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    net(rows(2, 64))
    began, go_on, compiled = held(net, 7)
    results: list[Any] = []
    threads = [in_thread(lambda: net(rows(7, 64)), results) for _ in range(4)]
    assert began.wait(30)
    for count in (2, 3):  # one that is known, one that is not
        np.testing.assert_array_equal(net(rows(count, 64)), meaning(rows(count, 64), weights))
    assert not results
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, meaning(rows(7, 64), weights))
    assert compiled == [7, 3]


@pytest.mark.parametrize("error", [hx.Error("[no] it is not"), KeyboardInterrupt()])
def test_who_waits_for_a_compilation_that_fails_is_told_and_it_is_tried_again(error: BaseException) -> None:
    proto, weights = layers(1, 64)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    specialise = net._specialise
    began, go_on = threading.Event(), threading.Event()

    def failing(shapes: Any, values: Any) -> hx.Model:
        began.set()
        go_on.wait(30)
        raise error

    net._specialise = failing
    results: list[Any] = []
    threads = [in_thread(lambda: net(rows(2, 64)), results)]
    assert began.wait(30)
    threads.append(in_thread(lambda: net(rows(2, 64)), results))
    while len(threading.enumerate()) < 3:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert all(isinstance(r, (hx.Error, KeyboardInterrupt)) for r in results)
    net._specialise = specialise
    np.testing.assert_array_equal(net(rows(2, 64)), meaning(rows(2, 64), weights))


@pytest.fixture
def five_milliseconds() -> Iterator[float]:
    """The longest turn of a thread, as Python has it unless told otherwise."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_take_short_turns_until_the_last_compilation_ends(five_milliseconds: float) -> None:
    net = hx.compile(layers(1, 64)[0], threads=1)
    assert isinstance(net, hx.OpenModel)
    began, go_on, _ = held(net, 7)
    thread = in_thread(lambda: net(rows(7, 64)), [])
    assert began.wait(30)
    net(rows(3, 64))
    assert sys.getswitchinterval() < 0.001
    child = os.fork()
    if child == 0:  # it has no thread that compiles
        net(rows(4, 64))
        os._exit(0 if sys.getswitchinterval() == five_milliseconds else 1)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    thread.join()
    assert sys.getswitchinterval() == five_milliseconds


def test_turns_that_somebody_sets_meanwhile_stay(five_milliseconds: float) -> None:
    net = hx.compile(layers(1, 64)[0], threads=1)
    assert isinstance(net, hx.OpenModel)
    specialise = net._specialise

    def setting(shapes: Any, values: Any) -> hx.Model:
        sys.setswitchinterval(0.01)
        return specialise(shapes, values)

    net._specialise = setting
    net(rows(3, 64))
    assert sys.getswitchinterval() == 0.01


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_compiles_what_its_parent_was_compiling() -> None:
    proto, weights = layers(1, 64)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    began, go_on, _ = held(net, 7)
    results: list[Any] = []
    thread = in_thread(lambda: net(rows(7, 64)), results)
    assert began.wait(30)
    child = os.fork()
    if child == 0:
        go_on.set()
        os._exit(0 if np.array_equal(net(rows(7, 64)), meaning(rows(7, 64), weights)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(results[0], meaning(rows(7, 64), weights))


def test_an_open_model_says_its_outputs_as_its_file_does() -> None:
    proto, _ = layers(1)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    assert net.output_names == ("x1",)
    with pytest.raises(AttributeError, match="output_names has their names"):
        _ = net.outputs
    said = proto.graph.output[0].type.tensor_type.shape.dim
    said.add(dim_param="rows")
    said.add(dim_value=WIDTH)
    told = hx.compile(proto, threads=1)
    assert [(port.name, port.shape) for port in told.outputs] == [("x1", ("rows", WIDTH))]
    assert [port.name for port in net.specialised({"x0": rows(3)}).outputs] == ["x1"]
    with pytest.raises(hx.Error, match="the model has no params; weights of an ONNX model are constants"):
        net.update(w0=rows(1))


def test_shapes_are_prepared_before_calls(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    proto, weights = layers(2)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    with caplog.at_level("INFO", logger="hexane"):
        made = net.prepare({"x0": (5, WIDTH)})
    assert [record.name for record in caplog.records] == ["hexane"]
    assert "compiled for {'x0': (5, " in caplog.text
    assert made.inputs[0].shape == (5, WIDTH)
    caplog.clear()
    np.testing.assert_array_equal(net(rows(5)), meaning(rows(5), weights))
    assert not caplog.records
    assert net.memory["arena"] >= made.memory["arena"]
    with pytest.raises(hx.InputError, match="got the input 'none', need some of x0"):
        net.prepare({"none": (1,)})


def test_a_file_is_read_once_for_all_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, weights = layers(2)
    file = tmp_path / "open.onnx"
    file.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    net = hx.compile(file, threads=1)
    file.unlink()
    for count in (1, 2, 7):
        np.testing.assert_array_equal(net(rows(count)), meaning(rows(count), weights))


def test_a_call_beyond_the_users_limit_is_a_bad_request() -> None:
    proto, _ = layers(2)
    net = hx.compile(proto, threads=1, memory=hx.Memory(call=WIDTH * 4 * 20))
    net(rows(4))
    with pytest.raises(hx.InputError, match=r"got .* of inputs, need at most the .* of hx.Memory\(call=\)"):
        net(rows(21))
    with pytest.raises(hx.InputError, match=r"got shapes whose call takes .*, need at most"):
        net(rows(16))


def test_every_shape_is_profiled() -> None:
    proto, _ = layers(2)
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    net(rows(3))
    net.profile()
    net(rows(3))
    net(rows(4))
    for count in (3, 4):
        assert {step["calls"] for step in net.specialised({"x0": rows(count)}).steps} == {1}


def normalised_images() -> Any:
    """conv, batch norm and an affine, of images of any width, in a file that is split into parts to be parsed."""
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((256, 128, 3, 3)).astype(np.float32),
        **{name: rng.uniform(0.5, 2, 256).astype(np.float32) for name in ("gamma", "beta", "mean", "var")},
        "scale": rng.uniform(0.5, 2, (256, 1, 1)).astype(np.float32),
    }
    proto = model(
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "a gamma beta mean var", "b"),
            node("Mul", "b scale", "y"),
        ],
        {"x": np.zeros((1, 128, 4, 4), np.float32)},
        ["y"],
        constants,
    )
    proto.graph.input[0].type.tensor_type.shape.dim[3].CopyFrom(onnx.TensorShapeProto.Dimension(dim_param="width"))
    return proto.SerializeToString()


def test_a_further_shape_reads_and_folds_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = dict.fromkeys(("nodes", "folded"), 0)

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(split, "_parse", counted("nodes", split._parse))
    monkeypatch.setattr(channel_scales, "_scaled_weights", counted("folded", channel_scales._scaled_weights))
    data = normalised_images()
    net = hx.compile(data, target="host", threads=1)
    assert isinstance(net, hx.OpenModel)
    x = np.random.default_rng(0).standard_normal((1, 128, 4, 9)).astype(np.float32)
    net.prepare({"x": (1, 128, 4, 5)})
    assert min(counts.values()) > 0
    counts.update(dict.fromkeys(counts, 0))
    y = net(x)
    assert counts == {"nodes": 0, "folded": 0}
    fixed = hx.compile(data, target="host", threads=1, input_shapes={"x": x.shape})
    assert fixed(x).tobytes() == y.tobytes()
    assert fixed.plan_bytes() == net.specialised({"x": x}).plan_bytes()


def test_weights_are_packed_again_after_their_shapes_were_dropped() -> None:
    """Other weights may come to lie where they were."""
    proto, weights = layers(3)
    net = hx.compile(proto, threads=1, memory=hx.Memory(variants=0))
    for count in (1, 40, 7, 1, 40):
        np.testing.assert_array_equal(net(rows(count)), meaning(rows(count), weights))


def free(name: str, *dims: str | int) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)


def drawing(seed: float = 1.0) -> bytes:
    """x + two random numbers; x has any number of rows."""
    nodes = [node("RandomNormal", "", "r", shape=[2], seed=seed), node("Add", "x r", "y")]
    return model(nodes, {"x": free("x", "n", 2)}, ["y"]).SerializeToString()


@pytest.mark.parametrize("variants", ["64M", 0])
def test_the_stream_of_a_random_op_goes_on_over_all_shapes(variants: Any) -> None:
    lengths = (1, 2, 1, 3, 2)
    fixed = hx.compile(drawing(), input_shapes={"x": (1, 2)})
    want = [np.asarray(fixed(np.zeros((1, 2), np.float32)))[0] for _ in lengths]
    net = hx.compile(drawing(), memory=hx.Memory(variants=variants))
    for length, row in zip(lengths, want, strict=True):
        np.testing.assert_array_equal(net(np.zeros((length, 2), np.float32)), [row] * length)
    net.reset_state()
    np.testing.assert_array_equal(net(np.zeros((2, 2), np.float32))[0], want[0])


def test_states_that_cannot_be_shared_are_warned_of() -> None:
    """A device of its own, such as Core ML, or states whose shapes differ."""

    def counter(length: int) -> Any:
        count = hx.state("count", (length,))
        return hx.compile(hx.graph({"y": count}, updates=[hx.write_state(count, hx.add(count, 1.0))]))

    net: Any = hx.compile(drawing())
    net._share_states(counter(2))
    with pytest.warns(
        UserWarning, match="each set of shapes has states of its own: .*need the same names, types and places"
    ):
        net._share_states(counter(3))


def test_saved_shapes_share_their_stream(tmp_path: Path) -> None:
    net = hx.compile(drawing())
    net.prepare({"x": (1, 2)})
    net.prepare({"x": (3, 2)})
    net.save(tmp_path / "net.hxp")
    loaded = hx.load(tmp_path / "net.hxp")
    for length in (1, 3, 3, 1):
        zeros = np.zeros((length, 2), np.float32)
        np.testing.assert_array_equal(loaded(zeros), net(zeros))


def test_the_order_of_names_is_no_part_of_the_shapes(tmp_path: Path) -> None:
    open_sum = model([node("Add", "a b", "y")], {"a": free("a", "n"), "b": free("b", "m")}, ["y"])
    net = hx.compile(open_sum.SerializeToString())
    assert net.prepare({"b": (1,), "a": (3,)}) is net.prepare({"a": (3,), "b": (1,)})
    net.save(tmp_path / "net.hxp")
    y = hx.load(tmp_path / "net.hxp")(np.ones(3, np.float32), np.ones(1, np.float32))
    np.testing.assert_array_equal(y, [2, 2, 2])
