"""`hexane quantize`: quantises an ONNX model, and shows the result for each layer."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given, Known
from hexane.cli.large_error import Force, is_too_large, refusal
from hexane.cli.options import (
    CalibrationFiles,
    Debug,
    Inputs,
    InputShapes,
    Json,
    Preprocessing,
    Values,
    names_of,
)
from hexane.cli.output import named_option, print_json, print_table, working
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.quant import PERCENTILE, Quantization, QuantizedLayer
from hexane.report.before_after import BeforeAfter
from hexane.report.legend import columns_legend
from hexane.report.plotting import check_plotting
from hexane.report.quantized_chart import quantized_chart
from hexane.runtime import Quantized, quantize_model
from hexane.targets import Chip
from hexane.targets.query import load_chip

HEAD = ("layer", "op", "integers", "scales", "input range", "error", "outputs' error")
MEANINGS = {
    "integers": "",  # by mode: _integers
    "scales": "number of scales of its weights",
    "input range": "smallest and largest number that the integers of its input can hold, chosen from calibration",
    "error": "relative error of the layer's result if it alone is quantised",
    "outputs' error": "relative error of the outputs if it alone is quantised (--sensitivity)",
}
PLOTS = (".png", ".svg", ".pdf")
INSTEAD = "`hexane compress` stores weights in fewer bits and leaves activations in floats"
CHANGE = (
    "give --tolerance 0.05, which keeps layers in floats until the error is within it, --int16, or --float-layers for"
    " the layers with large errors"
)


class Method(str, Enum):
    """--method: how the range of an activation is chosen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


