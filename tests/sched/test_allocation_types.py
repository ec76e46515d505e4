"""The nine allocation types of tensors, the conjunction that chains two layers, and the check."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error

RESIDENT, STREAMED, CHAINED, DEPENDENT, IN_PLACE, IN_PLACE_DEPENDENT, RING, RING_DEPENDENT, IN_PLACE_STREAMED = range(9)
CHAIN, NO_EDGE, DISABLED, FAN_OUT, CLASS, ENGINE, GEOMETRY, NOT_NEXT, ROWS = range(9)


@dataclass(frozen=True)
class T:
    producer: int
    readers: tuple[int, ...]
    kept: bool = False
    ring: bool = False
    rewrites: int = -1
    made: tuple[int, int, int] = (8, 4, 2)
    read: tuple[int, int, int] = (8, 4, 2)
    rows: tuple[int, int] = (4, 4)


# class of engine, engine, position, partition
Layers = Sequence[tuple[int, int, int, int]]
CHAIN_OF_THREE: Layers = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 0)]


def columns(layers: Layers, tensors: Sequence[T]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = [(t.producer, t.kept, t.ring, t.rewrites, *t.made, *t.read, *t.rows) for t in tensors]
    reads = [(i, reader) for i, t in enumerate(tensors) for reader in t.readers]
    return np.array(layers, np.int64), np.array(rows, np.int64), np.array(reads, np.int64).reshape(-1, 2)


def choose(layers: Layers, *tensors: T, chaining: bool = True) -> tuple[list[int], list[int]]:
    """Types, which pass the check, and why each tensor is not chained."""
    types, breaks = _core.allocation_types(*columns(layers, tensors), chaining)
    _core.check_allocation_types(*columns(layers, tensors), types, chaining)
    return types.tolist(), breaks.tolist()


def test_table_of_the_nine_types() -> None:
    layers = [(0, 0, i, 0) for i in range(6)] + [(0, 0, 6, 1)]
    tensors = [
        T(-1, (0, 1)),  # loaded once, read twice
        T(-1, (0,)),  # loaded and read once
        T(0, (1,)),  # made for the next layer
        T(1, (3,)),  # made, read later
        T(2, (3,), rewrites=0),
        T(4, (5,), rewrites=3),
        T(-1, (2, 3), ring=True),
        T(2, (4,), ring=True),
        T(3, (6,), rewrites=1),
        T(3, (6,)),  # read in another partition
        T(5, (), kept=True),
    ]
    types, _ = choose(layers, *tensors)
    assert types == [
        RESIDENT, STREAMED, CHAINED, DEPENDENT, IN_PLACE, IN_PLACE_DEPENDENT, RING, RING_DEPENDENT, IN_PLACE_STREAMED,
        STREAMED, STREAMED,
    ]  # fmt: skip


EDGE = T(0, (1,))


@pytest.mark.parametrize(
    ("layers", "tensors", "chaining", "reason"),
    [
        (CHAIN_OF_THREE, [EDGE], True, CHAIN),
        (CHAIN_OF_THREE, [EDGE], False, DISABLED),
        (CHAIN_OF_THREE, [replace(EDGE, readers=(1, 2))], True, FAN_OUT),
        (CHAIN_OF_THREE, [EDGE, T(0, (2,))], True, FAN_OUT),
        (CHAIN_OF_THREE, [EDGE, T(0, (1,))], True, CHAIN),
        (CHAIN_OF_THREE, [replace(EDGE, kept=True)], True, FAN_OUT),
        ([(0, 0, 0, 0), (1, 0, 1, 0)], [EDGE], True, CLASS),
        ([(0, 0, 0, 0), (0, 1, 1, 0)], [EDGE], True, ENGINE),
        (CHAIN_OF_THREE, [replace(EDGE, read=(8, 2, 2))], True, GEOMETRY),
        (CHAIN_OF_THREE, [replace(EDGE, readers=(2,))], True, NOT_NEXT),
        ([(0, 0, 0, 0), (0, 0, 1, 1)], [EDGE], True, NOT_NEXT),
        (CHAIN_OF_THREE, [replace(EDGE, rows=(4, 5))], True, ROWS),
        (CHAIN_OF_THREE, [replace(EDGE, ring=True)], True, NO_EDGE),
        (CHAIN_OF_THREE, [T(-1, (1,))], True, NO_EDGE),
    ],
)
def test_each_part_of_the_conjunction(layers: Layers, tensors: list[T], chaining: bool, reason: int) -> None:
    types, breaks = choose(layers, *tensors, chaining=chaining)
    assert breaks[0] == reason
    assert (types[0] == CHAINED) is (reason == CHAIN)


@pytest.mark.parametrize("seed", range(100))
def test_types_of_random_layers_pass_the_check(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 12
    layers = [(int(random.integers(0, 2)), int(random.integers(0, 2)), i, i // 5) for i in range(n)]
    tensors: list[T] = []
    for _ in range(20):
        producer = int(random.integers(-1, n - 1))
        readers = tuple(sorted(set(random.integers(producer + 1, n, int(random.integers(1, 4))).tolist())))
        rows = (int(random.integers(0, 5)), int(random.integers(0, 5)))
        tile = (8, 4, int(random.integers(1, 3)))
        tensors.append(T(producer, readers, random.random() < 0.1, random.random() < 0.1, rows=rows, read=tile))
    for i, t in enumerate(tensors):
        before = [j for j, old in enumerate(tensors) if j != i and old.producer < t.producer]
        free = [j for j in before if all(r <= t.producer for r in tensors[j].readers)]
        if free and random.random() < 0.3:
            tensors[i] = replace(t, rewrites=int(random.choice(free)))
    choose(layers, *tensors, chaining=bool(seed % 4))


@pytest.mark.parametrize(
    ("tensor", "wrong", "words"),
    [
        (T(-1, (1,)), RESIDENT, "several readers"),
        (T(0, (1,), kept=True), DEPENDENT, "all layers that touch it in one partition"),
        (T(0, (2,)), CHAINED, "the reader directly after"),
        (T(0, (1,), rows=(1, 2)), CHAINED, "rows enough"),
        (T(0, (1, 2)), CHAINED, "one layer that reads it"),
        (T(0, (1,), read=(1, 1, 1)), CHAINED, "equal tiles"),
        (T(0, (1,)), IN_PLACE, "a tensor that it rewrites"),
        (T(0, (1,)), RING_DEPENDENT, "a ring buffer"),
        (T(0, (1,), ring=True), RING, "no producer on chip"),
    ],
)
def test_the_check_refuses_a_wrong_type(tensor: T, wrong: int, words: str) -> None:
    with pytest.raises(Error, match=words):
        _core.check_allocation_types(*columns(CHAIN_OF_THREE, [tensor]), np.array([wrong]), True)


def test_the_check_refuses_a_rewrite_that_no_layer_makes() -> None:
    tensors = [T(-1, (0, 1)), T(-1, (2,), rewrites=0)]
    with pytest.raises(Error, match="need a producer on chip"):
        _core.check_allocation_types(*columns(CHAIN_OF_THREE, tensors), np.array([RESIDENT, IN_PLACE]), True)


def test_the_check_refuses_a_chain_on_a_chip_without() -> None:
    with pytest.raises(Error, match="a chip that chains"):
        _core.check_allocation_types(*columns(CHAIN_OF_THREE, [EDGE]), np.array([CHAINED]), False)


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Error, match="reader: got 3"):
        choose(CHAIN_OF_THREE, T(0, (3,)))
