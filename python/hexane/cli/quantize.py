"""`hexane quantize`: an ONNX model in integers, and what each layer became."""

from dataclasses import asdict
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane.cli.errors import command
from hexane.cli.model import is_plan
from hexane.cli.options import Debug, Json
from hexane.cli.output import named_option, print_json, print_table, working
from hexane.decisions import counted
from hexane.errors import Error
from hexane.importers.files import is_written_model
from hexane.printer import size_text
from hexane.quant import PERCENTILE, Quantization, QuantizedLayer
from hexane.runtime import Quantized, quantize_model

HEAD = ("layer", "op", "integers", "scales", "input range", "error")


class Method(str, Enum):
    """--method: how the range of an activation is chosen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


@command
def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    calibration: Annotated[
        Path,
        typer.Option(
            metavar="DIR|FILE.npz", help="Inputs like those the model will see: an .npz, or a folder of them."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="Q.onnx", help="The quantised model.")],
    uint8: Annotated[bool, typer.Option("--uint8/--int8", help="Integers from 0 to 255, or from -128 to 127.")] = False,
    method: Annotated[Method, typer.Option(help="How the range of an activation is chosen.")] = Method.MSE,
    percentile: Annotated[
        float, typer.Option(metavar="PERCENT", help="For percentile: the part of the numbers at or below the high end.")
    ] = PERCENTILE,
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for each output channel of a weight, or one.")
    ] = True,
    equalize: Annotated[
        bool, typer.Option("--equalize/--no-equalize", help="Share the sizes of channels between neighbouring layers.")
    ] = True,
    float_layers: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layers that stay in floats, as in *head*. Repeatable."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Quantise an ONNX model to 8 bits; say for each layer its range and the error it makes.

    \b
    hexane quantize net.onnx --calibration inputs.npz -o net8.onnx
    hexane quantize net.onnx --calibration inputs --uint8 --method percentile -o net8.onnx

    In the file each array is an input by its name; several inputs lie along an axis more in front, or along a first
    axis that the model has as 1. Errors are relative errors on these inputs: in the table of each layer's result where
    it alone is quantised.
    """
    if is_plan(model) or is_written_model(model):
        raise Error(f"[quantize] {model}: got no ONNX file, need one")
    if output.suffix.lower() != ".onnx":
        raise Error(f"[quantize] {output}: got {output.suffix or 'no suffix'!r}, need a name that ends in .onnx")
    if output.exists() and output.samefile(model):
        raise Error(f"[quantize] {output}: got the model itself as the output, need another file")
    asked = Quantization(
        "uint8" if uint8 else "int8",
        method=method.value,
        percentile=percentile,
        per_channel=per_channel,
        equalize=equalize,
        float_layers=float_layers or (),
    )
    with working(f"quantising {model.name}"):
        made = quantize_model(model, calibration, asked)
    with named_option("--output", output):
        made.save(output)
    if json:
        print_json(_record(made, output))
        return
    print_table(HEAD, [_row(layer) for layer in made.layers], right=HEAD[3:])
    sizes = f"{size_text(model.stat().st_size)} -> {size_text(output.stat().st_size)}"
    count = sum(layer.dtype != "float" for layer in made.layers)
    print(
        f"{output}: {sizes}; {counted(count, 'layer')} of {len(made.layers)} in integers; relative error"
        f" {made.error:.2g} on {counted(made.inputs, 'calibration input')}"
    )


def _row(layer: QuantizedLayer) -> tuple[str, ...]:
    ends = "" if layer.low is None else f"{layer.low:.3g} to {layer.high:.3g}"
    error = "" if layer.error is None else f"{layer.error:.2g}"
    return layer.name, layer.op, layer.dtype, str(layer.scales or ""), ends, error


def _record(made: Quantized, output: Path) -> dict[str, Any]:
    layers = [{**asdict(layer), "error": _finite(layer.error)} for layer in made.layers]
    return {
        "output": str(output),
        "file_bytes": output.stat().st_size,
        "error": _finite(made.error),
        "inputs": made.inputs,
        "layers": layers,
    }


def _finite(error: float | None) -> float | None:
    return error if error is not None and isfinite(error) else None
