"""What is said of a model's memory: bounds that hold, causes, ways, and a timeline that is the program's."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import hexane as hx
from hexane.graph.printer import size_text
from hexane.report.fit import Way
from hexane.runtime.timeline import floor, timeline
from hexane.targets.microcontrollers import cores
from networks import small_networks

NAMES = ("mobile-17", "unet", "detector")


@cache
def fitted(name: str) -> hx.Fit:
    return hx.fit(small_networks()[name].SerializeToString())


@cache
def whole(name: str) -> hx.Model:
    net = hx.compile(small_networks()[name].SerializeToString(), target="host", threads=1)
    assert isinstance(net, hx.Model)
    return net


@pytest.mark.parametrize("name", NAMES)
def test_no_plan_is_below_the_bounds(name: str):
    found = fitted(name)
    assert 0 < found.floor <= found.bound <= found.streamed <= found.whole
    assert found.streamed <= found.held <= found.streamed + found.inputs + found.outputs + 3 * 64


@pytest.mark.parametrize("name", NAMES)
def test_what_is_held_is_the_arena_that_ports_lie_in(name: str):
    net = hx.compile(small_networks()[name].SerializeToString(), memory=hx.Memory(rows=1, hold_ports=True), threads=1)
    assert fitted(name).held == net.memory["arena"]


@pytest.mark.parametrize("name", NAMES)
def test_the_timeline_fills_the_arena_and_nothing_overlaps(name: str):
    held = fitted(name).timeline
    assert max(one.offset + one.bytes for one in held) <= fitted(name).streamed
    for i, a in enumerate(held):
        for b in held[:i]:
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart or a.last < b.first or b.last < a.first, (a, b)
    most = max(sum(one.bytes for one in held if one.first <= at <= one.last) for at in range(fitted(name).steps))
    assert fitted(name).bound - 64 * len(held) <= most <= fitted(name).bound


@pytest.mark.parametrize("name", NAMES)
def test_causes_are_the_largest_at_the_peak(name: str):
    found = fitted(name)
    sizes = [cause.bytes for cause in found.causes]
    assert 1 <= len(sizes) <= 5
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= found.bound
    assert all(cause.why and cause.help for cause in found.causes)


@pytest.mark.parametrize("name", NAMES)
def test_no_way_is_beaten_by_another(name: str):
    ways = fitted(name).ways
    costs = [(way.total, way.read + way.written, way.repeated, way.runs) for way in ways]
    for a in costs:
        assert not any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in costs)
    assert min(way.total for way in ways) <= fitted(name).streamed + fitted(name).scratch


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_what_the_plan_made_for_so_much_memory_takes(name: str):
    model = small_networks()[name].SerializeToString()
    sram = 3 * (fitted(name).whole + fitted(name).scratch) // 4
    memory = hx.Memory(sram, slow="64M", strategy="stages")
    found, net = hx.fit(model, memory=memory).planned, hx.compile(model, threads=1, memory=memory)
    assert isinstance(found, Way)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    taken = net.memory
    assert taken["arena"] + taken["scratch"] <= sram
    assert found.total == taken["arena"] + taken["arena.1"] + taken["scratch"]
    assert (found.slow, found.read, found.written) == (taken["arena.1"], taken["slow_read"], taken["slow_written"])


def test_what_does_not_fit_in_stages_is_said():
    model = small_networks()["unet"].SerializeToString()
    none = hx.fit(model, memory=hx.Memory("1K", slow="4M", strategy="stages"))
    assert none.fits is False
    assert none.verdict.startswith(
        "does not fit in stages: got 1024 bytes of sram and 4194304 slow, need in stages at least"
    )
    whole = hx.fit(model, memory=hx.Memory("64M", slow="4M", strategy="stages"))
    assert whole.fits
    assert "in whole tensors" in whole.verdict


def test_several_memories_fit_where_no_piece_is_too_large():
    model = small_networks()["detector"].SerializeToString()
    found = fitted("detector")
    half = found.scratch + found.streamed // 2
    assert hx.fit(model, memory=hx.Memory(f"{half}+{found.streamed}")).fits
    in_bytes = hx.fit(model, memory=hx.Memory("+".join(["16K"] * 8)))
    assert in_bytes.fits
    assert hx.compile(model, target="host", threads=1, memory=hx.Memory("+".join(["16K"] * 8)))
    tiny = hx.fit(model, memory=hx.Memory("1K+56K"))
    assert tiny.fits is False
    assert "in several memories" in tiny.verdict


def test_a_small_device_has_inputs_beside_the_arena_unless_they_are_streamed():
    model = small_networks()["detector"].SerializeToString()
    found, streamed = (
        hx.fit(model, memory=hx.Memory("64M", runtime="c99", stream_input=one, stream_output=one))
        for one in (False, True)
    )
    assert (found.scratch, found.extra_bytes) == (0, found.inputs + found.outputs)
    assert (streamed.scratch, streamed.extra_bytes) == (0, 0)
    assert f"arena, inputs and outputs need {found.whole + found.extra_bytes}" in found.verdict
    assert "--stream-input would help" in str(found)
    assert "--stream-input would help" not in str(streamed)
    exact = hx.Memory(streamed.streamed, runtime="c99")
    assert hx.fit(model, memory=replace(exact, stream_input=True, stream_output=True)).fits
    assert not hx.fit(model, memory=exact).fits


def test_floor_is_that_of_whole_tensors_where_nothing_goes_by_rows():
    x = hx.input("x", (6, 8))
    net = hx.compile(hx.graph({"y": hx.softmax(hx.relu(x) @ np.ones((8, 16), np.float32)) @ np.ones((16, 3), np.float32)}), target="host")  # fmt: skip
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert floor(net.program) <= net.memory["arena"]
    assert all(one.kept == 0 for one in timeline(net.program))


def test_flash_is_plan_and_code():
    model = small_networks()["detector"].SerializeToString()
    found = hx.fit(model, memory=hx.Memory(flash="16M"))
    assert found.fits
    assert found.sram is None
    assert found.in_flash.plan > found.in_flash.weights >= found.weights > 0
    small = hx.fit(model, memory=hx.Memory("16M", flash=found.in_flash.total - 1))
    assert (small.fits, small.fits_sram, small.fits_flash) == (False, True, False)
    assert small.verdict.endswith(f"need {found.in_flash.total} bytes ({size_text(found.in_flash.total)}), 1 too many")
    assert [cause.bytes for cause in small.causes] == sorted((c.bytes for c in small.causes), reverse=True)
    assert small.causes[0].bytes == max(one.weights for one in small.each)
    assert "weights of" in small.causes[0].why
    assert hx.fit(model, memory=hx.Memory(flash=found.in_flash.total)).fits


def test_a_kernel_without_code_does_not_fit_flash():
    found = hx.fit(hx.graph({"y": hx.atan(hx.input("x", (4,)))}), memory=hx.Memory(flash="1M"))
    assert found.fits is False
    assert "atan" in found.verdict
    assert hx.fit(hx.graph({"y": hx.atan(hx.input("x", (4,)))})).fits is None


def test_stripes_fit_where_rows_do_not():
    model = small_networks()["detector"].SerializeToString()
    striped = fitted("detector").striped
    assert striped is not None
    assert striped.total < fitted("detector").streamed + fitted("detector").scratch
    found, net = (make(model, memory=hx.Memory(striped.total)) for make in (hx.fit, partial(hx.compile, threads=1)))
    assert found.fits
    assert (
        f"in {striped.name} ({striped.repeated} multiply-accumulates are done more than once): arena and scratch need"
        in found.verdict
    )
    assert net.memory["arena"] + net.memory["scratch"] <= striped.total


def test_slow_memory_counts_where_sram_is_not_enough():
    model = small_networks()["detector"].SerializeToString()
    found = fitted("detector")
    assert found.striped is not None
    sram = found.striped.total - 64
    assert hx.fit(model, memory=hx.Memory(sram)).fits is False
    with_slow = hx.fit(model, memory=hx.Memory(sram, slow=found.streamed))
    assert with_slow.fits
    assert f"with {found.streamed} bytes ({size_text(found.streamed)}) of slow memory" in with_slow.verdict


def test_a_streamed_input_counts_what_its_plan_takes():
    """Two convolutions of 3 rows each, one of them two rows behind: the input's rows from the oldest that is still
    read."""
    x = hx.input("x", (1, 4, 32, 8))
    w = np.ones((4, 4, 3, 3), np.float32)
    graph = hx.graph({"y": hx.conv(hx.relu(hx.conv(x, w, pad=1)), w, pad=1) + 1.0})
    apart, rows = hx.fit(graph), hx.fit(graph, memory=hx.Memory(stream_input=True))
    net = hx.compile(graph, target="host", threads=1, memory=hx.Memory(rows=1, stream_input=True))
    row = 4 * 8 * 4
    assert (apart.inputs, rows.inputs) == (32 * row, 0)
    assert rows.streamed == net.memory["arena"]
    assert apart.streamed <= rows.streamed <= apart.streamed + 4 * row
    both = hx.fit(graph, memory=hx.Memory(stream_input=True, stream_output=True))
    assert (both.inputs, both.outputs) == (0, 0)


def test_a_streamed_input_that_a_step_reads_whole_is_counted_whole():
    graph = hx.graph({"y": hx.input("x", (6, 8)) @ np.ones((8, 16), np.float32)})
    assert hx.fit(graph, memory=hx.Memory(stream_input=True)).streamed == 6 * 8 * 4


def test_latency_is_an_estimate_with_its_basis():
    found = fitted("mobile-17")
    macs = sum(one.macs for one in found.each)
    assert macs > 0
    for one in found.latency:
        least, most = one.cycles
        assert 0 < least <= most
        assert one.basis.startswith(f"estimate: {macs} multiply-accumulates")
        assert one.milliseconds == pytest.approx((least * 10, most * 10))


def test_cores_of_one_estimate_share_a_line():
    floats = hx.fit(hx.graph(hx.input("x", (4, 8)) @ np.ones((8, 16), np.float32)))
    assert [line.split("  ")[1] for line in str(floats).splitlines() if " million cycles" in line] == [
        "cortex-m4, cortex-m7"
    ]
    x, w = hx.input("x", (400, 800), "int8"), np.ones((800, 16), np.int8)
    integers = hx.fit(hx.graph(hx.q31_matmul(x, w, np.int32(1 << 30), dtype="int8")))
    lines = [line.split("  ")[1] for line in str(integers).splitlines() if " million cycles" in line]
    assert lines == ["cortex-m4", "cortex-m7"]


def test_the_latency_of_integers_counts_their_instructions():
    """A network whose first product is of int8 and whose second is of floats."""
    x, w = hx.input("x", (4, 8), "int8"), np.ones((8, 16), np.int8)
    integers = hx.q31_matmul(x, w, np.int32(1 << 30), dtype="int8")
    found = hx.fit(hx.graph(hx.cast(integers, dtype="fp32") @ np.ones((16, 32), np.float32)))
    counts = {"int8": 4 * 8 * 16, "fp32": 4 * 16 * 32}
    known = {core.name: core.instructions for core in cores()}
    for one in found.latency:
        for i in (0, 1):
            assert one.cycles[i] == pytest.approx(sum(known[one.core][kind][i] * counts[kind] for kind in counts) / 1e6)
        assert "estimate: 512 multiply-accumulates x 3.5" in one.basis
        assert ", 2048 multiply-accumulates x 10.1" in one.basis


def test_each_step_has_the_bytes_that_are_live_while_it_runs():
    found = fitted("unet")
    assert len(found.each) == found.steps
    assert max(one.live for one in found.each) <= found.bound
    assert sum(one.weights for one in found.each) > 0


def test_each_line_says_what_it_counts() -> None:
    text = str(hx.fit(hx.relu(hx.input("x", (1, 4, 8, 8)))))
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ") and line[2] != " "}
    for name in ("whole", "streamed", "bound", "floor", "scratch", "inputs", "outputs", "held", "weights"):
        assert len(lines[name].split()) > 4, lines[name]
    assert text.splitlines()[0].startswith("arena and scratch need ")
    assert "1 kernel call\n" in text


def test_the_verdict_says_how_many_rows_are_computed_at_a_time():
    model = small_networks()["detector"].SerializeToString()
    (two,) = (way for way in fitted("detector").ways if way.name == "2 rows at a time")
    found = hx.fit(model, memory=hx.Memory(two.total))
    assert f"of sram 2 rows at a time: arena and scratch need {two.total} bytes" in found.verdict


def test_a_plan_for_this_cpu_alone_has_no_flash() -> None:
    """The host computes attention in one step, which the C99 runtime lacks; fp16 runs on the host only."""
    q, k, v = (hx.input(name, (1, 2, 16, 8)) for name in "qkv")
    said = str(hx.fit(hx.scaled_dot_product_attention(q, k, v)))
    assert "flash      this plan does not run on the C99 runtime (step " in said
    assert "scaled_dot_product_attention at " in said
    assert "; --runtime c99 shows the flash of a plan for it\n" in said
    narrow = hx.fit(hx.relu(hx.input("x", (1, 4, 4, 4))), dtype="fp16")
    assert narrow.in_flash.missing
    assert "flash      this plan does not run on the C99 runtime (step " in str(narrow)


def test_a_dtype_is_advised_where_it_helps() -> None:
    x = hx.conv(hx.input("x", (1, 4, 8, 8)), np.ones((4, 4, 3, 3), np.float32), pad=1)
    net = hx.relu(hx.reduce_mean(hx.tanh(x), axes=(2, 3), keep_dims=True) * x)
    assert "quarter of fp32, --dtype fp16 half\n" in str(hx.fit(net))
    on_c99 = str(hx.fit(net, memory=hx.Memory(runtime="c99")))
    assert "`hexane quantize` may help: int8 takes a quarter of fp32\n" in on_c99
    assert "fp16" not in on_c99
    with pytest.raises(hx.Error, match=r"channels there or int8 \(hexane quantize\) would help; streamed inputs and"):
        hx.compile(net, memory=hx.Memory(512, runtime="c99"))
    with pytest.raises(hx.Error, match=r"dtype fp16 or int8 \(hexane quantize\) would help"):
        hx.compile(net, memory=hx.Memory(512), threads=1)


@pytest.mark.parametrize("compress", ["", "lz4"])
def test_flash_that_is_too_small_is_counted_as_compile_counts_it(compress: str):
    model = small_networks()["mobile-17"].SerializeToString()
    memory = hx.Memory(flash="1K", compress=compress)
    found = hx.fit(model, memory=memory)
    with pytest.raises(hx.Error, match=f"of flash, need {found.in_flash.total}:"):
        hx.compile(model, memory=memory, threads=1)
    assert f"plan and code need {found.in_flash.total} bytes" in found.verdict
    assert "(C99 runtime, because of --flash)" in found.verdict
    assert "because of --flash" not in hx.fit(model, memory=replace(memory, runtime="c99")).verdict
    enough = replace(memory, flash=found.in_flash.total)
    assert hx.fit(model, memory=enough).fits
    assert hx.fit(model, memory=enough).in_flash.total == found.in_flash.total
