"""compress="auto" of networks with many weights: errors of most encodings are predicted, those of the chosen ones
measured."""

from collections.abc import Iterator

import numpy as np
import pytest

import hexane as hx
from hexane.compression.encode import encode
from hexane.compression.search import Choice
from hexane.compression.weights import find_weights
from hexane.graph import Array, Graph
from hexane.ops.encodings import encoding_of
from hexane.options import Options
from hexane.runtime import compressed
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.predicted import corrected, distances, predicted
from remembered import quantised_once

NAMES = ("int8", "palette1", "palette2", "palette4", "palette6", "palette8", "palette4:g16", "none")


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


def network(layers: int = 9) -> Graph:
    """Residual blocks whose weights differ in size, shape and spread."""
    rng = np.random.default_rng(3)
    x = hx.input("x", (1, 32, 6, 6))
    for i in range(layers):
        kernel = rng.standard_normal((32, 32, *((3, 3) if i % 2 else (5, 5))))
        kernel = np.sign(kernel) * np.abs(kernel) ** (1 + i % 3) * 0.03 * (1 + i)
        x = x + hx.relu(hx.conv(x, kernel.astype(np.float32), pad=1 if i % 2 else 2)) * 0.2
    return hx.graph(hx.linear(hx.reduce_mean(x, axes=(2, 3), keep_dims=False), normal(rng, 200, 32)))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    made: Array = rng.standard_normal(shape).astype(np.float32)
    return made


@pytest.mark.parametrize("target", ["host", "h13"])
@pytest.mark.parametrize("tolerance", [0.1, 0.02, 1e-3])
def test_it_takes_about_as_many_bytes_as_with_all_measured(
    target: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sizes, runs = hx.Compression(tolerance=tolerance), [], []
    for most in (1000, 10):
        monkeypatch.setattr(compressed, "MOST_TRIALS", most)
        tried: list[int] = []
        whole = compressed._Trial.error
        monkeypatch.setattr(compressed._Trial, "error", lambda *a, t=tried, e=whole: (t.append(1), e(*a))[1])
        made, _ = compile_compressed(network(), asked, Options(target=target))
        monkeypatch.setattr(compressed._Trial, "error", whole)
        assert made.error is not None
        assert made.error <= tolerance
        sizes.append(sum(layer.bytes_after for layer in made.layers))
        runs.append(len(tried))
    assert sizes[1] <= sizes[0] * 1.12
    assert runs[1] <= (0.6 if target == "host" else 0.8) * runs[0]  # a chip streams fewer encodings


def test_errors_of_chosen_layers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MOST_TRIALS", 10)
    made, _ = compile_compressed(network(), hx.Compression(tolerance=0.05), Options(target="host"))
    assert sum(layer.error is not None for layer in made.layers) >= len(made.layers) - 1


def test_a_budget_is_kept_where_errors_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = []
    for most in (1000, 10):
        monkeypatch.setattr(compressed, "MOST_TRIALS", most)
        made, _ = compile_compressed(network(), hx.Compression(bytes=60_000), Options(target="host"))
        assert sum(layer.bytes_after for layer in made.layers) <= 60_000
        assert made.error is not None
        errors.append(made.error)
    assert errors[1] <= 1.3 * errors[0]


def test_distances_of_a_part_are_those_of_the_whole() -> None:
    weight = max(find_weights(hx.graph(hx.linear(hx.input("x", (1, 400)), large()))), key=lambda w: w.bytes)
    known, whole = distances(weight, NAMES), weight.whole.node.data
    assert whole is not None
    assert known["none"] == (0.0, weight.bytes)
    of_part = known["palette4"][0]
    for name in NAMES[:-1]:
        made = encoding_of(encode(weight, name)).decode().node.data
        of_whole = np.linalg.norm(encoding_of(encode(weight, "palette4")).decode().node.data - whole)  # type: ignore[operator]
        assert known[name][0] / of_part == pytest.approx(np.linalg.norm(made - whole) / of_whole, rel=0.3)  # type: ignore[operator]


def large() -> Array:
    rng = np.random.default_rng(8)
    return (rng.standard_normal((320, 400)) * rng.uniform(0.5, 2, (320, 1))).astype(np.float32)


def test_predictions_grow_with_the_distance_and_follow_what_is_measured() -> None:
    known = {"palette2": (4.0, 10), "palette4": (1.0, 20), "palette8": (0.1, 40), "none": (0.0, 80)}
    choices = predicted(Choice("palette4", 21, 0.02), known)
    assert [(c.encoding, c.bytes, c.error) for c in choices] == [
        ("palette2", 10, pytest.approx(0.08)), ("palette4", 21, 0.02), ("palette8", 40, pytest.approx(0.002)),
        ("none", 80, 0.0),
    ]  # fmt: skip
    after = corrected(choices, Choice("palette2", 11, 0.16), ["palette4", "palette2"])
    assert [c.error for c in after] == [0.16, 0.02, pytest.approx(0.004), 0.0]
