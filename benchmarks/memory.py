"""The arena of networks in whole tensors and streamed row by row, and the CPU time of streaming, on one thread; then
stages that spill: Hexane's, and TiGrIS' if its command is given, at its best budget and at each budget."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from options import parser_of

import hexane as hx
from hexane.program import Program
from hexane.stages.bufferize.pools import into_pools, slow_bytes
from hexane.stages.stream.spill import Spilled, Spills
from hexane.stages.stream.stream import Streams
from hexane.stages.stream.traffic import traffic


class Planned(NamedTuple):
    """Bytes of fast and slow memory together, and the bytes that a call moves from and to slow memory. None:
    unknown."""

    total: int
    moved: int | None


BUDGETS = tuple(1 << n for n in range(14, 21))  # 16K..1M


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each; their median counts")
    parser.add_argument(
        "--tigris", type=Path, metavar="COMMAND", help="the command of tigris-ml, in its own environment"
    )
    parser.add_argument("--no-speed", action="store_true", help="leave out the first table")
    options = parser.parse_args()
    files = sorted(options.networks.glob("*.onnx"))
    if not options.no_speed:
        speeds(files, options.runs)
    beside_stages(files, options.tigris)
    if not files:
        print("no networks: --networks names a folder of them")
    return 0


def speeds(files: list[Path], runs: int) -> None:
    print(
        "bytes of arena; scratch: bytes that kernels use in addition; live: the most bytes live at once; speed: by CPU"
        " time\n"
    )
    print("| network | whole | streamed | live | share | scratch | steps in loops | speed |")
    print("|---|---|---|---|---|---|---|---|")
    for file in files:
        measure(file, runs)


def measure(file: Path, runs: int) -> None:
    nets = [hx.compile(file, target="host", threads=1, memory=hx.Memory(rows=rows)) for rows in (0, 1)]
    whole, streamed = nets
    assert isinstance(whole, hx.Model)
    assert isinstance(streamed, hx.Model)
    assert streamed.program is not None
    rng = np.random.default_rng(0)
    feeds = {port.name: rng.standard_normal(port.shape).astype(port.dtype) for port in whole.inputs}
    calls = [net.bind(**feeds) for net in (whole, streamed)]
    times: list[list[float]] = [[], []]
    for _ in range(runs + 1):  # the first run warms up
        for call, taken in zip(calls, times, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    for name, output in calls[0].outputs.items():
        assert output.tobytes() == calls[1].outputs[name].tobytes(), f"{file.stem}: {name}"
    arenas = [net.memory["arena"] for net in (whole, streamed)]
    speed = median(times[0][1:]) / median(times[1][1:])
    looped = sum(step.cut is not None for step in streamed.program.steps)
    live = streamed.program.extents["arena"].bound
    print(
        f"| {file.stem} | {arenas[0]:,} | {arenas[1]:,} | {live:,} | {arenas[1] / arenas[0]:.2f} | "
        f"{streamed.memory['scratch']:,} | {looped} of {len(streamed.steps)} | {speed:.2f} |",
        flush=True,
    )


def beside_stages(files: list[Path], tigris: Path | None) -> None:
    print(
        "\nbytes of fast and slow memory together at the best of the budgets 16K..1M, with inputs and outputs (of one"
        ' byte an element in\n*_int8); stages: of strategy="stages"; held: the arena with inputs and outputs in'
        " it;\nstreamed: with their rows in it, as they come and go; and the arena alone\n"
    )
    print("| network | TiGrIS | at | stages | at | held | streamed | arena alone |")
    print("|---|---|---|---|---|---|---|---|")
    budgets = []
    for file in files:
        item = 1 if file.stem.endswith("_int8") else 4
        stages = in_stages(file)
        found = [(plan.total, budget) for budget, plan in stages.items()]
        plans = {} if tigris is None else {b: p for b in BUDGETS if (p := tigris_plan(tigris, file, b))}
        theirs = [(plan.total, budget) for budget, plan in plans.items()]
        columns = [text for best in (theirs, found) for text in (at_best(best) if best else ("-", "-"))]
        ways: list[dict[str, bool]] = [{"hold_ports": True}, {"stream_input": True, "stream_output": True}, {}]
        own = [f"{program_of(file, 1, **how).extents['arena'].bytes:,}" for how in ways]
        print(f"| {file.stem} | {' | '.join(columns)} | {' | '.join(own)} |", flush=True)
        budgets.append(at_budgets(file, plans, stages, item))
    if tigris is not None:
        print(
            "\nour bytes over TiGrIS' at the budgets for which it has a plan: memory, and what is moved from and to"
            " slow memory\n"
        )
        print("| network | budgets | memory at most | moved at most | more is moved at |")
        print("|---|---|---|---|---|")
        print("\n".join(budgets))


def program_of(file: Path, rows: int, **ports: bool) -> Program:
    """ports: the fields of hx.Memory that say where inputs and outputs lie."""
    net = hx.compile(file, target="host", threads=1, memory=hx.Memory(rows=rows, **ports))
    assert isinstance(net, hx.Model)
    assert net.program is not None
    return net.program


def in_stages(file: Path) -> dict[int, Planned]:
    """The plans of Hexane's stages by budget. Inputs and outputs count as held in memory."""
    spills = Spills(program_of(file, 0), "", holds_ports=True)
    made = {budget: spills.at(budget) for budget in BUDGETS}
    return {b: Planned(one.fast + one.slow, sum(one.moved)) for b, one in made.items() if isinstance(one, Spilled)}


