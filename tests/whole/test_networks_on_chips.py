"""Known networks on every chip: preflight says what compile does, and the program computes what the network means.

Three comparisons for each: the network as the chip takes it, in fp32 and before it is cut, is the network (1e-5); each
step of the program, fed what the program computed, is the reference rounded once; and the whole program is as near to
the exact results as fp16 on the host is, or within four times that, since other places are rounded. Chips whose
programs are the same to the bit share the last two: the programs are compared, not what they were made from.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_chips import check_agrees, check_layers
from test_examples import load

import hexane as hx
from architectures import ARCHITECTURES
from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.passes.retarget import retarget
from hexane.program import Program
from hexane.targets.query import chip_names, load_chip
from light_models import LIGHT, seeded_light_model
from turns import share

Find = Callable[[str], Path]
Calls = list[dict[str, Array]]
FEW = ("h12", "h13", "h17s")  # before programs in MIL, the first of them, and the newest in a shop
SMALL = (*ARCHITECTURES, "encoder_layer", "decoder_layer")
BENCHMARKS = (
    "autoencoder", "ds_cnn", "mobilenet_v1_025_96", "mobilenet_v2_035_96", "mobilenet_v2_100_224", "randwire",
    "resnet18_224", "resnet8", "resnet8_bn", "transformer", "unet_128", "yolo_160",
)  # fmt: skip
QUANTISED = [f"{name}_int8" for name in BENCHMARKS if name != "resnet8_bn"]
STEP = 2.0**-7  # of an output on a grid of 8 bits
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def small(name: str, monkeypatch: pytest.MonkeyPatch) -> Graph:
    if name == "encoder_layer":
        example = load("encoder/make_model")
        config = example.Config(layers=1, dim=48, heads=4, hidden=96, tokens=12, vocab=50)
        return import_onnx(example.make_model(config))
    if name == "decoder_layer":
        reference = load("decoder/reference")
        monkeypatch.setitem(sys.modules, "reference", reference)
        config = reference.Config(dim=32, layers=1, heads=4, hidden=56, vocab=70, max_seq=12)
        return load("decoder/model").build(config, reference.make_weights(config))  # type: ignore[no-any-return]
    return ARCHITECTURES[name]()


def calls_of(graph: Graph, count: int) -> Calls:
    """Inputs of calls one after the other: normal floats, and small whole numbers for what counts or names
    something."""
    rng = np.random.default_rng(1)

    def draw(name: str, value: Any, call: int) -> Array:
        if name == "position":
            return np.full(value.shape, call, value.dtype.numpy)
        if value.dtype.kind != "float" or name == "counts":
            return rng.integers(0, 2, value.shape).astype(value.dtype.numpy)
        return rng.standard_normal(value.shape).astype(value.dtype.numpy)

    ports = [(str(v.node.attrs["name"]), v) for v in graph.inputs]
    return [{name: draw(name, value, call) for name, value in ports} for call in range(count)]


def exact(graph: Graph, calls: Calls) -> list[Array]:
    states: dict[str, Array] = {}
    return [array for feeds in calls for array in run_reference(graph, feeds, states).values()]


def results(net: hx.Model, calls: Calls) -> list[Array]:
    return [array for feeds in calls for array in _arrays(net(feeds))]


def _arrays(got: Any) -> Iterator[Array]:
    yield from got.values() if isinstance(got, dict) else [got]


def distance(got: list[Array], want: list[Array]) -> float:
    """The largest error of an output, as a part of its largest number."""
    pairs = zip(got, want, strict=True)
    return max(float(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max()) for a, b in pairs)


def fingerprint(program: Program) -> str:
    """Equal for programs that do the same to the bit, whatever their chips are called."""
    own = program.target.name
    steps = [
        replace(s, numerics=replace(s.numerics, name="chip")) if s.numerics.name == own else s for s in program.steps
    ]
    sections = emit_plan(replace(program, target=replace(program.target, name="chip"), steps=tuple(steps)))
    return hashlib.sha256(_core.plan_write(sections)).hexdigest()


def check(graph: Graph, chips: tuple[str, ...], calls: int = 1, grid: float = 0.0) -> None:
    """grid: a step of the outputs, as a part of their largest number, where a network rounds to one."""
    fed = calls_of(graph, calls)
    want = exact(graph, fed)
    allowed = 4 * max(distance(results(hx.compile(graph, dtype="fp16"), fed), want), grid, 2.0**-12)
    taken, programs = set(), set()
    for name in chips:
        net = hx.compile(graph, target=name, numerics="ieee")
        assert net.program is not None
        check_agrees(graph, net)
        after = retarget(graph, load_chip(name))
        if (after.roots, after.updates) not in taken:
            taken.add((after.roots, after.updates))
            got = results(hx.compile(after), fed)
            for array, wanted in zip(got, want, strict=True):
                if grid:
                    assert distance([array], [wanted]) <= 4 * grid
                else:
                    assert_close(array, wanted)
        if (mark := fingerprint(net.program)) in programs:
            continue
        programs.add(mark)
        check_layers(net, fed[0])
        off = distance(results(net, fed), want)
        print(f"{name}: {len(net.program.segments)} segments, {off:.1e} from exact, {allowed:.1e} allowed")
        assert off <= allowed
    print(f"{len(chips)} chips, {len(taken)} networks, {len(programs)} programs")


@pytest.mark.parametrize("name", SMALL)
def test_a_network_on_chips_of_three_kinds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(small(name, monkeypatch), FEW, calls=3 if name == "decoder_layer" else 1)


@pytest.mark.parametrize("name", ["densenet", "efficientnet", "mobilenet_v3"])
def test_a_network_of_convolutions_stays_on_the_engine_before_a13(name: str) -> None:
    assert [s.device for s in hx.preflight(ARCHITECTURES[name](), "h12").segments] == ["ane"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_network_on_every_chip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(small(name, monkeypatch), chip_names(all=True), calls=3 if name == "decoder_layer" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_on_every_chip(name: str, model_file: Find) -> None:
    check(import_onnx(model_file(name)), chip_names(all=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_benchmark_on_every_chip(name: str, model_file: Find) -> None:
    check(import_onnx(model_file(name)), chip_names(all=True), grid=STEP)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_a_light_model_on_every_chip(name: str) -> None:
    check(import_onnx(seeded_light_model(name)), tuple(share(chip_names(all=True))))
