"""`hexane run`: a model on given or random inputs; its outputs, latency and profile."""

from pathlib import Path
from typing import Annotated, Any

import typer

import hexane
from hexane.cli.errors import command
from hexane.cli.inputs import SEED, Scaling, random_inputs, read_inputs
from hexane.cli.model import open_model, with_function
from hexane.cli.options import (
    Arithmetic,
    Debug,
    Dtype,
    Function,
    InputShapes,
    Json,
    NamedFile,
    Target,
    by_name,
    named_file,
    numbers,
)
from hexane.cli.output import named_option, print_json, working
from hexane.cli.results import print_outputs, summary, write_outputs
from hexane.cli.run_c99 import Runtime, run_in_c99
from hexane.cli.timing import latency, print_profile, profile
from hexane.graph import Array
from hexane.runtime import PortType


@command
def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX or MIL file, a netplist, or a plan.")],
    inputs: Annotated[
        list[NamedFile] | None,
        typer.Option(
            "--input", parser=named_file, metavar="NAME=FILE", help="An .npy or .png file for an input. Repeatable."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each output to DIR/NAME.npy.")] = None,
    target: Target = None,
    numerics: Arithmetic = None,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="How many. [default: all cores]")] = None,
    with_profile: Annotated[bool, typer.Option("--profile", help="Show the time of every step.")] = False,
    dtype: Dtype = None,
    input_shape: InputShapes = None,
    function: Function = None,
    mean: Annotated[
        Any, typer.Option(parser=numbers, metavar="M[,M,M]", help="Subtracted from a png's values in 0..1.")
    ] = None,
    std: Annotated[
        Any, typer.Option(parser=numbers, metavar="S[,S,S]", help="The values minus the mean are divided by this.")
    ] = None,
    runtime: Annotated[
        Runtime, typer.Option(help="c99: the runtime for small devices, built with this machine's C compiler.")
    ] = Runtime.HOST,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model, without --input on seeded random inputs."""
    if runtime is Runtime.C99 and with_profile:
        raise typer.BadParameter("--profile: got it with --runtime c99, need the host's kernels")
    files = by_name(inputs or (), "--input")
    scaling = _scaling(files, mean, std)
    opened = open_model(
        with_function(model, function),
        target=target,
        threads=threads,
        dtype=dtype,
        input_shapes=input_shape,
        numerics=numerics,
    )
    net, arrays = _specialised(opened, files, scaling)
    with working(f"running {model.name}"):
        results = net(arrays)
        outputs: dict[str, Array] = results if isinstance(results, dict) else {net.outputs[0].name: results}
        difference = None
        if runtime is Runtime.C99:
            outputs, difference, timed = run_in_c99(net, arrays, outputs)
        else:
            timed = latency(net, arrays)
        with named_option("--output", output or Path()):
            written = write_outputs(output, outputs) if output else {}
        steps = profile(net, arrays) if with_profile else None
    record: dict[str, Any] = {
        "model": str(model),
        "inputs": [_input(port, arrays[port.name], files) for port in net.inputs],
        "outputs": [summary(p, outputs[p.name]) for p in net.outputs],
        "latency": timed,
        "device": net.device if difference is None else "C99 runtime",
        "threads": net.threads if difference is None else 1,
    }
    if difference is not None:
        record["difference"] = difference
    for entry in record["outputs"]:
        if entry["name"] in written:
            entry["file"] = str(written[entry["name"]])
    if json:
        print_json(record if steps is None else record | {"profile": steps})
        return
    if not files and net.inputs:
        print(f"inputs: random, seed {SEED}")
    print_outputs(record["outputs"])
    print(f"latency  median {timed['median_us']:.1f} us, p90 {timed['p90_us']:.1f} us over {timed['runs']} runs")
    print(f"ran on   {record['device']}, threads: {record['threads']}")
    if difference is not None:
        same = all(value == 0 for value in difference.values())
        print(
            "beside the host's kernels: "
            + ("the same bits" if same else f"differs by up to {max(difference.values()):g}")
        )
    if steps is not None:
        print_profile(steps)


def _scaling(files: dict[str, NamedFile], mean: Any, std: Any) -> Scaling:
    if (mean or std) and not any(file.path.suffix.lower() == ".png" for file in files.values()):
        raise typer.BadParameter("--mean and --std: got no png file, need one that they apply to")
    if std and 0 in std:
        raise typer.BadParameter("--std: got 0, need numbers to divide by")
    return Scaling(mean or (0.0,), std or (1.0,))


def _specialised(
    net: hexane.Model | hexane.OpenModel, files: dict[str, NamedFile], scaling: Scaling
) -> tuple[hexane.Model, dict[str, Array]]:
    """The model for the shapes and values of the inputs, and the inputs that it still has."""
    arrays = read_inputs(net.inputs, files, scaling) if files else random_inputs(net)
    if isinstance(net, hexane.OpenModel):
        with working("compiling for these inputs"):
            net = net.specialised(arrays)
    return net, {port.name: arrays[port.name] for port in net.inputs}


def _input(port: PortType, array: Array, files: dict[str, NamedFile]) -> dict[str, Any]:
    origin = str(files[port.name].path) if port.name in files else f"random, seed {SEED}"
    return {"name": port.name, "dtype": str(port.dtype), "shape": list(array.shape), "from": origin}
