"""`hexane explain`: shows a network as compiled for a chip, as text, JSON, page or trace, and the decisions about a
node."""

from enum import Enum
from pathlib import Path
from typing import Annotated

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
)
from hexane.cli.output import print_json, print_table, working
from hexane.errors import Error
from hexane.report.explain import HEAD, PARTITION_HEAD, examine
from hexane.report.explanation_page import explanation_page
from hexane.report.task_descriptors import descriptors_of
from hexane.report.trace import chrome_trace
from hexane.targets.query import load_chip


class Schedule(str, Enum):
    """--schedule: the order of the engine's layers."""

    APPLE = "apple"
    OPTIMAL = "optimal"


@command
def explain(
    model: ModelFile,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="The chip or a device that has it: A14, M1, iPhone 12, h13.")
    ],
    schedule: Annotated[
        Schedule,
        typer.Option(help="apple: the order of Apple's compiler; optimal: the order with the fewest bytes on chip."),
    ] = Schedule.APPLE,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help=(
                "Print all decisions about one node: a layer by its number, an op as op3 (as hexane check numbers"
                " ops), or a name in the model."
            ),
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="F.html",
            help="Write a page for a browser: the schedule, on-chip memory, all decisions about every layer.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="F.json", help="Write the order as a Chrome trace, with lanes for NE, PE and DMA."),
    ] = None,
    hypothesis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="chaining",
            help="Suppose that the chip does this although no source says so, and print what changes.",
        ),
    ] = None,
    descriptors: Annotated[
        bool,
        typer.Option(
            "--descriptors", help="Experimental: print the layers as task descriptors. Only for h13 (M1, A14)."
        ),
    ] = False,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    function: Function = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a model as compiled for a chip: layers, partitions, on-chip memory, traffic, and the reasons.

    \b
    hexane explain net.onnx --target A14
    hexane explain net.onnx --target M1 --node conv_3
    hexane explain net.onnx --target M5 --schedule optimal --html net.html
    hexane explain net.onnx --target "iPhone 12" --trace order.json
    hexane explain net.onnx --target M1 --descriptors
    hexane explain net.onnx --target M1 --hypothesis chaining
    """
    source = sources.open_network(model, function=function, where="explain")
    for path, what in ((html, "page"), (trace, "trace")):
        if path is not None and path.exists() and path.samefile(model):
            raise Error(f"[explain] {path}: got the model itself as the {what}, need another file")
    if html is not None and trace is not None and html.absolute() == trace.absolute():
        raise Error(f"[explain] {html}: got one file for the page and the trace, need two")
    if descriptors and (node is not None or html is not None or trace is not None or hypothesis):
        raise Error("[explain] --descriptors: got --node, --html, --trace or --hypothesis as well, need it alone")
    chip = load_chip(target)
    with working(f"importing {model.name}"):
        given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
        graph, _ = read_graph(source, given)
    if descriptors:
        with working(f"compiling {model.name}"):
            tasks = descriptors_of(graph, chip, model.name, schedule.value)
        if json:
            print_json(tasks.record())
        else:
            print(tasks)
        return
    with working(f"compiling {model.name}"):
        explanation = examine(graph, chip, schedule.value, model.name, hypothesis or ())
    story = None if node is None else explanation.story(node)
    if html is not None:
        _core.save_file(str(html), explanation_page(explanation).encode("utf-8", "xmlcharrefreplace"))
    if trace is not None:
        _core.save_file(str(trace), chrome_trace(explanation).encode())
    if json and story is not None:
        print_json({"model": explanation.name, "target": chip.name, "asked": chip.asked, **story.record()})
    elif json:
        print_json(explanation.record())
    elif story is not None:
        print(story)
    else:
        print("\n  ".join([explanation.summary, *explanation.lines]) + "\n")
        print_table(PARTITION_HEAD, list(explanation.partition_rows()), right=PARTITION_HEAD)
        print(f"\n{explanation.partition_legend}\n")
        print_table(HEAD, list(explanation.rows()), right=(HEAD[0], *HEAD[8:]))
        print(f"\n{explanation.legend}")
