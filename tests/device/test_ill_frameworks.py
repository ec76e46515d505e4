"""A framework that refuses surfaces of several sizes, maps none, or hangs in one of its calls: what Hexane makes of
it."""

import ctypes as c
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_dispatch import FILES, MIL, give_up, run, stand_in

import hexane as hx
from engines import stand_in_engine
from hexane import _core
from hexane.build import Tensor
from hexane.graph import Array
from on_a_device import compiled, feeds, outputs, weights
from stand_in import FRAMEWORK, LIBRARY, AneError, StandIn

__all__ = ["give_up", "stand_in"]  # a function of another process, and a fixture
STAGES = ["compile", "load", "evaluate", "unload"]


@pytest.fixture
def framework() -> Iterator[Callable[..., None]]:
    """framework(mode=1) sets a mode until the test ends."""
    named: list[str] = []

    def change(**values: int) -> None:
        named.extend(values)
        for name, value in values.items():
            assert c.CDLL(str(FRAMEWORK)).fake_ane_set(name.encode(), c.c_int64(value))

    yield change
    change(**dict.fromkeys(named, 0))


def test_a_request_makes_surfaces_of_one_size_for_each_side(stand_in: StandIn, framework: Callable[..., None]) -> None:
    ane = stand_in.open(least_surface_bytes=0)
    program = stand_in.compile(ane, unequal(MIL), FILES)
    stand_in.load(program)
    sizes = [port.bytes for port in stand_in.ports(program)]
    assert len(set(sizes[:2])) == len(set(sizes[2:])) == 2
    framework(equal_surfaces=1)
    request = stand_in.bind(program)
    stand_in.evaluate(request)
    stand_in.library.hexane_ane_unbind(request)
    stand_in.free(program)
    stand_in.library.hexane_ane_close(ane)


def unequal(mil: str) -> str:
    """Its second input is of one row, and its second output of one for each channel."""
    mil = mil.replace("tensor<fp16, [1, 3, 4, 5]> b)", "tensor<fp16, [1, 1, 1, 5]> b)").replace("([3])", "([2])")
    return mil.replace("tensor<fp16, [1, 3, 4, 1]> a", "tensor<fp16, [1, 3, 1, 5]> a")


def test_unequal_surfaces_of_the_caller_give_the_frameworks_error(
    stand_in: StandIn, framework: Callable[..., None]
) -> None:
    ane = stand_in.open()
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    surfaces = stand_in.framework.fake_ane_surfaces().contents
    surfaces.create.restype = c.c_void_p
    handles = (c.c_void_p * 4)(*(surfaces.create(size) for size in (768, 1536, 768, 768)))
    request = stand_in.bind(program, handles)
    stand_in.evaluate(request)
    framework(equal_surfaces=1)
    with pytest.raises(AneError, match="status=0x1d") as error:
        stand_in.evaluate(request)
    assert error.value.hint.endswith("or not as large as the others of its side")
    stand_in.library.hexane_ane_unbind(request)
    for handle in handles:
        surfaces.release(handle)
    stand_in.free(program)
    stand_in.library.hexane_ane_close(ane)


def through_the_host() -> Tensor:
    """What the first program writes next to a small result, the host and the second program read."""
    x, b = hx.input("x", (1, 8, 64, 40)), hx.input("b", (1, 8, 1, 1))
    y = hx.relu(hx.conv(x, weights(8, 8, 3, 3), pad=1) + b)
    h = hx.round(hx.sinh(hx.clip(y, alpha=0.0, beta=1.0)))
    return hx.relu(hx.conv(h, weights(2, 8, 1, 1)) + hx.reduce_max(y, axes=(2, 3), keep_dims=True)[:, :2])


def with_a_state() -> dict[str, Tensor]:
    """A state larger than the other input of its program."""
    state = hx.state("total", (1, 16, 64, 40), "fp16")
    x = hx.input("x", (1, 16, 1, 40), "fp16")
    return {"y": hx.write_state(state, hx.relu(state + x), np.int32(0))}


@pytest.mark.parametrize("make", [through_the_host, with_a_state], ids=lambda make: str(make.__name__))
def test_a_network_runs_where_the_surfaces_of_a_side_have_to_be_equal(
    make: Callable[[], Tensor | dict[str, Tensor]], framework: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    graph = hx.graph(make())
    given: dict[str, Array] = feeds(graph)
    want = compiled(graph, numerics="ieee")
    net = compiled(graph, device="ane")
    framework(equal_surfaces=1)
    for _ in range(3):
        for name, array in outputs(want, **given).items():
            np.testing.assert_array_equal(outputs(net, **given)[name], array)


def test_a_framework_that_maps_no_surfaces_is_told(stand_in: StandIn, framework: Callable[..., None]) -> None:
    ane = stand_in.open()
    program = stand_in.compile(ane, MIL, FILES)
    stand_in.load(program)
    framework(refuse_map=1)
    with pytest.raises(AneError, match="map failure: status=0x12") as error:
        run(stand_in, program)
    assert (error.value.stage, error.value.code) == ("evaluate", 13)
    assert error.value.hint.startswith("the framework does not map these surfaces")
    framework(refuse_map=0)
    run(stand_in, program)
    stand_in.free(program)
    stand_in.library.hexane_ane_close(ane)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_hang_in_one_call_alone_is_given_up_with_its_stage(stand_in: StandIn, stage: str) -> None:
    """In a process of its own, which keeps what the late call works on."""
    in_a_process(f"t.give_up(t.StandIn(), {stage!r}, mode='hang_{stage}_ms')")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_models_user_is_told_which_call_hangs(stand_in: StandIn, stage: str) -> None:
    in_a_process(f"t.hang({stage!r})")


def in_a_process(line: str) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}\nimport test_ill_frameworks as t\n{line}"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (other.stdout, other.returncode) == ("given up\n", 0), other.stderr


def hang(stage: str) -> None:
    stand_in_engine()
    device = _core.ane_device(
        _core.AneSetup(
            library=str(LIBRARY),
            framework=str(FRAMEWORK),
            compile_limit=0,
            load_limit=0,
            load_retry_ms=1,
            build_limit_ms=800,
            evaluate_limit_ms=800,
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
        graph = hx.graph(hx.relu(hx.conv(hx.input("x", (1, 3, 8, 7)), weights(4, 3, 3, 3), pad=1)))
        x = feeds(graph)
        kept = None if stage in ("compile", "load") else compiled(graph, device=hx.Device("ane", cache=False))
        c.CDLL(str(FRAMEWORK)).fake_ane_set(f"hang_{stage}_ms".encode(), c.c_int64(4000))
        if stage == "unload":
            del kept  # it is given up without a word: nobody waits for it
        else:
            with pytest.raises(hx.DeviceError, match=r"has not come back within 0.8 s.*driver may hang") as error:
                kept(**x) if kept else compiled(graph, device=hx.Device("ane", cache=False))
            assert (error.value.stage, error.value.code) == (stage, _core.NO_ANSWER)
        c.CDLL(str(FRAMEWORK)).fake_ane_set(f"hang_{stage}_ms".encode(), c.c_int64(0))
        other = compiled(hx.graph(hx.relu(hx.input("x", (1, 3, 8, 7)) + 1.0)), device="ane")
        assert np.isfinite(np.asarray(other(**x))).all()  # other programs go on
    print("given up", flush=True)
