"""Palettes of groups of 16 output channels, and integers in blocks of 32 input channels, for the weights of the 110M
decoder; one palette next to the k-means of scikit-learn, on one thread each."""

from collections.abc import Callable

import numpy as np
import pytest

from hexane import _core

DIM, HIDDEN, LAYERS, WORDS = 768, 2048, 12, 32000
SHAPES = [(WORDS, DIM), *[*[(DIM, DIM)] * 4, *[(HIDDEN, DIM)] * 2, (DIM, HIDDEN)] * LAYERS]
GROUP, BITS, THREADS = 16, 4, 2


def halves(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(rows + columns)
    return (rng.standard_normal((rows, columns), np.float32) * 0.02).astype(np.float16)


def test_grouped_palettes_of_a_decoder(contest: Callable[..., None]) -> None:
    made = {shape: halves(*shape).view(np.uint16) for shape in set(SHAPES)}

    def call() -> None:
        for shape in SHAPES:
            _core.quantise_groups(made[shape], 1, shape[0] // GROUP, BITS, THREADS)

    contest("palette4:g16 of 110M weights | 2 | at most 4 s", "hexane", call, rounds=3, iterations=1)


@pytest.mark.parametrize(
    ("what", "bar"), [("of 110M weights", 4), ("for activations, 110M weights", 12)], ids=["weights", "activations"]
)
def test_blocks_of_a_decoder(what: str, bar: int, contest: Callable[..., None]) -> None:
    made = {shape: halves(*shape).astype(np.float32).reshape(-1) for shape in set(SHAPES)}
    rng = np.random.default_rng(0)
    importance = {
        columns: rng.chisquare(4, (columns // 32, 32)) if "activations" in what else None for _, columns in SHAPES
    }

    def call() -> None:
        for rows, columns in SHAPES:
            _core.quantise_blocks(made[rows, columns], rows * columns // 32, 4, THREADS, importance[columns])

    contest(f"blockwise4:b32 {what} | 2 | at most {bar} s", "hexane", call, rounds=3, iterations=1)


@pytest.mark.parametrize("contestant", ["hexane", "scikit-learn"])
def test_one_group(contestant: str, contest: Callable[..., None]) -> None:
    weights = halves(GROUP, DIM)
    if contestant == "hexane":

        def call() -> object:
            return _core.quantise_groups(weights.view(np.uint16), 1, 1, BITS, 1)
    else:
        cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
        column = weights.astype(np.float32).reshape(-1, 1)

        def call() -> object:
            return cluster.KMeans(1 << BITS, n_init=1, random_state=0).fit(column)

    contest("palette of 16 x 768 weights | 1 | >= 1", contestant, call, rounds=9, iterations=1)
