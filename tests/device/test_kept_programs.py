"""Programs that the system keeps are loaded in place of compiling again, in each way in which it may keep them."""

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
from stand_in import DEFAULTS, FRAMEWORK, LIBRARY, MODES, forget_programs, kept_programs, programs_folder

W = (np.arange(4 * 3 * 3 * 3).reshape(4, 3, 3, 3) % 3 - 1).astype(np.float32)
X = (np.arange(3 * 8 * 7).reshape(1, 3, 8, 7) % 5).astype(np.float32)


def network(weights: Array = W) -> hx.Graph:
    return hx.graph({"y": hx.relu(hx.conv(hx.input("x", (1, 3, 8, 7)), weights, pad=1))})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[_core.Device]:
    made = stand_in_engine()
    forget_programs()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (made, ""))
    yield made
    set_stand_in(**DEFAULTS, fail_loads=0)
    forget_programs()


def set_stand_in(**values: int) -> None:
    framework = c.CDLL(str(FRAMEWORK))
    for name, value in values.items():
        framework.fake_ane_set(name.encode(), c.c_int64(value))


def compiles(engine: _core.Device, weights: Array = W, *, cache: bool = True) -> int:
    """How many programs were compiled for a model whose results are right."""
    before = engine.counters
    net = hx.compile(network(weights), target="h13", device=hx.Device("ane", cache=cache))
    want = hx.compile(network(weights), target="h13", device="cpu")(X)  # type: ignore[operator]
    np.testing.assert_array_equal(net(X), want)  # type: ignore[operator]
    assert want.any()
    now = engine.counters
    return sum(now[name] - before[name] for name in ("compiled", "compiles_in_loads"))


def test_a_program_is_compiled_once_while_the_system_keeps_it(engine: _core.Device) -> None:
    before = set(programs_folder().rglob("FAKE*"))  # of models of other tests that live still
    assert [compiles(engine) for _ in range(3)] == [1, 0, 0]
    assert set(programs_folder().rglob("FAKE*")) <= before
    assert compiles(engine, cache=False) == 1
    assert compiles(engine) == 0
    forget_programs()
    assert compiles(engine) == 1


@pytest.mark.parametrize("mode", [mode for mode in MODES if MODES[mode].get("says_exists", 1)])
def test_results_are_right_in_each_mode(engine: _core.Device, mode: str) -> None:
    set_stand_in(**MODES[mode])
    assert [compiles(engine, w) for w in (W, W * 2, W, W * 2)] == [1, 1, 0, 0]


def test_a_system_that_says_of_no_program_that_it_keeps_it_compiles(engine: _core.Device) -> None:
    """Its load of the program that was just compiled counts too: it may have compiled it again."""
    set_stand_in(says_exists=0)
    assert [compiles(engine) for _ in range(2)] == [2, 2]


def test_a_kept_program_that_does_not_load_is_compiled_anew(engine: _core.Device) -> None:
    assert compiles(engine) == 1
    (path,) = kept_programs()
    path.write_bytes(path.read_bytes()[:100])
    assert [compiles(engine) for _ in range(2)] == [1, 0]


def test_programs_of_another_signer_are_compiled(engine: _core.Device) -> None:
    assert compiles(engine) == 1
    set_stand_in(identity=1)
    assert [compiles(engine) for _ in range(2)] == [1, 0]


def test_a_device_that_keeps_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = plan_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (engine, ""))
    assert [compiles(engine) for _ in range(2)] == [1, 1]


def test_another_cache_than_the_systems_is_refused() -> None:
    with pytest.raises(hx.Error, match="cache: got '/path', need True or False; the system itself keeps"):
        hx.Device("ane", cache="/path")  # type: ignore[arg-type]


OTHER = """
    import sys
    sys.path[:0] = [sys.argv[1], sys.argv[2]]
    import hexane.runtime.engine
    from engines import stand_in_engine
    from test_kept_programs import compiles

    engine = stand_in_engine()
    hexane.runtime.engine.find_engine = lambda _: (engine, "")
    print(compiles(engine))
"""


def test_what_one_process_compiled_the_next_loads(engine: _core.Device) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", textwrap.dedent(OTHER), here, here.parent / "support"]
    counts = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert counts == ["1\n", "0\n"]
    assert compiles(engine) == 0


def test_a_load_that_hangs_says_nothing_about_the_kept_program(engine: _core.Device) -> None:
    """It was compiled again, which hung as well."""
    lines = f"""
import sys
sys.path[:0] = {sys.path!r}
import test_kept_programs as t
t.hang_in_load()
"""
    other = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=False)
    assert (other.stdout, other.returncode) == ("given up\n", 0), other.stderr


def hang_in_load() -> None:
    """In a process of its own, which keeps what the late call works on."""
    stand_in_engine()
    setup = _core.AneSetup(
        library=str(LIBRARY),
        framework=str(FRAMEWORK),
        compile_limit=0,
        load_limit=0,
        load_retry_ms=1,
        build_limit_ms=800,
    )
    device = _core.ane_device(setup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
        assert compiles(device) == 1
        set_stand_in(stall_ms=3000)
        started = time.monotonic()
        with pytest.raises(hx.DeviceError, match=r"has not come back within 0.8 s") as error:
            compiles(device)
        assert error.value.code == _core.NO_ANSWER
        assert time.monotonic() - started < 10
        set_stand_in(stall_ms=0)
        assert compiles(device) == 0
    print("given up")
