"""`hexane fit`: shows whether a model fits into memory, in whole tensors or row by row."""

from pathlib import Path
from typing import Annotated

import typer

import hexane
from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given
from hexane.cli.options import Debug, Dtype, Function, Inputs, InputShapes, Json, ModelFile, RunsOn, Strategy, Values
from hexane.cli.output import print_json, working
from hexane.errors import Error
from hexane.report.arena_chart import arena_chart
from hexane.report.fit_page import fit_page

PLOTS = (".png", ".svg", ".pdf")


@command
def fit(
    model: ModelFile,
    sram: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="The RAM for the arena and the buffers of --runtime, as in 128K."),
    ] = None,
    slow: Annotated[str | None, typer.Option(metavar="BYTES", help="The size of a slower memory next to it.")] = None,
    strategy: Annotated[
        Strategy, typer.Option(help="How to make a network fit if its whole tensors do not: as in `compile`.")
    ] = Strategy.STREAM,
    runtime: RunsOn = None,
    flash: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="The flash of a microcontroller, for the plan and the code that runs it, as in 1M."
        ),
    ] = None,
    stream_input: Annotated[
        bool,
        typer.Option("--stream-input", help="Read inputs row by row. Only the rows needed at one time are in memory."),
    ] = False,
    stream_output: Annotated[
        bool, typer.Option("--stream-output", help="Outputs are written row by row, as --stream-input reads inputs.")
    ] = False,
    dtype: Dtype = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    function: Function = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Print the contents of the streamed arena: rows, offsets and steps.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the timeline as a .png, .svg or .pdf. Needs hexane[plot].")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all of it as a page for a browser, without a network.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the memory of a model on one thread, in whole tensors and row by row, and which layers need most."""
    source = sources.open_network(model, function=function, where="fit")
    if plot is not None and plot.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
    if html is not None and html.exists() and html.samefile(model):
        raise Error(f"[fit] {html}: got the model itself as the page, need another file")
    if strategy is Strategy.STAGES and sram is None:
        raise Error("[fit] --strategy: got stages, need --sram as well")
    memory = hexane.Memory(
        sram,
        slow=slow or 0,
        strategy=strategy.value,
        stream_input=stream_input,
        stream_output=stream_output,
        runtime=runtime.value if runtime else "",
        flash=flash or 0,
    )
    known = Given.of(input_shape, inputs, values).read(source)
    with working(f"compiling {model.name}"):
        answer = hexane.fit(
            source,
            memory=memory,
            dtype=dtype.value if dtype else "",
            input_shapes=known.shapes,
            input_values=known.values,
        )
    if json:
        print_json(answer.to_json())
    else:
        print(answer, end="")
        if timeline:
            print(answer.timeline_text(), end="")
    if plot is not None:
        _core.save_file(str(plot), arena_chart(answer, model.name, plot.suffix.lower()[1:]))
    if html is not None:
        _core.save_file(str(html), fit_page(answer, model.name).encode("utf-8", "xmlcharrefreplace"))
    if answer.fits is False:
        raise typer.Exit(3)
