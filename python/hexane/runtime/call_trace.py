"""The times of a model's steps as a Chrome trace: lanes for this CPU, the engine, and sums over ranks."""

import json
from typing import Any

from hexane import _core

LANES = {"cpu": 1, "engine": 2, "ranks": 3}
ALL_REDUCE = "all_reduce"  # the source of steps that sum over processes


def chrome_trace(core: _core.Program, name: str) -> str:
    """Returns the last profiled call, as JSON for chrome://tracing and Perfetto."""
    steps, spans = core.steps, core.timeline
    first = min((begin for _, begin, _ in spans), default=0)
    events: list[dict[str, Any]] = [_named("process_name", 0, name)]
    sums = any(step["source"] == ALL_REDUCE for step in steps)
    events += [_named("thread_name", lane, what) for what, lane in LANES.items() if what != "ranks" or sums]
    for i, begin, end in spans:
        lane = lane_of(steps[i])
        events.append(
            {
                "ph": "X",
                "name": steps[i]["kernel"],
                "cat": lane,
                "pid": 1,
                "tid": LANES[lane],
                "ts": (begin - first) / 1e3,
                "dur": (end - begin) / 1e3,
                "args": {"step": i, "source": steps[i]["source"], "waited": steps[i]["waited"]},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def lane_of(step: "_core.StepInfo") -> str:
    """Returns the lane of a step: "cpu", "engine" or "ranks"."""
    if step["kernel"] != "program":
        return "cpu"
    return "ranks" if step["source"] == ALL_REDUCE else "engine"


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 1, "tid": lane, "ts": 0, "args": {"name": name}}
