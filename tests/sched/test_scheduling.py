"""Orders of layers: the six tie-breaks one by one, partitions, and the lowest peak against a brute-force search."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error

Edges = Sequence[tuple[int, int]]
ONLY, RING, BRANCH, MERGE, WORKING_SET, TOPOLOGICAL, NUMBER = range(7)


def problem(sizes: Sequence[int], reads: Edges, **columns: Sequence[int]) -> _core.Scheduling:
    """Layer i makes tensor i, which `reads` (i, j) give to layer j; what nobody reads is kept."""
    read = {i for i, _ in reads}
    n = len(sizes)
    return _core.Scheduling(
        np.array(sizes, np.int64),
        np.arange(n),
        np.array([i not in read for i in range(n)], np.int64),
        np.array(reads, np.int64).reshape(-1, 2),
        n,
        **{name: np.array(column, np.int64) for name, column in columns.items()},
    )


def wired(num_layers: int, seed: int, neighbours: int = 4, rewired: float = 0.75) -> list[tuple[int, int]]:
    """A ring in which every layer knows its neighbours, most of them then exchanged (Watts and Strogatz)."""
    random = np.random.default_rng(seed)
    edges = set()
    for i in range(num_layers):
        for distance in range(1, neighbours // 2 + 1):
            other = (i + distance) % num_layers
            while random.random() < rewired or other == i:
                other = int(random.integers(0, num_layers))
            edges.add((min(i, other), max(i, other)))
    return sorted(edges)


def greedy(made: _core.Scheduling, ceiling: int = 1 << 21) -> tuple[list[int], list[int]]:
    """The order, which passes the check, and the rule that decided each step."""
    order, choices = made.greedy(ceiling)
    made.check(order, made.peak(order))
    return order.tolist(), choices[:, 0].tolist()


# ---- the tie-breaks ----


def test_rule_1_takes_ring_buffers_first() -> None:
    order, rules = greedy(problem([1, 1, 1], [], rings=[0, 0, 1]))
    assert (order[0], rules[0]) == (2, RING)


def test_rule_2_takes_the_last_reader_of_a_tensor_first() -> None:
    # 1 and 3 read what 0 made: when 1 has run, 3 frees it. 2 frees nothing.
    order, rules = greedy(problem([1, 1, 1, 1], [(0, 1), (0, 3)], edges=[(0, 2)]))
    assert order == [0, 1, 3, 2]
    assert rules[2] == BRANCH


def test_rule_3_completes_a_merge_first() -> None:
    # 3 merges 0 and 2, so when 0 has run, 2 goes before 1.
    order, rules = greedy(problem([1, 1, 1, 1], [(0, 3), (2, 3)]))
    assert order[:2] == [0, 2]
    assert rules[1] == MERGE


def test_rule_4_runs_the_branch_with_the_larger_footprint_first() -> None:
    diamond = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    order, rules = greedy(problem([1, 4, 8, 1, 1, 1], diamond), ceiling=100)
    assert order[1] == 2
    assert rules[1] == WORKING_SET


@pytest.mark.parametrize(("ceiling", "first"), [(1 + 9, 2), (1 + 9 - 1, 1)])
def test_rule_4_asks_whether_live_bytes_and_the_branch_fit(ceiling: int, first: int) -> None:
    # The branch of 2 has 8 + 1 bytes, and 1 is live.
    diamond = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    assert greedy(problem([1, 4, 8, 1, 1, 1], diamond), ceiling)[0][1] == first


def test_rule_4_asks_whether_fork_and_merge_fit_together() -> None:
    diamond = [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)]
    assert greedy(problem([1, 4, 8, 1, 1, 30], diamond), 30)[0][1] == 1
    assert greedy(problem([1, 4, 8, 1, 1, 29], diamond), 30)[0][1] == 2


def test_rule_4_drains_a_branch_that_was_begun() -> None:
    # Three ways of two layers: while two wait, no sibling score tells their heads from the second layer of the first.
    ways = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7)]
    order, _ = greedy(problem([1, 5, 6, 7, 1, 1, 1, 1], ways))
    assert order == [0, 3, 6, 2, 5, 1, 4, 7]


def test_rule_5_takes_the_layer_nearer_to_the_beginning() -> None:
    order, rules = greedy(problem([1, 1, 1], [], edges=[(0, 1)]))
    assert (order, rules) == ([0, 2, 1], [NUMBER, TOPOLOGICAL, ONLY])


def test_rule_6_takes_the_lower_number() -> None:
    assert greedy(problem([1, 1, 1], [])) == ([0, 1, 2], [NUMBER, NUMBER, ONLY])


# ---- partitions ----


def test_a_partition_closes_where_a_layer_no_longer_fits() -> None:
    chain = problem([4, 4, 4, 4], [(0, 1), (1, 2), (2, 3)])
    order = np.arange(4)
    assert chain.partition(order, 8).tolist() == [[0, 4, 8, 0, 4]]
    assert chain.partition(order, 7).tolist() == [[0, 1, 4, 0, 4], [1, 2, 8, 4, 4], [2, 3, 8, 4, 4], [3, 4, 8, 4, 4]]


def test_a_tensor_read_twice_in_a_partition_lies_there_in_between() -> None:
    # 0 makes 4 bytes for 1 and 3; 2 makes 4 of its own. With all in one partition, step 2 holds 4 + 1 + 4 bytes.
    skip = problem([4, 1, 4, 1], [(0, 1), (1, 2), (0, 3), (2, 3)])
    assert skip.partition(np.arange(4), 9).tolist() == [[0, 4, 9, 0, 1]]
    rows = skip.partition(np.arange(4), 8)
    assert rows.tolist() == [[0, 3, 5, 0, 8], [3, 4, 9, 8, 1]]
    skip.check_partitions(np.arange(4), rows, 8)


def test_broken_partitions_are_refused() -> None:
    chain = problem([4, 4, 4], [(0, 1), (1, 2)])
    order = np.arange(3)
    for rows, words in (
        (np.zeros((0, 5), np.int64), "got 0 layers, need 3"),
        ([[0, 2, 8, 0, 4], [2, 3, 8, 4, 4]], "closed before layer 2"),
        ([[0, 3, 7, 0, 4]], "peak: got 7 bytes, need 8"),
        ([[0, 3, 8, 1, 4]], "loaded: got 1 bytes, need 0"),
        ([[1, 3, 8, 0, 4]], "need some from 0 on"),
    ):
        with pytest.raises(Error, match=words):
            chain.check_partitions(order, np.array(rows), 8)
    with pytest.raises(Error, match="peak: got 8 bytes, need at most 7"):
        chain.check_partitions(order, np.array([[0, 3, 8, 0, 4]]), 7)


# ---- the lowest peak ----


def lowest_peak(sizes: Sequence[int], edges: Edges) -> int:
    """By dynamic programming over all sets of layers that hold their predecessors."""
    n = len(sizes)
    readers = [sum(1 << j for i, j in edges if i == v) for v in range(n)]
    waits = [sum(1 << i for i, j in edges if j == v) for v in range(n)]

    def live(done: int) -> int:
        return sum(size for v, size in enumerate(sizes) if done >> v & 1 and (not readers[v] or readers[v] & ~done))

    @lru_cache(None)
    def best(done: int) -> int:
        ready = [v for v in range(n) if not done >> v & 1 and not waits[v] & ~done]
        return min((max(live(done) + sizes[v], best(done | 1 << v)) for v in ready), default=live(done))

    return best(0)


@pytest.mark.parametrize("seed", range(60))
def test_optimal_is_the_lowest_peak_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 12))
    sizes = random.integers(0, 9, n).tolist()
    edges = [(i, j) for i in range(n) for j in range(i + 1, n) if random.random() < 0.25]
    made = problem(sizes, edges)
    order, peak, bound, _ = made.optimal(made.greedy(20)[0])
    made.check(order, peak)
    assert peak == bound == lowest_peak(sizes, edges)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_optimal_is_proven_on_wired_graphs_of_60_layers(seed: int, equal: bool) -> None:
    sizes = [1024] * 60 if equal else (1024 * np.random.default_rng(seed).integers(1, 64, 60)).tolist()
    made = problem(sizes, wired(60, seed))
    start, _ = made.greedy(1 << 21)
    order, peak, bound, _ = made.optimal(start)
    made.check(order, peak)
    assert bound == peak <= made.peak(start)


def test_optimal_without_work_is_the_start() -> None:
    made = problem([1024] * 60, wired(60, 0))
    start, _ = made.greedy(1 << 21)
    order, peak, bound, _ = made.optimal(start, work_budget=0)
    assert peak == made.peak(start)
    assert bound <= peak
    made.check(order, peak)


def test_a_large_graph_keeps_its_order_and_has_a_bound() -> None:
    # Too large to be searched: what is left is the bound of single layers.
    edges = [(i, j) for i in range(4000) for j in (i + 3, i + 50) if j < 4000]
    made = problem([64] * 4000, edges)
    start = np.arange(4000)
    order, peak, bound, _ = made.optimal(start)
    assert order.tolist() == start.tolist()
    assert 64 * 3 <= bound <= peak == made.peak(start)


# ---- bad input ----


@pytest.mark.parametrize(
    ("sizes", "edges", "columns", "words"),
    [
        ([1, -1], [], {}, "tensor 1: got -1 bytes"),
        ([1, 1], [(0, 2)], {}, "reader of tensor 0: got layer 2"),
        ([1, 1], [(0, 0)], {}, "layer 0 as producer and reader"),
        ([1, 1], [(0, 1), (0, 1)], {}, "reader 1 twice"),
        ([1, 1], [(0, 1), (1, 0)], {}, "circle"),
        ([1, 1], [(2, 1)], {}, "got tensor 2"),
        ([1, 1], [], {"scratch": [1]}, "scratch: need one column of 2"),
        ([1 << 62, 1], [], {}, "fits 63 bits"),
    ],
)
def test_bad_problems_are_refused(sizes: list[int], edges: Edges, columns: dict[str, list[int]], words: str) -> None:
    with pytest.raises(Error, match=words):
        problem(sizes, edges, **columns)


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 0], [0, 2]])
def test_orders_that_no_graph_has_are_refused(order: list[int]) -> None:
    made = problem([1, 1], [(0, 1)])
    with pytest.raises(Error):
        made.check(np.array(order), 2)
    with pytest.raises(Error):
        made.optimal(np.array(order))
    with pytest.raises(Error):
        made.partition(np.array(order), 2)


def test_a_wrong_peak_is_refused() -> None:
    with pytest.raises(Error, match="peak: got 1 bytes, need 2"):
        problem([1, 1], [(0, 1)]).check(np.arange(2), 1)
