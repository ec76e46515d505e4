"""What lies in slow memory where the other is not enough: as little is moved from and to it as can be, and the bits are
the same."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from test_stream import random_branches, random_chain, run

import hexane as hx
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.stages.bufferize.pools import _fast, _Held, into_pools, slow_bytes
from hexane.stages.stream.stream import Streams, arena_bytes
from hexane.targets import load_target
from networks import small_networks
from small_devices import SMALL_DEVICE_NETWORKS

HOST = load_target("host")
MUCH = 1 << 30


def moved(program: Program, fast: int) -> int:
    divided = into_pools(program, (fast, MUCH), slow=True)
    assert divided is not None
    assert divided.extents["arena"].bytes <= fast
    return sum(slow_bytes(divided, 2))


def live(held: list[_Held], step: int) -> int:
    return sum(one.bytes for one in held if one.first <= step <= one.last)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_moved_most_is_in_fast_memory(seed: int):
    rng = np.random.default_rng(seed)
    held = []
    for i in range(9):
        first = int(rng.integers(8))
        held.append(_Held(i, first, first + int(rng.integers(5)), int(rng.integers(1, 9)), int(rng.integers(30))))
    room = int(rng.integers(4, 20))
    most = 0
    for choice in product((False, True), repeat=len(held)):
        kept = [one for one, chosen in zip(held, choice, strict=True) if chosen]
        if all(live(kept, step) <= room for step in range(13)):
            most = max(most, sum(one.moved for one in kept))
    fast = [one for one in held if one.buffer in _fast(held, room)]
    assert all(live(fast, step) <= room for step in range(13))
    assert sum(one.moved for one in fast) == most


def test_what_lies_between_regions_is_written_and_read_once():
    """A wide tensor between two narrow pairs: in whole tensors, or in one region, much more is moved."""
    rng = np.random.default_rng(0)

    def conv(x: hx.Tensor, channels: int, size: int) -> hx.Tensor:
        weight = rng.standard_normal((channels, x.shape[1], size, size)).astype(np.float32)
        return hx.conv(x, weight, pad=size // 2)

    y = hx.input("x", (1, 4, 32, 8))
    for _ in range(3):
        y = conv(conv(y, 32, 1), 4, 3)
    program = compile_graph(hx.graph({"y": hx.softmax(y, axis=2)}), HOST)
    between = 32 * 8 * 4 * 4  # bytes of a narrow tensor
    ring = 3 * 8 * 32 * 4
    streams = Streams(program)
    least = min(moved(found, ring + 1024) for found in streams.for_slow(ring + 1024, MUCH))
    assert least <= 3 * 2 * between + between  # halos too
    assert least < moved(program, ring + 1024) / 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("make", [random_chain, random_branches])
def test_random_graphs_have_the_same_bits(make: Any, seed: int):
    graph = make(seed)
    whole = compile_graph(graph, HOST)
    want = [a.tobytes() for a in run(whole)]
    streams = Streams(whole, "")
    for share in (0.5, 0.2):
        fast = int(share * arena_bytes(whole))
        for program in streams.for_slow(fast, MUCH):
            divided = into_pools(program, (fast, MUCH), slow=True)
            assert divided is not None
            assert [a.tobytes() for a in run(divided)] == want


def compiled_into(model: Any, sram: int) -> hx.Model | None:
    """None where that is refused."""
    try:
        net = hx.compile(model, target="host", threads=1, memory=hx.Memory(sram, slow="64M"))
    except hx.Error as error:
        if "[compile] memory: got" not in str(error):
            raise
        return None
    assert isinstance(net, hx.Model)
    return net


def assert_no_more_is_moved_with_more(model: Any, budgets: int) -> None:
    whole = hx.compile(model, target="host", threads=1)
    least = hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=1))
    assert isinstance(whole, hx.Model)
    assert isinstance(least, hx.Model)
    rng = np.random.default_rng(1)
    feeds = {port.name: rng.uniform(-1, 1, port.shape).astype(port.dtype.numpy) for port in whole.inputs}
    want = whole.bind(**feeds)
    want()
    arena, scratch = least.memory["arena"], least.memory["scratch"]
    before = None
    for sram in np.linspace(scratch + arena // 8, scratch + arena, budgets).astype(int).tolist():
        net = compiled_into(model, sram)
        if net is None:
            assert before is None, f"{sram} bytes are refused, fewer were not"
            continue
        assert net.program is not None
        now = net.program.repeated + (sum(slow_bytes(net.program, 2)) if "arena.1" in net.memory else 0)
        assert before is None or now <= before, f"{sram} bytes: {now} are moved or repeated, {before} with fewer"
        before = now
        got = net.bind(**feeds)
        got()
        for name, array in want.outputs.items():
            assert got.outputs[name].tobytes() == array.tobytes()
    assert before == 0


BUDGETS = [7, pytest.param(20, marks=pytest.mark.slow)]


@pytest.mark.parametrize("budgets", BUDGETS)
@pytest.mark.parametrize("name", ["mobile-17", "unet", "detector"])
def test_no_more_is_moved_with_more_memory(name: str, budgets: int):
    assert_no_more_is_moved_with_more(small_networks()[name].SerializeToString(), budgets)


@pytest.mark.parametrize("budgets", BUDGETS)
@pytest.mark.parametrize("name", SMALL_DEVICE_NETWORKS)
def test_no_more_bytes_are_moved_with_more_memory(name: str, budgets: int):
    assert_no_more_is_moved_with_more(SMALL_DEVICE_NETWORKS[name](), budgets)
