"""Detectors in every strategy of memory: the bits of whole tensors, in no more than the budget, or an error of memory
that says why."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import hexane as hx
from detectors import DETECTORS, random_detector
from hexane.graph import Array, Graph
from turns import share

SIZE = 256  # pixels: 1,344 anchors next to tensors of 4 rows
PARTS = (0.8, 0.5, 0.2)  # of what whole tensors take
QUICK = "yolov8"
QUICK_AND_OTHERS = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in DETECTORS if name != QUICK)]


def compiled(graph: Graph, memory: hx.Memory | None = None) -> hx.Model:
    net = hx.compile(graph, target="host", threads=1, memory=memory)
    assert isinstance(net, hx.Model)
    return net


def needed(net: hx.Model) -> int:
    return net.memory["arena"] + net.memory["scratch"]


def of_sram(**options: Any) -> Callable[[int], hx.Memory]:
    return lambda sram: hx.Memory(sram, **options)


STRATEGIES: dict[str, Callable[[int], hx.Memory]] = {
    "stream": of_sram(),
    "stream and slow": of_sram(slow="64M"),
    "two memories": lambda sram: hx.Memory(f"{sram - sram // 4}+{sram // 4}"),
    "two memories and slow": lambda sram: hx.Memory(f"{sram - sram // 4}+{sram // 4}", slow="64M"),
    "stages": of_sram(slow="64M", strategy="stages"),
    "held ports": of_sram(hold_ports=True),
    "streamed ports": of_sram(stream_input=True, stream_output=True),
}


def outputs(net: hx.Model, feeds: dict[str, Array]) -> dict[str, bytes]:
    call = net.bind(**feeds)
    call()
    return {name: array.tobytes() for name, array in call.outputs.items()}


def picture(graph: Graph) -> dict[str, Array]:
    """Pixels of 0 to 255."""
    kind = graph.inputs[0].type
    return {"images": np.random.default_rng(1).uniform(0, 255, kind.shape).astype(np.float32)}


def within(graph: Graph, memory: hx.Memory) -> hx.Model | None:
    """None where the memory is too small, which has to be said so."""
    try:
        net = compiled(graph, memory)
    except hx.Error as error:
        if not str(error).startswith("[compile] memory: got "):
            raise
        return None
    if memory.sram is not None:
        first, *rest = memory.pools
        assert needed(net) <= first
        for i, size in enumerate((*rest, memory.slow_bytes), 1):
            assert net.memory.get(f"arena.{i}", 0) <= size
    return net


@cache
def detector(name: str) -> tuple[Graph, hx.Model, dict[str, bytes]]:
    graph = DETECTORS[name](SIZE)
    whole = compiled(graph)
    return graph, whole, outputs(whole, picture(graph))


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_by_rows_needs_less_than_in_whole_tensors(name: str):
    graph, whole, want = detector(name)
    net = compiled(graph, hx.Memory(rows=1))
    assert needed(net) < 0.9 * needed(whole)
    assert outputs(net, picture(graph)) == want


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", QUICK_AND_OTHERS)
def test_a_detector_within_a_part_of_the_memory(name: str, strategy: str):
    graph, whole, want = detector(name)
    kept = []
    for part in PARTS if name != QUICK else PARTS[:1]:
        net = within(graph, STRATEGIES[strategy](int(part * needed(whole))))
        kept.append(net is not None)
        assert net is None or outputs(net, picture(graph)) == want
    assert kept[0]


@pytest.mark.parametrize("name", QUICK_AND_OTHERS)
def test_the_ways_to_compute_a_detector_are_found(name: str):
    graph, whole, _ = detector(name)
    found = hx.fit(graph)
    assert found.whole == whole.memory["arena"]
    assert found.streamed < found.whole
    assert found.ways


def check_random(seed: int, count: int) -> None:
    """By rows, and in so many strategies with a budget each: other ones for each seed."""
    graph = random_detector(seed)
    whole = compiled(graph)
    feeds = picture(graph)
    want = outputs(whole, feeds)
    pairs = [(make, part) for part in PARTS for make in STRATEGIES.values()]
    drawn = [pairs[(seed * count + i) % len(pairs)] for i in range(count)]
    for memory in (hx.Memory(rows=1), *(make(int(part * needed(whole))) for make, part in drawn)):
        net = within(graph, memory)
        assert net is None or outputs(net, feeds) == want, (seed, memory)


@pytest.mark.parametrize("seed", [36, 38, 42])
def test_random_detectors_whose_steps_differ_a_hundredfold_in_rows(seed: int):
    check_random(seed, count=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", share(range(300)))
def test_random_detectors_in_every_strategy(seed: int):
    check_random(seed, count=4)