def at_budgets(file: Path, plans: dict[int, Planned], stages: dict[int, Planned], item: int) -> str:
    """A line with the largest ratios of Hexane's memory and traffic to TiGrIS'. For each budget, Hexane's plan is the
    one that moves the fewest bytes in at most TiGrIS' memory."""
    whole = program_of(file, 0)
    ports = ports_bytes(whole, item)
    ways = [(Streams(whole, "", hold), 0 if hold else ports) for hold in (True, False)]
    least = [(streams.stream(rows), beside) for streams, beside in ways for rows in (1, 2, 4)]
    memory, moved, more = [], [], []
    for budget, plan in plans.items():
        for_slow = [
            (program, beside) for streams, beside in ways for program in streams.for_slow(budget, plan.total - beside)
        ]
        found = [placed(program, beside, budget, item) for program, beside in (*least, *for_slow)]
        found += [stages[budget]] if budget in stages else []
        best = min(found, key=lambda one: (one.total > plan.total, one.moved, one.total))
        memory.append(best.total / plan.total)
        if plan.moved is not None:
            moved.append(best.moved / max(1, plan.moved))
            if best.moved > plan.moved:
                more.append(f"{budget >> 10}K")
    columns = [f"{max(ratios):.2f}" if ratios else "-" for ratios in (memory, moved)]
    return f"| {file.stem} | {len(plans)} | {' | '.join(columns)} | {', '.join(more)} |"


def ports_bytes(program: Program, item: int) -> int:
    return sum(p.view.type.size * item for p in (*program.inputs, *program.outputs))


def placed(program: Program, ports: int, budget: int, item: int) -> Planned:
    """The plan with `budget` bytes of fast memory and the rest in slow memory. ports: bytes of inputs and outputs in
    slow memory; 0 if they are elsewhere."""
    divided = into_pools(program, (budget, 1 << 40), slow=True)
    assert divided is not None
    total = sum(e.bytes for e in divided.extents.values() if e.space.kind == "arena")
    moved = sum(slow_bytes(divided, 2))
    if ports:
        each = traffic(divided)
        kinds = {p.view.buffer: p.view.type for p in (*program.inputs, *program.outputs)}
        moved += sum(sum(each.get(i, ())) * kind.size * item // kind.bytes for i, kind in kinds.items())
    return Planned(total + ports, moved)


def at_best(found: list[tuple[int, int]]) -> tuple[str, str]:
    total, budget = min(found)
    return f"{total:,}", f"{budget >> 10}K"


def tigris_plan(command: Path, file: Path, budget: int) -> Planned | None:
    """TiGrIS' plan for `budget` bytes of fast memory; None if it has no plan."""
    ran = subprocess.run([command, "analyze", file, "-m", str(budget), "--json"], capture_output=True, text=True)
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        return None
    fast, slow = found["fast"], found["slow"]
    if fast["infeasible"] or fast["blocking_stages"] or found["model"]["unsupported_operators"]:
        return None
    traffic = slow["traffic"]
    moved = None if traffic is None else int(traffic["written"]) + int(traffic["read"])
    return Planned(int(fast["scheduled_peak_bytes"]) + int(slow["peak_bytes"]), moved)


if __name__ == "__main__":
    sys.exit(main())
