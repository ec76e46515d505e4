"""csrc/device/ane*.mm against the stand-in: the order of calls, names and strides, errors, budgets, files."""

import ctypes as c
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hexane.graph import Array
from stand_in import (
    BYTES,
    FIND_CLASS,
    LINE,
    AneError,
    Error,
    StandIn,
    Surfaces,
    needs_stand_in,
    programs_folder,
)

# Neither inputs nor outputs are in alphabetical order; the outputs have different sizes, and rows shorter than 64 bytes.
MIL = """program(1.3)
[buildInfo = dict<string, string>({{"coremlc-version", "3505.4.1"}})]
{
    func main<ios18>(tensor<fp16, [1, 3, 4, 5]> x, tensor<fp16, [1, 3, 4, 5]> b) {
        tensor<fp16, [1, 3, 1, 1]> w = const()[name = string("w"), val = tensor<fp16, [1, 3, 1, 1]>(\
BLOBFILE(path = string("@model_path/weights/weights.bin"), offset = uint64(64)))];
        tensor<fp16, [1, 3, 4, 5]> scaled = mul(x = x, y = w)[name = string("scaled")];
        tensor<fp16, [1, 3, 4, 5]> z = sub(x = scaled, y = b)[name = string("z")];
        tensor<int32, [1]> axes = const()[name = string("axes"), val = tensor<int32, [1]>([3])];
        tensor<fp16, [1, 3, 4, 1]> a = reduce_max(x = x, axes = axes, keep_dims = bool(true))[name = string("a")];
    } -> (z, a);
}
"""
W = np.array([0.5, -2, 3], np.float16).reshape(1, 3, 1, 1)


def blob(values: Array, *, dtype: int = 1, size: int | None = None) -> bytes:
    payload = values.tobytes()
    header = struct.pack("<II56x", 1, 2)
    return header + struct.pack("<IIQQQ32x", 0xDEADBEEF, dtype, size or len(payload), 128, 0) + payload


FILES = {"weights/weights.bin": blob(W)}


@pytest.fixture
def stand_in() -> StandIn:
    needs_stand_in()
    return StandIn()


@pytest.fixture
def ane(stand_in: StandIn) -> Iterator[c.c_void_p]:
    handle = stand_in.open()
    yield handle
    stand_in.library.hexane_ane_close(handle)


def ramp(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 3, 4, 5)).astype(np.float16)


