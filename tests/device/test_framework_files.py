"""csrc/device/ane*.mm in each way in which the framework may treat files, compiled programs and errors."""

import ctypes as c
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from test_dispatch import FILES, KILLED, MIL, W, blob, folders, locks, run, start

from stand_in import DEFAULTS, MODES, AneError, StandIn, forget_programs, kept_programs, needs_stand_in

NOT_KEPT = -(1 << 63) + 1
DECOMPILED = pytest.mark.parametrize("mode", [""])


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stand_in(mode: str) -> Iterator[StandIn]:
    needs_stand_in()
    forget_programs()
    made = StandIn()
    made.set(**MODES[mode])
    yield made
    made.set(**DEFAULTS)
    forget_programs()


@pytest.fixture
def ane(stand_in: StandIn) -> Iterator[c.c_void_p]:
    handle = stand_in.open()
    yield handle
    stand_in.library.hexane_ane_close(handle)
    assert folders() == set()
    assert locks() == []


def check(stand_in: StandIn, program: c.c_void_p) -> None:
    b, x, a, z = run(stand_in, program)
    np.testing.assert_array_equal(z, x * W - b)
    np.testing.assert_array_equal(a, x.max(axis=3, keepdims=True))


def test_a_program_is_loaded_again_and_again(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    for _ in range(3):
        stand_in.load(program)
        check(stand_in, program)
        stand_in.call("unload", program)
    stand_in.free(program)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "forgotten"])
def test_an_unload_takes_nothing_from_another_model_of_the_same_text(
    stand_in: StandIn, ane: c.c_void_p, mode: str, kept: bool
) -> None:
    """The framework deletes the folder of both."""
    first, second = (stand_in.compile(ane, MIL, FILES) for _ in range(2))
    stand_in.load(first)
    stand_in.call("unload", first)
    if not kept:
        forget_programs()
    if mode == "load compiles nothing" and not kept:
        with pytest.raises(AneError, match="0x20004"):
            stand_in.load(second)
        stand_in.free(stand_in.compile(ane, MIL, FILES))
    stand_in.load(second)
    check(stand_in, second)
    stand_in.free(first)
    check(stand_in, second)
    stand_in.free(second)


