"""Programs of the engine from the cache: put back instead of compiled where the system takes that, else compiled as
ever."""

import ctypes as c
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine, stand_in_engine
from hexane import _core
from hexane.graph import Array
from hexane.runtime.cache import Cache
from hexane.runtime.kept_programs import program_key
from hexane.runtime.mil import emit_pieces
from hexane.targets.query import load_chip
from stand_in import FRAMEWORK, LIBRARY, programs_folder

W = (np.arange(4 * 3 * 3 * 3).reshape(4, 3, 3, 3) % 3 - 1).astype(np.float32)
X = (np.arange(3 * 8 * 7).reshape(1, 3, 8, 7) % 5).astype(np.float32)


def network(weights: Array = W) -> hx.Graph:
    return hx.graph({"y": hx.relu(hx.conv(hx.input("x", (1, 3, 8, 7)), weights, pad=1))})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_core.Device]:
    made = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (made, ""))
    yield made
    set_stand_in(restore=1, fail_loads=0)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kept")


def set_stand_in(**values: int) -> None:
    framework = c.CDLL(str(FRAMEWORK))
    for name, value in values.items():
        framework.fake_ane_set(name.encode(), c.c_int64(value))


def compiles(engine: _core.Device, cache: Cache | bool, weights: Array = W) -> int:
    """How many programs were compiled for a model whose results are right."""
    before = engine.counters["compiled"]
    net = hx.compile(network(weights), target="h13", device=hx.Device("ane", cache=cache))
    want = hx.compile(network(weights), target="h13", device="cpu")(X)  # type: ignore[operator]
    np.testing.assert_array_equal(net(X), want)  # type: ignore[operator]
    assert want.any()
    return engine.counters["compiled"] - before


def test_a_program_is_compiled_once_while_the_cache_has_it(engine: _core.Device, cache: Cache) -> None:
    assert [compiles(engine, cache) for _ in range(3)] == [1, 0, 0]
    assert list(programs_folder().rglob("FAKE*")) == []
    assert compiles(engine, False) == 1
    assert cache.clear() == 1
    assert compiles(engine, cache) == 1


def test_other_weights_are_another_program(engine: _core.Device, cache: Cache) -> None:
    assert [compiles(engine, cache, w) for w in (W, W * 2, W, W * 2)] == [1, 1, 0, 0]


