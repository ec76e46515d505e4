"""Ops that are made of others compile for every chip: what check accepts, compile does, also for random equations and
graphs."""

import numpy as np
import pytest

import hexane as hx
from cases import CASES, arrays
from hexane.build import FUNCTIONS
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.ops import Op
from hexane.targets.query import chip_names
from turns import share

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
CHIPS = ("h12", "h13", "h17s")
EQUATIONS = [*range(60), *[pytest.param(seed, marks=pytest.mark.slow) for seed in share(range(60, 560))]]
GRAPHS = [*range(40), *[pytest.param(seed, marks=pytest.mark.slow) for seed in share(range(40, 2040))]]
COMPOSITES = [(op, i) for op, i in CASES if op.expand is not None]
# Equations that could not be compiled once: of transposes that the chip refuses.
FOUND = (
    ("bghij,bghjd->bghid", ((2, 3, 2, 4, 5), (2, 3, 2, 5, 3))),
    ("ca,chfgb,dcgbh->fgh", ((2, 4), (2, 3, 2, 3, 3), (4, 2, 3, 3, 3))),
)


def equation(seed: int) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """One to three operands of one to five axes of small extents."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefgh")
    extents = {letter: int(rng.integers(1, 5)) for letter in letters}
    terms = ["".join(rng.permutation(letters)[: rng.integers(1, 6)]) for _ in range(rng.integers(1, 4))]
    used = rng.permutation(sorted(set("".join(terms))))
    result = "".join(letter for letter in used if rng.random() < 0.55)
    return f"{','.join(terms)}->{result}", tuple(tuple(extents[letter] for letter in term) for term in terms)


def assert_computes(text: str, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:
    graph = hx.graph(hx.einsum(*[hx.input(f"x{i}", shape) for i, shape in enumerate(shapes)], equation=text))
    rng = np.random.default_rng(seed)
    feeds = {f"x{i}": rng.integers(-2, 3, shape).astype(np.float32) for i, shape in enumerate(shapes)}
    want = np.einsum(text, *feeds.values())
    for chip in CHIPS:
        got = hx.compile(graph, target=chip, threads=1)(feeds)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max(initial=0), err_msg=chip)


@pytest.mark.parametrize(("text", "shapes"), FOUND)
def test_equations_that_once_failed(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert_computes(text, shapes, 0)


@pytest.mark.parametrize("seed", EQUATIONS)
def test_random_equations(seed: int) -> None:
    assert_computes(*equation(seed), seed)


def part(op: Op, index: int, name: str, rng: np.random.Generator) -> hx.Tensor:
    """A case of a composite behind an op of the engine, some of its operands constant; its first result as a vector."""
    given: list[hx.Tensor | Array | None] = []
    for i, array in enumerate(arrays(op, op.cases[index])):
        if array is None or (i and rng.random() < 0.5):
            given.append(array)
            continue
        x = hx.input(f"{name}{i}", array.shape, hx.const(array).dtype.name)
        given.append(hx.tanh(x) if x.dtype.kind == "float" else x)
    try:
        found = FUNCTIONS[op.name](*given, **dict(op.cases[index].attrs or {}))
    except Error:  # an operand that has to be constant, or may not be
        found = FUNCTIONS[op.name](*arrays(op, op.cases[index]), **dict(op.cases[index].attrs or {}))
    first = found[0] if isinstance(found, tuple) else found
    flat = hx.reshape(first, shape=(-1,))
    return flat if flat.dtype.name == "fp32" else hx.cast(flat, dtype="fp32")


def composites(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    chosen = [COMPOSITES[i] for i in rng.integers(0, len(COMPOSITES), 3)]
    parts = [part(op, index, f"x{n}_", rng) for n, (op, index) in enumerate(chosen)]
    return hx.graph(hx.sigmoid(hx.concat(*parts, axis=0)))


@pytest.mark.parametrize("seed", GRAPHS)
def test_random_graphs_of_composites_compile(seed: int) -> None:
    graph = composites(seed)
    chips = chip_names(all=True)
    for chip in {chips[seed % len(chips)], CHIPS[seed % len(CHIPS)]}:
        hx.compile(graph, target=chip, threads=1)
