"""Models compiled into a given amount of memory: the bits of whole tensors, in no more than that, or an error that says
why."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.stages.bufferize.pools import slow_bytes
from hexane.stages.stream.traffic import traffic
from networks import small_networks
from small_devices import SMALL_DEVICE_NETWORKS


@cache
def network() -> hx.Graph:
    """A residual network on images of 64 rows, then of 32."""
    rng = np.random.default_rng(0)

    def conv(x: hx.Tensor, channels: int, size: int, stride: int = 1) -> hx.Tensor:
        weight = rng.standard_normal((channels, x.shape[1], size, size)).astype(np.float32)
        return hx.conv(x, weight / np.float32(size * x.shape[1]), pad=size // 2, strides=stride)

    y = hx.relu(conv(hx.input("x", (1, 3, 64, 16)), 16, 3))
    y = hx.relu(conv(hx.relu(conv(y, 16, 3)), 16, 3) + y)
    y = hx.relu(conv(y, 24, 3, 2) + conv(y, 24, 1, 2))
    return hx.graph({"y": hx.reduce_mean(y, axes=(2, 3))})


def compiled(sram: int | str | None) -> hx.Model:
    net = hx.compile(network(), target="host", threads=1, memory=None if sram is None else hx.Memory(sram))
    assert isinstance(net, hx.Model)
    return net


def needed(net: hx.Model) -> int:
    return net.memory["arena"] + net.memory["scratch"]


@cache
def least() -> int:
    """What it needs with fewest rows."""
    net = hx.compile(network(), target="host", threads=1, memory=hx.Memory(rows=1))
    assert isinstance(net, hx.Model)
    return needed(net)


@cache
def least_in_stripes() -> int:
    """What it needs in as many stripes of columns as help."""
    with pytest.raises(hx.Error) as refused:
        compiled(1)
    return int(str(refused.value).split("need at least ")[1].split(":")[0])


def test_whole_tensors_where_they_fit():
    whole = compiled(None)
    net = compiled(needed(whole))
    assert net.program is not None
    assert not net.program.loops
    assert net.memory == whole.memory


def test_a_smaller_budget_never_needs_more_than_a_larger_one_allows():
    whole = compiled(None)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 16)).astype(np.float32)
    for sram in np.linspace(least_in_stripes(), needed(whole), 20).astype(int).tolist():
        net = compiled(sram)
        assert needed(net) <= sram
        assert net(x).tobytes() == whole(x).tobytes()
    assert least() < 0.6 * needed(whole)


def compiled_into(model: Any, sram: int) -> hx.Model | None:
    """None where that is refused."""
    try:
        net = hx.compile(model, target="host", threads=1, memory=hx.Memory(sram))
    except hx.Error as error:
        if "[compile] memory: got" not in str(error):
            raise
        return None
    assert isinstance(net, hx.Model)
    return net


def assert_monotonic(model: Any, budgets: int = 20) -> None:
    """Each of so many budgets is kept with the bits of whole tensors, or refused; and where one is kept, all larger
    ones are."""
    whole = hx.compile(model, target="host", threads=1)
    streamed = hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=1))
    assert isinstance(whole, hx.Model)
    assert isinstance(streamed, hx.Model)
    rng = np.random.default_rng(1)
    feeds = {port.name: rng.uniform(-1, 1, port.shape).astype(port.dtype.numpy) for port in whole.inputs}
    want = whole.bind(**feeds)
    want()
    kept = []
    for sram in np.linspace(0.5 * needed(streamed), needed(whole), budgets).astype(int).tolist():
        net = compiled_into(model, sram)
        kept.append(net is not None)
        if net is None:
            assert not any(kept), f"{sram} bytes are refused, fewer were not"
            continue
        assert needed(net) <= sram
        got = net.bind(**feeds)
        got()
        for name, array in want.outputs.items():
            assert got.outputs[name].tobytes() == array.tobytes()
    assert kept[-1]
    assert sum(kept) >= budgets // 3 or needed(streamed) > 0.8 * needed(whole)


@pytest.mark.parametrize(
    "name", ["unet", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mobile-17", "detector"))]
)
def test_a_larger_budget_is_kept_where_a_smaller_one_is(name: str):
    assert_monotonic(small_networks()[name].SerializeToString())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "mobile" else []) for n in SMALL_DEVICE_NETWORKS]
)
def test_a_larger_budget_of_bytes_is_kept_where_a_smaller_one_is(name: str):
    assert_monotonic(SMALL_DEVICE_NETWORKS[name]())


BENCHMARKS = (
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "mobilenet_v2_100_224", "randwire",
    "resnet18_224", "resnet8", "transformer", "unet_128", "yolo_160",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BENCHMARKS, "resnet8_bn", *(f"{name}_int8" for name in BENCHMARKS)])
def test_a_larger_budget_of_a_benchmark_network_is_kept_where_a_smaller_one_is(name: str, model_file: Any):
    assert_monotonic(model_file(name))


def test_several_memories_hold_what_one_would():
    whole = compiled(None)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 16)).astype(np.float32)
    scratch = whole.memory["scratch"]
    pools = (scratch + least() // 2, least() // 2)
    net = compiled("+".join(map(str, pools)))
    assert net(x).tobytes() == whole(x).tobytes()
    assert net.memory["arena"] + net.memory["scratch"] <= pools[0]
    assert 0 < net.memory["arena.1"] <= pools[1]
    with pytest.raises(hx.Error, match="got 4097 bytes of sram in 2 memories, need"):
        compiled("4096+1")


def test_slow_memory_is_used_only_where_the_other_is_not_enough():
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 16)).astype(np.float32)
    sram = least_in_stripes() - 1024
    net = hx.compile(network(), target="host", threads=1, memory=hx.Memory(sram, slow="1M"))
    assert isinstance(net, hx.Model)
    assert net.memory["arena"] + net.memory["scratch"] <= sram
    assert net.memory["arena.1"] > 0
    assert net(x).tobytes() == compiled(None)(x).tobytes()
    enough = hx.compile(network(), target="host", threads=1, memory=hx.Memory(least_in_stripes(), slow="1M"))
    assert isinstance(enough, hx.Model)
    assert "arena.1" not in enough.memory
    with pytest.raises(hx.Error, match="256 slow, need"):
        hx.compile(network(), target="host", threads=1, memory=hx.Memory(sram, slow=256))


def test_slow_memory_has_what_steps_read_and_write_least():
    """A window reads its rows three times, so an image that is only added may lie where that is slow."""
    sram = least_in_stripes() - 1024
    net = hx.compile(network(), target="host", threads=1, memory=hx.Memory(sram, slow="1M"))
    program = net.program
    moved = traffic(program)
    used = {i: sum(moved[i]) for i, b in enumerate(program.buffers) if b.kind == "arena" and i in moved}
    slow = [i for i in used if program.buffers[i].space == "arena.1"]
    assert slow
    assert sum(slow_bytes(program, 2)) == sum(used[i] for i in slow)
    size = sum(program.buffers[i].bytes for i in slow)
    others = [used[i] for i in used if i not in slow and program.buffers[i].bytes >= size]
    assert others
    assert sum(used[i] for i in slow) < min(others)


def test_a_run_reads_the_rows_of_its_window_again():
    x = hx.input("x", (1, 4, 16, 8))
    wide = hx.conv(hx.softmax(x, axis=2), np.ones((32, 4, 3, 3), np.float32), pad=1)
    y = hx.conv(wide, np.ones((4, 32, 3, 3), np.float32), pad=1)
    net = hx.compile({"y": hx.softmax(y, axis=2)}, target="host", threads=1, memory=hx.Memory(rows=1))
    program = net.program
    assert program.loops
    image, row = 32 * 16 * 8 * 4, 32 * 8 * 4
    step = next(step for step in program.steps if step.kernel == "conv")
    moved = traffic(program)[step.outputs[0].buffer]
    assert moved == (3 * image - 2 * row, image)


def in_stages(sram: int, slow: int | str = "1M", hold_ports: bool = False) -> hx.Model | None:
    """None where that is refused."""
    memory = hx.Memory(sram, slow=slow, strategy="stages", hold_ports=hold_ports)
    try:
        net = hx.compile(network(), target="host", threads=1, memory=memory)
    except hx.Error as error:
        if "[compile] memory: got" not in str(error):
            raise
        return None
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("hold_ports", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_stages_move_no_more_in_more_memory(hold_ports: bool):
    whole = compiled(None)
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 16)).astype(np.float32)
    moved = []
    for sram in np.linspace(0, needed(whole) + (1 << 17), 20).astype(int).tolist():
        net = in_stages(sram, hold_ports=hold_ports)
        if net is None:
            assert not moved
            continue
        assert needed(net) <= sram
        assert net.memory.get("arena.1", 0) <= 1 << 20
        assert net(x).tobytes() == whole(x).tobytes()
        moved.append(net.memory.get("slow_read", 0) + net.memory.get("slow_written", 0))
    assert moved[0] > 0
    assert moved[-1] == 0
    assert moved == sorted(moved, reverse=True)


def test_stages_that_do_not_fit_are_refused_with_the_layer_that_needs_most():
    whole = compiled(None)
    with pytest.raises(
        hx.Error, match=r"got 1024 bytes of sram and 1048576 slow, need in stages at least .* of scratch"
    ):
        hx.compile(network(), target="host", threads=1, memory=hx.Memory(1024, slow="1M", strategy="stages"))
    sram = needed(whole) * 3 // 4
    net = in_stages(sram)
    assert net is not None
    slow = net.memory["arena.1"]
    exact = in_stages(sram, slow)
    assert exact is not None
    assert exact.memory["arena.1"] <= slow
    assert in_stages(sram, 64) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sram": "1K", "strategy": "greedy"}, r"strategy: got 'greedy', need 'stream' or 'stages'"),
        (
            {"sram": "1K+1K", "strategy": "stages"},
            r"strategy: got 'stages' with sram '1K\+1K', need sram in one memory",
        ),
        ({"flash": "1M", "strategy": "stages"}, r"strategy: got 'stages' with sram None, need sram in one memory"),
    ],
)
def test_a_strategy_that_is_none_is_refused(given: dict[str, str], said: str):
    with pytest.raises(hx.Error, match=rf"\[memory\] {said}"):
        hx.Memory(**given)


@pytest.mark.parametrize("text", ["1K+", "+", "1K+x", "+".join(["1"] * 9)])
def test_memories_that_are_none_are_refused(text: str):
    with pytest.raises(hx.Error, match=r"\[memory\] sram: got"):
        hx.Memory(text)
    with pytest.raises(hx.Error, match=r"\[memory\] slow: got"):
        hx.Memory("1K", slow=text)


def test_more_rows_where_more_memory_allows_them():
    moves = []
    for sram in (least(), needed(compiled(None)) - 64):
        program = compiled(sram).program
        assert program is not None
        moves.append(max(program.loops[0].moves))
    assert moves[0] < moves[1]


def test_what_does_not_fit_is_refused_with_the_layer_that_needs_most():
    need = least_in_stripes()
    assert need <= least()
    assert needed(compiled(need)) == need
    with pytest.raises(
        hx.Error, match=rf"memory: got {need - 1} bytes of sram, need at least {need}: .* at .*test_memory.py:\d+"
    ):
        compiled(need - 1)
    with pytest.raises(hx.Error, match="got 1 bytes of sram"):
        compiled(1)


@pytest.mark.parametrize(
    ("text", "count"), [("128K", 131072), ("1.5M", 1572864), ("77", 77), (77, 77), ("1G", 1 << 30)]
)
def test_sizes_have_units(text: Any, count: int):
    assert hx.Memory(text).bytes == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1k", "1 K", -1, 1.5, True, "1e3", "٣K"])
def test_a_size_that_is_none_is_refused(text: Any):
    with pytest.raises(hx.Error, match=r"\[memory\] sram: got"):
        hx.Memory(text)


def test_rows_and_chips_are_not_chosen_twice():
    with pytest.raises(hx.Error, match=r"\[memory\] rows: got 1 with sram, need one or the other"):
        hx.Memory("1M", rows=1)
    with pytest.raises(hx.Error, match=r"\[compile\] memory: got sram for h13, need the host"):
        hx.compile(network(), target="h13", device="cpu", memory=hx.Memory("1M"))


def for_device(sram: int, **options: bool) -> hx.Model:
    net = hx.compile(network(), target="host", threads=1, memory=hx.Memory(sram, runtime="c99", **options))
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("streams_ports", [False, True])
def test_a_small_device_has_inputs_and_outputs_and_no_scratch(streams_ports: bool) -> None:
    ports = {"stream_input": streams_ports, "stream_output": streams_ports}
    net = hx.compile(network(), target="host", threads=1, memory=hx.Memory(rows=1, **ports))
    assert isinstance(net, hx.Model)
    assert net.memory["scratch"] > 0
    beside = 0 if streams_ports else 4 * (3 * 64 * 16 + 24)
    sram = net.memory["arena"] + beside
    made = for_device(sram, **ports)
    assert made.memory["arena"] + beside <= sram
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 16)).astype(np.float32)
    assert made(x).tobytes() == net(x).tobytes()
    advice = r"\(hexane quantize\) would help$" if streams_ports else rf"too \(whole, they take {beside} of it\)$"
    with pytest.raises(hx.Error, match=f"of arena, {beside} of inputs and outputs.*{advice}"):
        for_device(beside + 64, **ports)


def test_a_plan_for_a_small_device_has_kernels_that_its_runtime_has() -> None:
    y = hx.acos(hx.input("x", (4, 4)))
    with pytest.raises(hx.Error, match=r"\[compile\] runtime: got 'c99': .* lacks"):
        hx.compile(y, target="host", threads=1, memory=hx.Memory(runtime="c99"))
    with pytest.raises(hx.Error, match="runtime: got 'arduino', need 'host' or 'c99' or 'cmsis-nn'"):
        hx.Memory("64K", runtime="arduino")
    assert [hx.Memory("64K", flash=f).runs_on for f in (0, "1M")] == ["host", "c99"]


def tiny_networks() -> dict[str, hx.Graph]:
    """Networks whose scratch, ports or packed weights are more than their tensors: a step from port to port; a chain;
    products with equal rows of weights."""
    rng = np.random.default_rng(5)
    x = hx.input("x", (1, 8, 16, 16))
    wide, narrow = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8, 3, 3), (8, 16, 3, 3)))
    row = np.repeat(rng.standard_normal((1, 256)).astype(np.float32), 256, 0)
    return {
        "one": hx.graph({"y": hx.conv(hx.input("x", (1, 16, 16, 8)), wide, pad=1, layout="nhwc")}),
        "chain": hx.graph({"y": hx.conv(hx.relu(hx.conv(x, wide, pad=1)), narrow, pad=1)}),
        "equal rows": hx.graph({"y": hx.linear(hx.relu(hx.linear(hx.input("x", (1, 256)), row)), row + 1)}),
    }


WAYS: dict[str, dict[str, Any]] = {
    "stream": {},
    "slow": {"slow": "1M"},
    "stages": {"slow": "1M", "strategy": "stages"},
    "stages with little": {"slow": 100, "strategy": "stages"},
    "held": {"hold_ports": True, "slow": "1M"},
    "held in stages": {"hold_ports": True, "slow": "1M", "strategy": "stages"},
    "c99": {"runtime": "c99", "slow": "1M"},
    "c99 in stages": {"runtime": "c99", "slow": "1M", "strategy": "stages"},
    "streamed in stages": {
        "runtime": "c99", "slow": "1M", "strategy": "stages", "stream_input": True, "stream_output": True
    },
    "packed": {"compress": "lz4", "slow": "1M"},
    "packed in stages": {"compress": "lz4", "slow": "1M", "strategy": "stages"},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["one", "chain", "equal rows"])
def test_arena_and_what_counts_beside_it_are_within_sram(name: str, way: str):
    graph, options = tiny_networks()[name], WAYS[way]
    whole = hx.compile(graph, target="host", threads=1)
    assert isinstance(whole, hx.Model)
    arena, scratch = whole.memory["arena"], whole.memory["scratch"]
    for sram in sorted({0, 1, 100, scratch - 1, scratch, arena, arena + scratch - 1, arena + scratch, 4 * scratch}):
        memory = hx.Memory(sram, **options)
        try:
            net = hx.compile(graph, target="host", threads=1, memory=memory)
        except hx.Error as error:
            if "[compile] memory: got" not in str(error):
                raise
            assert sram < arena + scratch or memory.runtime == "c99" or memory.hold_ports
            continue
        assert isinstance(net, hx.Model)
        ports = [port for port in (*net.program.inputs, *net.program.outputs) if not port.streamed]
        of_ports = sum(port.view.type.bytes for port in ports)
        assert net.memory["arena"] + (of_ports if memory.runtime == "c99" else net.memory["scratch"]) <= sram
        assert net.memory.get("arena.1", 0) <= memory.slow_bytes


def test_a_step_from_port_to_port_is_refused_with_its_scratch():
    with pytest.raises(hx.Error, match=r"got 100 bytes of sram .* need in stages at least \d+: 0 for tensors, \d+ of"):
        hx.compile(tiny_networks()["one"], target="host", threads=1,
                   memory=hx.Memory(100, slow="1M", strategy="stages"))  # fmt: skip
    small = hx.fit(tiny_networks()["one"], memory=hx.Memory(100, slow="1M", strategy="stages"))
    assert small.fits is False
    assert "does not fit in stages" in small.verdict
