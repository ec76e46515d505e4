"""`hexane compare`: runs one model as several chips compute it, or two files of one model: where results differ,
why, and what to change."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given, Known, read_graph
from hexane.cli.inputs import ADVICE, SEED, random_line, with_random
from hexane.cli.options import (
    CalibrationFiles,
    Debug,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelFile,
    Preprocessing,
    Repair,
    Repairs,
    Values,
    names_of,
)
from hexane.cli.output import print_json, print_table, working
from hexane.graph import Array, Graph
from hexane.passes.repair import without_repair
from hexane.report.chart import chart
from hexane.report.compare import HEAD, IEEE, MEANINGS, compare
from hexane.report.legend import columns_legend
from hexane.report.model_ports import ports_of
from hexane.report.output_error import Furthest, furthest
from hexane.report.plotting import check_plotting
from hexane.report.two_models import compare_models, open_other
from hexane.runtime import PortType

THEY_PART = 3
TWO_MODELS = 0.01  # relative L2 tolerance between two files: a converted model may be in fp16
PLOTS = (".png", ".svg", ".pdf")


@command
def compare_targets(
    model: ModelFile,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            "--target",
            metavar="NAMES",
            help=(
                "With commas between them; one alone is compared with ieee: chips by any name (A14, M4, iPhone 12,"
                " h13), in their engines' arithmetic; ieee: the model in its own dtypes; q31: the same with quantised"
                " ops as TFLite computes them."
            ),
        ),
    ] = None,
    other: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="MODEL",
            help="Compare with this file of the same network, such as the one it was converted from, both on this CPU.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=f"The seed of random inputs. [default: {SEED}]")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            min=0,
            help=(
                "How far an output may be apart: relative L2, or the share of elements that differ for integers and"
                " truths. [default: any bit between chips, 0.01 from ieee]"
            ),
        ),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Check every layer against the tolerance, not only the outputs.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="F.png", help="Draw the differences, layer by layer: .png, .svg or .pdf.")
    ] = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    function: Function = None,
    repair: Repairs = Repair.ON,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare a model's results on several chips: which layer differs first, why, and what to change.

    \b
    hexane compare net.onnx --target M1
    hexane compare net.onnx --targets A14,M4,M5,ieee
    hexane compare net.onnx --targets M1,M5 --input batch.npz --tolerance 0.001
    hexane compare net.onnx --targets M4,ieee --calibration photos --preprocess 'mean=127.5 scale=0.00784'
    hexane compare net.onnx --targets M4,ieee --seed 7 --plot parts.png
    hexane compare net.onnx --targets q31,ieee --input batch.npz
    hexane compare net.onnx --targets M1,ieee --input-shape image:1x3x224x224 --json
    hexane compare Net.mlpackage --with net.onnx

    With several inputs, shows the layers for the input whose outputs differ most.
    Exit code 0: all outputs agree within the tolerance (with --layers: all layers too); 3: some do not.
    """
    source = sources.open_network(model, function=function, where="compare")
    if plot is not None and plot.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
    if plot is not None:
        check_plotting("compare")  # The package for plots is checked before a run that takes minutes.
    if targets is not None and other is not None:
        raise typer.BadParameter("--targets: got --with as well, need one of the two")
    if targets is None and other is None:
        raise typer.BadParameter("got nothing to compare with, need --targets A14,M4 or --with ORIGINAL")
    if other is not None and (plot is not None or layers or calibration):
        raise typer.BadParameter("--with: got --plot, --layers or --calibration too, need --input alone")
    names = names_of(targets or "")
    if len(names) == 1 and names[0].casefold() not in (IEEE, "host"):
        names = [*names, IEEE]
    with working(f"importing {model.name}"):
        given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
        graph, known = read_graph(source, given)
    graph = graph if repair is Repair.ON else without_repair(graph)
    ports, seed = ports_of(graph), SEED if seed is None else seed
    if other is not None:
        if (line := random_line(ports, known.arrays, seed)) and not json:
            print(f"{line}; {ADVICE}")
        _print_two(model, graph, with_random(ports, known.arrays, seed), other, tolerance, json)
        return
    with working(f"running {model.name} on {len(names)} targets"):
        arrays, chosen = _furthest(graph, names, ports, known, seed)
        comparison = compare(graph, names, arrays, tolerance=tolerance, layers=layers, name=model.name)
    if plot is not None:
        _core.save_file(str(plot), chart(comparison, plot.suffix.lower()[1:]))
    if json:
        print_json({**comparison.record(), **({"inputs": chosen.record()} if chosen else {})})
    else:
        print("\n".join([*comparison.first_lines, comparison.summary, *comparison.repairs]))
        if chosen:
            print(chosen)
        if line := random_line(ports, known.arrays, seed):
            print(f"{line}; {ADVICE}")
        print()
        shown = print_table(HEAD, comparison.rows(), right=HEAD[3:6] + HEAD[7:])
        print("\n" + "\n".join([columns_legend(MEANINGS, shown), "", *comparison.lines]))
        if comparison.refusal:
            print(comparison.refusal)
    if not comparison.ok:
        raise typer.Exit(THEY_PART)


def _print_two(
    model: Path, graph: Graph, arrays: Mapping[str, Array], other: Path, tolerance: float | None, json: bool
) -> None:
    with working(f"running {model.name} and {other.name}"):
        second, feeds = open_other(sources.open_network(other, where="compare"), arrays)
        names = (model.name, other.name) if model.name != other.name else (str(model), str(other))
        limit = TWO_MODELS if tolerance is None else tolerance
        comparison = compare_models((names[0], graph, arrays), (names[1], second, feeds), limit)
    print_json(comparison.record()) if json else print("\n".join(comparison.lines))
    if not comparison.ok:
        raise typer.Exit(THEY_PART)


def _furthest(
    graph: Graph, names: Sequence[str], ports: Sequence[PortType], known: Known, seed: int
) -> tuple[Mapping[str, Array], Furthest | None]:
    """Returns the arrays to compare; of several inputs, that with the largest difference, and a description of it."""
    if known.feeds is None or len(names) < 2:
        return with_random(ports, known.arrays, seed), None
    feeds = ((label, with_random(ports, feed, seed)) for label, feed in known.feeds.named())
    chosen = furthest(graph, names, feeds)
    arrays = next(feed for label, feed in known.feeds.named() if label == chosen.feed)
    return with_random(ports, arrays, seed), chosen
