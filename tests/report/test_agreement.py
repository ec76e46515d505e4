"""What is said of a network before it is compiled is what compiling makes of it: check, its conditions,
cross_compile_check, the warning and `fallback="error"` ask the segments that `emit` writes."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.detectors import DETECTORS, random_detector

import hexane as hx
from hexane.errors import Error, FallbackWarning
from hexane.graph import Graph
from hexane.pipeline import divide
from hexane.report.conditions import parse_conditions
from hexane.report.preflight import preflight
from hexane.runtime.mil import emit_pieces
from hexane.targets import Chip, load_target

pytestmark = pytest.mark.filterwarnings("ignore::hexane.HazardWarning")


def focus(size: int) -> Graph:
    """The head of YOLOv5's first versions: every second pixel, four times, and a convolution."""
    x = hx.input("x", (1, 3, size, size))
    every_second = [x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return hx.graph(hx.conv(hx.concat(every_second, axis=1), np.ones((4, 12, 3, 3), np.float32), pad=1))


def on_host(graph: Graph, chip: str) -> int:
    found = load_target(chip)
    assert isinstance(found, Chip)
    return sum(len(s.nodes) for s in divide(graph, found)[1] if s.device == "host")


def crossed(graph: Graph, chip: str) -> tuple[bool, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        whole = hx.cross_compile_check(graph, chip)
    return whole, [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


def test_slices_that_are_written_as_views_too_large_for_the_chip_are_the_hosts() -> None:
    """fp32[307200, 2] is wider than 16384; 64 pixels fit."""
    small, large = focus(64), focus(640)
    assert preflight(small, "h13").ok
    assert crossed(small, "h13") == (True, [])
    report = preflight(large, "h13")
    assert [e.op for e in report.host] == ["slice_by_index"] * 4
    assert all("the host cuts, joins and views what the engine does not take" in e.verdict.reason for e in report.host)
    assert not report.ok
    assert f": {report.outcome}; these 15 are the model's 6 ops" in report.summary
    assert str(report.outcome).endswith(" on the CPU, in 2 parts")
    (advice,) = report.advice
    assert advice.change.startswith("use tensors that the chip takes whole: fp32[307200, 2]: width 307200")
    assert advice.gain == "4 ops fewer on the CPU; the network then runs whole on the engine"
    assert parse_conditions(["host"]).broken(report)[0].startswith("host: got 4 (slice_by_index")
    whole, said = crossed(large, "h13")
    assert not whole
    assert len(said) == 1
    assert "ops run on the CPU, and 4 that only move elements with them" in said[0]
    with pytest.raises(Error, match="need ops that the engine takes, or fallback='host'"):
        hx.compile(large, target="h13", device="cpu", fallback="error")
    chip = load_target("h13")
    assert isinstance(chip, Chip)
    _, pieces = emit_pieces(large, chip)
    assert sum(len(p.segment.nodes) for p in pieces if p.mil is None) == on_host(large, "h13") == len(report.host_nodes)


def samples() -> Graph:
    """The first layer of a network of sound: 44,100 Hz, nearly a second."""
    return hx.graph(hx.conv(hx.input("x", (1, 1, 43844)), np.ones((4, 1, 9), np.float32), pad=4, strides=(4,)))


def test_advice_counts_the_ops_that_the_cpu_has_a_part_of() -> None:
    """Gates of a wide tensor stay in pieces on the engine: the host cuts for the first op and joins for the last."""
    x = hx.conv(hx.input("x", (1, 4, 20000)), np.ones((4, 4, 3), np.float32), pad=1)
    value = hx.tanh(x[:, :2])
    gate = hx.sigmoid(x[:, 2:])
    y = hx.pad(value * gate, begin=(0, 0, 2), end=(0, 0, 0))
    report = preflight(hx.graph(hx.conv(y, np.ones((1, 2, 3), np.float32))), "h13")
    assert [segment.device for segment in report.segments] == ["host", "ane", "host"]
    advice, *_ = report.advice
    assert advice.gain == "2 ops fewer on the CPU; the network then runs whole on the engine"


def vocabulary() -> Graph:
    return hx.graph(hx.input("x", (4, 16)) @ np.ones((16, 32000), np.float32))


def rows() -> Graph:
    return hx.graph(hx.relu(hx.input("x", (1, 3, 8, 20000))))


@pytest.mark.parametrize("chip", ["h13", "h14", "h15", "h16"])
@pytest.mark.parametrize("build", [rows, samples, vocabulary])
def test_what_the_host_cuts_for_an_op_that_is_tiled_is_told_everywhere(build: Callable[[], Graph], chip: str) -> None:
    """The op counts as one of the engine; the network does not run there as a whole."""
    graph = build()
    report, left = preflight(graph, chip), on_host(graph, chip)
    wide = chip != "h16"
    assert [e.verdict.verdict == "oversize" for e in report.entries] == [wide]
    assert all(e.verdict.runs for e in report.entries)
    assert (left > 0, report.ok) == (wide, not wide)
    assert bool(parse_conditions(["host"]).broken(report)) == wide
    whole, said = crossed(graph, chip)
    assert whole == report.ok
    assert bool(said) == wide
    if wide:
        assert f"{left} of " in said[0]
        assert "ops cut and join on the CPU what the engine computes in pieces" in said[0]
        with pytest.raises(Error, match="need ops that the engine takes, or fallback='host'"):
            hx.compile(graph, target=chip, device="cpu", fallback="error")


@pytest.mark.parametrize("chip", ["h13", "h16"])
def test_a_detector_runs_on_the_engine_where_emit_leaves_nothing_to_the_host(chip: str) -> None:
    graphs = [make(size) for make in DETECTORS.values() for size in (64, 640)] + [random_detector(i) for i in range(8)]
    for graph in (*graphs, focus(64), focus(256), focus(640)):
        report, left = preflight(graph, chip), on_host(graph, chip)
        assert report.ok == (left == 0)
        assert bool(parse_conditions(["host", "rejected"]).broken(report)) == (left != 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16"])
@pytest.mark.parametrize("chip", ["h13", "h14", "h16"])
def test_no_program_in_mil_has_an_argmin_that_its_chip_refuses(dtype: str, chip: str) -> None:
    """MIL has argmin from family A15 on. Floats are written as argmax of the negative; integers cannot be."""
    graph = hx.graph(hx.reduce_argmin(hx.input("x", (1, 8, 4, 4), dtype), axis=1))
    report = preflight(graph, chip)
    has_it = chip == "h16"
    assert [e.verdict.verdict for e in report.entries] == ["native" if has_it else "host"]
    assert (on_host(graph, chip) == 0) == has_it
    assert preflight(hx.graph(hx.reduce_argmin(hx.input("x", (1, 8, 4, 4)), axis=1)), chip).ok


def test_a_slice_of_a_tensor_in_pieces_is_not_the_hosts() -> None:
    """The slice of all of it, and views with too many axes that cancel, had been advised against."""
    x = hx.input("x", (1, 4, 20000))
    taps = np.random.default_rng(0).normal(0, 0.3, (4, 4, 3)).astype(np.float32)
    y = hx.relu(hx.conv(x, taps, pad=(1, 1)))
    y = hx.slice_by_index(y, begin=(0, 0, 0), end=y.shape, stride=(1, 1, 1))
    y = hx.reduce_max(hx.conv(y, taps, pad=(1, 1)), axes=(2,))
    z = hx.input("z", (1, 4, 16000)) * y
    windows = hx.transpose(hx.reshape(z, shape=(1, 4, 20, 20, 8, 5)), perm=(0, 1, 2, 4, 3, 5))
    net = hx.graph(hx.softmax(hx.reshape(windows, shape=(20, 4, 800)), axis=-1))
    report = preflight(net, "h13")
    kinds = {e.op: e.verdict.verdict for e in report.entries if e.op in ("slice_by_index", "reshape", "transpose")}
    assert "oversize" not in kinds.values()
    assert not [e for e in report.host if e.op == "slice_by_index"]
    assert len(report.host_nodes) == on_host(net, "h13")
    assert not any("6 axes" in advice.change for advice in report.advice)
    assert sum(advice.gain.startswith("1 op fewer") for advice in report.advice) <= 1


@pytest.mark.parametrize("chip", ["h12", "M1", "M4"])
def test_a_checkpoint_of_constants_is_computed_at_compile_time(chip: str) -> None:
    x, weight = hx.input("x", (1, 4, 8, 8)), hx.param("w", np.ones((1, 4, 8, 8), np.float32))
    bias = hx.const(np.full((1, 4, 1, 1), 2, np.float32))
    graph = hx.graph(hx.add(x, hx.checkpoint(lambda start: hx.add(bias, bias), weight)))
    assert [e.verdict.verdict for e in hx.preflight(graph, chip).entries if e.node.op == "checkpointed"] == ["native"]
