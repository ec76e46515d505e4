"""Offsets in the arena: the solver against its check, a brute-force optimum and the profiles of networks."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from hexane import _core
from hexane.errors import Error
from packing import GAP, MIB, Buffers, columns, solve


def fits_by_brute_force(buffers: Buffers, height: int, offsets: tuple[int, ...] = ()) -> bool:
    """Tries every offset for every buffer."""
    if len(offsets) == len(buffers):
        return True
    lower, upper, size = buffers[len(offsets)]
    taken = [
        (offset, offset + buffers[i][2])
        for i, offset in enumerate(offsets)
        if buffers[i][0] < upper and lower < buffers[i][1]
    ]
    return any(
        fits_by_brute_force(buffers, height, (*offsets, offset))
        for offset in range(height - size + 1)
        if all(offset + size <= begin or end <= offset for begin, end in taken)
    )


def lowest_by_brute_force(buffers: Buffers) -> int:
    live = max((sum(b[2] for b in buffers if b[0] <= a[0] < b[1]) for a in buffers), default=0)
    return next(height for height in itertools.count(live) if fits_by_brute_force(buffers, height))


# ---- networks ----


def chain(num_layers: int) -> Buffers:
    """Each layer reads the tensor before it; sizes fall and rise."""
    return [(i, i + 2, MIB >> (i * 7 % 5)) for i in range(num_layers)]


def uneven_chain(num_layers: int) -> Buffers:
    """The same with sizes that have nothing in common: too hard for any greedy order."""
    sizes = np.random.default_rng(num_layers).integers(1, MIB, num_layers).tolist()
    return [(i, i + 2, size) for i, size in enumerate(sizes)]


def residual(num_blocks: int) -> Buffers:
    """ResNet bottlenecks: the block's input lives until the addition at its end."""
    buffers = []
    for block in range(num_blocks):
        step, size = 4 * block, 4 * MIB >> (block // 4)
        buffers += [(step, step + 5, size), (step + 1, step + 3, size // 4), (step + 2, step + 4, size // 4)]
        buffers += [(step + 3, step + 5, size)]
    return buffers


def inverted_residual(num_blocks: int) -> Buffers:
    """MobileNetV2: narrow ends that are added, six times as wide inside."""
    buffers = []
    for block in range(num_blocks):
        step, size = 3 * block, 96 * 4096 >> (block // 3)
        buffers += [(step, step + 4, size), (step + 1, step + 3, 6 * size), (step + 2, step + 4, 6 * size)]
    return buffers


def unet(depth: int) -> Buffers:
    """Level i's skip lives from the way down to the concat on the way up."""
    buffers, last = [], 6 * depth
    for level in range(depth):
        down, up, size = 3 * level, last - 3 * level, 16 * MIB >> level
        buffers += [(down, down + 2, size), (down + 1, up - 1, size), (down + 2, down + 4, size // 4)]
        buffers += [(up - 3, up - 1, size), (up - 2, up, 2 * size), (up - 1, up + 1, size)]
    return buffers


def transformer(num_layers: int) -> Buffers:
    """Query, key and value side by side; the residual spans attention, then the four times wider hidden layer."""
    buffers, size = [], 128 * 384 * 4
    for layer in range(num_layers):
        step = 12 * layer
        buffers += [(step, step + 9, size), (step + 1, step + 5, size)]
        buffers += [(step + 2 + i, step + 7, size) for i in range(3)]
        buffers += [(step + 5, step + 7, 6 * 128 * 128 * 4), (step + 6, step + 8, 6 * 128 * 128 * 4)]
        buffers += [(step + 7, step + 9, size), (step + 8, step + 13, size), (step + 9, step + 11, size)]
        buffers += [(step + 10, step + 12, 4 * size), (step + 11, step + 13, 4 * size)]
    return buffers


def fan_out(num_branches: int) -> Buffers:
    """One tensor read by many branches of different size, all summed at the end."""
    end = 2 * num_branches + 2
    branches = [(2 * i + 1, 2 * i + 3, 8192 * (i + 1)) for i in range(num_branches)]
    return [(0, end - 1, MIB), *branches, *((2 * i + 2, end, 1000 * (i + 1)) for i in range(num_branches))]


def dense_concat(num_layers: int) -> Buffers:
    """DenseNet: each layer reads the concat of all tensors so far, which grows."""
    buffers = []
    for i in range(num_layers):
        buffers += [
            (4 * i, 4 * i + 2, 2048 * (i + 2)),
            (4 * i + 1, 4 * i + 3, 16384),
            (4 * i + 2, 4 * num_layers, 4096),
        ]
    return buffers


@pytest.mark.parametrize(
    "buffers",
    [
        pytest.param(chain(50), id="chain"),
        pytest.param(chain(1000), id="long_chain"),
        pytest.param(uneven_chain(200), id="uneven_chain"),
        pytest.param(uneven_chain(20_000), id="long_uneven_chain"),
        pytest.param(residual(16), id="resnet"),
        pytest.param(inverted_residual(17), id="mobilenet"),
        pytest.param(unet(3), id="unet3"),
        pytest.param(unet(5), id="unet5"),
        pytest.param(transformer(6), id="encoder6"),
        pytest.param(transformer(12), id="encoder12"),
        pytest.param(fan_out(2), id="fork"),
        pytest.param(fan_out(24), id="fan_out"),
        pytest.param(dense_concat(16), id="dense16"),
        pytest.param(dense_concat(40), id="dense40"),
    ],
)
def test_networks_need_no_more_than_their_live_bytes(buffers: Buffers):
    _, height, _ = solve(buffers)
    assert height == _core.alloc_bound(*columns(buffers))


@pytest.mark.parametrize("window", [3, 30, 300], ids=lambda window: f"window{window}")
def test_random_graphs_of_5000_tensors_come_close_to_the_bound(window: int):
    rng = np.random.default_rng(window)
    last = np.arange(5000)
    for step in range(1, 5000):
        last[step - np.minimum(step, rng.integers(1, window + 1, 2))] = step
    buffers = list(zip(range(5000), (last + 1).tolist(), rng.integers(1, 64000, 5000).tolist(), strict=True))
    _, height, bound = solve(buffers)
    assert height <= 1.09 * bound


# ---- any problem ----


@st.composite
def problems(draw: st.DrawFn, max_buffers: int = 40, max_size: int = 1000) -> Buffers:
    steps = draw(st.integers(1, 30))
    buffer = st.tuples(st.integers(0, steps), st.integers(1, steps), st.integers(0, max_size))
    return [(lower, lower + length, size) for lower, length, size in draw(st.lists(buffer, max_size=max_buffers))]


@settings(deadline=None)
@given(problems(), st.sampled_from([1, 16, 64]))
def test_every_solution_passes_the_check_and_is_found_again(buffers: Buffers, alignment: int):
    solution = solve(buffers, alignment=alignment)
    assert solution == solve(buffers, alignment=alignment)
    offsets, height, _ = solution
    assert height == max(
        (o + -(-b[2] // alignment) * alignment for o, b in zip(offsets, buffers, strict=True)), default=0
    )


@settings(deadline=None)
@given(problems(max_buffers=8, max_size=3))
@example(GAP)
def test_small_problems_are_solved_to_the_proven_optimum(buffers: Buffers):
    _, height, bound = solve(buffers, alignment=1)
    assert height == bound == lowest_by_brute_force(buffers)


@settings(deadline=None)
@given(problems(max_buffers=8, max_size=3))
@example(GAP)
def test_a_capacity_is_met_exactly_when_it_can_be(buffers: Buffers):
    optimum = lowest_by_brute_force(buffers)
    assert solve(buffers, alignment=1, capacity=optimum)[1] == optimum
    assume(optimum > 0)
    with pytest.raises(Error, match=rf"capacity: got {optimum - 1}, need "):
        solve(buffers, alignment=1, capacity=optimum - 1)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_rectangles_cut_from_one_sheet_are_packed_back_into_it(seed: int):
    rng = np.random.default_rng(seed)
    sheet = [(0, 40, 40)]
    pieces = []
    while sheet and len(sheet) + len(pieces) < 24:
        lower, upper, size = sheet.pop(rng.integers(len(sheet)))
        if rng.integers(2) and upper - lower > 1:
            cut = int(rng.integers(lower + 1, upper))
            sheet += [(lower, cut, size), (cut, upper, size)]
        elif size > 1:
            cut = int(rng.integers(1, size))
            sheet += [(lower, upper, cut), (lower, upper, size - cut)]
        else:
            pieces.append((lower, upper, size))
    _, height, _ = solve(pieces + sheet, alignment=1)
    assert height == 40


def test_a_gap_above_the_live_bytes_is_proven():
    _, height, bound = solve(GAP, alignment=1)
    assert (height, bound) == (lowest_by_brute_force(GAP),) * 2
    assert height > _core.alloc_bound(*columns(GAP), 1)


def test_buffers_that_only_touch_in_time_share_their_place():
    assert solve([(0, 1, 64), (1, 2, 64), (2, 9, 64)]) == ([0, 0, 0], 64, 64)


def test_sizes_are_rounded_up_to_the_alignment():
    offsets, height, bound = solve([(0, 2, 1), (0, 2, 65)], alignment=64)
    assert (height, bound) == (192, 192)
    assert all(offset % 64 == 0 for offset in offsets)


@pytest.mark.parametrize("buffers", [[], [(0, 9, 0)], [(0, 9, 0), (3, 4, 0)]], ids=["none", "empty", "empties"])
def test_buffers_without_bytes_need_no_arena(buffers: Buffers):
    assert solve(buffers, capacity=0) == ([0] * len(buffers), 0, 0)


# ---- the check ----

TOWER = [(0, 4, 64), (0, 4, 128), (2, 6, 64), (5, 9, 256)]  # lies at [0, 64, 192, 0], height 256


@pytest.mark.parametrize(
    ("offsets", "height", "message"),
    [
        ([0, 64, 192], 256, "offsets: got 3, need one per buffer, 4"),
        ([0, 64, 192, 0], 255, "buffer 2 end: got offset 192 + size 64, need <= height 255"),
        ([0, 64, 192, 64], 256, "buffer 3 end: got offset 64 + size 256, need <= height 256"),
        ([-64, 64, 192, 256], 512, "buffer 0 offset: got -64, need >= 0"),
        ([0, 65, 256, 320], 576, "buffer 1 offset: got 65, need a multiple of 64"),
        ([0, 0, 192, 256], 512, "buffer 0 offset: got 0, need >= 128, the end of buffer 1 "),
        ([128, 0, 64, 192], 576, "buffer 2 offset: got 64, need >= 128, the end of buffer 1 "),
        ([0, 64, 192, 192], 512, "buffer 2 offset: got 192, need >= 448, the end of buffer 3 "),
        ([0, 64, 192, 128], 512, "buffer 2 offset: got 192, need >= 384, the end of buffer 3 "),
    ],
)
def test_the_check_names_the_broken_rule(offsets: list[int], height: int, message: str):
    with pytest.raises(Error, match=rf"^\[alloc_check\] {re.escape(message)}"):
        _core.alloc_check(*columns(TOWER), np.array(offsets, np.int64), height)


def test_the_check_refuses_a_height_above_the_capacity():
    with pytest.raises(Error, match="height: got 256, need <= capacity 255"):
        _core.alloc_check(*columns(TOWER), np.array([0, 64, 192, 0]), 256, capacity=255)


@settings(deadline=None)
@given(problems(), st.data())
def test_the_check_names_two_buffers_that_were_moved_together(buffers: Buffers, data: st.DataObject):
    buffers = [buffer for buffer in buffers if buffer[2] > 0]
    pairs = [
        (i, j) for i, a in enumerate(buffers) for j, b in enumerate(buffers) if i < j and a[0] < b[1] and b[0] < a[1]
    ]
    assume(pairs)
    moved, onto = data.draw(st.sampled_from(pairs))
    offsets, height, _ = _core.alloc_solve(*columns(buffers), alignment=1)
    offsets[moved] = offsets[onto]
    with pytest.raises(Error, match=rf"buffer {moved}\b") as raised:
        _core.alloc_check(*columns(buffers), offsets, height + buffers[moved][2], 1)
    culprits = {int(i) for i in re.findall(r"buffer (\d+)", str(raised.value))}
    others = {j for j in culprits if j != moved}
    assert all(buffers[j][0] < buffers[moved][1] and buffers[moved][0] < buffers[j][1] for j in others)


# ---- what cannot be ----


def test_a_capacity_below_the_live_bytes_names_both_numbers():
    with pytest.raises(Error, match=r"^\[alloc\] capacity: got 191, need at least 192"):
        _core.alloc_solve(*columns(TOWER[:2]), capacity=191)


def test_a_capacity_that_holds_the_live_bytes_but_no_packing_is_refused():
    live = _core.alloc_bound(*columns(GAP), 1)
    with pytest.raises(Error, match=rf"capacity: got {live}, need more: .* no packing fits"):
        _core.alloc_solve(*columns(GAP), alignment=1, capacity=live)


def test_an_exhausted_budget_is_another_error_than_impossibility():
    live = _core.alloc_bound(*columns(GAP), 1)
    with pytest.raises(Error, match=rf"capacity: got {live}, need \d+ .* work budget 5 .*raise the budget"):
        _core.alloc_solve(*columns(GAP), alignment=1, capacity=live, work_budget=5)


def test_without_a_budget_the_best_greedy_packing_is_returned():
    _, height, bound = solve(GAP, alignment=1, work_budget=0)
    assert height > bound == _core.alloc_bound(*columns(GAP), 1)


BIG = 2**62


@pytest.mark.parametrize(
    ("buffers", "options", "message"),
    [
        ([(-1, 4, 1)], {}, "buffer 0 lower: got -1, need >= 0"),
        ([(0, 1, 1), (3, 3, 1)], {}, "buffer 1 upper: got 3, need more than its lower 3"),
        ([(4, 3, 1)], {}, "buffer 0 upper: got 3, need more than its lower 4"),
        ([(0, 1, -5)], {}, "buffer 0 size: got -5, need >= 0"),
        ([(0, 1, BIG), (5, 6, BIG - 64), (7, 8, 1)], {}, "buffer 2 size: got 1, need at most 0"),
        ([(0, 1, 2**63 - 1)], {}, f"buffer 0 size: got {2**63 - 1}, need at most {2**63 - 64}"),
        ([(0, 1, 1)], {"alignment": 0}, "alignment: got 0, need a power of two"),
        ([(0, 1, 1)], {"alignment": 48}, "alignment: got 48, need a power of two"),
        ([(0, 1, 1)], {"capacity": -1}, "capacity: got -1, need >= 0"),
    ],
)
def test_bad_input_is_refused(buffers: Buffers, options: dict[str, int], message: str):
    with pytest.raises(Error, match=rf"^\[alloc\] {re.escape(message)}"):
        _core.alloc_solve(*columns(buffers), **options)


def test_sizes_up_to_63_bits_are_packed():
    assert solve([(0, 2, BIG), (0, 2, BIG - 64)])[1] == 2**63 - 64
    assert solve([(0, 2**62, 1), (2**62, 2**63 - 1, 1)])[1] == 64


def test_arrays_of_different_length_or_shape_are_refused():
    one, two = np.zeros(1, np.int64), np.ones(2, np.int64)
    with pytest.raises(Error, match="got length 2, need 1"):
        _core.alloc_solve(one, two, one)
    with pytest.raises(Error, match="got 2 dimensions, need 1"):
        _core.alloc_bound(one, one, np.ones((1, 1), np.int64))


def test_arrays_of_floats_are_refused():
    with pytest.raises(TypeError):
        _core.alloc_bound(np.zeros(1), np.ones(1), np.ones(1))