def run(stand_in: StandIn, program: c.c_void_p, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """b, x and the outputs a, z."""
    b, x = ramp(seed), ramp(seed + 1)
    request = stand_in.bind(program)
    stand_in.write(request, 0, b.tobytes())
    stand_in.write(request, 1, x.tobytes())
    stand_in.evaluate(request)
    a = np.frombuffer(stand_in.read(request, 2, 24), np.float16).reshape(1, 3, 4, 1)
    z = np.frombuffer(stand_in.read(request, 3, 120), np.float16).reshape(1, 3, 4, 5)
    stand_in.library.hexane_ane_unbind(request)
    return b, x, a, z


def folders() -> set[Path]:
    return {path for path in programs_folder().rglob("FAKE*") if path.is_dir()}


def locks() -> list[Path]:
    return [path for path in programs_folder().rglob("FAKE*") if path.is_file()]


def test_a_program_computes_what_its_text_says(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    b, x, a, z = run(stand_in, program)
    np.testing.assert_array_equal(z, x * W - b)
    np.testing.assert_array_equal(a, x.max(axis=3, keepdims=True))
    stand_in.free(program)


def test_ports_have_names_and_strides_of_the_loaded_model(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    assert stand_in.ports(program) == []
    stand_in.load(program)
    ports = stand_in.ports(program)
    assert [port.name for port in ports] == [b"b", b"x", b"a", b"z"]
    assert [list(port.shape) for port in ports] == [[1, 3, 4, 5], [1, 3, 4, 5], [1, 3, 4, 1], [1, 3, 4, 5]]
    assert {(port.row_stride, port.plane_stride, port.batch_stride, port.bytes) for port in ports} == {
        (64, 256, 768, 768)
    }
    assert {port.dtype for port in ports} == {b"fp16"}
    stand_in.free(program)


def test_weights_are_those_of_the_compile(stand_in: StandIn, ane: c.c_void_p) -> None:
    """Files that change under a compiled program have no effect, even when it is loaded anew."""
    before = folders()
    program = stand_in.compile(ane, MIL, FILES)
    (folder,) = folders() - before
    (folder / "weights" / "weights.bin").write_bytes(blob(W + 1))
    stand_in.load(program)
    stand_in.call("unload", program)
    stand_in.load(program)
    b, x, _, z = run(stand_in, program)
    np.testing.assert_array_equal(z, x * W - b)
    stand_in.free(program)


def test_equal_programs_share_a_folder_which_the_last_removes(stand_in: StandIn, ane: c.c_void_p) -> None:
    before = folders()
    first, second = (stand_in.compile(ane, MIL, FILES) for _ in range(2))
    assert len(folders() - before) == 1
    stand_in.free(first)
    assert len(folders() - before) == 1
    stand_in.load(second)
    run(stand_in, second)
    other = stand_in.compile(ane, MIL, {"weights/weights.bin": blob(W * 2)})
    assert len(folders() - before) == 2
    stand_in.free(second)
    stand_in.free(other)
    assert folders() == before


def start(code: str) -> "subprocess.Popen[str]":
    """Another process with `t`, which is this module, `stand_in` and `ane`, that runs the code."""
    setup = "import os, sys, test_dispatch as t; stand_in = t.StandIn(); ane = stand_in.open()"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", f"{setup}\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )


KILLED = "os.kill(os.getpid(), 9)"


def test_processes_share_a_folder_too(stand_in: StandIn, ane: c.c_void_p) -> None:
    """Another process that has compiled the same keeps the folder; one that was killed does not."""
    before = folders()
    other = start(
        f"stand_in.compile(ane, t.MIL, t.FILES); print('compiled', flush=True); sys.stdin.readline(); {KILLED}"
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "compiled\n"
    stand_in.free(stand_in.compile(ane, MIL, FILES))
    kept = stand_in.open()
    assert len(folders() - before) == 1
    other.communicate("\n")
    assert len(folders() - before) == 1
    stand_in.free(stand_in.compile(ane, MIL, FILES))
    assert folders() == before
    stand_in.library.hexane_ane_close(kept)


def test_what_a_killed_process_left_is_removed_by_the_next(stand_in: StandIn, ane: c.c_void_p) -> None:
    before = folders()
    program = stand_in.compile(ane, MIL, FILES)
    start(f"stand_in.compile(ane, t.MIL, {{'weights/weights.bin': t.blob(t.W * 3)}}); {KILLED}").communicate()
    assert len(folders() - before) == 2
    stand_in.library.hexane_ane_close(stand_in.open())
    assert len(folders() - before) == 1
    stand_in.load(program)
    stand_in.free(program)
    assert folders() == before


def test_a_process_that_ends_leaves_no_folder(stand_in: StandIn) -> None:
    before = folders()
    other = start("program = stand_in.compile(ane, t.MIL, t.FILES); stand_in.load(program)")
    other.communicate()
    assert other.returncode == 0
    assert folders() == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/etc/passwd", "need a relative path without '.' and '..'"),
        ("weights/../../x", "need a relative path without '.' and '..'"),
        ("./w.bin", "need a relative path without '.' and '..'"),
        ("", "need a relative path without '.' and '..'"),
        ("a//b", "need a relative path without '.' and '..'"),
        ("model.mil", "which is the name of another file there"),
        ("data/w.bin", "which is the name of another file there"),
    ],
)
def test_a_weight_file_stays_in_its_folder(stand_in: StandIn, ane: c.c_void_p, name: str, text: str) -> None:
    compiled = stand_in.count()[0]
    with pytest.raises(AneError) as error:
        stand_in.compile(ane, MIL, {name: b""})
    assert error.value.stage == "files"
    assert text in error.value.text
    assert stand_in.count()[0] == compiled


@pytest.mark.parametrize(
    ("mil", "files", "text", "hint"),
    [
        ("func main", FILES, "InvalidMILProgram", "does not parse"),
        ("program(1.3) ..", FILES, "InvalidMILProgram: line 1, column 14: need '['", "does not parse"),
        (MIL.replace("sub(", "subs("), FILES, "model.mil:7:40] subs: got the op subs", "log show"),
        (MIL, {}, "err=(@model_path/weights/weights.bin at 64: the file has no header)", "log show"),
        (MIL, {"weights/weights.bin": blob(W, dtype=2)}, "the blob has another dtype", "log show"),
        (MIL, {"weights/weights.bin": blob(W, size=0x80000)}, "the blob has 524288 bytes", "log show"),
        (MIL.replace("uint64(64)", "uint64(128)"), FILES, "no metadata can lie there", "log show"),
        (MIL.replace("@model_path/", "/"), FILES, "no path of the model", "log show"),
    ],
)
def test_a_compiler_that_refuses_is_quoted(
    stand_in: StandIn, ane: c.c_void_p, mil: str, files: dict[str, bytes], text: str, hint: str
) -> None:
    before = folders()
    with pytest.raises(AneError) as error:
        stand_in.compile(ane, mil, files)
    assert (error.value.stage, error.value.code) == ("compile", 1)
    assert text in error.value.text
    assert hint in error.value.hint
    assert folders() == before


def test_a_compile_that_fails_without_a_word_says_so(stand_in: StandIn, ane: c.c_void_p) -> None:
    stand_in.set(compile_limit=0)
    with pytest.raises(AneError, match="the framework failed and says nothing"):
        stand_in.compile(ane, MIL, FILES)


def test_budgets_are_refused_before_they_bite(stand_in: StandIn) -> None:
    compiled, loaded = stand_in.count()
    assert loaded == 0
    spent = compiled + stand_in.compiles_in_loads()  # by the tests before, in this process
    ane = stand_in.open(compile_limit=spent + 3, load_limit=2)
    programs = [stand_in.compile(ane, MIL, FILES) for _ in range(3)]
    with pytest.raises(AneError, match=rf"has compiled {spent + 3} programs.*\(compile in a new process\)"):
        stand_in.compile(ane, MIL, FILES)
    assert stand_in.count() == (compiled + 3, 0)
    for program in programs[:2]:
        stand_in.load(program)
        stand_in.load(program)  # again: nothing
    with pytest.raises(AneError, match=r"has 2 programs loaded.*\(unload or free one\)"):
        stand_in.load(programs[2])
    stand_in.free(programs[0])
    stand_in.load(programs[2])
    assert stand_in.count() == (compiled + 3, 2)
    for program in programs[1:]:
        stand_in.free(program)
    assert stand_in.count() == (compiled + 3, 0)


def test_a_load_is_tried_once_more(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.set(fail_loads=1)
    stand_in.load(program)
    stand_in.call("unload", program)
    stand_in.set(fail_loads=2)
    with pytest.raises(AneError) as error:
        stand_in.load(program)
    assert (error.value.stage, error.value.code) == ("load", 6)
    assert "0x20004" in error.value.text
    assert "too many programs are loaded" in error.value.hint
    stand_in.load(program)
    stand_in.free(program)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (3, "did not answer in time"),
        (7, "codesign -s - PATH"),
        (9, "cannot read the program's files"),
        (10, "purge it and compile it again"),
        (13, "could not be mapped"),
        (16, "compile it again"),
        (22, "virtual machine"),
        (23, "load it again"),
        (54, ""),
    ],
)
def test_a_code_of_the_framework_is_told_with_what_to_do(
    stand_in: StandIn, ane: c.c_void_p, code: int, hint: str
) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.set(fail_loads=2, fail_code=code)
    with pytest.raises(AneError) as error:
        stand_in.load(program)
    stand_in.set(fail_code=0)
    stand_in.free(program)
    assert (error.value.stage, error.value.code) == ("load", code)
    assert hint in error.value.hint
    assert bool(hint) == bool(error.value.hint)


