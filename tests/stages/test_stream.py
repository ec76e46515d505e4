"""Parts of a program streamed row by row: the bits of whole steps, in less memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hexane as hx
from first_quick import first_quick
from hexane import _core
from hexane.dtypes import dtype
from hexane.emit.plan import emit_plan
from hexane.pipeline import compile_graph
from hexane.program import Program
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.stages.stream.by_rows import by_rows
from hexane.stages.stream.stream import Streams, stream
from hexane.targets import load_target
from networks import small_networks
from turns import share

HOST = load_target("host")


def weights(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def inverted_residual(height: int = 20, stride: int = 1, residual: bool = False) -> hx.Graph:
    """MobileNetV2's block: six times as wide inside, a 3x3 window on each channel, narrow again."""
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 8, height, 12))
    y = hx.clip(hx.conv(x, weights(rng, 48, 8, 1, 1), bias=weights(rng, 48)), alpha=0.0, beta=6.0)
    y = hx.clip(hx.conv(y, weights(rng, 48, 1, 3, 3), pad=1, strides=stride, groups=48), alpha=0.0, beta=6.0)
    y = hx.conv(y, weights(rng, 8, 48, 1, 1), bias=weights(rng, 8))
    return hx.graph({"y": y + x if residual else y})


def random_chain(seed: int) -> hx.Graph:
    """Convolutions, pools and elementwise ops one after the other, on images of any height."""
    rng = np.random.default_rng(seed)
    channels, height = int(rng.integers(1, 9)), int(rng.integers(5, 40))
    y = hx.input("x", (1, channels, height, int(rng.integers(3, 12))))
    for _ in range(int(rng.integers(2, 7))):
        kind = int(rng.integers(5))
        window = {"strides": int(rng.integers(1, 3)), "dilations": int(rng.integers(1, 3))}
        if kind == 0:
            channels, before = int(rng.integers(1, 40)), channels
            y = hx.conv(y, weights(rng, channels, before, 1, 1), bias=weights(rng, channels))
        elif kind == 1:
            y = hx.conv(y, weights(rng, channels, 1, 3, 3), pad=int(rng.integers(1, 3)), groups=channels, **window)
        elif kind == 2:
            y = hx.conv(y, weights(rng, channels, channels, 3, 3), pad=2, **window)
        elif kind == 3:
            y = hx.max_pool(y, kernel_sizes=3, strides=1, pad=1)
        else:
            y = hx.tanh(y) if rng.integers(2) else y + weights(rng, 1, channels, 1, 1)
        if y.shape[2] < 3:
            break
    return hx.graph({"y": y} if rng.integers(2) else {"y": y, "sum": hx.reduce_sum(y, axes=(2, 3)) + 1.0})