@command
def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="Q.onnx", help="The quantised model.")],
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    inputs: Inputs = None,
    values: Values = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise to integers from -128 to 127. The default.")] = False,
    uint8: Annotated[bool, typer.Option("--uint8", help="Quantise to integers from 0 to 255.")] = False,
    int16: Annotated[
        bool,
        typer.Option("--int16", help="Activations in 16 bits, weights in 8: more exact, and no faster than floats."),
    ] = False,
    weights_only: Annotated[
        bool,
        typer.Option("--weights-only", help="Store weights in 8 bits and multiply in floats. Needs no --calibration."),
    ] = False,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic", help="Quantise activations at run time, each by its own range. Needs no --calibration."
        ),
    ] = False,
    method: Annotated[Method, typer.Option(help="How the range of an activation is chosen.")] = Method.MSE,
    percentile: Annotated[
        float, typer.Option(metavar="PERCENT", help="For percentile: the part of the numbers at or below the high end.")
    ] = PERCENTILE,
    per_channel: Annotated[
        bool,
        typer.Option(
            "--per-channel/--per-tensor",
            help="One scale for each output channel of a weight, or one for the whole weight.",
        ),
    ] = True,
    equalize: Annotated[
        bool,
        typer.Option(
            "--equalize/--no-equalize", help="Give the channels between neighbouring layers similar magnitudes."
        ),
    ] = True,
    float_layers: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layers that stay in floats, as in *head*. Repeatable."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="The largest relative error of an output; layers stay in floats until the error is within it.",
        ),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Measure the outputs' error with each layer alone in integers.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="F.png", help="Draw the errors of the layers: .png, .svg or .pdf. Needs hexane[plot]."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Chips, separated by commas: print where the network runs, in how many parts, and how long it"
            " takes, before and after.",
        ),
    ] = None,
    input_shape: InputShapes = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Quantise an ONNX model to 8 bits; show the range and the error of each layer.

    \b
    hexane quantize net.onnx --calibration inputs.npz -o net8.onnx
    hexane quantize net.onnx --calibration photos --preprocess 'mean=123.7,116.3,103.5 scale=0.017' -o net8.onnx
    hexane quantize net.onnx --calibration inputs --uint8 --method percentile -o net8.onnx
    hexane quantize net.onnx --dynamic -o net8.onnx
    hexane quantize net.onnx --calibration inputs.npz --target M1,M5 -o net8.onnx
    hexane quantize net.onnx --calibration inputs.npz --tolerance 0.01 --plot errors.png -o net8.onnx

    Each array of an .npz file is the input of its name; several samples have an extra first axis, or use a first axis
    whose extent is 1 in the model. Errors are relative errors on these inputs: that of a layer's own result if it alone
    is quantised, and, with --sensitivity or --plot or if --tolerance needs it, that of the outputs.
    Exit code 1, and no file, if an output's error exceeds both 0.1 and --tolerance; --force writes it.
    """
    source = _check_files(model, output, plot)
    kinds = [name for name, given in (("int8", int8), ("uint8", uint8), ("int16", int16)) if given]
    if len(kinds) > 1:
        raise typer.BadParameter(f"got --{' and --'.join(kinds)}, need one of them")
    given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess, partial=False)
    if not given.has_arrays and not (weights_only or dynamic):
        raise typer.BadParameter(
            "--calibration: got none, need a folder or a file, or --input or --value; only --weights-only and --dynamic"
            " need none of them"
        )
    if (weights_only or dynamic) and (plot is not None or sensitivity):
        name = "--weights-only" if weights_only else "--dynamic"
        result = "--sensitivity" if sensitivity else "--plot"
        raise typer.BadParameter(
            f"{result}: got it with {name}, which takes no ranges from calibration; leave out one of the two"
        )
    asked = Quantization(
        kinds[0] if kinds else "int8",
        method=method.value,
        percentile=percentile,
        per_channel=per_channel,
        equalize=equalize,
        float_layers=float_layers or (),
        weights_only=weights_only,
        dynamic=dynamic,
        tolerance=tolerance,
        sensitivity=sensitivity or plot is not None,
    )
    chips = [load_chip(name) for name in names_of(target or "")]
    with working(f"quantising {model.name}"):
        known = given.read(source)
        feeds = known.feeds or ([{**known.arrays, **known.values}] if given.has_arrays else None)
        quantized = quantize_model(source, feeds, asked)
    with working(f"compiling {model.name}"):
        changes = _on_chips(source, quantized, chips, known)
    refused = is_too_large(quantized.error, tolerance) and not force
    if not refused:
        with named_option("--output", output):
            quantized.save(output)
    if plot is not None:
        with named_option("--plot", plot):
            _core.save_file(
                str(plot), quantized_chart(model.name, quantized.layers, quantized.error, plot.suffix.lower()[1:])
            )
    if json:
        print_json(_record(quantized, output, refused, changes))
    else:
        shown = print_table(HEAD, [_row(layer) for layer in quantized.layers], right=HEAD[3:])
        print(_totals(quantized, model, output, refused, weights_only))
        for change in changes:
            print("\n".join(change.lines(INSTEAD)))
        print(f"\n{columns_legend({**MEANINGS, 'integers': _integers(asked)}, shown)}")
    if refused and quantized.error is not None:
        raise refusal("quantize", output, quantized.error, tolerance, _measured_on(quantized), CHANGE)


def _check_files(model: Path, output: Path, plot: Path | None) -> sources.Module:
    source = sources.open_onnx(model, where="quantize")
    if output.suffix.lower() != ".onnx":
        raise Error(f"[quantize] {output}: got {output.suffix or 'no suffix'!r}, need a name that ends in .onnx")
    if output.exists() and output.samefile(model):
        raise Error(f"[quantize] {output}: got the model itself as the output, need another file")
    if plot is not None:
        if plot.suffix.lower() not in PLOTS:
            raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
        check_plotting("quantize")
    return source


def _row(layer: QuantizedLayer) -> tuple[str, ...]:
    ends = "" if layer.low is None else f"{layer.low:.3g} to {layer.high:.3g}"
    errors = ["" if error is None else f"{error:.2g}" for error in (layer.error, layer.output_error)]
    return layer.name, layer.op, layer.dtype, str(layer.scales or ""), ends, *errors


def _integers(asked: Quantization) -> str:
    """Returns what the dtype of a layer is the dtype of."""
    if asked.weights_only:
        of = "the layer's stored weights; products are in floats"
    elif asked.dynamic:
        of = "the layer's stored weights; its activations become uint8 at run time"
    elif asked.weight_dtype == asked.dtype:
        of = "the layer's activations and weights"
    else:
        of = f"the layer's activations; its weights are {asked.weight_dtype}"
    return f"dtype of {of}; float: it is not quantised"


def _measured_on(quantized: Quantized) -> str:
    return counted(quantized.inputs, "calibration input")


def _totals(quantized: Quantized, model: Path, output: Path, refused: bool, weights_only: bool) -> str:
    after = "not written" if refused else size_text(output.stat().st_size)
    sizes = f"{size_text(model.stat().st_size)} -> {after}"
    count = sum(layer.dtype != "float" for layer in quantized.layers)
    unknown = "; error not measured: give --calibration or --input"
    error = (
        unknown if quantized.error is None else f"; relative error {quantized.error:.2g} on {_measured_on(quantized)}"
    )
    stored = "with weights in integers" if weights_only else "in integers"
    return f"{output}: {sizes}; {counted(count, 'layer')} of {len(quantized.layers)} {stored}{error}"


def _on_chips(model: sources.Module, quantized: Quantized, chips: Sequence[Chip], known: Known) -> list[BeforeAfter]:
    if not chips:
        return []
    before, after = (one.graph(known.shapes, known.values) for one in (model, sources.open(quantized.model)))
    return [BeforeAfter.of(before, after, chip) for chip in chips]


def _record(quantized: Quantized, output: Path, refused: bool, changes: Sequence[BeforeAfter]) -> dict[str, Any]:
    fields = ("error", "output_error")
    return {
        "output": str(output),
        "file_bytes": None if refused else output.stat().st_size,
        "error": _finite(quantized.error),
        "inputs": quantized.inputs,
        "targets": [change.record() for change in changes],
        "layers": [{**asdict(layer), **{f: _finite(getattr(layer, f)) for f in fields}} for layer in quantized.layers],
    }


def _finite(error: float | None) -> float | None:
    return error if error is not None and isfinite(error) else None