def test_another_build_of_the_system_or_another_chip_is_another_program(
    engine: _core.Device, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiles(engine, cache) == 1
    monkeypatch.setattr("hexane.runtime.kept_programs.system_build", lambda: "macOS 27.0 26A1")
    assert [compiles(engine, cache) for _ in range(2)] == [1, 0]
    keys = {program_key(engine, chip, "text", {"a": b"1"}) for chip in ("h13", "h14")}
    keys |= {program_key(engine, "h13", text, {"b": b"1"}) for text in ("text", "texta")}
    assert len(keys) == 4


def test_copies_of_the_weights_are_kept_as_their_name(engine: _core.Device, cache: Cache) -> None:
    weights = (np.arange(64 * 256 * 9).reshape(64, 256, 3, 3) % 7 - 3).astype(np.float32)
    x = hx.input("x", (1, 256, 4, 4))
    graph = hx.graph({"y": hx.conv(x, weights, pad=1)})
    given = np.ones((1, 256, 4, 4), np.float32)
    results = [hx.compile(graph, target="h13", device=hx.Device("ane", cache=cache))(given) for _ in range(2)]  # type: ignore[operator]
    np.testing.assert_array_equal(*results)
    ((_, _, path),) = cache.entries()
    files = cache.get(path.stem)
    assert files is not None
    assert files["copy data"] == b"weights/weights.bin"


def test_a_damaged_entry_is_compiled_and_kept_anew(engine: _core.Device, cache: Cache) -> None:
    assert compiles(engine, cache) == 1
    ((_, size, path),) = cache.entries()
    path.write_bytes(path.read_bytes()[: size // 2])
    assert [compiles(engine, cache) for _ in range(2)] == [1, 0]


def test_a_system_that_loads_only_what_it_compiled_is_asked_once(engine: _core.Device, cache: Cache) -> None:
    """Then the entry says so, and nothing is tried in vain again."""
    assert compiles(engine, cache) == 1
    set_stand_in(restore=0)
    assert [compiles(engine, cache) for _ in range(2)] == [1, 1]
    ((_, _, path),) = cache.entries()
    assert cache.get(path.stem) == {}


def test_a_device_without_files_keeps_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = plan_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (engine, ""))
    assert [compiles(engine, cache) for _ in range(2)] == [1, 1]
    assert cache.entries() == []


def test_a_cache_that_cannot_be_written_to_does_not_stop_a_compile(engine: _core.Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert [compiles(engine, Cache(tmp_path / "file" / "kept")) for _ in range(2)] == [1, 1]


def test_what_the_service_lets_nobody_read_is_not_kept(
    engine: _core.Device, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path, weights: object) -> dict[str, bytes]:
        raise PermissionError(13, "Permission denied", str(folder / "net.plist"))

    with monkeypatch.context() as patch:
        patch.setattr("hexane.runtime.kept_programs._made", refused)
        assert [compiles(engine, cache) for _ in range(2)] == [1, 1]
    assert cache.entries() == []


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", ".hexane", "model.mil", "weights/../../x"])
def test_names_that_lead_out_of_the_folder_are_refused(engine: _core.Device, name: str) -> None:
    with pytest.raises(hx.DeviceError, match="got the file"):
        engine.restore("program(1.3)", {}, {name: b""})
    assert list(programs_folder().rglob("FAKE*")) == []


def test_files_of_another_program_do_not_load(engine: _core.Device) -> None:
    folders = []
    for weights in (W, W * 2):
        mil = emit_pieces(network(weights), load_chip("h13"))[1][0].mil
        assert mil is not None
        given = {"weights/weights.bin": mil.weights} if mil.weights else {}
        program = engine.compile(mil.text, given, 21)
        folders.append((mil.text, given, (Path(program.folder) / "net.plist").read_bytes()))
        del program
    (text, given, right), (_, _, wrong) = folders
    for made, loads in ((right, True), (wrong, False), (b"", False), (right[:-100], False)):
        program = engine.restore(text, given, {"net.plist": made})
        assert program is not None
        if loads:
            program.load(21)
        else:
            with pytest.raises(hx.DeviceError, match="0x20004"):
                program.load(21)


OTHER = """
    import sys
    from pathlib import Path
    sys.path[:0] = [sys.argv[1], sys.argv[2]]
    import hexane.runtime.engine
    from engines import stand_in_engine
    from hexane.runtime.cache import Cache
    from test_kept_programs import compiles

    engine = stand_in_engine()
    hexane.runtime.engine.find_engine = lambda _: (engine, "")
    print(compiles(engine, Cache(Path(sys.argv[3]))))
"""


def test_what_one_process_compiled_the_next_loads(engine: _core.Device, cache: Cache) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", textwrap.dedent(OTHER), here, here.parent / "support", cache.folder]
    counts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert counts == ["1\n", "0\n"]
    assert compiles(engine, cache) == 0


def test_a_load_that_hangs_says_nothing_about_the_kept_program(cache: Cache) -> None:
    """It was compiled again, which hung as well, and from then on the entry said that this system takes none."""
    stand_in_engine()
    lines = f"""
import sys
sys.path[:0] = {sys.path!r}
import test_kept_programs as t
t.hang_in_load(t.Cache({str(cache.folder)!r}))
"""
    other = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert (other.stdout, other.returncode) == ("given up\n", 0), other.stderr


def hang_in_load(cache: Cache) -> None:
    """In a process of its own, which keeps what the late call works on."""
    stand_in_engine()
    setup = _core.AneSetup(
        library=str(LIBRARY),
        framework=str(FRAMEWORK),
        compile_limit=0,
        load_limit=0,
        load_retry_ms=1,
        build_limit_ms=300,
    )
    device = _core.ane_device(setup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
        assert compiles(device, cache) == 1
        set_stand_in(stall_ms=1500)
        started = time.monotonic()
        with pytest.raises(hx.DeviceError, match=r"has not come back within 0.3 s") as error:
            compiles(device, cache)
        assert time.monotonic() - started < 1
        assert (error.value.stage, error.value.code) == ("load", _core.NO_ANSWER)
        set_stand_in(stall_ms=0)
        assert compiles(device, cache) == 0
    print("given up")
