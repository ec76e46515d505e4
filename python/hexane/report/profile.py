"""Measures each step of a model on this CPU, and compares it with the machine's limits."""

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from hexane.graph import Array, Node
from hexane.graph.decisions import counted
from hexane.program.work import Work, multiply_adds
from hexane.report.explain import text_table
from hexane.report.legend import legend
from hexane.report.roofline import Roofline, measured
from hexane.runtime import Model, OpenModel, StagedModel
from hexane.runtime.random_arrays import random_arrays

MOST_RUNS = 100
MOST_SECONDS = 0.5
SEED = 0


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """A kernel call. source: the model's ops that it computes. us: median microseconds of the call; share: of the time
    of all steps. operations: two per multiply-add, or one per element of other steps. moved: bytes of operands and
    results. operations and moved are None for a loaded plan, which has no graph, and for programs of an engine.
    of_roofline: this machine's least time for the work, divided by `us`; above 1 if operands come from a cache."""

    kernel: str
    source: str
    calls: int
    us: float
    share: float
    operations: int | None = None
    moved: int | None = None
    of_roofline: float | None = None
    bound: str = ""

    @property
    def gflops(self) -> float | None:
        """10^9 operations a second."""
        return None if self.operations is None or not self.us else self.operations / self.us / 1e3

    @property
    def gbytes(self) -> float | None:
        """10^9 bytes a second."""
        return None if self.moved is None or not self.us else self.moved / self.us / 1e3