def test_two_processes_share_a_text(stand_in: StandIn, ane: c.c_void_p, mode: str) -> None:
    other = start(
        f"stand_in.set(**{MODES[mode]}); program = stand_in.compile(ane, t.MIL, t.FILES); stand_in.load(program)\n"
        "print('loaded', flush=True); sys.stdin.readline(); stand_in.call('unload', program)\n"
        "print('unloaded', flush=True); sys.stdin.readline(); stand_in.load(program); t.run(stand_in, program)\n"
        f"print('ran', flush=True); sys.stdin.readline(); {KILLED}"
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "loaded\n"
    mine = stand_in.compile(ane, MIL, FILES)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "unloaded\n"
    stand_in.load(mine)
    check(stand_in, mine)
    stand_in.call("unload", mine)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "ran\n"
    stand_in.load(mine)
    check(stand_in, mine)
    other.communicate("\n")
    stand_in.free(mine)


@DECOMPILED
def test_the_service_keeps_what_another_process_compiled(stand_in: StandIn, ane: c.c_void_p) -> None:
    start("stand_in.free(stand_in.compile(ane, t.MIL, t.FILES))").communicate()
    before = stand_in.count()[0], stand_in.compiles_in_loads()
    program = stand_in.find(ane, MIL, FILES)
    assert folders() == set()
    stand_in.load(program)
    check(stand_in, program)
    assert (stand_in.count()[0], stand_in.compiles_in_loads()) == before
    stand_in.free(program)


@DECOMPILED
def test_what_nobody_compiled_is_not_found(stand_in: StandIn, ane: c.c_void_p) -> None:
    stand_in.free(stand_in.compile(ane, MIL, {"weights/weights.bin": blob(W * 5)}))
    with pytest.raises(AneError, match="keeps no program") as error:
        stand_in.find(ane, MIL, FILES)
    assert error.value.code == NOT_KEPT


@DECOMPILED
def test_programs_of_another_signer_are_not_found(stand_in: StandIn, ane: c.c_void_p) -> None:
    stand_in.free(stand_in.compile(ane, MIL, FILES))
    stand_in.set(identity=7)
    with pytest.raises(AneError, match="keeps no program"):
        stand_in.find(ane, MIL, FILES)


@DECOMPILED
def test_a_load_that_compiles_is_counted(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    stand_in.call("unload", program)
    before = stand_in.count()[0], stand_in.compiles_in_loads()
    stand_in.load(program)
    assert (stand_in.count()[0], stand_in.compiles_in_loads()) == before
    stand_in.call("unload", program)
    forget_programs()
    stand_in.load(program)
    check(stand_in, program)
    assert (stand_in.count()[0], stand_in.compiles_in_loads()) == (before[0], before[1] + 1)
    stand_in.free(program)


@DECOMPILED
def test_a_load_that_would_compile_beyond_the_budget_is_refused(stand_in: StandIn, ane: c.c_void_p) -> None:
    spent = stand_in.count()[0] + stand_in.compiles_in_loads()
    limited = stand_in.open(compile_limit=spent + 1)
    program = stand_in.compile(limited, MIL, FILES)
    stand_in.load(program)
    stand_in.call("unload", program)
    stand_in.load(program)
    stand_in.call("unload", program)
    forget_programs()
    with pytest.raises(AneError, match=rf"has compiled {spent + 1} programs") as error:
        stand_in.load(program)
    assert error.value.stage == "load"
    stand_in.free(program)
    stand_in.library.hexane_ane_close(limited)


@DECOMPILED
def test_a_refused_compile_leaves_what_is_kept(stand_in: StandIn, ane: c.c_void_p) -> None:
    stand_in.free(stand_in.compile(ane, MIL, FILES))
    kept = kept_programs()
    limited = stand_in.open(compile_limit=1)
    with pytest.raises(AneError, match="compile in a new process"):
        stand_in.compile(limited, MIL, FILES)
    assert kept_programs() == kept != []
    stand_in.library.hexane_ane_close(limited)


@DECOMPILED
def test_a_compile_makes_a_damaged_program_anew(stand_in: StandIn, ane: c.c_void_p) -> None:
    stand_in.free(stand_in.compile(ane, MIL, FILES))
    (path,) = kept_programs()
    path.write_bytes(b"no plan")
    found = stand_in.find(ane, MIL, FILES)
    with pytest.raises(AneError, match="0x20004"):
        stand_in.load(found)
    stand_in.free(found)
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    check(stand_in, program)
    stand_in.free(program)


def test_nothing_but_the_programs_files_is_in_its_folder(stand_in: StandIn, ane: c.c_void_p) -> None:
    program = stand_in.compile(ane, MIL, FILES)
    (folder,) = folders()
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"model.mil", "weights/weights.bin", "net.plist", "data"}
    stand_in.free(program)


@DECOMPILED
def test_several_weight_files_fail_where_the_folder_is_hashed(stand_in: StandIn, ane: c.c_void_p) -> None:
    files = FILES | {"weights/other.bin": blob(W)}
    with pytest.raises(AneError, match="hash mismatch"):
        stand_in.compile(ane, MIL, files)
    stand_in.set(hash_bundle=0)
    stand_in.free(stand_in.compile(ane, MIL, files))


@DECOMPILED
@pytest.mark.parametrize("in_brackets", [True, False])
def test_bytes_with_a_scale_are_taken_in_the_form_of_their_opset(
    stand_in: StandIn, ane: c.c_void_p, in_brackets: bool
) -> None:
    given = "axis = int32(0), quantized_data = tensor<int8, [2]>([1, -2]), scale = fp16(0x1p-2), zero_point = int8(0)"
    form = f'()[{given}, name = string("a")]' if in_brackets else f'({given})[name = string("a")]'
    text = f"""program(1.3)
[buildInfo = dict<string, string>({{{{"coremlc-version", "3505.4.1"}}}})]
{{
    func main<ios18>(tensor<fp16, [2]> x) {{
        tensor<fp16, [2]> a = constexpr_affine_dequantize{form};
        tensor<fp16, [2]> y = add(x = x, y = a)[name = string("y")];
    }} -> (y);
}}
"""
    if in_brackets:
        stand_in.free(stand_in.compile(ane, text, {}))
        return
    with pytest.raises(AneError, match="InvalidMILProgram"):
        stand_in.compile(ane, text, {})


@DECOMPILED
def test_an_error_has_the_whole_chain_of_its_causes(stand_in: StandIn, ane: c.c_void_p) -> None:
    """The outermost one says little."""
    with pytest.raises(AneError) as error:
        stand_in.compile(ane, "func main", {})
    nothing = "The operation couldn\u2019t be completed."
    assert error.value.text == (
        f"com.apple.appleneuralengine 1: {nothing}; caused by com.apple.aned 1: {nothing}; "
        "caused by com.apple.appleneuralengine.compiler 1: InvalidMILProgram"
    )
    assert error.value.hint == "the MIL text does not parse"
    with pytest.raises(AneError, match="hash mismatch") as error:
        stand_in.compile(ane, MIL, FILES | {"weights/other.bin": blob(W)})
    assert error.value.code == 10
    assert error.value.hint.endswith("several weight files: write one weight file")


@DECOMPILED
@pytest.mark.parametrize("shift", range(3))
def test_a_long_cause_is_cut_between_letters(stand_in: StandIn, ane: c.c_void_p, shift: int) -> None:
    def refuse(_: Path) -> bytes:
        raise ValueError("x" * shift + "\u2019" * 1000)

    StandIn(refuse)
    with pytest.raises(AneError, match=r"caused by .* err=") as error:
        stand_in.compile(ane, MIL, FILES)
    assert error.value.text.endswith("\u2019")
    assert len(error.value.text.encode()) in range(1021, 1024)


@pytest.mark.parametrize("mode", ["compile writes no files"])
def test_no_unload_deletes_files_that_a_compile_reads(stand_in: StandIn, ane: c.c_void_p) -> None:
    failed = []

    def repeat(work: Callable[[], None]) -> None:
        try:
            for _ in range(12):
                work()
        except AneError as error:
            failed.append(str(error))

    def load() -> None:
        stand_in.load(loaded)
        stand_in.call("unload", loaded)

    loaded = stand_in.compile(ane, MIL, FILES)
    stand_in.set(stall_ms=5)
    works = (load, lambda: stand_in.free(stand_in.compile(ane, MIL, FILES)))
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stand_in.set(stall_ms=0)
    stand_in.free(loaded)
    assert failed == []
