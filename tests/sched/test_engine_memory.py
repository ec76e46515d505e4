"""Working sets with spills, banks, main memory and packed weights."""

import itertools

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from hexane.targets import Chip, load_target

H13 = load_target("h13")
assert isinstance(H13, Chip)
BANKS, BANK_BYTES = H13.memory.banks, H13.memory.bank_bytes


# ---- the working set ----


def solve(tensors: list[tuple[int, ...]], touches: list[tuple[int, ...]], capacity: int, alignment: int = 1):  # type: ignore[no-untyped-def]
    """tensors: (bytes, bytes of a tile, made, stored, fixed). touches: the steps of each. The result passes the
    check."""
    rows = np.array(tensors, np.int64).reshape(-1, 5)
    steps = np.array([(i, step) for i, s in enumerate(touches) for step in s], np.int64).reshape(-1, 2)
    result = _core.working_set(rows, steps, capacity, alignment)
    _core.check_working_set(rows, steps, capacity, alignment, *result)
    return result


def test_what_fits_is_not_spilled() -> None:
    spilled, _, height, traffic = solve([(4, 1, 1, 0, 0), (4, 1, 1, 0, 0)], [(0, 1), (1, 2)], 8)
    assert (spilled, height, traffic) == ([False, False], 8, 0)


def test_the_check_refuses_a_tensor_that_no_step_touches() -> None:
    rows, steps = np.array([(4, 1, 1, 0, 0)], np.int64), np.empty((0, 2), np.int64)
    with pytest.raises(Error, match="tensor 0: need a step that touches it"):
        _core.check_working_set(rows, steps, 8, 1, [False], [[0]], 4, 0)


def test_the_cheapest_tensor_is_spilled() -> None:
    # The second is read three times, the first and the last once: the first is stored anyway.
    tensors = [(4, 1, 1, 1, 0), (4, 1, 1, 0, 0), (4, 1, 1, 0, 0)]
    spilled, offsets, height, traffic = solve(tensors, [(0, 5), (1, 2, 3, 4), (2, 4)], 9)
    assert (spilled, traffic) == ([True, False, False], 4)
    assert len(offsets[0]) == 2
    assert height <= 9


def test_a_fixed_tensor_stays() -> None:
    spilled, *_ = solve([(4, 1, 1, 1, 1), (4, 1, 1, 0, 0)], [(0, 3), (1, 2)], 5)
    assert spilled == [False, True]


def test_what_never_fits_is_refused() -> None:
    with pytest.raises(Error, match="capacity: got 7 bytes, need 8 even if all but the fixed tensors are spilled"):
        solve([(4, 4, 1, 0, 0), (4, 4, 1, 0, 0)], [(0, 1), (1, 2)], 7)


