"""Random networks of small devices, compiled in every way that there is: what `compile` and `codegen` take runs in the
C99 runtime and agrees with the host, and what they refuse is refused by name."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from device_graphs import KINDS, device_graph, mambaout
from hexane import _core
from hexane.emit.c99 import generate
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.runtime.c99 import C99Model
from hexane.system.c99_library import own_library
from turns import share

FLOATS = 1e-4  # of the largest number, after several layers of sums in another order
NAMED = re.compile(
    r"\[(codegen|compile)\] (runtime: got '[\w-]+': )?step \d+, \w+( at .+)?: got .+, need .+", re.DOTALL
)
TOO_SMALL = "[compile] memory: "


def arena(graph: Graph, part: float, ports: bool = True, **options: Any) -> hx.Memory:
    """A part of what whole tensors take, and the ports."""
    whole = compiled(graph)
    assert whole.program is not None
    both = (*whole.program.inputs, *whole.program.outputs)
    count = sum(port.view.type.bytes for port in both) if ports else 0
    return hx.Memory(int(whole.memory.get("arena", 0) * part) + count, **{"runtime": "c99", **options})


def compiled(graph: Graph, **options: Any) -> hx.Model:
    net = hx.compile(graph, target="host", threads=1, **options)
    assert isinstance(net, hx.Model)
    return net


# For the host, without a word of the C99 runtime.
HOST: dict[str, Callable[[Graph], hx.Model]] = {
    "whole": compiled,
    "a row at a time": lambda g: compiled(g, memory=hx.Memory(rows=1)),
    "small": lambda g: compiled(g, memory=arena(g, 0.8, ports=False, runtime="host")),
}
# For the runtime.
DEVICE: dict[str, Callable[[Graph], hx.Model]] = {
    "unlimited": lambda g: compiled(g, memory=hx.Memory(runtime="c99")),
    "four fifths": lambda g: compiled(g, memory=arena(g, 0.8)),
    "half": lambda g: compiled(g, memory=arena(g, 0.5)),
    "slow": lambda g: compiled(g, memory=arena(g, 0.5, slow=1 << 20)),
    "stages": lambda g: compiled(g, memory=arena(g, 0.6, slow=1 << 20, strategy="stages")),
    "packed": lambda g: compiled(g, memory=arena(g, 1.5, compress="lz4")),
    "held ports": lambda g: compiled(g, memory=arena(g, 1, hold_ports=True)),
    "streamed input": lambda g: compiled(g, memory=arena(g, 0.9, stream_input=True)),
    "streamed ports": lambda g: compiled(g, memory=arena(g, 1, stream_input=True, stream_output=True)),
    "q31": lambda g: compiled(g, memory=arena(g, 0.8, runtime="cmsis-nn"), numerics="q31"),
}


def made(way: Callable[[Graph], hx.Model], graph: Graph) -> hx.Model | str:
    """The network, or why there is none, which has to be for want of memory or by name."""
    try:
        return way(graph)
    except Error as error:
        text = str(error)
        assert text.startswith(TOO_SMALL) or NAMED.fullmatch(text), text
        return "too small" if text.startswith(TOO_SMALL) else "refused"


def plan_of(net: hx.Model) -> bytes:
    assert net.program is not None
    return bytes(_core.plan_write(emit_plan(net.program)))


def assert_agrees(got: dict[str, Array], net: hx.Model, feeds: dict[str, Array]) -> None:
    results = net(feeds)
    need = results if isinstance(results, dict) else {net.outputs[0].name: results}
    for name, array in need.items():
        if array.dtype.kind != "f":
            assert np.array_equal(got[name], array)
            continue
        top = np.abs(array).max(initial=1e-30)
        assert np.abs(got[name] - array).max(initial=0) <= FLOATS * top


def refusal(data: bytes) -> str:
    """The error of codegen; "" for a plan that it takes."""
    try:
        generate(data, "net", app=True)
    except Error as error:
        return str(error)
    return ""


def outcomes(kind: str, seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        graph, feeds = device_graph(seed, kind)
        for name, way in {**HOST, **DEVICE}.items():
            net = made(way, graph)
            if isinstance(net, str):
                assert name in DEVICE or net == "too small"
                found[net] += 1
                continue
            data = plan_of(net)
            if why := refusal(data):
                assert name in HOST, f"seed {seed}, {name}: compile took it, then {why}"
                assert NAMED.fullmatch(why), why
                found["refused"] += 1
                continue
            assert_agrees(C99Model(data, own_library())(feeds), net, feeds)
            found["ran"] += 1
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(6, 24, 6))])
def test_what_is_taken_runs_and_what_is_not_is_refused_by_name(kind: str, first: int) -> None:
    assert outcomes(kind, range(first, first + 6))["ran"] > 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", share(range(1000, 1400, 50)))
def test_what_is_taken_runs_and_what_is_not_is_refused_by_name_at_length(kind: str, first: int) -> None:
    found = outcomes(kind, range(first, first + 50))
    assert min(found["ran"], found["refused"], found["too small"]) > 0


def test_a_network_of_gated_convolutions_runs_in_all_memories_that_compile_takes() -> None:
    """Its norms and products are computed as a whole by the runtime, and row by row by the host."""
    graph, feeds = mambaout()
    assert "layer_norm" in refusal(plan_of(compiled(graph, memory=hx.Memory(rows=1))))
    whole = compiled(graph)
    found = Counter[str]()
    for kilobytes in range(16, 128, 16):
        for more in ({}, {"slow": "1M"}, {"slow": "1M", "strategy": "stages"}):
            memory = hx.Memory(f"{kilobytes}K", runtime="c99", **more)
            net = made(partial(compiled, memory=memory), graph)
            if isinstance(net, str):
                assert net == "too small"
                found[net] += 1
                continue
            got = C99Model(plan_of(net), own_library())(feeds)
            assert_agrees(got, net, feeds)
            assert_agrees(got, whole, feeds)
            assert net.program is not None
            found["by rows" if net.program.loops else "whole"] += 1
    assert len(found) == 3, found


WAYS = ("unlimited", "four fifths", "slow", "packed")
APPS = [  # one kind of each way in a short run
    pytest.param(seed, kind, way, marks=[pytest.mark.slow] if (seed + i) % len(KINDS) else [])
    for seed, way in enumerate(WAYS)
    for i, kind in enumerate(KINDS)
]
MORE_APPS = [(100 + seed, kind, way) for seed in range(5) for kind in KINDS for way in DEVICE if "streamed" not in way]


def run_app(graph: Graph, feeds: dict[str, Array], way: Callable[[Graph], hx.Model], folder: Path, level: str) -> bool:
    """Builds what codegen writes, with all that its Makefile leaves out; False where there is no plan."""
    net = made(way, graph)
    if isinstance(net, str):
        return False
    for place, text in generate(plan_of(net), "net", app=True).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    subprocess.run(["make", "-s", "-C", folder, f"CFLAGS={level}"], check=True)
    (folder / "input.bin").write_bytes(
        b"".join(np.ascontiguousarray(feeds[port.name]).tobytes() for port in net.inputs)
    )
    ran = subprocess.run([folder / "net"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    data, got = (folder / "output.bin").read_bytes(), {}
    for port in net.outputs:
        kind = np.dtype(port.dtype.numpy)
        size = int(np.prod(port.shape)) * kind.itemsize
        got[port.name] = np.frombuffer(data[:size], kind).reshape(port.shape)
        data = data[size:]
    assert not data
    assert_agrees(got, net, feeds)
    return True


@pytest.mark.skipif(shutil.which("make") is None, reason="not there: make")
@pytest.mark.parametrize(("seed", "kind", "way"), APPS)
def test_the_app_of_a_plan_that_is_taken_runs(tmp_path: Path, seed: int, kind: str, way: str) -> None:
    run_app(*device_graph(seed, kind), DEVICE[way], tmp_path, "-O0")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="not there: make")
@pytest.mark.parametrize(("seed", "kind", "way"), share(MORE_APPS))
def test_the_app_of_a_plan_that_is_taken_runs_at_length(tmp_path: Path, seed: int, kind: str, way: str) -> None:
    run_app(*device_graph(seed, kind), DEVICE[way], tmp_path, "-O1")
