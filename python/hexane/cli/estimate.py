"""`hexane estimate`: estimates a network's latency on chips, with intervals, and what determines it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given, read_graph
from hexane.cli.options import (
    CalibrationFiles,
    Debug,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelFile,
    Preprocessing,
    Values,
    names_of,
)
from hexane.cli.output import named_option, print_json, print_table, working
from hexane.cost import Estimate, estimate_program
from hexane.cost.formula import SAID
from hexane.cost.parameters import RateFacts, measured, read_rates_file
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.printer import size_text
from hexane.program import Program
from hexane.program.work import OPERATIONS
from hexane.report.estimate import against_host, program_for, remarks
from hexane.report.estimate_chart import estimate_chart
from hexane.report.estimate_page import estimate_page
from hexane.report.host_latency import host_latency
from hexane.report.legend import legend
from hexane.report.plotting import check_plotting
from hexane.targets import Chip, Family, Target, chip_names, load_target
from hexane.targets.query import load_chip, products_without_mil
from hexane.targets.tables import table

ALL = "all"
PLOTS = (".png", ".svg", ".pdf")
MOST_LAYERS = 20
HEAD = ("chip", "latency", "p10", "p90", "calls", "dispatch", "copies", "engine", "CPU", "mostly", "rates of")
MEANINGS = {
    "latency": "microseconds of a call, as all times here; docs/cost.md has the formula",
    "p10, p90": "in eight of ten cases the latency lies between them",
    "calls": "times that the CPU starts the engine",
    "dispatch": "fixed cost of these calls",
    "copies": "of inputs, outputs, and values between engine and CPU",
    "engine": "the engine's layers",
    "CPU": "ops that the engine does not run",
    "mostly": "what takes the most time: dispatch, copies or CPU as above; of the engine's time, compute: arithmetic;"
    " weights: reading them from main memory; tensors in memory: moving all other tensors from and to main memory",
    "rates of": "the chip whose measurements give the rates; extrapolated: this chip has none",
}
LAYER_MEANINGS = {
    "kind": "whose measured rate applies: gemm: products and 1x1 convolutions; conv: other convolutions; move: no"
    " arithmetic; attention, elementwise, softmax, norm, reduction",
    "bound by": "what limits the layer: compute, weights, or tensors in memory, as in the column mostly",
    "busy": "share of the layer's time in which it computes",
    "operations": OPERATIONS,
    "weights, traffic": "bytes of weights, and of other tensors, from and to main memory",
}
LAYER_HEAD = ("layer", "name", "kind", "us", "bound by", "busy", "operations", "weights", "traffic")


@command
def estimate(
    model: ModelFile,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help=(
                "Chips or devices, with commas between them: M1,M5 Pro; all: every chip that takes programs in MIL, and"
                " those of its products that have rates of their own;"
                " host: this CPU, which is measured."
            ),
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="F.html", help="Write a page for a browser: chips, and layer by layer.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="F.png", help="Draw the latency of each chip: .png, .svg or .pdf. Needs hexane[plot]."),
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(metavar="F.toml", help="A file of rates, written by `hexane bench --calibrate` on the machine."),
    ] = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    function: Function = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Estimate how long a model takes on a chip, with an interval, and show what takes the time.

    \b
    hexane estimate net.onnx --target M1
    hexane estimate net.onnx --target all --html net.html --plot net.png
    hexane estimate net.onnx --target M1,host
    hexane estimate net.onnx --target all --json
    """
    source = sources.open_network(model, function=function, where="estimate")
    _check_files(model, html, plot)
    own = None if rates is None else read_rates_file(rates)
    chips = _chips(target)
    with working(f"importing {model.name}"):
        given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
        graph, known = read_graph(source, given)
    with working(f"compiling {model.name}"):
        estimates = _estimates(graph, chips, own, known.arrays)
    if len(estimates) == 1 and isinstance(estimates[0], Error):
        raise estimates[0]
    if html is not None:
        with named_option("--html", html):
            page = estimate_page(model.name, chips, estimates)
            _core.save_file(str(html), page.encode("utf-8", "xmlcharrefreplace"))
    good = [one for one in estimates if isinstance(one, Estimate)]
    if plot is not None and good:
        with named_option("--plot", plot):
            _core.save_file(str(plot), estimate_chart(model.name, good, plot.suffix.lower()[1:]))
    if json:
        rows = [
            {"target": chip.label, "error": str(one)} if isinstance(one, Error) else _record(one)
            for chip, one in zip(chips, estimates, strict=True)
        ]
        print_json({"model": str(model), "estimates": rows, "against_host": against_host(good)})
    else:
        _print(chips, estimates, _left_out(chips) if ALL in map(str.lower, names_of(target)) else [])
    if all(isinstance(one, Error) for one in estimates):
        raise typer.Exit(1)


def _check_files(model: Path, html: Path | None, plot: Path | None) -> None:
    """Raises Error for unusable paths before anything is compiled."""
    for path, what in ((html, "page"), (plot, "picture")):
        if path is not None and path.exists() and path.samefile(model):
            raise Error(f"[estimate] {path}: got the model itself as the {what}, need another file")
    if plot is not None and plot.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
    if html is not None and plot is not None and html.absolute() == plot.absolute():
        raise Error(f"[estimate] {html}: got one file for the page and the picture, need two")
    if plot is not None:
        check_plotting("estimate")