def test_surfaces_that_are_too_small_are_refused_by_name(stand_in: StandIn, ane: c.c_void_p) -> None:
    surfaces = stand_in.framework.fake_ane_surfaces().contents
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    handles = (c.c_void_p * 4)(*(surfaces.create(size) for size in (768, 767, 768, 768)))
    with pytest.raises(AneError, match="port x: got a surface of 767 bytes, need 768"):
        stand_in.bind(program, handles)
    for handle in handles:
        surfaces.release(handle)
    stand_in.free(program)


def test_the_device_refuses_small_and_locked_surfaces(stand_in: StandIn) -> None:
    """Where sizes are not told truly, the device still sees them."""
    surfaces = stand_in.framework.fake_ane_surfaces().contents
    lying = Surfaces.from_buffer_copy(surfaces)
    lying.bytes = BYTES(lambda _: 1 << 20)
    ane = stand_in.open(surfaces=c.pointer(lying))
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    handles = (c.c_void_p * 4)(*(surfaces.create(size) for size in (768, 767, 768, 768)))
    request = stand_in.bind(program, handles)
    with pytest.raises(AneError, match="status=0x1d") as error:
        stand_in.evaluate(request)
    assert (
        error.value.hint
        == "a surface is too small for its port, bound to another port, or not as large as the others of its side"
    )
    stand_in.library.hexane_ane_unbind(request)
    surfaces.release(handles[1])
    handles[1] = surfaces.create(768)
    request = stand_in.bind(program, handles)
    stand_in.evaluate(request)
    surfaces.lock(handles[3], True)
    with pytest.raises(AneError, match="status=0x1 "):
        stand_in.evaluate(request)
    surfaces.unlock(handles[3], True)
    stand_in.evaluate(request)
    stand_in.library.hexane_ane_unbind(request)
    for handle in handles:
        surfaces.release(handle)
    stand_in.free(program)


