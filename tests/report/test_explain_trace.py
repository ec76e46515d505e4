"""The trace of `hexane explain`, by the rules of the trace event format, and beside the layers it shows."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.report.explain import Explanation, explain
from hexane.report.trace import LANES, UNIT, chrome_trace

Event = dict[str, Any]


def network() -> Graph:
    """Two segments of the engine with one of the host between them."""
    weights = np.ones((16, 16, 3, 3), np.float32)
    x = hx.relu(hx.conv(hx.input("x", (1, 16, 64, 64)), weights, pad=1))
    y = hx.max_pool(hx.conv(hx.tan(x), weights, pad=1), kernel_sizes=(2, 2), strides=(2, 2))
    return hx.graph(hx.concat([y, hx.relu(y)], axis=1))


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(network(), "h13")


@pytest.fixture(scope="module")
def trace(found: Explanation) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(chrome_trace(found))
    return made


def bars(trace: dict[str, Any]) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_every_event_has_the_fields_that_its_phase_needs(trace: dict[str, Any]) -> None:
    needed = {
        "X": {"dur", "ts"},
        "C": {"ts"},
        "M": set[str](),
        "s": {"ts", "id", "cat"},
        "f": {"ts", "id", "cat", "bp"},
    }
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} | needed[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "ts"))
        if event["ph"] == "X":
            assert event["dur"] >= 1
            assert isinstance(event["cat"], str)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)


def test_every_lane_has_a_name_and_its_bars_do_not_overlap(trace: dict[str, Any]) -> None:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    lanes: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in bars(trace):
        lanes[event["pid"], event["tid"]].append(event)
        assert names[event["pid"], event["tid"]] == event["cat"]
    for events in lanes.values():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"]
    assert {names[lane] for lane in lanes} == {"NE", "PE", "DMA", "host"}


def test_arrows_lead_from_a_bar_to_a_later_one_for_each_reader_of_a_tensor(
    found: Explanation, trace: dict[str, Any]
) -> None:
    """A viewer binds an end of an arrow to the bar of its lane that is there at its time; ends of one arrow share id,
    category and name."""
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event

    def layer_at(end: Event) -> int:
        (bar,) = [
            bar
            for bar in bars(trace)
            if (bar["pid"], bar["tid"]) == (end["pid"], end["tid"])
            and bar["ts"] <= end["ts"] < bar["ts"] + bar["dur"]
            and "kind" in bar["args"]
        ]
        return int(bar["args"]["layer"])

    shown = []
    for pair in ends.values():
        first, last = pair["s"], pair["f"]
        assert (first["cat"], first["name"], last["bp"]) == (last["cat"], last["name"], "e")
        assert first["ts"] <= last["ts"]
        shown.append((layer_at(first), layer_at(last)))
    tensors = [t for t in found.program.tensors if t.producer is not None]
    assert sorted(shown) == sorted((t.producer, reader) for t in tensors for reader in t.readers)
    assert shown


def test_every_layer_and_host_segment_has_a_bar_in_its_lane_in_order(found: Explanation, trace: dict[str, Any]) -> None:
    shown = [e for e in bars(trace) if "kind" in e["args"]]
    layers = found.program.layers
    assert [(e["args"]["layer"], e["name"], e["cat"], e["pid"]) for e in shown] == [
        (layer.index, layer.name, layer.engine, layer.segment) for layer in layers
    ]
    assert [e["ts"] for e in shown] == sorted(e["ts"] for e in shown)
    assert [e["pid"] for e in bars(trace) if e["cat"] == "host"] == [1]
    assert all(e["tid"] == LANES[e["cat"]] for e in shown)


def test_bars_are_shares_and_say_so(found: Explanation, trace: dict[str, Any]) -> None:
    assert trace["otherData"]["unit"] == UNIT
    assert "no time" in UNIT
    transfers = [e for e in bars(trace) if "bytes" in e["args"]]
    computing = [e for e in bars(trace) if e["args"].get("operations")]
    assert sum(e["args"]["bytes"] for e in transfers) == sum(found.traffic.values())
    assert sum(e["dur"] for e in transfers) == pytest.approx(1e6, abs=len(transfers))
    assert sum(e["dur"] for e in computing) == pytest.approx(1e6, abs=len(computing))
    assert all("shares, no time" in e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name")


def test_the_counter_is_the_occupancy(found: Explanation, trace: dict[str, Any]) -> None:
    counted = [e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert counted == [row.bytes for row in found.program.occupancy()]