def _chips(given: str) -> list[Target]:
    """Returns the chips of a list of names. "all" means the products with measured rates, and every other chip that
    runs MIL programs."""
    names = names_of(given)
    if not names:
        raise typer.BadParameter(f"--target: got {given!r}, need names of chips, or all")
    by_label: dict[str, Target] = {}
    floor = Family[table("floors")["mil"]["floor"]]
    for name in names:
        if name.lower() != ALL:
            target = load_target(name)
            by_label[target.label] = target
            continue
        known = [load_chip(product) for product in measured()]
        with_product = {chip.name for chip in known}
        others = [load_chip(one) for one in chip_names() if one not in with_product]
        for chip in sorted((*known, *(c for c in others if c.family >= floor)), key=lambda c: (c.name, c.asked)):
            by_label[chip.label] = chip
    return list(by_label.values())


def _left_out(chips: Sequence[Target]) -> list[str]:
    """Returns lines on the products that "all" leaves out, and why."""
    listed, floor = {chip.asked for chip in chips}, Family[table("floors")["mil"]["floor"]]
    like: list[str] = []
    older = products_without_mil()
    for chip in map(load_chip, chip_names()):
        if chip.family >= floor and (rated := [name for name in chip.products if name in listed]):
            like += [f"{name} (like {rated[0]})" for name in chip.products if name not in listed]
    lines = []
    if like:
        one = like[0].split(" (")[0]
        lines.append(f"left out, without rates of their own: {', '.join(like)}; --target {one} estimates it")
    if older:
        lines.append(f"left out, as they run no programs in MIL: {', '.join(older)}")
    return lines


def _estimates(
    graph: Graph, chips: list[Target], own: RateFacts | None, given: Mapping[str, Array]
) -> list[Estimate | Error]:
    """Returns an estimate per chip, or the error that prevents it. Products with the same target share its program.
    given: inputs on which this CPU is measured."""
    programs: dict[str, Program | Error] = {}
    estimates: list[Estimate | Error] = []
    for chip in chips:
        if not isinstance(chip, Chip):
            estimates.append(host_latency(graph, given))
            continue
        if chip.name not in programs:
            try:
                programs[chip.name] = program_for(graph, replace(chip, asked=""))
            except Error as error:
                programs[chip.name] = error
        program = programs[chip.name]
        estimates.append(program if isinstance(program, Error) else estimate_program(program, chip, own))
    return estimates


def _record(cost: Estimate) -> dict[str, Any]:
    return {**cost.record(), "remarks": remarks(cost)}


def _print(chips: list[Target], estimates: list[Estimate | Error], left_out: Sequence[str]) -> None:
    good = [one for one in estimates if isinstance(one, Estimate)]
    if good:
        by_label = {chip.label: chip for chip in chips}
        rows = [(_called(by_label[one.target], one), *_row(one)) for one in good]
        print_table(HEAD, rows, right=HEAD[1:9])
    for line in left_out:
        print(line)
    for chip, one in zip(chips, estimates, strict=True):
        if isinstance(one, Error):
            print(f"{chip.label}: {one}")
    if len(estimates) == 1:
        _print_layers(good[0])
    if lines := against_host(good):
        print("\n" + "\n".join(lines))
    if good:
        layers = LAYER_MEANINGS if len(estimates) == 1 and good[0].layers else {}
        print(f"\n{legend('columns', {**MEANINGS, **layers})}")


def _called(chip: Target, cost: Estimate) -> str:
    """The chip as the user named it. A target without rates of its own is called by its popular names followed by its
    own: "iPhone 15, M3 (h15)"."""
    if not isinstance(chip, Chip) or chip.asked or not cost.extrapolated:
        return chip.label
    return f"{chip.lead} ({chip.name})" if chip.known else chip.name


def _row(cost: Estimate) -> tuple[str, ...]:
    times = (cost.latency_us, cost.p10_us, cost.p90_us)
    parts = (cost.floor_us, cost.copies_us, cost.engine_us, cost.host_us)
    return (
        *(f"{us:.0f}" for us in times),
        str(cost.submissions),
        *(f"{us:.0f}" for us in parts),
        cost.mostly,
        cost.measured_on + (" (extrapolated)" if cost.extrapolated else ""),
    )


def _print_layers(cost: Estimate) -> None:
    for line in remarks(cost):
        print(line)
    if not cost.layers:
        return
    memory = cost.memory
    print(
        f"weights {size_text(memory.weights)}, inputs and outputs {size_text(memory.surfaces)}, between layers"
        f" {size_text(memory.spilled)} in main memory; at most {size_text(memory.on_chip)} on chip\n"
    )
    slowest = sorted(cost.layers, key=lambda layer: -layer.us)[:MOST_LAYERS]
    rows = [
        (
            str(layer.index),
            layer.name,
            layer.kind,
            f"{layer.us:.1f}",
            SAID.get(layer.bound, layer.bound),
            f"{100 * layer.utilisation:.0f} %",
            str(layer.operations),
            size_text(layer.weights),
            size_text(layer.traffic),
        )
        for layer in slowest
    ]
    print_table(LAYER_HEAD, rows, right=("layer", *LAYER_HEAD[3:4], *LAYER_HEAD[5:]))
    if left := len(cost.layers) - len(slowest):
        print(f"{left} faster layers: --json has them")