@pytest.mark.parametrize("seed", range(60))
def test_random_working_sets_pass_the_check(seed: int) -> None:
    random = np.random.default_rng(seed)
    tensors, touches = [], []
    for _ in range(int(random.integers(1, 15))):
        size = int(random.integers(1, 60))
        tensors.append((size, int(random.integers(0, min(size, 4) + 1)), *(random.random(2) < 0.5), 0))
        touches.append(tuple(sorted(set(random.integers(0, 12, int(random.integers(1, 5))).tolist()))))
    spilled, _, height, traffic = solve(tensors, touches, 64 + 15 * 4, alignment=int(2 ** random.integers(0, 3)))
    assert any(spilled) or traffic == 0
    assert height <= 64 + 15 * 4


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_spilled_where_a_packing_fits(seed: int) -> None:
    """The capacity is the lowest packing that the allocator finds, so that greedy packings alone often exceed it."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 100, 40)
    first = random.integers(0, 20, 40)
    last = first + random.integers(1, 8, 40)
    _, height, _ = _core.alloc_solve(first, last + 1, sizes, alignment=1)
    tensors = [(int(size), 1, 1, 0, 0) for size in sizes]
    spilled, _, used, traffic = solve(tensors, [(int(a), int(b)) for a, b in zip(first, last, strict=True)], height)
    assert (any(spilled), used, traffic) == (False, height, 0)


# ---- banks and main memory ----


def hits_by_simulation(rows: int, stride: int) -> int:
    return max(np.bincount([row * stride // BANK_BYTES % BANKS for row in range(rows)]))


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 64, 65, 200])
def test_conflicts_are_those_of_a_simulation(rows: int) -> None:
    for stride in range(0, 2048, BANK_BYTES):
        assert _core.bank_conflicts(BANKS, BANK_BYTES, rows, stride) == hits_by_simulation(rows, stride), stride


@pytest.mark.parametrize("row_bytes", [1, 16, 64, 100, 1024, 1040, 4096])
@pytest.mark.parametrize("rows", [1, 8, 64, 100])
def test_the_stride_is_the_smallest_of_least_conflicts(rows: int, row_bytes: int) -> None:
    stride = _core.bank_stride(BANKS, BANK_BYTES, rows, row_bytes, 1 << 21)
    candidates = range(-(-row_bytes // BANK_BYTES) * BANK_BYTES, row_bytes + 2048, BANK_BYTES)
    assert stride == min(candidates, key=lambda s: (hits_by_simulation(rows, s), s))


def test_a_stride_of_the_whole_memory_meets_in_one_bank() -> None:
    assert _core.bank_conflicts(BANKS, BANK_BYTES, 64, BANKS * BANK_BYTES) == 64
    assert _core.bank_stride(BANKS, BANK_BYTES, 64, 1024, 1 << 21) == 1040


def test_main_memory_has_aligned_rows_and_whole_pages() -> None:
    memory = H13.memory
    assert _core.main_memory_pitch(2 * 100, 50, 3, memory.row_alignment, memory.page) == (256, 12_800, 49_152)


def test_concatenated_rows_are_written_directly_where_granules_are_whole() -> None:
    granule = H13.memory.dma_granule
    assert _core.concat_rows([32, 16, 8], granule) == [(0, True), (32, True), (48, True)]
    # The second ends inside a granule, which the third shares: both are copied.
    assert _core.concat_rows([32, 8, 16], granule) == [(0, True), (32, False), (40, False)]


def test_alignments_of_the_four_classes_are_the_targets() -> None:
    memory = H13.memory
    assert (memory.dma_granule, memory.row_alignment, memory.instruction_alignment, memory.page) == (16, 64, 256, 16384)


# ---- packed weights ----


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("layout", ["oidhw", "odhwi", "dhwio"])
def test_an_engine_finds_its_channels(layout: str, groups: int) -> None:
    outputs, inputs, height, width = 48, 5, 3, 2
    weights = np.arange(outputs * inputs * height * width, dtype=np.uint16).reshape(outputs, inputs, 1, height, width)
    kernel, channels = (outputs, inputs, 1, height, width, groups, 16), 4
    engines = (16, channels, 64)
    stored = np.ascontiguousarray(weights.transpose(["oidhw".index(axis) for axis in layout]))
    packed = _core.pack_kernel(kernel, engines, layout, stored.view(np.uint8).ravel())
    num_groups, active, passes, stride = _core.packed_shape(kernel, engines)
    assert (num_groups, active, passes) == (12, 16, 1)
    rows = packed.reshape(active, stride)[:, : passes * height * width * inputs * channels * 2].copy().view(np.uint16)
    tiles = rows.reshape(active, passes, height, width, inputs, channels)
    for o, i, y, x in itertools.product(range(outputs), range(inputs), range(height), range(width)):
        group = o // channels
        assert tiles[group % active, group // active, y, x, i, o % channels] == weights[o, i, 0, y, x]
    np.testing.assert_array_equal(_core.unpack_kernel(kernel, engines, layout, packed), stored.view(np.uint8).ravel())


@pytest.mark.parametrize(
    ("kernel", "engines", "layout", "size", "words"),
    [
        ((4, 4, 1, 1, 1, 3, 16), (16, 4, 64), "oidhw", 32, "groups: got 3, need a divisor of 4"),
        ((4, 4, 1, 1, 1, 1, 17), (16, 4, 64), "oidhw", 32, "bits: got 17"),
        ((4, 4, 1, 1, 1, 1, 16), (12, 4, 64), "oidhw", 32, "engines: got 12, need a power of two"),
        ((4, 4, 1, 1, 1, 1, 16), (16, 4, 64), "oihw", 32, "layout: got 'oihw'"),
        ((4, 4, 1, 1, 1, 1, 16), (16, 4, 64), "oidhh", 32, "layout: got 'oidhh'"),
        ((4, 4, 1, 1, 1, 1, 16), (16, 4, 64), "oidhw", 31, "got 31 bytes, need 32"),
        ((1 << 30, 1 << 30, 1, 1, 1, 1, 16), (16, 4, 64), "oidhw", 32, "inputs: got"),
    ],
)
def test_kernels_that_make_no_sense_are_refused(
    kernel: tuple[int, int, int, int, int, int, int], engines: tuple[int, int, int], layout: str, size: int, words: str
) -> None:
    with pytest.raises(Error, match=words):
        _core.pack_kernel(kernel, engines, layout, np.zeros(size, np.uint8))