def random_branches(seed: int) -> hx.Graph:
    """Convolutions of any stride, pools, pads and resizes on images of any height; their results are added, joined and
    cut apart."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(3, 9))
    images = [hx.input("x", (1, int(rng.integers(1, 7)), int(rng.integers(6, 30)), width))]

    def like(y: hx.Tensor) -> list[hx.Tensor]:
        return [z for z in images if z.shape[2:] == y.shape[2:]]

    for _ in range(int(rng.integers(4, 14))):
        y = images[int(rng.integers(max(0, len(images) - 4), len(images)))]
        channels = y.shape[1]
        kind = int(rng.integers(10))
        if kind <= 2:
            size, before = (1, 3, 3)[kind], channels
            made = int(rng.integers(1, 9))
            stride = int(rng.integers(1, 3)) if kind == 2 else 1
            y = hx.conv(y, weights(rng, made, before, size, size), pad=size // 2, strides=stride)
        elif kind == 3:
            y = hx.conv(y, weights(rng, channels, 1, 3, 3), pad=1, groups=channels, bias=weights(rng, channels))
        elif kind == 4:
            y = hx.max_pool(y, kernel_sizes=3, strides=int(rng.integers(1, 3)), pad=1)
        elif kind == 5 and len(like(y)) > 1:
            others = like(y)
            y = hx.concat([y, others[int(rng.integers(len(others)))]], axis=1)
        elif kind == 6:
            other = like(y)[int(rng.integers(len(like(y))))]
            y = y + hx.conv(other, weights(rng, channels, other.shape[1], 1, 1))
        elif kind == 7 and channels > 1:
            half = channels // 2
            images.append(y[:, :half])
            y = y[:, half:]
        elif kind == 8 and y.shape[2] < 30:
            y = hx.upsample_nearest_neighbor(y, scale_factor_height=2, scale_factor_width=1)
        else:
            y = hx.relu(y)
        if y.shape[2] >= 3 and y.shape[1] <= 24:
            images.append(y)
    used = hx.concat([hx.reduce_sum(z, axes=(2, 3)) for z in images[-3:]], axis=1)
    return hx.graph({"y": images[-1], "used": used})


def compiled(graph: hx.Graph, rows: int) -> Program:
    return compile_graph(graph, HOST, hx.Options(memory=hx.Memory(rows=rows)))


def run(program: Program, threads: int = 1) -> list[Any]:
    """What it gives when its memory is full of what another call left."""
    core = _core.Program(emit_plan(program), threads)
    rng = np.random.default_rng(3)
    feeds = [
        [rng.standard_normal(port["shape"]).astype(dtype(port["dtype"]).numpy) for port in core.inputs]
        for _ in range(2)
    ]
    return [core.run(given) for given in feeds][1]


def assert_same_bits(graph: hx.Graph, streamed: Program) -> None:
    want = run(compiled(graph, 0))
    for threads in (1, 2):
        for a, b in zip(run(streamed, threads), want, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 50])
@pytest.mark.parametrize(
    ("height", "stride", "residual"), [(20, 1, False), (21, 2, False), (7, 1, True), (20, 2, False)]
)
def test_a_block_of_mobilenet_has_the_same_bits(height: int, stride: int, residual: bool, rows: int):
    graph = inverted_residual(height, stride, residual)
    assert_same_bits(graph, compiled(graph, rows))


@pytest.mark.parametrize("seed", first_quick(range(60), 30))
def test_random_chains_have_the_same_bits(seed: int):
    graph = random_chain(seed)
    for rows in (1, 2, 5):
        assert_same_bits(graph, compiled(graph, rows))


def test_random_chains_are_streamed_at_all():
    assert sum(bool(compiled(random_chain(seed), 1).loops) for seed in range(60)) > 15


def test_what_lies_between_the_steps_is_a_ring_of_a_few_rows():
    whole, streamed = compiled(inverted_residual(), 0), compiled(inverted_residual(), 1)
    (loop,) = streamed.loops
    rings = [step.outputs[0].ring for step in streamed.steps[loop.first : loop.first + len(loop.moves)]]
    # The input with channels last, what the window reads, what the last product reads, what is copied to channels first.
    assert rings == [1, 3, 1, 1, 0]
    assert streamed.extents["arena"].bytes < 0.2 * whole.extents["arena"].bytes


@pytest.mark.parametrize("seed", first_quick(range(150), 60))
def test_random_branches_have_the_same_bits_in_no_more_memory(seed: int):
    graph = random_branches(seed)
    whole = compiled(graph, 0)
    for rows in (1, 3):
        streamed = compiled(graph, rows)
        assert streamed.extents["arena"].bytes <= whole.extents["arena"].bytes
        assert_same_bits(graph, streamed)


def test_random_branches_are_streamed_in_many_ways():
    streamed = [compiled(random_branches(seed), 1) for seed in range(150)]
    assert sum(len(program.loops) > 0 for program in streamed) > 50
    assert sum(len({loop.first for loop in program.loops}) < len(program.loops) for program in streamed) > 5  # nested
    pieces = [v for program in streamed for step in program.steps for v in step.outputs if v.ring and not v.dense]
    assert len(pieces) > 5  # of concatenations, in rings


@pytest.mark.parametrize("name", ["mobile-17", "unet", "detector"])
def test_small_networks_have_the_same_bits_in_no_more_memory(name: str):
    model = small_networks()[name].SerializeToString()
    whole, streamed = (hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=rows)) for rows in (0, 1))
    assert isinstance(whole, hx.Model)
    assert isinstance(streamed, hx.Model)
    assert streamed.memory["arena"] <= whole.memory["arena"]
    for seed in range(2):
        rng = np.random.default_rng(seed)
        feeds = {p.name: rng.uniform(-1, 1, p.shape).astype(np.float32) for p in whole.inputs}
        got, want = (net(feeds) for net in (streamed, whole))
        for a, b in zip(*(v.values() if isinstance(v, dict) else [v] for v in (got, want)), strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_ring_is_long_enough_for_all_its_readers():
    """y is read by a convolution, and by the sum when three convolutions of 3 rows have computed the same row."""
    rng = np.random.default_rng(0)
    y = z = hx.conv(hx.input("x", (1, 4, 32, 8)), weights(rng, 8, 4, 1, 1))
    for _ in range(3):
        z = hx.conv(z, weights(rng, 8, 8, 3, 3), pad=1)
    graph = hx.graph({"y": hx.relu(z) + hx.conv(y, weights(rng, 8, 8, 1, 1))})
    streamed = compiled(graph, 1)
    rings = {step.outputs[0].ring for step in streamed.steps if step.outputs[0].type.shape == (1, 32, 8, 8)}
    assert sorted(rings) == [0, 1, 3, 4]
    assert_same_bits(graph, streamed)


def test_rings_of_which_no_trip_needs_rows_of_the_one_before_share_memory():
    """In each trip e is written, read, and of no use any more when the last two results are computed."""
    rng = np.random.default_rng(0)
    y = hx.input("x", (1, 4, 32, 8))
    for channels in (8, 48, 8, 48, 4):
        y = hx.conv(y, weights(rng, channels, y.shape[1], 1, 1))
    graph = hx.graph({"y": y})
    streamed = compiled(graph, 1)
    rings = sum(b.bytes for b in streamed.buffers if b.kind == "arena")
    assert streamed.extents["arena"].bytes <= 8 * 4 * (8 + 48) < 0.5 * rings
    assert_same_bits(graph, streamed)


def test_an_image_lies_over_rows_that_nobody_reads_any_more():
    """Both images are whole: a softmax over their rows writes the one and reads the other."""
    rng = np.random.default_rng(0)

    def whole(y: hx.Tensor) -> hx.Tensor:
        return hx.softmax(y, axis=2)

    y = whole(hx.conv(hx.input("x", (1, 8, 32, 8)), weights(rng, 8, 8, 1, 1)))
    y = hx.conv(hx.relu(hx.conv(y, weights(rng, 32, 8, 3, 3), pad=1)), weights(rng, 8, 32, 3, 3), pad=1)
    graph = hx.graph({"y": whole(y)})
    streamed = compiled(graph, 1)
    (loop,) = streamed.loops
    under, over = streamed.steps[loop.first].inputs[0], streamed.steps[loop.first + len(loop.moves) - 1].outputs[0]
    assert under is not None
    assert (under.buffer, under.ring, over.ring) == (over.buffer, 0, 0)
    assert streamed.extents["arena"].bytes == 2 * under.type.bytes
    assert_same_bits(graph, streamed)


def test_what_a_concatenation_joins_is_apart_where_it_is_there_long_before():
    """A U of two levels: inside the result of the concatenation, the first image would hold memory for both through all
    of it."""
    rng = np.random.default_rng(0)
    wide = hx.relu(hx.conv(hx.input("x", (1, 3, 32, 16)), weights(rng, 8, 3, 3, 3), pad=1))
    low = hx.relu(hx.conv(hx.max_pool(wide, kernel_sizes=2, strides=2), weights(rng, 64, 8, 3, 3), pad=1))
    low = hx.relu(hx.conv(low, weights(rng, 8, 64, 3, 3), pad=1))
    up = hx.upsample_nearest_neighbor(low, scale_factor_height=2, scale_factor_width=2)
    graph = hx.graph({"y": hx.conv(hx.concat([wide, up], axis=1), weights(rng, 4, 16, 3, 3), pad=1)})
    streamed = compiled(graph, 1)
    joined = stream(place(streamed.graph, HOST))
    assert streamed.extents["arena"].bytes < joined.extents["arena"].bytes < compiled(graph, 0).extents["arena"].bytes
    assert_same_bits(graph, streamed)
    assert_same_bits(graph, joined)


def test_steps_on_larger_images_run_in_a_loop_of_their_own():
    rng = np.random.default_rng(0)
    y = hx.conv(hx.input("x", (1, 2, 64, 8)), weights(rng, 16, 2, 3, 3), pad=1)
    for _ in range(2):
        y = hx.conv(y, weights(rng, 16, 16, 3, 3), pad=1, strides=2)
    graph = hx.graph({"y": y})
    streamed = compiled(graph, 1)
    assert [loop.trips for loop in streamed.loops][1:] == [2, 2]
    assert {step.outputs[0].ring for step in streamed.steps} <= {0, 1, 3}  # with one loop the first would keep 7
    assert_same_bits(graph, streamed)


@pytest.mark.parametrize(("stride", "kernel", "pad"), [(1, 3, 1), (2, 2, 0), (2, 3, 1), (3, 2, 0), (2, 5, 1)])
def test_a_transposed_convolution_goes_by_rows(stride: int, kernel: int, pad: int):
    rng = np.random.default_rng(0)
    y = hx.conv(hx.input("x", (1, 4, 40, 8)), weights(rng, 16, 4, 3, 3), pad=1)
    y = hx.conv_transpose(y, weights(rng, 16, 8, kernel, kernel), strides=stride, pad=pad)
    graph = hx.graph({"y": hx.conv(y, weights(rng, 4, 8, 3, 3), pad=1)})
    for rows in (1, 2, 5):
        streamed = compiled(graph, rows)
        (step,) = [step for step in streamed.steps if step.kernel == "conv_transpose"]
        assert step.cut is not None
        assert step.inputs[0] is not None
        assert 0 < step.inputs[0].ring < 40
        assert_same_bits(graph, streamed)


def windows_in_padding(kernel: int, stride: int, pad: int, height: int) -> hx.Graph:
    """Some windows of the second convolution lie in the padding."""
    rng = np.random.default_rng(0)
    y = hx.conv(hx.input("x", (1, 4, height, 8)), weights(rng, 8, 4, 3, 3), pad=1)
    y = hx.conv(y, weights(rng, 8, 8, kernel, kernel), strides=stride, pad=pad)
    return hx.graph(hx.conv(y, weights(rng, 4, 8, 1, 1)))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "height"), [(1, 2, 1, 9), (1, 3, 2, 9), (1, 4, 1, 24), (2, 3, 2, 16), (2, 4, 2, 9)]
)
def test_windows_in_the_padding_need_no_rows(kernel: int, stride: int, pad: int, height: int, rows: int):
    graph = windows_in_padding(kernel, stride, pad, height)
    streamed = compiled(graph, rows)
    assert streamed.loops
    assert_same_bits(graph, streamed)


def test_a_product_of_images_packs_all_of_the_second() -> None:
    """It is packed before any row is computed, in fp32 as in fp16: no ring of a few rows holds it."""
    x = hx.input("x", (1, 3, 8, 8))
    filters = weights(np.random.default_rng(4), 4, 8, 3, 3)
    graph = hx.graph(hx.matmul(hx.round(x), hx.conv(x, filters, pad=1, layout="nhwc")))
    assert_same_bits(graph, compiled(graph, 1))


def quantized_images(stride: int = 2) -> hx.Graph:
    """An image that is quantised, a transposed convolution, and a mean over all that."""
    rng = np.random.default_rng(0)

    def real(shape: tuple[int, ...]) -> hx.Tensor:
        return hx.dequantize(hx.const(rng.integers(-9, 9, shape).astype(np.int8)), np.float32(0.25))

    def stored(y: hx.Tensor) -> hx.Tensor:
        return hx.dequantize(hx.quantize(y, np.float32(0.5), np.int8(3), dtype="int8"), np.float32(0.5), np.int8(3))

    y = stored(hx.input("x", (1, 3, 24, 10)))
    y = stored(hx.conv(y, real((8, 3, 3, 3)), pad=1))
    y = stored(hx.conv_transpose(y, real((8, 8, 3, 3)), strides=stride, pad=1))
    y = stored(hx.conv(y, real((16, 8, 3, 3)), pad=1))
    return hx.graph({"y": stored(hx.reduce_mean(y, axes=(2, 3)))})


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_mean_of_bytes_keeps_one_row_of_sums(stride: int, rows: int):
    graph = quantized_images(stride)
    streamed = compiled(graph, rows)
    assert_same_bits(graph, streamed)
    if rows == 1:
        (sums,) = [step for step in streamed.steps if step.kernel == "running_sum"]
        assert streamed.buffers[sums.outputs[0].buffer].bytes == 16 * 4
        assert streamed.extents["arena"].bytes < 0.3 * compiled(graph, 0).extents["arena"].bytes
        assert all(step.cut is not None for step in streamed.steps if step.outputs[0].type.rank == 4 and step.outputs[0].type.shape[1] > 1)  # fmt: skip


def pooled(kind: str, height: int, width: int, stored: str) -> hx.Graph:
    """A convolution whose image is reduced to one pixel, which a product reads."""
    rng = np.random.default_rng(0)
    y = hx.conv(hx.input("x", (1, 3, height, width), stored), weights(rng, 24, 3, 3, 3).astype(stored), pad=1)
    y = getattr(hx, kind)(y, axes=(2, 3), keep_dims=False)
    return hx.graph({"y": hx.matmul(y, weights(rng, 24, 10).astype(stored))})


@pytest.mark.parametrize("stored", ["float32", "float16"])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", ["reduce_mean", "reduce_sum", "reduce_max", "reduce_min"])
@pytest.mark.parametrize(("height", "width"), [(12, 9), (40, 30), (140, 120)])
def test_a_reduction_of_floats_keeps_one_row(height: int, width: int, kind: str, rows: int, stored: str):
    graph = pooled(kind, height, width, stored)
    streamed = compiled(graph, rows)
    assert_same_bits(graph, streamed)
    (step,) = [step for step in streamed.steps if step.kernel == "running_reduce"]
    levels = 1 if kind in ("reduce_max", "reduce_min") else 1 + (height * width > 128) + (height * width > 128**2)
    assert streamed.buffers[step.outputs[0].buffer].bytes == levels * 24 * 4
    if stored == "float32":
        assert streamed.extents["arena"].bytes < 0.8 * compiled(graph, 0).extents["arena"].bytes


def test_sums_whose_row_before_is_lost_are_refused():
    """Each row of sums needs the one before, in a loop and outside of it."""
    streamed = compiled(quantized_images(), 1)
    (at,) = [i for i, step in enumerate(streamed.steps) if step.kernel == "running_sum"]
    (outer,) = [loop for loop in streamed.loops if loop.first <= at < loop.first + len(loop.moves) and loop.first == 0]
    moves = tuple(-move if i == at else move for i, move in enumerate(outer.moves))
    backwards = replace(outer, moves=moves)
    step = streamed.steps[at]
    assert step.cut is not None
    rows = step.outputs[0].type.shape[1]
    steps = tuple(replace(s, cut=(1, rows - 1, rows)) if i == at else s for i, s in enumerate(streamed.steps))
    loops = tuple(backwards if loop is outer else loop for loop in streamed.loops)
    with pytest.raises(hx.Error, match=r"running_sum.*row .* is not there"):
        _core.Program(emit_plan(replace(streamed, steps=steps, loops=loops)), 1)


def test_sums_outside_of_a_loop_begin_with_the_first_row():
    program = by_rows(place(compiled(quantized_images(), 0).graph, HOST))
    steps = tuple(replace(s, cut=(1, 1, 2)) if s.kernel == "running_sum" else s for s in program.steps)
    with pytest.raises(hx.Error, match=r"cut: got \[1, 2\) outside of a loop, need it from 0 on"):
        _core.Program(emit_plan(allocate(replace(program, steps=steps))), 1)


def test_images_of_a_batch_are_not_streamed():
    x = hx.input("x", (2, 4, 16, 8))
    wide = hx.conv(x, np.ones((24, 4, 1, 1), np.float32))
    graph = hx.graph({"y": hx.conv(wide, np.ones((4, 24, 3, 3), np.float32), pad=1)})
    assert not compiled(graph, 1).loops


def test_compile_streams_where_it_is_told_to():
    graph = inverted_residual()
    x = np.random.default_rng(3).standard_normal((1, 8, 20, 12)).astype(np.float32)
    whole, streamed = hx.compile(graph, threads=1), hx.compile(graph, threads=1, memory=hx.Memory(rows=2))
    assert streamed.memory["arena"] < whole.memory["arena"]
    assert streamed(x).tobytes() == whole(x).tobytes()


@pytest.mark.parametrize("rows", [-1, 1.5, True])
def test_a_wrong_number_of_rows_is_refused(rows: Any):
    with pytest.raises(hx.Error, match="rows: got"):
        hx.compile(inverted_residual(), memory=hx.Memory(rows=rows))


def test_streams_of_one_program_do_not_depend_on_those_before() -> None:
    program = place(compile_graph(inverted_residual(40, residual=True), HOST).graph, HOST)
    streams = Streams(program, "")
    for rows, budget in ((4, 0), (1, 0), (2, 1 << 14), (1, 1 << 13), (4, 0)):
        again, alone = streams.stream(rows, budget), stream(program, rows, budget, "")
        assert str(again) == str(alone)
        assert again.loops == alone.loops


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_1000_random_graphs_at_5_budgets_have_the_same_bits(first: int):
    """Half of them with inputs and outputs in the arena. Memory is full of what another call left."""
    for seed in share(range(first, first + 100)):
        graph = (random_chain if seed % 3 == 0 else random_branches)(10_000 + seed)
        whole = compiled(graph, 0)
        want = [a.tobytes() for a in run(whole)]
        streams = Streams(whole, "", holds_ports=seed % 2 == 0)
        least, most = (streams.stream(1, budget).extents["arena"].bytes for budget in (0, 1 << 40))
        for budget in np.linspace(least, most, 5).astype(int).tolist():
            program = streams.stream(1, budget)
            assert program.extents["arena"].bytes <= budget, seed
            assert [a.tobytes() for a in run(program)] == want, (seed, budget)