@dataclass(frozen=True, slots=True)
class Profile:
    """The steps of a model, slowest first. `str` gives a table."""

    steps: tuple[ProfiledStep, ...]
    roofline: Roofline | None
    device: str
    threads: int

    @property
    def us(self) -> float:
        """The sum of the median microseconds of all steps."""
        return sum(step.us for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        steps = [asdict(step) | {"gflops": step.gflops, "gbytes": step.gbytes} for step in self.steps]
        machine = None if self.roofline is None else asdict(self.roofline)
        return {"device": self.device, "threads": self.threads, "us": self.us, "roofline": machine, "steps": steps}

    def rows(self) -> list[tuple[str, ...]]:
        """Returns the rows of the table under HEAD."""
        return [
            (s.kernel, s.source, f"{s.us:.2f}", f"{s.share:.1%}", _rate(s.gflops), _rate(s.gbytes), _part(s))
            for s in self.steps
        ]

    def by_kernel(self) -> list[tuple[str, ...]]:
        """Returns rows of kernel, number of steps, microseconds and share under KERNEL_HEAD."""
        groups: defaultdict[str, list[ProfiledStep]] = defaultdict(list)
        for step in self.steps:
            groups[step.kernel].append(step)
        sums = [(k, len(v), sum(s.us for s in v), sum(s.share for s in v)) for k, v in groups.items()]
        return [(k, str(n), f"{us:.2f}", f"{share:.1%}") for k, n, us, share in sorted(sums, key=lambda row: -row[2])]

    @property
    def machine(self) -> str:
        """The measured limits as one line, to explain the last column; "" if not measured."""
        if self.roofline is None:
            return ""
        rates = ", ".join(f"{rate:.0f} GFLOP/s in {dtype}" for dtype, rate in self.roofline.gflops.items())
        return (
            f"roofline: {rates}{', ' if rates else ''}{self.roofline.gbytes:.1f} GB/s from main memory, measured here"
            f" with {counted(self.roofline.threads, 'thread')}; above 100% operands come from a cache"
        )

    def __str__(self) -> str:
        table = [text_table(HEAD, self.rows()), *([self.machine] if self.machine else [])]
        meanings = {name: meaning for name, meaning in MEANINGS.items() if name != "steps"}
        return "\n".join([*table, "", legend("columns", meanings)])


HEAD = ("kernel", "from", "us", "share", "GFLOP/s", "GB/s", "of roofline")
KERNEL_HEAD = ("kernel", "steps", "us", "share")
MEANINGS = {
    "from": (
        "ops of the model that the step comes from, not all of them: an attention, norm or GELU has the name of its"
        " last op"
    ),
    "us": "median microseconds",
    "share": "of the time of all steps",
    "GFLOP/s": (
        "operations in a second: 2 for each multiply-add, or 1 for each element of the largest operand or result"
    ),
    "GB/s": "bytes read and written in a second; - here and in GFLOP/s if a loaded plan does not store the numbers",
    "of roofline": (
        "least time that this machine needs for the work, divided by us; then the limit: arithmetic (compute) or memory"
    ),
    "steps": "number of steps with the kernel",
}


def profile(
    model: Model | OpenModel,
    inputs: Mapping[str, Any] | None = None,
    *,
    trace: str | os.PathLike[str] | None = None,
    roofline: bool = True,
) -> Profile:
    """Runs a model up to 100 times, or for half a second. Returns the time of each step, and its share of this
    machine's roofline.

        print(hx.profile(net, {"x": image}))

    model: on this CPU. An open model is profiled for the inputs' shapes. inputs: arrays by name; None: random ones with
    a fixed seed. trace: a path, for a Chrome trace of the last call. roofline: measure this machine for 0.3 s, once per
    process; False omits that column.

    Raises Error for inputs of another shape or dtype than the model's, and if the trace cannot be written.
    """
    arrays = dict(random_arrays(model.inputs, SEED) if inputs is None else inputs)
    if isinstance(model, OpenModel):
        model = model.specialised(arrays)
    model.profile(True)
    latency(model, arrays)
    steps = model.steps
    if trace is not None:
        model.save_trace(trace)
    model.profile(False)
    program = getattr(model, "program", None)
    nodes = None if program is None else [step.node for step in program.steps]
    if nodes is not None and len(nodes) != len(steps):
        nodes = None
    machine = _machine(nodes, model.threads) if roofline and nodes else None
    whole = sum(step["median"] for step in steps) or 1
    profiled = [_profiled(step, whole, None if nodes is None else nodes[i], machine) for i, step in enumerate(steps)]
    return Profile(tuple(sorted(profiled, key=lambda step: -step.us)), machine, model.device, model.threads)


def latency(net: Any, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Returns median and 90th percentile of the time of bound calls, in microseconds; of plain calls for a
    StagedModel."""
    if isinstance(net, StagedModel):
        call: Any = partial(net, arrays)
    else:
        call = net.bind(**{name: np.asarray(array, order="C") for name, array in arrays.items()})
    call()
    nanoseconds: list[int] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(nanoseconds) < MOST_RUNS and (not nanoseconds or time.perf_counter() < end):
        start = time.perf_counter_ns()
        call()
        nanoseconds.append(time.perf_counter_ns() - start)
    median, p90 = np.percentile(nanoseconds, (50, 90)) / 1000
    return {"median_us": float(median), "p90_us": float(p90), "runs": len(nanoseconds)}


def _profiled(step: Any, whole: int, node: Node | None, machine: Roofline | None) -> ProfiledStep:
    us = step["median"] / 1000
    known = (step["kernel"], step["source"], step["calls"], us, step["median"] / whole)
    if node is None or step["kernel"] == "program":
        return ProfiledStep(*known)
    work = work_of(node)
    least = None if machine is None or not us else machine.seconds(_products(node), work.bytes, dtype_of(node))
    if least is None or machine is None:
        return ProfiledStep(*known, work.operations, work.bytes)
    moving = work.bytes / (machine.gbytes * 1e9)
    return ProfiledStep(
        *known, work.operations, work.bytes, least / us * 1e6, "memory" if least == moving else "compute"
    )


def work_of(node: Node) -> Work:
    """The work of one call of a kernel: operations, and bytes of operands and results."""
    values = [v.type for v in (*node.values, *(v for v in node.inputs if v is not None))]
    elements = max((t.size for t in values), default=0)
    return Work(_products(node) or elements, sum(t.size * t.dtype.bits // 8 for t in values))


def dtype_of(node: Node) -> str:
    """Returns the dtype of a product, by its name in `Roofline`."""
    dtypes = [v.dtype.name for v in node.inputs[:2] if v is not None]
    if any(name in ("int8", "uint8") for name in dtypes) and ("quantized" in node.op or "q31" in node.op):
        return "int8"
    return "bf16" if "bf16" in dtypes else dtypes[0] if dtypes else ""


def _products(node: Node) -> int:
    return 2 * multiply_adds(node)


def _machine(nodes: Sequence[Node], threads: int) -> Roofline:
    used = {dtype_of(node) for node in nodes if _products(node)}
    return measured(threads, tuple(sorted(used & {"fp32", "fp16", "bf16", "int8"})))


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _part(step: ProfiledStep) -> str:
    return "-" if step.of_roofline is None else f"{step.of_roofline:.0%} {step.bound}"
