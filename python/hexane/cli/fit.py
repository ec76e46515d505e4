"""`hexane fit`: whether a model fits into memory, in whole tensors or row by row."""

from pathlib import Path
from typing import Annotated

import typer

import hexane
from hexane.cli.errors import command
from hexane.cli.model import is_plan, shapes_of
from hexane.cli.options import Debug, Dtype, InputShapes, Json
from hexane.cli.output import print_json, working
from hexane.errors import Error


@command
def fit(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX or MIL file.")],
    sram: Annotated[
        str | None, typer.Option(metavar="BYTES", help="What there is for arena and scratch, as in 128K.")
    ] = None,
    dtype: Dtype = None,
    input_shape: InputShapes = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what memory a model takes on one thread, in whole tensors and row by row, and which layers need most."""
    if is_plan(model):
        raise Error(f"[fit] {model}: got a plan, need an ONNX model")
    memory = None if sram is None else hexane.Memory(sram)
    with working(f"compiling {model.name}"):
        found = hexane.fit(
            model, memory=memory, dtype=dtype.value if dtype else "", input_shapes=shapes_of(input_shape)
        )
    if json:
        print_json(found.to_json())
    else:
        print(found, end="")
    if found.fits is False:
        raise typer.Exit(3)