def test_the_status_of_a_bad_argument_comes_back(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    request = stand_in.bind(program)
    with pytest.raises(AneError, match="status=0x16") as error:
        stand_in.evaluate(request, qos=64)
    assert error.value.code == 8
    assert error.value.hint == "an argument of the request is wrong"
    stand_in.evaluate(request, qos=63)
    stand_in.library.hexane_ane_unbind(request)
    stand_in.free(program)


def test_requests_fail_when_their_program_is_gone(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    with pytest.raises(AneError, match="the program is not loaded"):
        stand_in.bind(program)
    stand_in.load(program)
    request = stand_in.bind(program)
    stand_in.evaluate(request)
    stand_in.call("unload", program)
    with pytest.raises(AneError, match="unloaded since bind"):
        stand_in.evaluate(request)
    stand_in.load(program)
    with pytest.raises(AneError, match="unloaded since bind"):
        stand_in.evaluate(request)
    stand_in.free(program)
    with pytest.raises(AneError, match="unloaded since bind"):
        stand_in.evaluate(request)
    stand_in.library.hexane_ane_unbind(request)


def test_an_exception_becomes_an_error(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    request = stand_in.bind(program)
    for _ in range(3):
        stand_in.set(**{"raise": 1})
        with pytest.raises(AneError, match="NSInternalInconsistencyException: raised inside evaluate"):
            stand_in.evaluate(request)
        stand_in.evaluate(request)
    stand_in.library.hexane_ane_unbind(request)
    stand_in.free(program)


@pytest.mark.parametrize(
    ("odd", "text"),
    [("unnamed", "got nothing for Name, need NSString"), ("float_type", "got the unknown type Float64")],
)
def test_attributes_that_are_not_understood_are_named(stand_in: StandIn, ane: c.c_void_p, odd: str, text: str) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.set(**{odd: 1})
    try:
        with pytest.raises(AneError, match=text):
            stand_in.load(program)
        assert stand_in.count()[1] == 0
    finally:
        stand_in.set(**{odd: 0})
    stand_in.load(program)
    stand_in.free(program)


def test_copies_are_of_whole_tensors(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    request = stand_in.bind(program)
    with pytest.raises(AneError, match="port b: got 119 bytes, need 120"):
        stand_in.write(request, 0, bytes(119))
    with pytest.raises(AneError, match="got port 4, need one below 4"):
        stand_in.read(request, 4, 120)
    stand_in.library.hexane_ane_unbind(request)
    stand_in.free(program)


def test_without_a_framework_the_error_says_what_serves(stand_in: StandIn) -> None:
    with pytest.raises(AneError, match="there is no Neural Engine framework") as error:
        stand_in.open(framework=None)
    assert error.value.hint == "the CPU executor runs programs without an engine"
    with pytest.raises(AneError, match="no IOSurface"):
        stand_in.open(surfaces=None)
    stand_in.set(no_engine=1)
    with pytest.raises(AneError, match="this machine has no Neural Engine"):
        stand_in.open()
    stand_in.set(no_engine=0)


def test_classes_and_selectors_that_differ_are_named(stand_in: StandIn) -> None:
    """Classes may come from elsewhere, so a framework of another version can be played."""
    find = c.CDLL(None).objc_getClass
    find.restype, find.argtypes = c.c_void_p, (c.c_char_p,)

    without = FIND_CLASS(lambda name: None if name == b"_ANERequest" else find(name))
    with pytest.raises(AneError, match="the framework has no class _ANERequest"):
        stand_in.open(find_class=without)
    other = FIND_CLASS(lambda name: find(b"NSObject") if name == b"_ANERequest" else find(name))
    with pytest.raises(AneError, match=r"\+\[_ANERequest requestWithInputs:.*: got no such method, need @72@0:8@16"):
        stand_in.open(find_class=other)


def test_a_probe_lists_all_that_is_needed(stand_in: StandIn) -> None:
    lines: list[tuple[str, ...]] = []
    line = LINE(lambda _, *parts: lines.append(tuple(part.decode() for part in parts)))
    assert stand_in.library.hexane_ane_probe(c.byref(stand_in.setup()), line, None, c.byref(Error()))
    assert ("class", "_ANERequest", "_ANERequest", "_ANERequest") in lines
    evaluate = "B44@0:8I16@20@28^@36"
    assert ("selector", "-[_ANEInMemoryModel evaluateWithQoS:options:request:error:]", evaluate, evaluate) in lines
    assert all(found == need for kind, _, found, need in lines if kind != "device")
    assert ("device", "hasANE", "yes", "") in lines
    assert ("device", "numANEs", "1", "") in lines
    assert ("device", "aneArchitectureType", "stand-in", "") in lines


def test_a_forked_process_is_told(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    child = os.fork()
    if child == 0:
        try:
            stand_in.load(program)
        except AneError as error:
            stand_in.free(program)
            os._exit(0 if "forked" in error.text else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    stand_in.load(program)
    stand_in.free(program)


def test_threads_compile_and_run_beside_each_other(stand_in: StandIn, ane: c.c_void_p) -> None:
    before, failed = folders(), []

    def work(seed: int) -> None:
        try:
            for turn in range(3):
                program = stand_in.compile(ane, MIL, {"weights/weights.bin": blob(W * (1 + seed % 2))})
                stand_in.load(program)
                b, x, _, z = run(stand_in, program, seed + turn)
                np.testing.assert_array_equal(z, x * (W * (1 + seed % 2)) - b)
                stand_in.free(program)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert folders() == before


LATE, LIMIT = 3000, 800  # milliseconds; a busy machine takes hundreds for a call that comes back
STAGES = ("compile", "find", "evaluate", "unload", "load")  # a late load counts as loaded, so it comes last


def test_a_driver_that_does_not_come_back_is_given_up(stand_in: StandIn) -> None:
    """In a process of its own, which keeps what the late calls work on."""
    with start(f"for stage in {STAGES}: t.give_up(stand_in, stage, stays=0)\nt.time.sleep(t.LATE / 1000)") as process:
        assert process.communicate() == ("given up\n" * len(STAGES), None)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_driver_that_does_not_come_back_at_first_is_given_up(stand_in: StandIn, stage: str) -> None:
    with start(f"t.give_up(stand_in, {stage!r})") as process:
        assert process.communicate() == ("given up\n", None)
    assert process.returncode == 0


def give_up(stand_in: StandIn, stage: str, mode: str = "stall_ms", stays: float = LATE / 1000) -> None:
    """mode: what makes the framework late in this stage. stays: for so many seconds at the end, in which the call comes
    back to what is still there."""
    ane = stand_in.open(build_limit_ms=LIMIT, evaluate_limit_ms=LIMIT)
    others, program = stand_in.compile(ane, MIL, FILES), stand_in.compile(ane, MIL.replace("scaled", "late"), FILES)
    stand_in.load(others)
    request = None
    if stage == "unload":
        stand_in.load(program)
    if stage == "evaluate":
        stand_in.load(program)
        request = stand_in.bind(program)
        stand_in.evaluate(request)
    calls = {
        "compile": lambda: stand_in.compile(ane, MIL.replace("scaled", "later"), FILES),
        "find": lambda: stand_in.find(ane, MIL.replace("scaled", "later"), FILES),
        "load": lambda: stand_in.load(program),
        "unload": lambda: stand_in.call("unload", program),
        "evaluate": lambda: stand_in.evaluate(request),
    }
    stand_in.set(**{mode: LATE})
    with pytest.raises(AneError, match=r"has not come back within 0.8 s.*driver may hang") as error:
        calls[stage]()
    assert error.value.stage == ("compile" if stage == "find" else stage)
    stand_in.set(**{mode: 0})
    if request is not None:
        with pytest.raises(AneError, match="an earlier call of this program has not come back"):
            stand_in.evaluate(request)
        assert not stand_in.library.hexane_ane_unbind(request)
    stand_in.free(program)  # does not wait for the call
    again = stand_in.bind(others)
    stand_in.evaluate(again)  # other programs go on
    assert stand_in.library.hexane_ane_unbind(again)
    stand_in.free(others)
    assert stand_in.count()[1] == 0
    time.sleep(stays)
    print("given up")
