"""Which layers the two engines could run at once: every disqualifier alone, and pairs against the check."""

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error

NE, PE, DMA = range(3)
PAIR, UNSCHEDULED, CLASS, ENGINE, DEPENDENT, CHAINED, STREAM, APART, PAIRED = range(9)


def layers(*rows: tuple[int, ...]) -> np.ndarray:
    """(class, engine, position, partition, chained input, streams output, resident weight), zeros at the end left
    out."""
    return np.array([row + (0,) * (7 - len(row)) for row in rows], np.int64)


def problem(num_layers: int, reads: list[tuple[int, int]] = [], edges: list[tuple[int, int]] = []) -> _core.Scheduling:  # noqa: B006
    return _core.Scheduling(
        np.ones(num_layers, np.int64),
        np.arange(num_layers),
        np.ones(num_layers, np.int64),
        np.array(reads, np.int64).reshape(-1, 2),
        num_layers,
        np.array(edges, np.int64).reshape(-1, 2),
    )


def test_a_softmax_runs_beside_an_independent_product() -> None:
    made, both = problem(2), layers((PE, 0, 0), (NE, 0, 1))
    partners, verdicts = made.pairs(both)
    assert partners.tolist() == [1, 0]
    assert verdicts.tolist() == [PAIR, UNSCHEDULED]
    made.check_pairs(both, partners)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (((NE, 0, -1), (PE, 0, 0)), UNSCHEDULED),
        (((NE, 0, 0), (NE, 0, 1)), CLASS),
        (((PE, 0, 0), (PE, 0, 1)), CLASS),
        (((NE, 0, 0), (DMA, 0, 1)), CLASS),
        (((NE, 0, 0), (PE, 1, 1)), ENGINE),
        (((NE, 0, 0), (PE, 0, 1, 0, 0, 1)), PAIR),
        (((NE, 0, 0, 0, 1), (PE, 0, 1)), CHAINED),
        (((NE, 0, 0, 0, 0, 1), (PE, 0, 1, 0, 0, 1)), STREAM),
        (((NE, 0, 0, 0, 0, 1, 1), (PE, 0, 1, 0, 0, 1)), PAIR),  # a resident weight does not block its partner
        (((NE, 0, 0, 0), (PE, 0, 1, 1)), APART),
    ],
)
def test_each_disqualifier(rows: tuple[tuple[int, ...], ...], verdict: int) -> None:
    assert problem(2).why_not_together(layers(*rows), 0, 1) == verdict


@pytest.mark.parametrize("made", [problem(2, reads=[(0, 1)]), problem(2, edges=[(0, 1)])])
def test_a_layer_and_its_reader_are_no_pair(made: _core.Scheduling) -> None:
    both = layers((NE, 0, 0), (PE, 0, 1))
    assert made.why_not_together(both, 0, 1) == DEPENDENT
    with pytest.raises(Error, match="need none that"):
        made.check_pairs(both, np.array([1, 0]))


def test_a_layer_has_one_partner() -> None:
    three = layers((NE, 0, 0), (PE, 0, 1), (NE, 0, 2))
    partners, verdicts = problem(3).pairs(three)
    assert partners.tolist() == [1, 0, -1]
    assert verdicts.tolist() == [PAIR, PAIRED, UNSCHEDULED]


@pytest.mark.parametrize("seed", range(50))
def test_pairs_of_random_layers_pass_the_check(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 30
    rows = np.stack([random.integers(0, 3, n), random.integers(0, 2, n), random.permutation(n), np.zeros(n, np.int64),
                     *(random.random((3, n)) < 0.3)], axis=1).astype(np.int64)  # fmt: skip
    rows[:, 3] = rows[:, 2] // 7
    order = np.argsort(rows[:, 2])
    reads = [(int(order[i]), int(order[i + d])) for i in range(n - 2) for d in (1, 2) if random.random() < 0.3]
    made = problem(n, reads)
    partners, verdicts = made.pairs(rows)
    made.check_pairs(rows, partners)
    for position, layer in enumerate(order[:-1]):
        verdict = made.why_not_together(rows, int(layer), int(order[position + 1]))
        assert verdicts[layer] in (verdict, PAIRED)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (((NE, 0, 0), (NE, 0, 1)), "one layer of the array"),
        (((NE, 0, 0), (PE, 1, 1)), "one engine"),
        (((NE, 0, 0), (PE, 0, -1)), "both in the order"),
        (((NE, 0, 0, 0), (PE, 0, 1, 1)), "one partition"),
        (((NE, 0, 0, 0, 1), (PE, 0, 1)), "chaining and co-issue exclude each other"),
        (((NE, 0, 0, 0, 0, 1), (PE, 0, 1, 0, 0, 1)), "one output on chip"),
    ],
)
def test_the_check_refuses_what_is_no_pair(rows: tuple[tuple[int, ...], ...], words: str) -> None:
    with pytest.raises(Error, match=words):
        problem(2).check_pairs(layers(*rows), np.array([1, 0]))
