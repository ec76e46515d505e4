"""compress="auto": the error of the compiled program is never above the tolerance."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

import hexane as hx
from hexane.compression.encode import fits_fp16
from hexane.compression.weights import find_weights
from hexane.graph import Array, Graph
from hexane.options import Options
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.compressed import candidates, relative_error
from hexane.targets import load_target
from remembered import quantised_once


@pytest.fixture(scope="module", autouse=True)
def weights_are_quantised_once() -> Iterator[None]:
    with quantised_once():
        yield


OPTIONS = Options(target="h13")
pytestmark = pytest.mark.filterwarnings("ignore")


def network(dtype: str = "float32") -> Graph:
    rng = np.random.default_rng(2)

    def normal(*shape: int) -> Array:
        made: Array = (rng.standard_normal(shape) * 0.1).astype(dtype)
        return made

    x = hx.input("x", (1, 16, 8, 8), dtype)
    y = hx.relu(hx.conv(x, normal(32, 16, 3, 3), pad=1))
    y = hx.relu(hx.conv(y, normal(48, 32, 3, 3), pad=1))
    return hx.graph(hx.linear(hx.reduce_mean(y, axes=(2, 3), keep_dims=False), normal(100, 48)))


def images(count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(9)
    return [{"x": rng.standard_normal((1, 16, 8, 8)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("target", ["host", "h12", "h13", "h16g"])
@pytest.mark.parametrize("tolerance", [0.3, 0.02, 1e-3, 1e-7])
def test_the_error_on_the_calibration_inputs_is_within_the_tolerance(target: str, tolerance: float) -> None:
    feeds = images(3)
    whole = hx.compile(network(), target=target)
    asked = hx.Compression(tolerance=tolerance, calibration=feeds)
    net = hx.compile(network(), target=target, compress=asked)
    assert relative_error([whole(feed) for feed in feeds], [net(feed) for feed in feeds]) <= tolerance


def test_a_weight_beyond_fp16_stays_whole() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    a[3, 4] = 8e4
    graph = hx.graph(hx.linear(hx.tanh(hx.linear(hx.input("x", (4, 64)), a)), b))
    made, _ = compile_compressed(graph, hx.Compression(tolerance=0.5), Options(target="host"))
    assert made.layers[0].encoding == "none"
    assert made.layers[1].encoding != "none"
    assert [fits_fp16(weight) for weight in find_weights(graph)] == [False, True]


def test_a_larger_tolerance_takes_fewer_bytes() -> None:
    sizes = []
    for tolerance in (0.5, 0.02, 1e-7):
        made, _ = compile_compressed(network(), hx.Compression(tolerance=tolerance), Options(target="host"))
        assert made.error is not None
        assert made.error <= tolerance
        sizes.append(sum(layer.bytes_after for layer in made.layers))
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2] == 2 * sum(w.whole.type.size for w in find_weights(network()))


def test_what_was_measured_on_is_said() -> None:
    random = hx.compile(network(), compress="auto").program.decisions
    given = hx.compile(network(), compress=hx.Compression(calibration=images(1))).program.decisions
    assert "at most 0.02 on 2 random inputs of the seed 0" in str(random[3])
    assert "at most 0.02 on 1 calibration input" in str(given[3])


def test_a_chip_gets_what_it_streams() -> None:
    """The M1 streams no int8, and palettes of 4 and 8 bits."""
    made, _ = compile_compressed(network(), hx.Compression(), Options(target="h13"))
    assert {layer.encoding for layer in made.layers} <= {"palette4", "palette4:g16", "palette8", "none"}
    assert all(layer.streams for layer in made.layers if layer.encoding != "none")


@pytest.mark.parametrize(("strides", "palettes"), [(2, True), (3, False)])
@pytest.mark.parametrize("target", ["h13", "h16g"])
def test_a_chip_gets_no_palette_for_wide_strides(target: str, strides: int, palettes: bool) -> None:
    w = np.zeros((32, 16, 3, 3), np.float32)
    (weight,) = find_weights(hx.graph(hx.conv(hx.input("x", (1, 16, 9, 9)), w, strides=strides)))
    assert any(c.startswith("palette") for c in candidates(weight, load_target(target))) == palettes
    assert any(c.startswith("palette") for c in candidates(weight, load_target("host")))


def test_modes_of_layers_that_cost_too_much_are_an_error() -> None:
    asked = hx.Compression(per_layer={"conv*": "palette1"}, tolerance=0.02)
    with pytest.raises(hx.Error, match=r"tolerance: got an error of .* from the modes of per_layer alone"):
        hx.compile(network(), compress=asked)


def test_modes_of_layers_are_kept() -> None:
    asked = hx.Compression(per_layer={"linear*": "int8"}, tolerance=0.1)
    made, _ = compile_compressed(network(), asked, Options())
    assert made.layers[2].encoding == "int8"
    assert made.error is not None
    assert made.error <= 0.1


def test_integers_index_the_tables_that_they_read() -> None:
    table = np.random.default_rng(0).standard_normal((5000, 8)).astype(np.float32)
    graph = hx.graph(hx.gather(table, hx.input("ids", (4,), "int64"), axis=0))
    made, _ = compile_compressed(graph, hx.Compression(tolerance=0.02), Options())
    assert made.layers[0].encoding not in ("none", "palette1")


def whole_bytes() -> int:
    return 2 * sum(w.whole.type.size for w in find_weights(network()))


@pytest.mark.parametrize("target", ["host", "h13", "h16g"])
def test_a_budget_is_kept_and_more_bytes_cost_no_accuracy(target: str) -> None:
    feeds = images(2)
    whole = hx.compile(network(), target=target)
    errors = []
    for part in (0.3, 0.4, 0.6, 1.0):
        asked = hx.Compression(bytes=int(part * whole_bytes()), calibration=feeds)
        made, net = compile_compressed(network(), asked, Options(target=target))
        assert sum(layer.bytes_after for layer in made.layers) <= part * whole_bytes()
        assert made.error == relative_error([whole(feed) for feed in feeds], [net(feed) for feed in feeds])
        errors.append(made.error)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1] == 0.0


def test_a_budget_gets_the_least_error_of_all_combinations() -> None:
    """Each combination of the encodings is compiled for the chip and measured."""
    feeds = images(1)
    graph = network()
    budget = int(0.35 * whole_bytes())
    asked = hx.Compression(bytes=budget, calibration=feeds)
    found, _ = compile_compressed(graph, asked, Options(target="h13"))
    least = np.inf
    choices = [candidates(weight, load_target("h13")) for weight in find_weights(graph)]
    for modes in product(*choices):
        layers = dict(zip([weight.node.where for weight in find_weights(graph)], modes, strict=True))
        made, _ = compile_compressed(graph, hx.Compression(per_layer=layers, calibration=feeds, tolerance=9.0), OPTIONS)
        assert made.error is not None
        if sum(layer.bytes_after for layer in made.layers) <= budget:
            least = min(least, made.error)
    assert found.error is not None
    assert found.error <= 1.05 * least


def test_a_budget_below_the_least_names_the_least() -> None:
    for mode in ("auto", "palette4"):
        with pytest.raises(hx.Error, match=r"\[compress\] bytes: got 1000, need at least (\d+), which") as raised:
            hx.compile(network(), target="h13", compress=hx.Compression(mode, bytes=1000))
        least = int(str(raised.value).partition("at least ")[2].partition(",")[0])
        made, _ = compile_compressed(network(), hx.Compression(mode, bytes=least), OPTIONS)
        assert sum(layer.bytes_after for layer in made.layers) == least


def test_a_budget_and_a_tolerance_hold_both_or_an_error_says_which_does_not() -> None:
    feeds, half = images(2), whole_bytes() // 2
    made, _ = compile_compressed(
        network(), hx.Compression(bytes=half, tolerance=0.05, calibration=feeds), Options(target="h16g")
    )
    assert made.error is not None
    assert made.error <= 0.05
    assert sum(layer.bytes_after for layer in made.layers) <= half
    asked = hx.Compression(bytes=half, tolerance=1e-6, calibration=feeds)
    said = rf"tolerance: got an error of .* within {half} bytes, need at most 1e-06, for which {2 * half} bytes were"
    with pytest.raises(hx.Error, match=said):
        hx.compile(network(), target="h16g", compress=asked)


def test_modes_of_layers_count_towards_the_budget() -> None:
    asked = hx.Compression(bytes="40K", per_layer={"linear*": "none"})
    made, _ = compile_compressed(network(), asked, OPTIONS)
    assert made.layers[2].encoding == "none"
    assert sum(layer.bytes_after for layer in made.layers) <= 40 * 1024


@pytest.mark.parametrize(
    ("whole", "got", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([0.0, 0.0], [0.0, 1.0], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [np.nan, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_relative_error(whole: list[float], got: list[float], error: float) -> None:
    assert relative_error([np.array(whole)], [np.array(got)]) == pytest.approx(error)
